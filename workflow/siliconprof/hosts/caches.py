"""How large the CPU's last-level cache is: below it lies cached work, beyond it memory.

Linux tells it in sysfs (Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*`), macOS
by sysctl(3) (Apple: "Determining system capabilities"). A GPU's own cache is its backend's matter:
`Backend.last_level_cache`.
"""

from __future__ import annotations

import os

from siliconprof.hosts import machine

CPUS = "/sys/devices/system/cpu"
MOST_INDICES = 10  # of one CPU's caches; there are four on today's
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Where nothing is told: twice the 256 MB of the largest cache that we know on a GPU (MI300X).
BEYOND_UNKNOWN_BYTES = 2**29


def last_level_bytes() -> tuple[int | None, str]:
    """(size of the last-level cache or None, where that is from or why there is none).

    All caches of that level that this process's threads may use, summed: buffers that are spread
    over the threads are spread over those.
    """
    return _of_mac() if machine.is_mac() else _of_linux()


def beyond_bytes(cache_bytes: int | None) -> int:
    """How much memory to go round so that nothing is found cached: twice the cache.

    Args:
        cache_bytes: its size; None = unknown, then more than twice any that we know.
    """
    return BEYOND_UNKNOWN_BYTES if cache_bytes is None else 2 * cache_bytes


def _of_linux() -> tuple[int | None, str]:
    """The highest level in sysfs, each shared cache counted once."""
    usable = sorted(os.sched_getaffinity(0))
    found: dict[tuple[int, str], int] = {}  # (level, CPUs that share it) -> bytes
    for cpu in usable:
        for index in range(MOST_INDICES):
            folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
            level, kind, size, shared = (
                machine.read_text(f"{folder}/{name}").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            n_bytes = _bytes(size)
            if level.isdigit() and kind != "Instruction" and n_bytes:
                found[int(level), shared or str(cpu)] = n_bytes
    if not found:
        return None, f"the kernel tells no caches of this CPU ({CPUS}/cpu{usable[0]}/cache)"
    last = max(level for level, _ in found)
    sizes = [n_bytes for (level, _), n_bytes in found.items() if level == last]
    return sum(sizes), f"sysfs: {len(sizes)} level-{last} cache(s) of the CPUs that may be used"


def _of_mac() -> tuple[int | None, str]:
    """Level 3 on an Intel Mac; on Apple silicon level 2 of every cluster of cores."""
    level_3 = _integer(machine.sysctl("hw.l3cachesize"))
    if level_3:
        return level_3, "sysctl hw.l3cachesize"
    total = 0
    for kind in range(_integer(machine.sysctl("hw.nperflevels"))):
        size, cores, sharing = (
            _integer(machine.sysctl(f"hw.perflevel{kind}.{name}"))
            for name in ("l2cachesize", "physicalcpu", "cpusperl2")
        )
        total += size * max(1, cores // sharing if sharing else 1)
    if total:
        return total, (
            "sysctl hw.perflevel*.l2cachesize, all clusters; the system-level cache behind them "
            "is told by nothing"
        )
    return None, "macOS tells neither hw.l3cachesize nor hw.perflevel0.l2cachesize"


def _bytes(text: str) -> int:
    """Bytes of a size such as `32768K`; 0 when it is none."""
    number, unit = text[:-1], text[-1:]
    return int(number) * UNITS[unit] if number.isdigit() and unit in UNITS else _integer(text)


def _integer(text: str) -> int:
    """The number a text is, 0 when it is none."""
    return int(text) if text.isdigit() else 0
