"""`snakemake --lint`, with the exceptions of this project.

Every lint is an error, except that each rule should have a conda environment or container:
environments here are the pins in `envs/`, made by `make env`, and Snakemake's own deployment
handles no pip pins. The linter's text is parsed because `--lint json` of 9.27 prints text.
"""

from __future__ import annotations

import re
import subprocess
import sys

EXCEPTIONS = ("Specify a conda environment or container for each rule.",)
CLEAN = "Congratulations, your workflow is in a good condition!"


def findings(text: str) -> list[str]:
    """The lints that are no exception, one line each."""
    where, problems = "", []
    for line in text.splitlines():
        if line.startswith("Lints for "):
            where = line.removeprefix("Lints for ").rstrip(":")
        title = re.match(r"    \* (.*):$", line)
        if title and title[1] not in EXCEPTIONS:
            problems.append(f"{where}: {title[1]}")
    return problems


def main() -> int:
    """Run the linter; 1 when a lint is left after the exceptions or the linter printed none."""
    process = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], capture_output=True, text=True, check=False
    )
    text = process.stdout + process.stderr
    if "Lints for " not in text and CLEAN not in text:
        print(text, file=sys.stderr)
        return process.returncode or 1
    problems = findings(text)
    print(
        "\n".join(problems)
        if problems
        else "snakemake --lint: clean, but for the documented exception"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
