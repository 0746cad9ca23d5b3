"""Snakemake in forks of a process that has imported it: importing takes longer than a dry run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli"])
OURS = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "workflow"))


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `snakemake …` does and says in a folder with these environment variables."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        streams = (os.devnull, out.name, errors.name)
        asked = (arguments, folder, dict(environment), streams)
        process = FORKS.Process(target=_snakemake, args=asked)
        process.start()
        process.join()
        assert process.exitcode is not None
        command = ["snakemake", *arguments]
        return subprocess.CompletedProcess(command, process.exitcode, out.read(), errors.read())


def _snakemake(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[str]
) -> None:
    """Make this process the one that a shell in the folder would have started."""
    for descriptor, name in enumerate(streams):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # As `python -m` has it, without what the tests put there
    sys.path[:] = [str(folder), *(path for path in sys.path if not path.startswith(OURS))]
    sys.argv, sys.dont_write_bytecode = ["snakemake", *arguments], True
    from snakemake import cli

    cli.main()
