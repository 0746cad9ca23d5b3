"""Ends everything that a cell has started together with the cell, daemons too.

On Linux the process that starts a measuring process is the reaper of its descendants (prctl(2),
PR_SET_CHILD_SUBREAPER): an orphan becomes its child, whatever session or group it has moved to.
Elsewhere only the cell's process group is found.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

from siliconprof.errors import printable
from siliconprof.hosts import machine

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GRACE_S = 0.5  # in which helpers, such as multiprocessing's, end by themselves
END_LIMIT_S = 5.0  # processes stuck in the kernel are not waited for
POLL_S = 0.02
LONGEST_COMMAND = 40  # characters of a name


def adopt() -> None:
    """Become the reaper of all descendants, where the system has such a thing."""
    if sys.platform == "linux":
        unused = (ctypes.c_ulong(0),) * 3
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *unused)


def end(group: int, grace_s: float = GRACE_S) -> list[str]:
    """Kill a cell's leftover processes, for `END_LIMIT_S` at most; return their names.

    Args:
        group: the process group of the cell's measuring process, which has ended.
        grace_s: seconds in which it may end by itself.
    """
    killed: dict[int, str] = {}
    began_s = time.monotonic()
    while left := _children() if sys.platform == "linux" else _members(group):
        waited_s = time.monotonic() - began_s
        if waited_s > grace_s + END_LIMIT_S:
            break
        if waited_s >= grace_s:
            killed |= left
            for pid in left:
                for kill in (os.killpg, os.kill):  # a whole group cannot fork faster than that
                    with suppress(ProcessLookupError, PermissionError):
                        kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return list(killed.values())


def _children() -> dict[int, str]:
    """Living children of this process of Linux that have left its session: process id -> name."""
    found = {}
    for stat in machine.listed("/proc", "[0-9]*/stat"):
        head, _, tail = machine.read_text(str(stat)).rpartition(")")  # proc_pid_stat(5)
        if not tail:
            continue  # has ended
        pid, (state, parent, _, session) = int(stat.parent.name), tail.split()[:4]
        if int(parent) != os.getpid() or int(session) == os.getsid(0):
            continue
        if state == "Z":
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        else:
            found[pid] = f"{printable(head.partition('(')[2])[:LONGEST_COMMAND]} (PID {pid})"
    return found


def _members(group: int) -> dict[int, str]:
    """A process group, if any process is in it."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM where only dead ones are
        return {}
    return {group: f"process group {group}"}
