"""`snakemake --lint`, with the exceptions that this house has decided on.

Everything the linter finds is an error, except:

- "No environment or container": environments are the pins in `envs/`, made by `make env`;
  Snakemake's own deployment handles no pip pins.
- "Mixed rules and functions", "Absolute path": never excepted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

EXCEPTIONS = ("Specify a conda environment or container for each rule.",)


def findings(report: Any) -> list[str]:
    """What the linter said that is no exception, one line each."""
    lines = []
    for part in ("rules", "snakefiles"):
        for entry in report.get(part, []):
            where = entry.get("rule") or entry.get("snakefile")
            for lint in entry.get("lints", []):
                if lint["title"] not in EXCEPTIONS:
                    lines.append(f"{where}: {lint['title']} ({lint['body'][:120]})")
    return lines


def main() -> int:
    """Run the linter; 1 when something is left after the exceptions."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint", "json"], capture_output=True, text=True
    )
    start = done.stdout.find("{")
    if start < 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return done.returncode
    left = findings(json.loads(done.stdout[start:]))
    print("\n".join(left) if left else "snakemake --lint: clean, but for the documented exceptions")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
