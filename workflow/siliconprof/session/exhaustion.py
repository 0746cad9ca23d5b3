"""Evidence that a killed process ran out of memory; without any, the cell failed."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from siliconprof.hosts import cgroups, machine

MESSAGES = re.compile(
    r"bad_alloc|out of memory|can't allocate memory|cannot allocate memory"
    r"|unable to allocate|attempting to allocate|kIOGPUCommandBufferCallbackErrorOutOfMemory"
    r"|insufficient memory|ALLOC_FAILED"
    r"|invalid buffer size: [\d.]+ [KMGT]?i?B",  # torch-mps, beyond Metal's largest buffer
    re.IGNORECASE,
)
FILLED_ABOVE = 0.75  # share of a limited address space; the rest is the allocation that failed
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
LOG_SLACK_S = 1.0  # between the kernel's clock and ours


@dataclass
class Witness:
    """Readings taken while a process runs, to decide afterwards whether it ran out of memory.

    Made just before the start; the process inherits the cgroup and the limits of this one.
    """

    kills: int | None = field(default_factory=lambda: cgroup_kills())
    started_s: float = field(default_factory=time.monotonic)
    limit_bytes: int = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_AS)[0])
    reserved_bytes: int = 0  # address space that was not resident: code, stacks, arenas
    resident_peak: int = 0  # ru_maxrss of the process once it has ended, in the system's unit

    def look(self, pid: int) -> None:
        """Read the running process's memory; costs nothing where no limit is set."""
        if self.limit_bytes == resource.RLIM_INFINITY:
            return
        try:
            pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return
        if int(pages[0]):  # 0 once it has ended
            unused = int(pages[0]) - int(pages[1])
            self.reserved_bytes = unused * os.sysconf("SC_PAGE_SIZE")

    def filled_limit(self) -> str | None:
        """How far the ended process had filled a limited address space; None if it had not.

        Its exact resident peak is added to what was reserved at the last reading.
        """
        if self.limit_bytes == resource.RLIM_INFINITY:
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        filled = min(self.resident_peak * unit + self.reserved_bytes, self.limit_bytes)
        if filled < FILLED_ABOVE * self.limit_bytes:
            return None
        return (
            f"it had filled about {filled / 2**20:.0f} MiB of its address space, "
            f"limited to {self.limit_bytes / 2**20:.0f} MiB (RLIMIT_AS)"
        )


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


def raised(error: BaseException) -> str | None:
    """The text of an exception that means exhausted memory, else None."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return text
    return text if exhaustion_line(text) else None


def exhaustion_line(output: str) -> str | None:
    """The last line of an output that reports exhausted memory, or None."""
    for line in reversed(output.splitlines()):
        if MESSAGES.search(line):
            return line.strip()[:200]
    return None


def evidence(pid: int, signum: int, witness: Witness, output_tail: str) -> str | None:
    """What shows that a process killed by a signal ran out of memory, or None.

    The kernel's killer sends SIGKILL, but others do too, so after SIGKILL the output proves nothing.

    Args:
        output_tail: the end of the process's output.
    """
    log_line = kernel_log_names(pid, signum, witness.started_s)
    if signum == signal.SIGKILL:
        kills = cgroup_kills()
        if witness.kills is not None and kills is not None and kills > witness.kills:
            return f"the cgroup's oom_kill counter rose from {witness.kills} to {kills}"
    elif line := exhaustion_line(output_tail):
        return f"its output: {line}"
    if log_line:
        return f"kernel log: {log_line[:200]}"
    return witness.filled_limit() if signum in CRASHES else None
