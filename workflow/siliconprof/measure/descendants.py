"""Everything that a cell starts ends with it, also what it has turned into a daemon.

On Linux a supervisor is the reaper of its descendants (prctl(2), PR_SET_CHILD_SUBREAPER): what
loses its parent becomes its child, whatever session or group it has moved to, and so is found. A
second process, the guard, is the reaper above it and has nothing else to do, so that a `kill -9`
of either leaves the other to end the rest. Elsewhere there are process groups only: what has left
the cell's group is not found.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from siliconprof.errors import printable
from siliconprof.measure import processes
from siliconprof.measure.processes import Process

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
GRACE_S = 0.5  # helpers, such as multiprocessing's, end by themselves once the cell has ended
LIMIT_S = 5.0  # what is stuck in the kernel ends when that lets it go
POLL_S = 0.02
SHOWN, LONGEST = 5, 40  # processes that are named, characters of a name
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def adopt() -> bool:
    """Become the reaper of all descendants; False where the system has no such thing."""
    return sys.platform == "linux" and _prctl(PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: int) -> int:
    unused = (ctypes.c_ulong(0),) * 3
    return int(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *unused))


def reap(but: int = 0) -> bool:
    """Collect the status of descendants that have ended; whether any are left, of a reaper.

    Args:
        but: a child that somebody else waits for.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if ended is None or ended.si_pid == but:
            return True
        with suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)


def below(pid: int, spared: Collection[int] = ()) -> list[Process]:
    """Descendants of a process that live, but for some and what is below them."""
    children: dict[int, list[Process]] = {}
    for process in processes.living():
        children.setdefault(process.parent, []).append(process)
    found, parents = [], [pid]
    while parents:
        new = [p for p in children.get(parents.pop(), ()) if p.pid not in spared]
        found += new
        parents += [process.pid for process in new]
    return found


def of_cell(child: int, adopted: bool) -> list[Process]:
    """What a cell has started and still lives.

    Args:
        child: its measuring process, which has ended; the leader of a process group.
        adopted: this process is the reaper and has no other children.
    """
    if adopted:
        return below(os.getpid()) if reap(but=child) else []
    return [process for process in processes.living() if process.group == child]


def end(find: Callable[[], list[Process]], grace_s: float) -> tuple[list[Process], list[Process]]:
    """Kill processes until there are none, for `LIMIT_S` at most: (killed, still living).

    Args:
        find: returns those that live; one that is killed leaves its children to be found.
        grace_s: seconds in which they may end by themselves.
    """
    killed: dict[tuple[int, str], Process] = {}
    began_s = time.monotonic()
    while left := find():
        waited_s = time.monotonic() - began_s
        if waited_s > grace_s + LIMIT_S:
            break
        if waited_s >= grace_s:
            for process in left:
                killed[process.pid, process.started] = process
                _kill(process)
        time.sleep(POLL_S)
    return list(killed.values()), left


def _kill(process: Process) -> None:
    """SIGKILL, to its whole group at once: a group cannot fork faster than that."""
    with suppress(ProcessLookupError, PermissionError):
        if process.group not in (0, os.getpgrp()):
            os.killpg(process.group, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGKILL)


def named(found: Sequence[Process]) -> str:
    """A few processes by name and process id."""
    names = [f"{printable(p.name)[:LONGEST]} (PID {p.pid})" for p in found[:SHOWN]]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return ", ".join([*names, *more])


def guarded(run: Callable[[], int]) -> int:
    """Call a function in a process of its own and end whatever that leaves; its exit status.

    Where there is no reaper, it is called in this process.
    """
    if not adopt():
        return run()
    spared = {process.pid for process in below(os.getpid())} if reap() else set()
    guard = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever ignores it has the system reap for him
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    worker = os.fork()
    if not worker:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run() if os.getppid() == guard else 1

    def forward(number: int, frame: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker, number)

    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    killed, _ = end(lambda: below(guard, spared) if reap() else [], grace_s=0)
    if killed:
        print(f"the supervisor was killed; ended what it left: {named(killed)}", file=sys.stderr)
    return status if status >= 0 else 128 - status
