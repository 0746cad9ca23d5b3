"""The size of the CPU's last-level cache: smaller working sets stay cached, larger ones use memory.

Linux gives it in sysfs (Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*`), macOS
by sysctl(3) (Apple: "Determining system capabilities"). The backend knows a GPU's own cache:
`Memory.last_level_cache`.
"""

from __future__ import annotations

import os
import sys

from siliconprof.hosts import machine

CPUS = "/sys/devices/system/cpu"
MOST_INDICES = 10  # of one CPU's caches; there are four on today's
CACHE_SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}
# For a cache of unknown size: twice the 256 MB of the largest known on a GPU (MI300X).
BEYOND_UNKNOWN_BYTES = 2**29


def last_level_bytes() -> tuple[int | None, str]:
    """(size of the last-level cache in bytes or None, its source or why there is none).

    The size is the sum over all caches of that level that this process's threads may use: buffers
    that are spread over the threads are spread over those caches.
    """
    return _of_mac() if machine.is_mac() else _of_linux()


def beyond_bytes(cache_bytes: int | None) -> int:
    """The bytes of memory to cycle through so that no access hits the cache: twice its size.

    Args:
        cache_bytes: its size; None = unknown: more than twice the largest known cache is returned.
    """
    return BEYOND_UNKNOWN_BYTES if cache_bytes is None else 2 * cache_bytes


def _of_linux() -> tuple[int | None, str]:
    """Sum the caches of the highest level in sysfs, each shared one once."""
    if sys.platform != "linux":
        return None, "no caches are known on this system"
    usable = sorted(os.sched_getaffinity(0))
    sizes: dict[tuple[int, str], int] = {}  # (level, CPUs that share it) -> bytes
    for cpu in usable:
        for index in range(MOST_INDICES):
            folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
            level, kind, size, shared = (
                machine.read_text(f"{folder}/{name}").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            n_bytes = _bytes(size)
            if level.isdigit() and kind != "Instruction" and n_bytes:
                sizes[int(level), shared or str(cpu)] = n_bytes
    if not sizes:
        return None, f"the kernel lists no caches of this CPU ({CPUS}/cpu{usable[0]}/cache)"
    last = max(level for level, _ in sizes)
    of_last = [n_bytes for (level, _), n_bytes in sizes.items() if level == last]
    source = f"sysfs: {len(of_last)} level-{last} cache(s) of the CPUs that may be used"
    return sum(of_last), source


def _of_mac() -> tuple[int | None, str]:
    """Sum the level-2 caches of all clusters of an Apple chip's cores."""

    def number(name: str) -> int:
        return machine.number(machine.sysctl(f"hw.{name}")) or 0

    total = 0
    for kind in range(number("nperflevels")):
        size, cores, sharing = (
            number(f"perflevel{kind}.{name}")
            for name in ("l2cachesize", "physicalcpu", "cpusperl2")
        )
        total += size * max(1, cores // sharing if sharing else 1)
    if total:
        return total, (
            "sysctl hw.perflevel*.l2cachesize, all clusters; the system-level cache behind them "
            "is not reported"
        )
    return None, "macOS does not report hw.perflevel0.l2cachesize"


def _bytes(text: str) -> int:
    """Bytes of a size such as `32768K`; 0 when it is none."""
    unit = CACHE_SUFFIXES.get(text[-1:], 1)
    return unit * (machine.number(text[:-1] if unit > 1 else text) or 0)
