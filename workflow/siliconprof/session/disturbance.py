"""Whether other processes kept the threads of an operation from their cores while it was timed.

Threads that wait for each other last as long as the one that waits for a core: on two cores beside one
busy process each small product takes some ticks of the scheduler, and all of them equally many. Linux
counts how long each thread was ready to run and had no core. Elsewhere it counts that no core was idle.
Either counts only where other processes were at work: an operation's own threads may be more than there
are cores.
"""

from __future__ import annotations

import os
import time

from siliconprof.probes.interference import FLAG_ABOVE_CORES, ForeignLoad, none_idle
from siliconprof.session import thread_time

# Of the time, by any one thread. Where others had next to nothing to do, torch's threads waited up to
# 0.11 of it for each other's cores, and MLX's 0.35; beside them 0.4 to 0.9.
WAITED_ABOVE = 0.2
FEWEST_S = 0.03  # of other processes: the system counts in hundredths of a second


class DisturbanceWatch:
    """Looks at what comes from here on."""

    def __init__(self) -> None:
        self.others = ForeignLoad()
        self.waiting_s = thread_time.waiting_of_all_s()
        self.began_s = time.perf_counter()

    def disturbed(self) -> str | None:
        """How other processes disturbed it so far, or None."""
        wall_s = time.perf_counter() - self.began_s
        after_s = thread_time.waiting_of_all_s()
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
