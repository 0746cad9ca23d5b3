"""One timed cell at a time on a host, whoever started it.

Snakemake's resource keeps cells of one pipeline apart; this lock keeps apart two pipelines, or
one and a cell started by hand. It is an advisory `flock`: it belongs to the open file, is
inherited by the child, and so lasts until both the supervisor and the child are gone.

Snakemake's own lock on a folder is a file, which outlives a Snakemake that was killed;
`clear_stale` removes it when nobody is left to whom it could belong. It looks for others' locks
first and writes its own then, so that two that start at the same moment both go on:
`start_alone` has them start one after the other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "siliconprof.lock"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
POLL_S = 0.1
SNAKEMAKE_FOLDER = Path(".snakemake")
PRESENCE_NAME = "siliconprof.lock"  # in that folder; every pipeline there holds it, shared

START_NAME = "siliconprof.start"  # in that folder; held by the one that is starting

_presence: list[int] = []  # descriptors, open as long as this process lives
_start: list[int] = []  # of the one that starts, until it has Snakemake's own lock


def lock_file() -> Path:
    """The host's lock file: one for all users, in the temporary folder that all share."""
    given = os.environ.get(LOCK_FILE_VARIABLE)
    shared = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return Path(given) if given else shared / NAME


@contextmanager
def alone(check: Callable[[], None], path: Path | None = None) -> Iterator[tuple[int, float]]:
    """Hold the host, or another file; yields (descriptor to pass to the child, seconds waited).

    Args:
        check: called while waiting, ten times a second; what it raises ends the wait, so that
            nobody queues for a pipeline that has died meanwhile.
        path: of that file.
    """
    path = path or lock_file()
    before = os.umask(0)
    try:
        # O_NOFOLLOW: the folder is writable by others
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        # protected_regular forbids O_CREAT on another user's file in a sticky folder
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    finally:
        os.umask(before)
    started = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(POLL_S)
        yield descriptor, time.monotonic() - started
    finally:
        os.close(descriptor)


@contextmanager
def one_job(cell_path: str, folder: Path, check: Callable[[], None]) -> Iterator[float]:
    """Hold a cell that is submitted to nodes; yields the seconds waited.

    A Snakemake that is killed leaves its jobs to the scheduler, and the next one submits the same
    cells again, perhaps to other nodes (see `cluster_run`). This holds as far as the shared file
    system carries `flock` from host to host.

    Args:
        folder: shared by the nodes.
        check: see `alone`.
    """
    locks = folder / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(cell_path.encode()).hexdigest()[:32]
    with alone(check, locks / f"{name}.lock") as (_, waited_s):
        yield waited_s


def start_alone(folder: Path = SNAKEMAKE_FOLDER) -> None:
    """Wait until no other pipeline is between here and `started`, or its end."""
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / START_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another pipeline is starting in this folder: waiting for it", file=sys.stderr)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    _start.append(descriptor)


def started() -> None:
    """Let others start: from now on they see Snakemake's lock."""
    while _start:
        os.close(_start.pop())


def clear_stale(folder: Path = SNAKEMAKE_FOLDER) -> bool:
    """Remove the locks that a killed Snakemake left in this checkout; whether there were any.

    Every pipeline holds a shared `flock` here from this call to its end, so whoever gets it for
    itself alone knows that no other is alive. Where a file system does not carry `flock` from host
    to host that holds for this host only; so locks that another host left are kept, and Snakemake
    says what to do.
    """
    folder.mkdir(exist_ok=True)
    locks = folder / "locks"
    descriptor = os.open(folder / PRESENCE_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    _presence.append(descriptor)
    cleared = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # another pipeline runs here: Snakemake sees whether they are in each other's way
    else:
        here = socket.gethostname().encode()
        left = locks.is_dir() and any(locks.iterdir())
        if left and os.pread(descriptor, 1024, 0) == here:
            shutil.rmtree(locks)
            cleared = True
        if cleared or not left:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, here, 0)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return cleared
