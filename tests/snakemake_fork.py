"""Snakemake in forks of a process that has imported it: importing takes longer than a dry run.

Run as a program this is that process. It reads a request a line and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO


@cache
def _server() -> subprocess.Popen[str]:
    """The process that has imported Snakemake, started once in this worker."""
    command = [sys.executable, "-B", __file__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `snakemake …` does and says in a folder with these environment variables."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        streams = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, errors)]
        print(
            json.dumps([list(arguments), str(folder), dict(environment), streams]),
            file=server.stdin,
            flush=True,
        )
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            ["snakemake", *arguments], status, _whole(out), _whole(errors)
        )


def _whole(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def _become(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], streams: Sequence[str]
) -> None:
    """Make this process the one that a shell in the folder would have started."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder  # as `python -m` does
    sys.argv = ["snakemake", *arguments]
    for descriptor, name in ((0, os.devnull), *enumerate(streams, start=1)):
        opened = os.open(name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)


def _serve() -> None:
    """Fork for each request, and answer with the exit status."""
    from snakemake import cli

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(*json.loads(line))
            cli.main()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
