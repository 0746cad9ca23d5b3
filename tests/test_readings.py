"""A reading of the host that raises costs itself alone, and so do all of them together.

What raises stands below siliconprof: files of /proc and /sys, commands and psutil.
"""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import ROOT, opened, until
from fake_sensors import Sampled
from siliconprof.errors import UserError
from siliconprof.hosts import doctor, environment, host_file, machine, remedies
from siliconprof.hosts.sensors import linux
from siliconprof.probes import clocks, interference, page_faults
from siliconprof.session import isolated_operators, sampler, thread_time
from siliconprof.session.sampler import Sampler

Figures = dict[str, Any]
# What raises -> what that costs, as beginnings of names; what another reading gives costs nothing.
COSTS: dict[str, tuple[str, ...]] = {
    "/proc/vmstat": ("page_faults.swap_",),
    "/proc/self/statm": (),
    "/proc/stat": (),
    "/proc/self/task": (),
    "/proc/self/cgroup": (),
    "/proc/cpuinfo": (),
    "/proc/meminfo": (),
    "/sys": ("clocks.", "now.cpu_governor", "now.power_source", "now.low_power_mode"),
    "virtual_memory": ("now.memory_available_bytes",),
    "swap_memory": ("now.swap_used_bytes",),
    "cpu_times": (),
    "memory_info": (),
    "getloadavg": ("now.load_average_1min", "record.load_average_1min"),
    "disk_usage": ("now.disk_free_bytes",),
    "run": (),
}
COSTS[""] = tuple(name for names in COSTS.values() for name in names)
COSTS[""] += ("memory.rss_", "interference.foreign_load_cores")
OF_THE_SAMPLER = ("samples", "sample_cost_median_s", "sample_cost_p95_s", "share_of_wall")
# The part of a doctor's report that says how the host is now.
DOCTOR: dict[str, Any] = {
    "host": {
        "label": "desk",
        "os": dict.fromkeys(("distribution", "system", "machine", "release"), "x"),
        "cpu": dict.fromkeys(("model", "physical_cores", "logical_cores"), 1)
        | {"usable_cores": 1, "memory_bytes": None},
    },
    **{part: {} for part in ("backends", "probes", "packages", "blas", "driver")},
    "devices": [],
    "advice": [],
}


# -- what raises: all that others read, such as a framework, is left as it is ---------------------

FOLDERS = ("/proc", "/sys")
BETWEEN = ("pathlib", __name__)  # modules through which our code asks the system
COMMANDS = "siliconprof.hosts.machine"  # who asks them to read the host
RAISING: list[str] = []  # what raises now: the beginnings of paths and of functions' names


def _asked_by(own: str) -> bool:
    """Whether our code asks, by itself or through the standard library.

    Args:
        own: how the names of its modules begin.
    """
    frame: Any = sys._getframe(2)
    while frame and frame.f_globals.get("__name__") in BETWEEN:
        frame = frame.f_back
    return bool(frame) and str(frame.f_globals.get("__name__")).startswith(own)


def file(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the system whose first argument is a path."""

    @functools.wraps(real)
    def opened(path: Any = ".", *arguments: Any, **more: Any) -> Any:
        name = str(getattr(path, "path", path))  # of a file that stays open
        hit = name.startswith(FOLDERS) and name.startswith(tuple(RAISING))
        if hit and _asked_by("siliconprof."):
            raise OSError(5, "Input/output error", name)
        return real(path, *arguments, **more)

    return opened


def library(real: Callable[..., Any], own: str = "siliconprof.") -> Callable[..., Any]:
    """A function of a library that was built for another system."""

    @functools.wraps(real)
    def asked(*arguments: Any, **more: Any) -> Any:
        if real.__name__.startswith(tuple(RAISING)) and _asked_by(own):
            raise RuntimeError(f"{real.__name__} failed: (ipc/mig) array not large enough")
        return real(*arguments, **more)

    return asked


def boundaries() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(where, name, what raises there) of everything by which a Linux host is read."""
    for module, names in (
        (builtins, ("open",)),
        (io, ("open",)),
        (os, ("open", "scandir", "listdir", "stat")),
    ):
        for name in names:
            yield module, name, file(getattr(module, name))
    for name in ("virtual_memory", "swap_memory", "cpu_times"):
        yield psutil, name, library(getattr(psutil, name))
    yield psutil.Process, "memory_info", library(psutil.Process.memory_info)
    yield os, "getloadavg", library(os.getloadavg)
    yield shutil, "disk_usage", library(shutil.disk_usage)
    yield subprocess, "run", library(subprocess.run, COMMANDS)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Has readings of this process raise, and no others; probes read all there is in every sample."""
    for where, name, raising in boundaries():
        monkeypatch.setattr(where, name, raising)
    monkeypatch.setattr(linux.KernelFile, "read", file(linux.KernelFile.read))
    monkeypatch.setattr(environment, "git_commit", lambda checkout: ("0", ""))
    monkeypatch.setattr(sampler, "SAMPLE_EVERY_S", 0.02)
    for module, interval in ((clocks, "STATE_"), (page_faults, "SWAP_"), (interference, "GPU_")):
        monkeypatch.setattr(module, f"{interval}INTERVAL_S", 0.0)

    def raises(*names: str) -> None:
        RAISING[:] = names

    yield raises
    RAISING.clear()


def sampled(backend: Any, break_it: Callable[[], Any], late: bool) -> tuple[Figures, Sampler]:
    """Figures of all probes as `probe.name`; something breaks before, or late."""
    if not late:
        break_it()
    with Sampler(Sampled(backend)) as taken:  # type: ignore[arg-type]
        until(lambda: len(taken.samples) >= 3)
        if late:
            break_it()
        seen = len(taken.samples)
        until(lambda: len(taken.samples) >= seen + 3)
    off = {n: s["reason"] for n, s in taken.summaries.items() if "switched_off_at_s" in s}
    assert off == {}
    figures = {
        f"{probe}.{name}": value
        for probe, summary in taken.summaries.items()
        for name, value in summary.items()
        if isinstance(value, int | float) and name not in OF_THE_SAMPLER
    }
    return figures, taken


def read(backend: Any, break_it: Callable[[], Any], late: bool) -> tuple[Figures, str]:
    """All figures that are read of a host, and all that is said of those that are not there."""
    figures, taken = sampled(backend, break_it, late)
    now, kept = doctor._now(), environment.capture(ROOT)
    assert all(isinstance(doctor._probe(probe)["reason"], str) for probe in taken.summaries)
    facts = host_file.quick_facts()
    assert facts["cpu"]["usable_cores"] >= 1 and facts["cpu"]["model"]
    shown = doctor.as_text(DOCTOR | {"now": now})
    machine.require_room(Path())
    thread_time.read(0)
    thread_time.waiting_of_all_s()
    figures |= {f"now.{name}": value for name, value in now.items() if name != "reasons"}
    figures["record.load_average_1min"] = kept["load_average_1min"]
    return figures, json.dumps([taken.summaries, shown, kept])


def missing(figures: Figures, before: Figures) -> set[str]:
    """What was there before and is not any more."""
    return {n for n, value in before.items() if value is not None and figures.get(n) is None}


@pytest.mark.slow
def test_each_reading_that_raises_costs_itself_alone(broken: Callable[..., None]) -> None:
    """In this process, one after the other, before a cell and amid its samples."""
    backend = opened("torch-cpu")
    before, _ = read(backend, broken, False)
    for name, costs in COSTS.items():
        for late in (False, True) if costs else (False,):
            broken()
            figures, said = read(backend, lambda name=name: broken(name), late)
            lost = missing(figures, before)
            assert all(figure.startswith(costs) for figure in lost), (name, late, lost - {*costs})
            told = [cost for cost in costs if any(figure.startswith(cost) for figure in lost)]
            always_told = name in ("virtual_memory", "swap_memory", "getloadavg", "disk_usage", "")
            assert bool(told) or not always_told, (name, late)
            if told and not name.startswith("/sys"):
                assert "Input/output error" in said or "not large enough" in said, (name, late)


# -- what is decided by a reading that is not there -------------------------------------------------


def test_an_operator_is_refused_by_all_memory_where_what_is_free_is_not_known(
    broken: Callable[..., None],
) -> None:
    """By nothing where that is not known either."""
    with pytest.raises(UserError, match="are available"):
        isolated_operators.require_memory(2**60)
    broken("virtual_memory")
    with pytest.raises(UserError, match="is all its memory"):
        isolated_operators.require_memory(2**60)
    broken("")
    assert machine.cpu()["memory_bytes"] is None
    isolated_operators.require_memory(2**60)


def test_no_cell_is_skipped_for_what_is_not_known_of_a_processor(
    broken: Callable[..., None],
) -> None:
    """That its 16-bit arithmetic is emulated is said where it is known."""
    broken("/proc/cpuinfo")
    processor = machine.cpu()
    assert processor["features"] is None and remedies.emulation(processor, "bf16") is None
    assert remedies.emulation(processor | {"features": []}, "bf16")


def test_psutil_is_asked_in_one_place() -> None:
    """Any other import of it could end a run on a system that it was not built for."""
    importing = [
        path.name
        for path in (ROOT / "workflow" / "siliconprof").rglob("*.py")
        if re.search(r"(?m)^\s*(import|from) psutil\b", path.read_text(encoding="utf-8"))
    ]
    assert importing == ["machine.py"]
