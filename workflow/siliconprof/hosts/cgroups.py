"""Memory cgroups of one's own, versions 1 and 2: made, entered, read and removed.

docs.kernel.org: admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
PREFIX = "siliconprof-"
UNLIMITED = ("max", "-1")  # in version 2, in version 1
ABOVE_HIGH = 1.1  # a process that version 2's soft limit does not hold is ended here
REMOVE_WITHIN_S = 2.0


@dataclass(frozen=True)
class Version:
    """Names of the control files of one cgroup version."""

    limits: Mapping[str, float]  # file -> multiple of the limit
    peak: str
    events: str
    how: str


V2 = Version(
    {"memory.high": 1.0, "memory.max": ABOVE_HIGH},
    "memory.peak",
    "memory.events",
    f"cgroup v2, memory.high: above it the kernel reclaims and slows down; {ABOVE_HIGH:g} times "
    "it is memory.max, where the kernel ends the process",
)
V1 = Version(
    {"memory.limit_in_bytes": 1.0},
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
        """Its limit as the kernel keeps it, in whole pages."""
        return _number(self.folder / next(iter(self.version.limits)))

    @property
    def peak_bytes(self) -> int | None:
        """The most that was ever charged to it; version 2 tells it from Linux 5.19 on."""
        return _number(self.folder / self.version.peak)

    @property
    def peak_means(self) -> str:
        """What that counts."""
        return f"{self.version.peak} of its own cgroup: all charged to it, file cache included"

    @property
    def kills(self) -> int:
        """How often the kernel's out-of-memory killer acted in it."""
        for line in _text(self.folder / self.version.events).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def lift(self) -> None:
        """Let the process have what it wants from here on."""
        for name in reversed(list(self.version.limits)):
            (self.folder / name).write_text(UNLIMITED[self.version is V1], encoding="ascii")

    def remove(self) -> None:
        """Delete it; its processes may take a moment to be gone."""
        until = time.monotonic() + REMOVE_WITHIN_S
        while self.folder.is_dir():
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > until:
                    return
                time.sleep(0.01)


def _text(path: Path) -> str:
    """A control file's content; "" where there is none."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def parents() -> Iterator[tuple[Path, Version]]:
    """Cgroups in which this process could have one of its own, the nearest first.

    Version 2 allows none below a cgroup that itself holds processes, so there the ones above are
    tried, but never beyond one with a limit: nobody is to leave what another has set. Once it has
    its own, the answer is the same as before.
    """
    for line in _text(OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        names = [name for name in path.split("/") if name]
        if names and names[-1].startswith(PREFIX):
            names.pop()
        below = "/".join(names)
        if "memory" in controllers.split(","):
            mount = ROOT / "memory"  # a container may see its own cgroup as the root
            yield (mount / below if (mount / below).is_dir() else mount), V1
        elif controllers == "":
            folder = ROOT / below
            while folder != ROOT.parent:
                if "memory" in _text(folder / "cgroup.subtree_control").split():
                    yield folder, V2
                limits = (_text(folder / name).strip() for name in V2.limits)
                if any(limit not in ("", "max") for limit in limits):
                    break
                folder = folder.parent


def enter(limit_bytes: int, name: str) -> Group:
    """Make a cgroup with a limit and move this process, with all its threads, into it.

    Raises:
        OSError: this process may do so nowhere; the message says where it was tried.
    """
    refused = []
    for parent, version in parents():
        group = Group(parent / name, version)
        try:
            sweep(parent)
            group.folder.mkdir()
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
            continue
        try:
            for file, share in version.limits.items():
                text = str(int(share * limit_bytes))
                (group.folder / file).write_text(text, encoding="ascii")
            (group.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            return group
        except OSError as error:
            refused.append(f"{parent}: {error.strerror}")
            group.remove()
    raise OSError("; ".join(refused) or "no memory controller in /proc/self/cgroup")


def sweep(parent: Path) -> None:
    """Delete the cgroups of processes that are gone, left by a supervisor that was killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX)
        if number.isdigit() and not Path("/proc", number).exists():
            with suppress(OSError):  # another's, or not empty after all
                folder.rmdir()


def found(name: str) -> Group | None:
    """The cgroup of that name: this process's own, or of one that was started from here."""
    for parent, version in parents():
        if (parent / name).is_dir():
            return Group(parent / name, version)
    return None


def name_of(session_id: int) -> str:
    """The name of the cgroup of a measuring process and all that it starts.

    Args:
        session_id: of the process; the supervisor starts each in a session of its own.
    """
    return f"{PREFIX}{session_id}"
