"""`snakemake --lint`, with the exceptions that this house has decided on.

Everything the linter finds is an error, except that it wants a conda environment or container
for every rule: environments here are the pins in `envs/`, made by `make env`, and Snakemake's
own deployment handles no pip pins. Its text is read because `--lint json` of 9.27 prints text.
"""

from __future__ import annotations

import re
import subprocess
import sys

EXCEPTIONS = ("Specify a conda environment or container for each rule.",)
CLEAN = "Congratulations, your workflow is in a good condition!"


def findings(text: str) -> list[str]:
    """What the linter said that is no exception, one line each."""
    where, found = "", []
    for line in text.splitlines():
        if line.startswith("Lints for "):
            where = line.removeprefix("Lints for ").rstrip(":")
        title = re.match(r"    \* (.*):$", line)
        if title and title[1] not in EXCEPTIONS:
            found.append(f"{where}: {title[1]}")
    return found


def main() -> int:
    """Run the linter; 1 when something is left after the exceptions or it said nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], capture_output=True, text=True, check=False
    )
    text = done.stdout + done.stderr
    if "Lints for " not in text and CLEAN not in text:
        print(text, file=sys.stderr)
        return done.returncode or 1
    left = findings(text)
    print("\n".join(left) if left else "snakemake --lint: clean, but for the documented exception")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
