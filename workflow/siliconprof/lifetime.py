"""End a process with the one that started it; let it be killed first when memory runs out."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PIPELINE_VARIABLE = "SILICONPROF_PIPELINE_PID"
FORKS_VARIABLE = "SILICONPROF_FORKS"  # 0: every measuring process is an interpreter of its own
WATCH_S = 0.5
OOM_SCORE_ADJ = 800  # of -1000 to 1000: dies before its supervisor


def exists(pid: int) -> bool:
    """Whether there is such a process, of whatever user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a file's name can hold any number
        return False
    except PermissionError:
        pass
    return True


def forks_off() -> bool:
    """Whether the user has turned forks off."""
    return os.environ.get(FORKS_VARIABLE) == "0"


def forks_here() -> bool:
    """Whether cells' processes may be forked here: on Linux, unless turned off."""
    return sys.platform == "linux" and not forks_off()


def in_a_fork(action: Callable[[], int]) -> int:
    """Call a function in a fork of this process; return its exit status, 1 where it raises."""
    if not (pid := os.fork()):
        status = 1
        try:
            status = action()
        finally:  # whatever it raised: the fork must not go on as this process
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def pipeline_alive() -> bool:
    """Whether the Snakemake process that this one works for lives; True if started by hand."""
    pid = os.environ.get(PIPELINE_VARIABLE)
    return not pid or _lives(int(pid))


def _lives(pid: int) -> bool:
    if not exists(pid):
        return False
    try:  # a killed process that nobody has waited for still has its number
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"


def end_with_pipeline() -> None:
    """End with the pipeline, since this stage's output would be in the way of the next run's.

    The shell in between cannot notice by itself, and a Mac's kernel does not signal it.
    """
    if pid := os.environ.get(PIPELINE_VARIABLE):
        _watch(lambda: _lives(int(pid)), lambda: os._exit(1))


def _watch(lives: Callable[[], bool], end: Callable[[], object]) -> None:
    """End this process, from a thread, once a check says that something no longer lives."""

    def watch() -> None:
        while lives():
            time.sleep(WATCH_S)
        end()

    threading.Thread(target=watch, name="watch", daemon=True).start()


def end_with(supervisor: int) -> None:
    """End with the supervisor: by the kernel's signal on Linux, by polling elsewhere.

    Where the cell's `capture` was started in between, the parent is that tool or its child, whose end
    means nothing, so the supervisor is watched on Linux too.
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

    def end() -> None:
        if os.getpgrp() == os.getpid():  # a measuring process; what it started ends with it
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    _watch(lambda: os.getppid() == supervisor if direct else exists(supervisor), end)


def killed_by(signum: int) -> str:
    """`killed by signal 9 (SIGKILL)`."""
    name = signal.Signals(signum).name if signum in set(signal.Signals) else ""
    return f"killed by signal {signum} ({name})"


def leave(status: int) -> None:
    """End this process after `atexit` functions and flushed output, as `multiprocessing` does.

    Python would take every module and object apart first: 1.5 s where torch is loaded.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
