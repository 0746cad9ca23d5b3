"""Where a run's jobs go: stay with this Snakemake, or are submitted through an executor plug-in.

Snakemake decides that only after it has read the Snakefile, and this Snakefile depends on it. So
the main process parses its command line with Snakemake's own parser, which merges the profiles too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIABLE = "SILICONPROF_EXECUTOR"  # for the processes that the main process starts
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
        executor = _parsed_executor(argv[1:]) if _worth_parsing(argv[1:]) else None
        os.environ[VARIABLE] = executor or ""
        return executor
    inherited = os.environ.get(VARIABLE) or ("remote" if mode.name == "REMOTE" else None)
    os.environ[VARIABLE] = inherited or ""  # for what a job starts in its turn
    return inherited


def _worth_parsing(arguments: Sequence[str]) -> bool:
    """Whether parsing is worth its quarter of a second; also for abbreviated options."""
    if os.environ.get("SNAKEMAKE_PROFILE"):
        return True
    if any(re.match(r"--e|-[a-zA-Z]*e|--pro|--w", argument) for argument in arguments):
        return True
    files = DEFAULT_PROFILE.glob("config*.yaml")
    return any("executor" in file.read_text(encoding="utf-8") for file in files)


def _parsed_executor(argv: Sequence[str]) -> str | None:
    """The executor that Snakemake reads from the command line, which it has accepted before."""
    from snakemake.cli import parse_args

    try:
        # The parser prints which profile it uses, for the second time.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _, arguments = parse_args(list(argv))
    except (SystemExit, Exception):  # not its own command line: another program runs Snakemake
        return None
    return None if arguments.executor in (None, *STAYS) else str(arguments.executor)
