"""Snakemake's own command, which Ctrl-C ends with a line, also while it imports what it needs."""

from __future__ import annotations

import sys
from typing import Any


def say_interrupted(kind: Any, error: Any, trace: Any) -> None:
    """What Python says of an exception that ends the process: a line, where a person has ended it."""
    if issubclass(kind, KeyboardInterrupt):
        print("Interrupted. Run the same command to go on.", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


def main() -> None:
    """Run Snakemake on this process's arguments."""
    sys.excepthook = say_interrupted
    from snakemake.cli import main as snakemake

    sys.argv[0] = "snakemake"
    snakemake()


if __name__ == "__main__":
    main()
