"""Memory cgroups for this process, versions 1 and 2: make, enter, read and remove them.

docs.kernel.org: admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from siliconprof.hosts import machine

ROOT = Path("/sys/fs/cgroup")
PREFIX = "siliconprof-"
ABOVE_HIGH = 1.1  # a process that version 2's soft limit does not hold is ended here
REMOVE_WITHIN_S = 2.0


@dataclass(frozen=True)
class Version:
    """Names of the control files of one cgroup version."""

    limits: Mapping[str, float]  # file -> multiple of the limit
    unlimited: str
    peak: str
    events: str
    how: str


V2 = Version(
    {"memory.high": 1.0, "memory.max": ABOVE_HIGH},
    "max",
    "memory.peak",
    "memory.events",
    f"cgroup v2, memory.high: above it the kernel reclaims and slows down; {ABOVE_HIGH:g} times "
    "it is memory.max, where the kernel ends the process",
)
V1 = Version(
    {"memory.limit_in_bytes": 1.0},
    "-1",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    "cgroup v1, memory.limit_in_bytes: a hard limit, at which the kernel ends the process, since "
    "version 1 has no memory.high",
)


@dataclass(frozen=True)
class Group:
    """A memory cgroup that this program made."""

    folder: Path
    version: Version

    @property
    def limit_bytes(self) -> int | None:
        """Its limit in bytes, which the kernel rounds to whole pages."""
        return machine.read_number(self.folder / next(iter(self.version.limits)))

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the bytes charged to it; version 2 has this from Linux 5.19 on."""
        return machine.read_number(self.folder / self.version.peak)

    @property
    def peak_means(self) -> str:
        """What `peak_bytes` counts."""
        return f"{self.version.peak} of its own cgroup: all charged to it, file cache included"

    @property
    def kills(self) -> int | None:
        """How often the kernel's out-of-memory killer acted in it; None where nothing counts that."""
        for line in machine.read_text(str(self.folder / self.version.events)).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return machine.number(value)
        return None

    def lift(self) -> None:
        """Remove its limits."""
        for name in reversed(list(self.version.limits)):
            (self.folder / name).write_text(self.version.unlimited, encoding="ascii")

    def remove(self) -> None:
        """Delete it; wait up to `REMOVE_WITHIN_S` for its processes to end."""
        until = time.monotonic() + REMOVE_WITHIN_S
        while self.folder.is_dir():
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > until:
                    return
                time.sleep(0.01)


def _mine() -> Iterator[tuple[Path, str, Version]]:
    """(mount, path below it, version) of this process's own cgroups, whoever made them."""
    for tree, path in machine.own_cgroups("memory"):
        yield ROOT / tree, path, V1 if tree else V2


def own() -> Iterator[Group]:
    """This process's own cgroups, whoever made them."""
    return (Group(mount / below, version) for mount, below, version in _mine())


def parents() -> Iterator[tuple[Path, Version]]:
    """Cgroups in which this process could make one of its own, the nearest first.

    Version 2 allows no child below a cgroup that itself holds processes, so its ancestors are tried
    too, but none above a cgroup with a limit: the process must not escape a limit that others set.
    Once the process has its own cgroup, the result is the same as before.
    """
    for mount, below, version in _mine():
        folder = mount / below
        folder = folder.parent if folder.name.startswith(PREFIX) else folder
        if version is V1:  # a container may see its own cgroup as the root
            yield (folder if folder.is_dir() else mount), V1
            continue
        for place in (folder, *folder.parents):
            if place == ROOT.parent:
                break
            if "memory" in machine.read_text(f"{place}/cgroup.subtree_control").split():
                yield place, V2
            limits = (machine.read_text(f"{place}/{name}").strip() for name in V2.limits)
            if any(limit not in ("", "max") for limit in limits):
                break


def enter(limit_bytes: int, session_id: int) -> Group:
    """Make a cgroup with a limit and move this process, with all its threads, into it.

    Args:
        session_id: of the measuring process, which has a session of its own.

    Raises:
        OSError: it may do so in no cgroup; the message lists each one that was tried.
    """
    failures = []
    for parent, version in parents():
        group = Group(parent / f"{PREFIX}{session_id}", version)
        try:
            group.folder.mkdir(exist_ok=True)  # of a supervisor that was killed
            for file, share in version.limits.items():
                text = str(int(share * limit_bytes))
                (group.folder / file).write_text(text, encoding="ascii")
            (group.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            return group
        except OSError as error:
            failures.append(f"{parent}: {error.strerror}")
            group.remove()
    raise OSError("; ".join(failures) or "no memory controller in /proc/self/cgroup")


def existing(session_id: int) -> Group | None:
    """The cgroup of a measuring process by its session; None where there is none."""
    places = ((parent / f"{PREFIX}{session_id}", version) for parent, version in parents())
    return next((Group(folder, version) for folder, version in places if folder.is_dir()), None)
