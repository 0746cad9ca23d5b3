"""Where the wall time of the measuring thread goes: on a core, waiting for one, or blocked.

What is left of a wall time when a thread neither computes nor waits for a core, it is blocked: it
sleeps, waits for a disk, a lock, other threads or the device.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from siliconprof.hosts import machine

SCHEDSTAT = "/proc/thread-self/schedstat"  # ns on a core, ns waiting for one, times (proc(5))
OF_ALL_THREADS = Path("/proc/self/task")


class ThreadTime(NamedTuple):
    """Seconds since the thread began; None where the system does not tell."""

    cpu_s: float
    waiting_s: float | None  # runnable, while others had the core
    all_threads_cpu_s: float


@cache
def _schedstat(thread: int) -> int | None:
    """A descriptor of the file of this thread; None where there is none."""
    return machine.reading(lambda: os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC))[0]


def read(thread: int) -> ThreadTime:
    """What the calling thread has used so far. Costs some microseconds.

    Args:
        thread: its id, `threading.get_ident`.
    """
    descriptor = _schedstat(thread)
    waiting_s = None
    if descriptor is not None:
        waiting_s, _ = machine.reading(lambda: int(os.pread(descriptor, 80, 0).split()[1]) * 1e-9)
    return ThreadTime(time.thread_time(), waiting_s, time.process_time())


def between(start: ThreadTime, end: ThreadTime) -> dict[str, float | None]:
    """What was used in between, by the names of `ThreadTime`."""
    return {
        name: None if before is None or after is None else max(after - before, 0.0)
        for name, before, after in zip(ThreadTime._fields, start, end, strict=True)
    }


def waiting_of_all_s() -> dict[int, float]:
    """Seconds that each thread of this process has waited for a core; empty where nothing tells."""
    waited_s = {}
    for folder in machine.listed(OF_ALL_THREADS, "*"):
        fields = machine.read_text(str(folder / "schedstat")).split()
        if len(fields) > 1:  # else it has ended, or this kernel does not count
            waited_s[int(folder.name)] = int(fields[1]) * 1e-9
    return waited_s
