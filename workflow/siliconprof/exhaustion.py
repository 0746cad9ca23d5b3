"""Evidence that a killed process ran out of memory: without any, a kill is only a kill."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
MESSAGES = re.compile(
    r"bad_alloc|out of memory|can't allocate memory|cannot allocate memory"
    r"|unable to allocate|attempting to allocate|kIOGPUCommandBufferCallbackErrorOutOfMemory"
    r"|insufficient memory",
    re.IGNORECASE,
)


def cgroup_kills() -> int | None:
    """How often the out-of-memory killer acted in this process's memory cgroup, v2 or v1."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    candidates: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            candidates.append(CGROUP_ROOT / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            candidates.append(CGROUP_ROOT / "memory" / path.lstrip("/") / "memory.oom_control")
    for file in candidates:
        try:
            for row in file.read_text(encoding="ascii").splitlines():
                key, _, value = row.partition(" ")
                if key == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            continue
    return None


def kernel_log_names(pid: int) -> str | None:
    """The kernel's line about killing this process for memory, where the log may be read."""
    if sys.platform != "linux":
        return None
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in reversed(log.stdout.splitlines()):
        if re.search(rf"[Kk]illed process {pid}\b", line):
            return line.strip()
    return None


def evidence(pid: int, kills_before: int | None, output_tail: str) -> str | None:
    """What shows that a process killed by a signal ran out of memory, or None.

    Args:
        kills_before: `cgroup_kills()` before the process started.
        output_tail: the last text that the process printed.
    """
    for line in reversed(output_tail.splitlines()):
        if MESSAGES.search(line):
            return f"its last words: {line.strip()[:200]}"
    kills_now = cgroup_kills()
    if kills_before is not None and kills_now is not None and kills_now > kills_before:
        return f"the cgroup's oom_kill counter rose from {kills_before} to {kills_now}"
    named = kernel_log_names(pid)
    return f"kernel log: {named[:200]}" if named else None
