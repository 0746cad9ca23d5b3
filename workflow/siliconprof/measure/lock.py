"""One timed cell at a time on a host, whoever started it.

Snakemake's resource keeps cells of one pipeline apart; this lock keeps apart two pipelines, or
one and a cell started by hand. It is an advisory `flock`: it belongs to the open file, is
inherited by the child, and so lasts until both the supervisor and the child are gone.

Snakemake's own lock on a folder is a file, which outlives a Snakemake that was killed;
`clear_stale` removes it when no living process can own it. Snakemake looks for others' locks and
only then writes its own, so that two that start at the same moment would both go on:
`start_alone` has them start one after the other.

The host's lock must work. A lock in a folder that hosts share is skipped where the file system has
none (Lustre mounted without `flock`, NFS without its lock service).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siliconprof.errors import UserError, writing

NAME = "siliconprof.lock"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
POLL_S = 0.1
SNAKEMAKE_FOLDER = Path(".snakemake")
PRESENCE_NAME = "siliconprof.lock"  # in that folder; every pipeline there holds it, shared

START_NAME = "siliconprof.start"  # in that folder; held by the one that is starting
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}

_presence: list[int] = []  # descriptors, open as long as this process lives
_start: list[int] = []  # of the one that starts, until it has Snakemake's own lock


def lock_file() -> Path:
    """The host's lock file: one for all users, in the temporary folder that all share."""
    configured = os.environ.get(LOCK_FILE_VARIABLE)
    shared = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return Path(configured) if configured else shared / NAME


def _flock(descriptor: int, how: int) -> bool:
    """Take a lock; False where the file system has no locks.

    Args:
        how: LOCK_EX or LOCK_SH of `fcntl`, perhaps with LOCK_NB.

    Raises:
        BlockingIOError: with LOCK_NB, when another process holds it.
    """
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


@contextmanager
def alone(
    check: Callable[[], None], path: Path | None = None, must: bool = True
) -> Iterator[tuple[int, float]]:
    """Hold a lock file; yields (descriptor to pass to the child, seconds waited).

    Args:
        check: called while waiting, ten times a second; what it raises ends the wait, so that
            nobody queues for a pipeline that has died meanwhile.
        path: of the lock file; None for the host's, see `lock_file`.
        must: refuse to go on where the file system has no locks.

    Raises:
        UserError: the file system has no locks; one line.
        CannotWrite: the file cannot be opened; one line.
    """
    path = path or lock_file()
    descriptor = _opened_for_all(path)
    started = time.monotonic()
    try:
        while True:
            try:
                locked = _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                check()
                time.sleep(POLL_S)
        if must and not locked:
            raise UserError(
                f"{path}: its file system has no locks, and without one two cells could be "
                f"measured at once; name a file on a local disk in {LOCK_FILE_VARIABLE}"
            )
        with suppress(OSError):
            os.utime(descriptor)  # old files in /tmp are cleared away, locked or not
        yield descriptor, time.monotonic() - started
    finally:
        os.close(descriptor)


def _opened_for_all(path: Path) -> int:
    """A descriptor of a file that every user may open.

    Raises:
        CannotWrite: one line.
    """
    before = os.umask(0)
    try:
        with writing(path):
            try:
                # O_NOFOLLOW: the folder is writable by others
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except PermissionError:
                # protected_regular forbids O_CREAT on another user's file in a sticky folder
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    finally:
        os.umask(before)


@contextmanager
def one_job(cell_path: str, folder: Path, check: Callable[[], None]) -> Iterator[float]:
    """Hold the lock of a cell that is submitted to nodes; yields the seconds waited.

    A Snakemake that is killed leaves its jobs to the scheduler, and the next one submits the same
    cells again, perhaps to other nodes (see `cluster_run`). This holds as far as the shared file
    system carries `flock` from host to host.

    Args:
        folder: shared by the nodes.
        check: see `alone`.

    Raises:
        CannotWrite: the lock file cannot be opened; one line.
    """
    locks = folder / ".locks"
    with writing(locks):
        locks.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(cell_path.encode()).hexdigest()[:32]
    with alone(check, locks / f"{name}.lock", must=False) as (_, waited_s):
        yield waited_s


def start_alone(folder: Path = SNAKEMAKE_FOLDER) -> None:
    """Wait until no other pipeline is between here and `started`, or its end.

    Raises:
        CannotWrite: one line.
    """
    descriptor = _opened(folder / START_NAME)
    _start.append(descriptor)
    try:
        _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another pipeline is starting in this folder; waiting for it", file=sys.stderr)
        _flock(descriptor, fcntl.LOCK_EX)


def _opened(path: Path) -> int:
    """A descriptor of a lock file of this checkout.

    Raises:
        CannotWrite: one line.
    """
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def started() -> None:
    """Let others start: from now on they see Snakemake's lock."""
    while _start:
        os.close(_start.pop())


def clear_stale(folder: Path = SNAKEMAKE_FOLDER) -> bool:
    """Remove the locks that a killed Snakemake left in this checkout; whether there were any.

    Every pipeline holds a shared `flock` here from this call to its end, so a process that gets it
    exclusively knows that no other is alive. Where a file system does not carry `flock` from host
    to host, that is true of this host only; so another host's locks stay, and Snakemake's own
    message says what to do.

    Raises:
        CannotWrite: one line.
    """
    locks = folder / "locks"
    descriptor = _opened(folder / PRESENCE_NAME)
    _presence.append(descriptor)
    cleared = False
    try:
        exclusive = _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        exclusive = False  # another runs here: Snakemake checks whether the two conflict
    if exclusive:
        hostname = socket.gethostname().encode()
        has_locks = locks.is_dir() and any(locks.iterdir())
        if has_locks and os.pread(descriptor, 1024, 0) == hostname:
            shutil.rmtree(locks)
            cleared = True
        if cleared or not has_locks:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, hostname, 0)
    _flock(descriptor, fcntl.LOCK_SH)
    return cleared


def nobody_else() -> bool:
    """Whether no other pipeline runs in this checkout; call `clear_stale` first."""
    descriptor = _presence[-1]
    try:
        _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        _flock(descriptor, fcntl.LOCK_SH)  # trying for the exclusive lock released the shared one
    return True
