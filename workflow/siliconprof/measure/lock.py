"""One timed cell at a time on a host, whoever started it.

Snakemake's resource keeps cells of one pipeline apart; this lock keeps apart two pipelines, or
one and a cell started by hand. It is an advisory `flock`, which ends with its holder, whom the file
names for those that wait. All users may write it.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siliconprof.errors import UserError, printable, writing

SHARED = "/tmp/siliconprof.lock"  # by all users
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
POLL_S = 0.1
TELL_EVERY_S = 60.0  # while waiting
LONGEST_NOTE = 400  # bytes of the file that are read


@contextmanager
def exclusive_host(check: Callable[[], None], doing: str) -> Iterator[float]:
    """Wait for the host's lock and hold it; yields the seconds waited.

    Log and terminal name the holder.

    Args:
        check: called while waiting, ten times a second; what it raises ends the wait, so that
            nobody queues for a pipeline that has died meanwhile.
        doing: what this process does with the lock, for others that wait.

    Raises:
        UserError: the file system has no locks; one line.
        CannotWrite: the file cannot be opened; one line.
    """
    path = Path(os.environ.get(LOCK_FILE_VARIABLE) or SHARED)
    with writing(path):
        # protected_regular forbids O_CREAT on another user's file in a sticky folder;
        # O_NOFOLLOW: the folder is writable by others
        create = 0 if path.exists() else os.O_CREAT
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | create)
        if create:
            os.fchmod(descriptor, 0o666)
    started, told_s = time.monotonic(), -math.inf
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            except OSError as error:  # Lustre mounted without `flock`, NFS without its lock service
                raise UserError(
                    f"{path}: cannot be locked ({error.strerror}), and without its lock two cells "
                    f"could be measured at once; name a file on a local disk in {LOCK_FILE_VARIABLE}"
                ) from None
            if time.monotonic() - told_s >= TELL_EVERY_S:
                told_s = time.monotonic()
                holder = printable(os.pread(descriptor, LONGEST_NOTE, 0).decode(errors="replace"))
                for stream in (sys.stderr, sys.stdout):
                    print(f"waiting for {holder or 'another process'}", file=stream, flush=True)
            check()
            time.sleep(POLL_S)
        user = os.environ.get("USER", os.getuid())
        note = f"PID {os.getpid()}, {doing} of {user}, since {time.strftime('%H:%M:%S')}"
        with suppress(OSError):  # on a full disk others are not told the holder
            # Written at each start, since old files in /tmp are removed, locked or not.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)
        yield time.monotonic() - started
    finally:
        os.close(descriptor)
