"""Times are looked at on a machine that does nothing else, also where workers share it.

`make test` runs tests in workers (pytest-xdist), and those marked `alone` in one process afterwards.
Who looks at times beside workers (the default run) waits until all of them are between two tests, and
they then wait for it: one lock, shared by all who look at behaviour and taken whole by whoever looks
at times. Without workers nothing is locked.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class Machine:
    """Who may use the cores: many at once or one alone."""

    def __init__(self) -> None:
        run = os.getppid() if WORKER else os.getpid()  # the controller starts its workers
        self.files = [
            Path(tempfile.gettempdir()) / f"siliconprof-tests-{run}-{name}.lock"
            for name in ("turn", "room")
        ]
        self.descriptors: list[int] = []
        self.mode = fcntl.LOCK_UN

    def _enter(self, mode: int) -> None:
        """Take the room in another way than now; `turn` keeps later ones from overtaking."""
        if not self.descriptors:
            self.descriptors = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in self.files]
        turn, room = self.descriptors
        fcntl.flock(room, fcntl.LOCK_UN)  # first: nobody may wait for a turn inside the room
        if mode != fcntl.LOCK_UN:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(room, mode)
            fcntl.flock(turn, fcntl.LOCK_UN)
        self.mode = mode

    @contextmanager
    def used(self, alone: bool) -> Iterator[None]:
        """Inside, nobody else looks at times; with `alone`, nobody else does anything."""
        mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        before = self.mode
        if WORKER is None or before == fcntl.LOCK_EX or before == mode:
            yield
            return
        self._enter(mode)
        try:
            with every_core() if alone else one_core():
                yield
        finally:
            self._enter(before)

    def forget(self) -> None:
        """Remove the files; the controller's last act."""
        for path in self.files:
            path.unlink(missing_ok=True)


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Run this process, and what it starts, on these cores."""
    if WORKER is None or not CORES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def every_core() -> AbstractContextManager[None]:
    """As without workers."""
    return on(set(CORES))


def one_core() -> AbstractContextManager[None]:
    """A core for each worker.

    A cell takes as many threads as it finds cores, and two cells of two threads on two cores wait
    for one another at every barrier: tiny steps then take many times as long.
    """
    return on({CORES[int((WORKER or "gw0")[2:]) % len(CORES)]} if CORES else set())


MACHINE = Machine()
