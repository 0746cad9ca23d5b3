"""One timed cell at a time on a host, whoever started it.

Snakemake's resource keeps cells of one pipeline apart; this lock keeps apart two pipelines, or
one and a cell started by hand. It is an advisory `flock`: it belongs to the open file, is
inherited by the child, and so lasts until both the supervisor and the child are gone.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "siliconprof.lock"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
POLL_S = 0.1


def lock_file() -> Path:
    """The host's lock file: one for all users, in the temporary folder that all share."""
    given = os.environ.get(LOCK_FILE_VARIABLE)
    shared = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return Path(given) if given else shared / NAME


@contextmanager
def alone(check: Callable[[], None]) -> Iterator[tuple[int, float]]:
    """Hold the host; yields (file descriptor to pass to the child, seconds waited).

    Args:
        check: called while waiting, ten times a second; what it raises ends the wait, so that
            nobody queues for a pipeline that has died meanwhile.
    """
    path = lock_file()
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
