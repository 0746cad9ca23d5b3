"""A reading of the host that raises costs itself: each by itself, and all of them through the front door.

What raises stands below siliconprof (simulated/unreadable.py): files of /proc and /sys, commands,
psutil, NVML, and on a simulated Mac what its sensors ask.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Checkout, opened, until
from fake_sensors import Sampled
from siliconprof.errors import UserError
from siliconprof.hosts import doctor, environment, host_file, machine, remedies
from siliconprof.hosts.sensors import linux
from siliconprof.probes import clocks, interference, page_faults
from siliconprof.session import isolated_operators, sampler, thread_time
from siliconprof.session.sampler import Sampler

sys.path.insert(0, str(Path(__file__).parent / "simulated"))
import unreadable  # noqa: E402
from host import GPT2, TIMING, m2, measured, this_host  # noqa: E402

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


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[unreadable.Broken]:
    """Has readings of this process raise; probes read all there is in every sample."""
    for where, name, raising in unreadable.boundaries():
        monkeypatch.setattr(where, name, raising)
    monkeypatch.setattr(linux.KernelFile, "read", unreadable.file(linux.KernelFile.read))
    monkeypatch.setattr(environment, "git_commit", lambda checkout: ("0", ""))
    monkeypatch.setattr(sampler, "SAMPLE_EVERY_S", 0.02)
    for module, interval in ((clocks, "STATE_"), (page_faults, "SWAP_"), (interference, "GPU_")):
        monkeypatch.setattr(module, f"{interval}INTERVAL_S", 0.0)
    yield unreadable.broken
    unreadable.broken.clear()


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
def test_each_reading_that_raises_costs_itself_alone(broken: unreadable.Broken) -> None:
    """In this process, one after the other, before a cell and amid its samples."""
    backend = opened("torch-cpu")
    before, _ = read(backend, broken.clear, False)
    for name, costs in COSTS.items():
        for late in (False, True) if costs else (False,):
            broken.clear()
            figures, said = read(backend, lambda name=name: broken.set(name), late)
            lost = missing(figures, before)
            assert all(figure.startswith(costs) for figure in lost), (name, late, lost - {*costs})
            told = [cost for cost in costs if any(figure.startswith(cost) for figure in lost)]
            always_told = name in ("virtual_memory", "swap_memory", "getloadavg", "disk_usage", "")
            assert bool(told) or not always_told, (name, late)
            if told and not name.startswith("/sys"):
                assert "Input/output error" in said or "not large enough" in said, (name, late)


# -- what is decided by a reading that is not there -------------------------------------------------


def test_an_operator_is_refused_by_all_memory_where_what_is_free_is_not_known(
    broken: unreadable.Broken,
) -> None:
    """By nothing where that is not known either."""
    with pytest.raises(UserError, match="are available"):
        isolated_operators.require_memory(2**60)
    broken.set("virtual_memory")
    with pytest.raises(UserError, match="is all its memory"):
        isolated_operators.require_memory(2**60)
    broken.set()
    assert machine.cpu()["memory_bytes"] is None
    isolated_operators.require_memory(2**60)


def test_no_cell_is_skipped_for_what_is_not_known_of_a_processor(
    broken: unreadable.Broken,
) -> None:
    """That its 16-bit arithmetic is emulated is said where it is known."""
    broken.set("/proc/cpuinfo")
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


# -- through the front door ---------------------------------------------------------------------

LONGER = TIMING | {"iterations": 200, "max_iterations": 200, "budget_s": 2}
TRAINING = GPT2 | {"trainer": "plain", "timing": LONGER}


@pytest.mark.campaign
@pytest.mark.parametrize(("host", "when"), [("mac", "start"), ("linux", "late")])
def test_a_page_is_made_where_no_reading_works(host: str, when: str, tmp_path: Path) -> None:
    """From the first process of a run to the last; the cells are as good, and say what is not known."""
    kind = {"linux": "cpu", "mac": "gpu"}[host]
    variables = (m2 if host == "mac" else this_host)(tmp_path, unreadable=when)
    own = {"device_kinds": [kind], "backends": ["torch-cpu", "torch-mps"]}
    project: Checkout = measured(tmp_path, variables, "report", {"training": TRAINING | own})
    (record,) = project.records().values()
    assert record["status"] == "ok", record["reason"]
    assert (project.path / "results" / "report.html").stat().st_size > 1e5
    probes = record["probes"]
    assert not any("switched_off_at_s" in summary for summary in probes.values())
    assert probes["page_faults"]["swap_in_bytes"] is None
    assert probes["page_faults"]["minor_faults"] >= 0
    swapped = [sample["swap_in_bytes"] for sample in record["samples"]]
    assert any(n_bytes is not None for n_bytes in swapped) == (when == "late")
    assert swapped[-1] is None
