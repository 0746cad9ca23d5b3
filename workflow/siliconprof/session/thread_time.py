"""Where the wall time of the measuring thread goes: on a core, waiting for one, or blocked.

In the rest of its wall time a thread is blocked: it sleeps, or waits for a disk, a lock, other threads
or the device.

Threads that wait for each other are all as slow as the one that waits for a core: on two cores beside a
busy process every small product takes the same few scheduler ticks. Linux counts how long each thread
was runnable without a core. Elsewhere the test is that no core was idle. Either counts only where other
processes were at work, since an operation's own threads may outnumber the cores.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from siliconprof.hosts import machine
from siliconprof.probes.interference import FLAG_ABOVE_CORES, ForeignLoad, none_idle

SCHEDSTAT = "/proc/thread-self/schedstat"  # ns on a core, ns waiting for one, times (proc(5))
OF_ALL_THREADS = Path("/proc/self/task")
# Of the time, by any one thread. Where others had next to nothing to do, torch's threads waited up to
# 0.11 of it for each other's cores, and MLX's 0.35; beside them 0.4 to 0.9.
WAITED_ABOVE = 0.2
FEWEST_S = 0.03  # of other processes: the system counts in hundredths of a second


class ThreadTime(NamedTuple):
    """Seconds since the thread began; None where the system does not tell."""

    cpu_s: float
    waiting_s: float | None  # runnable, while others had the core
    all_threads_cpu_s: float


@cache
def _schedstat(thread: int) -> int | None:
    """A descriptor of this thread's file; None where there is none."""
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
    """The differences by the names of `ThreadTime`; None where one of the two is unknown."""
    return {
        name: None if before is None or after is None else max(after - before, 0.0)
        for name, before, after in zip(ThreadTime._fields, start, end, strict=True)
    }


def waiting_of_all_s() -> dict[int, float]:
    """Seconds that each thread of this process has waited for a core; empty where unknown."""
    waited_s = {}
    for folder in machine.listed(OF_ALL_THREADS, "*"):
        fields = machine.read_text(str(folder / "schedstat")).split()
        if len(fields) > 1:  # else it has ended, or this kernel does not count
            waited_s[int(folder.name)] = int(fields[1]) * 1e-9
    return waited_s


class DisturbanceWatch:
    """Tells whether other processes kept threads of this one off their cores since its creation."""

    def __init__(self) -> None:
        self.others = ForeignLoad()
        self.waiting_s = waiting_of_all_s()
        self.began_s = time.perf_counter()

    def disturbed(self) -> str | None:
        """How other processes disturbed this one since then, or None."""
        wall_s = time.perf_counter() - self.began_s
        after_s = waiting_of_all_s()
        cores = self.others.cores(wall_s)
        if cores is None or cores <= max(FLAG_ABOVE_CORES, FEWEST_S / wall_s):
            return None
        others = f"other processes used {cores:.1f} cores"
        if after_s:
            waited = max(s - self.waiting_s.get(thread, 0.0) for thread, s in after_s.items())
            if waited <= WAITED_ABOVE * wall_s:
                return None
            return f"a thread waited {waited / wall_s:.0%} of the time for a core while {others}"
        busy = cores + self.others.own_cores(wall_s)
        return f"{others}, and none of {os.cpu_count()} was idle" if none_idle(busy) else None
