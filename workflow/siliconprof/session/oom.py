"""Evidence that a killed process ran out of memory; without any, the cell failed."""

from __future__ import annotations

import re
import signal
import sys

from siliconprof.hosts import cgroups, machine

MESSAGES = re.compile(
    r"bad_alloc|out of memory|can't allocate memory|cannot allocate memory"
    r"|unable to allocate|attempting to allocate|kIOGPUCommandBufferCallbackErrorOutOfMemory"
    r"|insufficient memory|ALLOC_FAILED"
    r"|invalid buffer size: [\d.]+ [KMGT]?i?B",  # torch-mps, beyond Metal's largest buffer
    re.IGNORECASE,
)
LOG_SLACK_S = 1.0  # between the kernel's clock and ours


def cgroup_kills() -> int | None:
    """How often the out-of-memory killer acted in this process's memory cgroup, v2 or v1."""
    counts = (group.kills for group in cgroups.own())
    return next((kills for kills in counts if kills is not None), None)


def kernel_log_names(pid: int, signum: int, since_s: float) -> str | None:
    """The kernel log's line about this process and memory, where the log may be read.

    After SIGKILL: the out-of-memory killer took it. After any other: an allocation was refused,
    which MLX on a Linux CPU does not check, so that it crashes without a message.

    Args:
        since_s: `time.monotonic()` before which a line is about another process with that id.
    """
    if sys.platform != "linux":
        return None
    killed, refused = rf"[Kk]illed process {pid}\b", rf"pid: {pid}, .*not enough memory"
    about = re.compile(killed if signum == signal.SIGKILL else refused)
    for line in reversed(machine.run(["dmesg"], 5).splitlines()):
        stamp = re.match(r"\[ *(\d+\.\d+)\]", line)
        if stamp and float(stamp[1]) < since_s - LOG_SLACK_S:
            return None
        if about.search(line):
            return line.strip()
    return None


def raised(error: BaseException) -> bool:
    """Whether an exception means exhausted memory."""
    kind = type(error).__name__
    named = isinstance(error, MemoryError) or kind == "OutOfMemoryError"
    return named or exhaustion_line(f"{kind}: {error}") is not None


def exhaustion_line(output: str) -> str | None:
    """The last line of an output that reports exhausted memory, or None."""
    for line in reversed(output.splitlines()):
        if MESSAGES.search(line):
            return line.strip()[:200]
    return None


def evidence(
    pid: int, signum: int, since_s: float, kills_before: int | None, output_tail: str
) -> str | None:
    """What shows that a process killed by a signal ran out of memory, or None.

    The kernel's killer sends SIGKILL, but others do too, so after SIGKILL the output proves nothing.

    Args:
        since_s: `time.monotonic()` just before its start.
        kills_before: `cgroup_kills` then.
        output_tail: the end of the process's output.
    """
    log_line = kernel_log_names(pid, signum, since_s)
    if signum == signal.SIGKILL:
        kills = cgroup_kills()
        if kills_before is not None and kills is not None and kills > kills_before:
            return f"the cgroup's oom_kill counter rose from {kills_before} to {kills}"
    elif line := exhaustion_line(output_tail):
        return f"its output: {line}"
    return f"kernel log: {log_line[:200]}" if log_line else None
