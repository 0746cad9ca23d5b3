"""Where a run's jobs go: stay with this Snakemake, or are submitted through an executor plug-in.

Snakemake decides that after it has read the Snakefile, which depends on it here. So the main
process asks Snakemake's own parser for its command line, which merges the profiles too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIABLE = "SILICONPROF_EXECUTOR"  # tells those that the main process starts
STAYS = ("local", "dryrun", "touch")
DEFAULT_PROFILE = Path("profiles/default")


def of(mode: Any, argv: Sequence[str]) -> str | None:
    """The executor that this run's jobs are submitted through; None when they stay here.

    Args:
        mode: Snakemake's `ExecMode`. A job that was submitted is REMOTE, whatever environment the
            scheduler gave it.
        argv: the main process's command line, with its program.
    """
    if mode.name == "DEFAULT":
        found = _asked(argv[1:]) if _may_ask(argv[1:]) else None
        os.environ[VARIABLE] = found or ""
        return found
    known = os.environ.get(VARIABLE) or ("remote" if mode.name == "REMOTE" else None)
    os.environ[VARIABLE] = known or ""  # for what a job starts in its turn
    return known


def _may_ask(words: Sequence[str]) -> bool:
    """Whether parsing is worth its quarter of a second; also for abbreviated options."""
    if os.environ.get("SNAKEMAKE_PROFILE"):
        return True
    if any(re.match(r"--e|-[a-zA-Z]*e|--pro|--w", word) for word in words):
        return True
    files = DEFAULT_PROFILE.glob("config*.yaml")
    return any("executor" in file.read_text(encoding="utf-8") for file in files)


def _asked(words: Sequence[str]) -> str | None:
    """What Snakemake makes of the command line; it has accepted it before."""
    from snakemake.cli import parse_args

    try:
        # It says which profile it uses, which it has said already.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _, arguments = parse_args(list(words))
    except (SystemExit, Exception):  # not its own command line: another program runs Snakemake
        return None
    return None if arguments.executor in (None, *STAYS) else str(arguments.executor)
