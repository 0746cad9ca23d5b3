"""A process that ends with the one that started it, and that goes first when memory runs out."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
OOM_SCORE_ADJ = 800  # of -1000 to 1000: dies before its supervisor


def exists(pid: int) -> bool:
    """Whether there is such a process of ours."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_with(supervisor: int) -> None:
    """Die when the supervisor dies, by the kernel on Linux and by watching elsewhere.

    Where a capture's tool was started in between, the parent is the tool or what it forked, whose
    end means nothing: there only watching helps.
    """
    direct = os.getppid() == supervisor
    if sys.platform == "linux":
        if direct:
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            score = Path("/proc/self/oom_score_adj")
            inherited = int(score.read_text(encoding="ascii"))
            score.write_text(str(max(OOM_SCORE_ADJ, inherited)), encoding="ascii")
        except OSError:
            pass  # a hardened container; the evidence for oom does not rest on it

    def watch() -> None:
        while os.getppid() == supervisor if direct else exists(supervisor):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
