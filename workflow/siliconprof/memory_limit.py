"""A cell's capacity, enforced: by the framework on a GPU, by a memory cgroup on a CPU.

The measuring process asks for it after its imports and before its model is built (`apply`). On a
CPU it moves itself into a cgroup of its own; what it held before stays charged to the old one, so
that the limit meets what the training allocates. Its supervisor reads what happened there and
removes it (`remove`), however the process ended. docs.kernel.org: admin-guide/cgroup-v2.rst and
admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof import memory_model

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend
    from siliconprof.session import Session
    from siliconprof.trainers.base import Trainer

ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
PREFIX = "siliconprof-"
UNLIMITED = ("max", "-1")  # in version 2, in version 1
ABOVE_HIGH = 1.1  # a process that version 2's soft limit does not hold is ended here
REMOVE_WITHIN_S = 2.0
CONFIRMED_WITHIN = 0.15  # of the prediction, which is what the memory model promises
MODEL_ONLY = "model only"
REHEARSAL = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 2, "max_iterations": 2,
             "budget_s": 0, "energy_window_s": 0}  # fmt: skip
M_MMAP_THRESHOLD = -3  # malloc.h
MMAP_THRESHOLD_BYTES = 2**17  # glibc's own at the start
GIVES_BACK = "glibc's mmap threshold is kept at 128 KiB, so that freed memory is returned"


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


# -- in the measuring process --------------------------------------------------------------------


def wanted(scenario: Mapping[str, Any]) -> int | None:
    """The limit that a scenario asks for, in bytes: near capacity, or under a budget; else None."""
    budgeted = scenario["capacity_source"] == memory_model.BUDGET_SOURCE
    limited = scenario["applied"] == "near-capacity" or budgeted
    return scenario["capacity_bytes"] if limited else None


def foreseen(scenario: Mapping[str, Any], device_kind: str) -> str | None:
    """How a limit would be enforced, seen from outside and nothing tried; None = none is wanted."""
    if wanted(scenario) is None:
        return None
    if device_kind == "gpu":
        return "by the framework"
    for parent, version in parents():
        if os.access(parent, os.W_OK | os.X_OK):
            return version.how
    return f"{MODEL_ONLY}: no memory cgroup that this user may make one in"


def enforce(backend: Backend, limit_bytes: int, give_back: bool = True) -> dict[str, Any]:
    """Keep what is allocated from here on within a limit: `enforced`, `how`, why not.

    Args:
        backend: open.
        give_back: whether the C library may be told to return what is freed.
    """
    how = backend.limit_memory(limit_bytes)
    if how is not None:
        return _limit(True, how, limit_bytes)
    try:
        group = enter(limit_bytes, name_of(os.getsid(0)))
    except OSError as error:
        return _limit(False, MODEL_ONLY, limit_bytes, f"no memory cgroup of its own: {error}")
    how = group.version.how
    if give_back and return_freed_memory():
        how += f"; {GIVES_BACK}"
    return _limit(True, how, group.limit_bytes or limit_bytes)


def return_freed_memory() -> bool:
    """Have glibc map large blocks one by one and unmap them when freed; whether it does.

    By default it raises that threshold, mallopt(3), as blocks are freed, up to 32 MiB, and keeps
    what lies below in a heap with holes: a training that needs 120 MB was charged 205.
    """
    try:
        return ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) == 1
    except (AttributeError, OSError, TypeError):
        return False  # another C library


def _limit(enforced: bool, how: str, n_bytes: int, reason: str | None = None) -> dict[str, Any]:
    return {"enforced": enforced, "how": how, "limit_bytes": n_bytes, "reason": reason}


def apply(session: Session, trainer: Trainer | None) -> None:
    """Enforce the session's limit, where its scenario asks for one.

    On a CPU the smallest model of the kind trains a few steps before that: what is imported and
    set up on first use is no part of the training.
    """
    limit_bytes = wanted(session.scenario)
    if limit_bytes is None or trainer is None:
        return
    cell = session.cell
    if cell.device_kind == "cpu":
        if session.offloads:
            reason = "offloaded on a CPU: the device's memory and the host's are one"
            session.scenario["limit"] = _limit(False, MODEL_ONLY, limit_bytes, reason)
            return
        rehearse(session, trainer)
    give_back = cell.parameters.get("allocator") != "retain"
    session.scenario["limit"] = enforce(session.backend, limit_bytes, give_back)


def rehearse(session: Session, trainer: Trainer) -> None:
    """Train the smallest model of the session's kind for a few steps, of which nothing is kept."""
    workload: Any = session.workload
    session.progress("rehearse, before the memory is limited", 0)
    small = type(session)(
        replace(session.cell, timing=REHEARSAL),
        session.backend,
        workload.smallest(),
        lambda _: None,
    )
    small.scenario = {"applied": "fits"}
    trainer.run(small)
    del small
    gc.collect()


def held(session: Session, step: Callable[[], Any] | None, standing: Sequence[Any]) -> Any:
    """The most memory that a training step held, for its point; and under the limit, if any.

    A cgroup's own peak is read first and its limit lifted, for what counts may need memory itself.

    Args:
        step: one more training step, which nobody times; None = it cannot be repeated alone.
        standing: what of the training's arrays is there between steps.
    """
    scenario = session.scenario
    limit = scenario.get("limit") or {}
    group = found(name_of(os.getsid(0))) if limit.get("enforced") else None
    if group is not None:
        if group.peak_bytes is not None:
            _note(scenario, group.peak_bytes, group.peak_means)
        group.lift()
    peak_bytes, means = session.backend.step_peak_bytes(step, standing)
    if limit and scenario["confirmed_peak_bytes"] is None and peak_bytes is not None:
        _note(scenario, peak_bytes, means)
    return {"device_peak_bytes": peak_bytes, "device_peak_means": means}


def sampled(session: Session, summary: Mapping[str, Any]) -> None:
    """Let the largest sample stand for a peak that the framework does not count.

    Args:
        summary: of the memory probe.
    """
    most = summary.get("device_peak_sampled_bytes")
    if most is None:
        return
    means = f"the largest of {summary['samples']} samples; {summary['device_means']}"
    for point in session.points:
        if point["memory"].get("device_peak_bytes") is None:
            point["memory"] |= {"device_peak_bytes": most, "device_peak_means": means}
    if session.scenario["limit"] and session.scenario["confirmed_peak_bytes"] is None:
        _note(session.scenario, most, means)


def check(session: Session) -> None:
    """Flag a cell near capacity that was not as near as predicted, or went beyond.

    A cgroup counts more than arrays, so only what falls short of the prediction contradicts it.
    """
    scenario = session.scenario
    confirmed = scenario["confirmed_share"]
    if scenario["applied"] != "near-capacity" or confirmed is None:
        return
    foreseen = scenario["share"]
    if confirmed < (1 - CONFIRMED_WITHIN) * foreseen or confirmed > max(1, foreseen):
        session.flag(
            "near_capacity_missed",
            f"{foreseen:.0%} of the memory was predicted, {confirmed:.0%} was held",
        )


def _note(scenario: dict[str, Any], peak_bytes: int, means: str) -> None:
    scenario["confirmed_peak_bytes"] = peak_bytes
    scenario["confirmed_share"] = peak_bytes / scenario["capacity_bytes"]
    scenario["confirmed_by"] = means


# -- in its supervisor ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What a cgroup that is gone has told."""

    limit_bytes: int | None
    how: str
    peak_bytes: int | None
    peak_means: str
    kills: int

    def evidence(self) -> str | None:
        """What shows that its process ran out of the memory it was allowed, or None."""
        if not self.kills:
            return None
        return (
            f"the oom_kill counter of its own cgroup rose to {self.kills}: it held "
            f"{self.peak_bytes} bytes of {self.limit_bytes} allowed"
        )

    def into(self, scenario: dict[str, Any]) -> dict[str, Any]:
        """A scenario with this in it, for a process that could not tell it itself."""
        limit = self.limit_bytes or scenario["capacity_bytes"]
        scenario["limit"] = _limit(True, self.how, limit)
        if self.peak_bytes is not None:
            _note(scenario, self.peak_bytes, self.peak_means)
        return scenario


def remove(session_id: int) -> Trace | None:
    """Remove the cgroup of a measuring process that has ended, if it had one; what it told."""
    group = found(name_of(session_id))
    if group is None:
        return None
    trace = Trace(
        group.limit_bytes, group.version.how, group.peak_bytes, group.peak_means, group.kills
    )
    group.remove()
    return trace
