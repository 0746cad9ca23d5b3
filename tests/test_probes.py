"""Probes, sensors and the energy meter: on this host as it is, and on hardware that it lacks.

For macOS stands fake_sensors.py; for RAPL and the rest of Linux folders with the kernel's file names.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import cpu_cell, opened, record_problems, until
from fake_sensors import Mac, Sampled, by_name, plan, train
from measuring import by_hand, sampled
from siliconprof import plugins
from siliconprof.hosts import machine
from siliconprof.hosts.machine import Unreadable
from siliconprof.hosts.sensors import apple, linux, rapl
from siliconprof.probes import clocks, interference, page_faults
from siliconprof.session.energy import EnergyMeter
from siliconprof.session.sampler import Sampler
from siliconprof.store.captions import flag_words

# They sleep, for windows and clocks that are compared.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=1)]

PRODUCTS = cpu_cell(
    "torch-cpu",
    "matmul",
    {"shapes": [[1, 64, 64, 64]], "burst": 2, "burst_budget_s": 0.1},
    timing={"iterations": 30, "max_iterations": 30},
)


# -- this host as it is ------------------------------------------------------------------------


def test_a_cell_measured_here_has_a_number_or_a_reason_from_every_probe(tmp_path: Path) -> None:
    """Through the real command: what this host has not is named, and nothing is 0 instead."""
    found = by_hand(PRODUCTS, tmp_path)
    assert found["status"] == "ok", found["reason"]
    probes = found["probes"]
    assert probes.keys() == set(plugins.names("probes"))
    for name, summary in probes.items():
        assert summary["means"], name
        if summary["available"]:
            assert summary["sample_cost_median_s"] > 0, name
            assert summary["sample_cost_p95_s"] >= summary["sample_cost_median_s"], name
            assert 0 < summary["share_of_wall"] < 0.5, name
    assert probes["memory"]["rss_growth_bytes"] >= 0
    assert probes["memory"]["device_at_start_bytes"] is None
    assert "CPU" in probes["memory"]["device_means"]
    assert probes["page_faults"]["minor_fault_bytes"] >= 0
    assert "throttled" in probes["clocks"]
    assert all(sample["rss_bytes"] > 1e6 for sample in found["samples"])


# -- the sampler -------------------------------------------------------------------------------


def test_a_probe_that_breaks_is_switched_off_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `sample` and `stop`; the reason stands in its summary."""
    calls = []

    def breaks_at_the_third(self: Any) -> dict[str, Any]:
        calls.append(self)
        if len(calls) == 3:
            raise OSError("the bus\nis gone")
        return {"minor_faults": len(calls)}

    monkeypatch.setattr(page_faults.Plugin, "start", lambda self, backend: None)
    monkeypatch.setattr(page_faults.Plugin, "sample", breaks_at_the_third)
    monkeypatch.setattr(interference.Plugin, "stop", lambda self, wall_s: 1 / 0)
    with Sampler(Sampled(opened("torch-cpu"))) as taken:  # type: ignore[arg-type]
        until(lambda: len(taken.samples) > 5)
    assert record_problems(taken.summaries, "probes") == []
    assert len(calls) == 3
    faults = taken.summaries["page_faults"]
    assert faults["reason"] == "OSError: the bus is gone"
    assert taken.samples[2]["t_s"] < faults["switched_off_at_s"] < taken.samples[3]["t_s"]
    assert [s.get("minor_faults") for s in taken.samples[:4]] == [1, 2, None, None]
    assert all("rss_bytes" in sample for sample in taken.samples)
    assert "ZeroDivisionError" in taken.summaries["interference"]["reason"]


# -- RAPL and the rest of Linux ----------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two CPU packages, a core zone that is inside one of them, and the platform's zone."""
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
    ):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("262143328850\n")
        (tmp_path / zone / "energy_uj").write_text("1000000\n")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    return tmp_path


def test_rapl_adds_up_packages_and_goes_on_where_a_counter_starts_again(packages: Path) -> None:
    sensor = rapl.energy()
    assert [source.scope for source in sensor.sources] == ["cpu-package"]
    assert sensor.read() == {"rapl-package": 0}
    (packages / "intel-rapl:0" / "energy_uj").write_text("5000000\n")
    (packages / "intel-rapl:1" / "energy_uj").write_text("3000000\n")
    assert sensor.read()["rapl-package"] == pytest.approx(6.0)
    (packages / "intel-rapl:1" / "energy_uj").write_text("1000000\n")  # round once
    assert sensor.read()["rapl-package"] == pytest.approx(6.0 + 262143.32885 - 2.0)
    (packages / "intel-rapl:1" / "energy_uj").write_text("\n")  # the driver is gone
    assert sensor.readings() == {} and "invalid literal" in sensor.lost["rapl-package"]
    assert "RAPL: ValueError: invalid literal" in str(rapl.energy().sources[0].reason)


def test_rapl_that_only_root_may_read_says_how_to_fix(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.read_text

    def read_text(self: Path, *arguments: Any, **more: Any) -> str:
        if self.name == "energy_uj":  # mode 0400 since CVE-2020-8694; tests may run as root
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *arguments, **more)

    monkeypatch.setattr(Path, "read_text", read_text)
    (source,) = rapl.energy().sources
    assert source.reason is not None and "sudo chmod a+r" in source.reason
    meter = EnergyMeter(opened("torch-cpu"), plan(10, 5))
    assert not meter.enabled and "sudo chmod a+r" in meter.summary()["reason"]


def test_a_cpu_s_clock_temperature_and_throttling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A desktop's /sys: two cores of two threads with cpufreq, coretemp, throttle counts."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(linux, "SYSTEM", tmp_path)
    files = {
        "class/hwmon/hwmon0/name": "nvme",
        "class/hwmon/hwmon0/temp1_input": "99000",
        "class/hwmon/hwmon1/name": "coretemp",
        "class/hwmon/hwmon1/temp1_input": "71000",
    }
    for core, kilohertz in enumerate((800000, 4700000, 1200000, 900000)):
        cpu = f"devices/system/cpu/cpu{core}"
        files |= {
            f"devices/system/cpu/cpufreq/policy{core}/scaling_cur_freq": str(kilohertz),
            f"{cpu}/thermal_throttle/core_throttle_count": "4",
            f"{cpu}/thermal_throttle/package_throttle_count": "9",
            f"{cpu}/topology/thread_siblings_list": f"{core % 2},{core % 2 + 2}",
            f"{cpu}/topology/physical_package_id": "0",
        }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    monkeypatch.setattr(clocks, "STATE_INTERVAL_S", 0.0)
    can, means = clocks.Plugin.available()
    assert can and "cpu_clock_mhz" in means
    cool = Sampled(opened("torch-cpu"))
    found = sampled(cool, 0.4, only=["clocks"])
    assert {sample["cpu_clock_mhz"] for sample in found.samples} == {4700.0}
    assert {sample["cpu_temperature_c"] for sample in found.samples} == {71.0}
    assert found.summaries["clocks"]["throttled"] is False
    assert found.summaries["clocks"]["power_capped"] is None
    hot = Sampled(opened("torch-cpu"))
    with Sampler(hot, ["clocks"]) as taken:  # type: ignore[arg-type]
        until(lambda: len(taken.samples) >= 2)
        count = tmp_path / "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count"
        count.write_text("6\n")
        until(lambda: len(taken.samples) >= 4)
    assert taken.summaries["clocks"]["throttled"] is True
    assert hot.codes() == {"throttled"} and "CPU heat in" in hot.flags[0][1]
    counts = [sample["cpu_throttle_count"] for sample in taken.samples]
    assert (counts[0], counts[-1]) == (4 + 4 + 9, 4 + 6 + 9)  # two cores of two threads


def test_savers_of_power_are_flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = interference.environment
    texts = {"scaling_driver": "acpi-cpufreq", "scaling_governor": "powersave"}
    for name, text in (texts | {"platform_profile": "low-power"}).items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(interference, "CPUFREQ", tmp_path)
    monkeypatch.setattr(environment, "PLATFORM_PROFILE", str(tmp_path / "platform_profile"))
    monkeypatch.setattr(environment, "power_source", lambda: "battery")
    session = Sampled(opened("torch-cpu"))
    found = sampled(session, 0.15, only=["interference"]).summaries["interference"]
    codes = {"governor", "low_power_mode", "on_battery"}
    assert session.codes() - {"contended"} == codes <= flag_words().keys()
    assert (found["power_source"], found["low_power_mode"]) == ("battery", True)
    assert (found["cpu_governor_driver"], found["cpu_governor"]) == ("acpi-cpufreq", "powersave")


# -- a Mac -------------------------------------------------------------------------------------


def test_a_mac_s_gpu_and_soc_are_two_scopes(
    mac: Mac, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    monkeypatch.setattr(type(mac.backend.clock), "synchronize", lambda self: waits.append(1))
    meter = EnergyMeter(mac.backend, plan(0.55, 0.3))
    meter.idle("before")
    before = len(waits)
    train(meter)
    assert len(waits) >= before + 2  # at both ends of the window
    sources, window_s = by_name(meter), meter.summary()["window_s"]
    assert {name: (s["scope"], s["quality"]) for name, s in sources.items()} == {
        "apple-gpu": ("gpu", "model"),
        "apple-soc": ("soc", "model"),
    }
    assert sources["apple-gpu"]["energy_j"] == pytest.approx(20 * window_s, rel=0.05)
    assert sources["apple-soc"]["energy_j"] == pytest.approx(25 * window_s, rel=0.05)
    assert sources["apple-soc"]["idle_before_w"] == pytest.approx(25, rel=0.1)
    taken = sampled(Sampled(mac.backend), 0.5, only=["energy"])
    assert taken.summaries["energy"]["gpu_power_median_w"] == pytest.approx(20, rel=0.1)
    assert taken.summaries["energy"]["soc_power_median_w"] == pytest.approx(25, rel=0.1)


def test_an_ultra_and_a_chip_without_a_channel_have_reasons(
    mac: Mac, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac.chip = "Apple M2 Ultra"
    session = Sampled(mac.backend)
    taken = sampled(session, 0.3, only=["energy"])
    assert "one die" in taken.summaries["energy"]["reasons"]["soc_power_w"]
    assert session.codes() == {"energy_one_die"} <= flag_words().keys()
    assert all("gpu_power_w" in sample for sample in taken.samples)
    mac.powers["gpu_mj"] = None
    gpu, soc = apple.energy(with_gpu=True).sources
    assert "no gpu_mj" in (gpu.reason or "") and "no gpu_mj" in (soc.reason or "")
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    (soc,) = apple.energy(with_gpu=False).sources
    assert "pip install zeus-apple-silicon" in (soc.reason or "")


def test_a_part_that_stands_still_is_not_counted(mac: Mac, hasty: None) -> None:
    """As the processor's in macOS 27.0: then the chip has no energy, and no power under its name."""
    for processor_mw, counted in ((0, False), (4000, True)):
        mac.powers |= {"cpu_total_mj": processor_mw, "dram_mj": 0}
        meter = EnergyMeter(mac.backend, plan(0.55, 0))
        train(meter)
        sources = by_name(meter)
        window_s = meter.summary()["window_s"]
        assert sources["apple-gpu"]["energy_j"] == pytest.approx(20 * window_s, rel=0.05)
        soc = sources["apple-soc"]
        taken = sampled(Sampled(mac.backend), 0.5, only=["energy"])
        probe = taken.summaries["energy"]
        assert probe["gpu_power_median_w"] == pytest.approx(20, rel=0.1)
        if counted:
            assert soc["energy_j"] == pytest.approx(24 * window_s, rel=0.05)
            assert "cpu_total_mj, gpu_mj summed" in soc["means"] == probe["sources"]["soc_power_w"]
            assert "stood still and not counted: ane_mj, dram_mj" in soc["means"]
        else:
            still = "not counted: cpu_total_mj stood still while the processor worked"
            assert soc["energy_j"] is None and soc["reason"] == still
            assert probe["soc_power_median_w"] is None and probe["reasons"]["soc_power_w"] == still
            assert all(sample["soc_power_w"] is None for sample in taken.samples)


def test_a_kernel_with_more_fields_is_given_the_room(mac: Mac) -> None:
    """As that of macOS 27, and not from its first answer on; beyond any room there is a reason."""
    memory = apple.VirtualMemory()
    mac.show(swapped_in=3, swapped_out=4)
    assert memory.swapped() == (3, 4)
    mac.library.fake_fields(62)
    try:
        assert memory.swapped() == (3, 4)
        mac.library.fake_fields(2000)
        with pytest.raises(Unreadable, match="host_statistics64 answers -307"):
            memory.swapped()
    finally:
        mac.library.fake_fields(38)


METAL = "/System/Library/Frameworks/Metal.framework/Versions/A/XPCServices/MTLCompilerService"
DRAWS = "/System/Library/PrivateFrameworks/SkyLight.framework/Resources/WindowServer"


@pytest.mark.parametrize(
    ("cores", "flagged"), [(8, False), (2, True)], ids=["others idle", "none idle"]
)
def test_what_works_for_a_cell_or_the_display_is_not_foreign(
    cores: int, flagged: bool, mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ps(1): a worker of the cell's, Metal's compiler that has just begun, what draws, Spotlight."""
    own, now = (
        os.getpid(),
        {"worker": "0:01.00", "draws": "2:10.50", "mds": "1-00:00:05", "s": 100.0},
    )

    def printed(command: Any, *_: Any, **__: Any) -> str:
        if command[0] != "ps":
            return ""
        lines = [
            "    1     0   9:00.00 /sbin/launchd",
            f"{own}     1   0:09.00 /usr/bin/python3",
            f"  501 {own}   {now['worker']} /usr/bin/python3",
            f"  200     1 {now['draws']} {DRAWS}",
            f"  300     1 {now['mds']} /System/Library/Frameworks/mds stores",
        ]
        if now["s"] > 100:
            lines.append(f"  600     1   0:01.50 {METAL}.xpc/Contents/MacOS/MTLCompilerService")
        return "\n".join(lines)

    monkeypatch.setattr(machine, "run", printed)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(interference, "busy_seconds", lambda: (now["s"], None))
    monkeypatch.setattr(interference, "descendants", set)
    monkeypatch.setattr(interference.time, "process_time", lambda: 0.0)
    probe = interference.Plugin()
    probe.start(mac.backend)
    # In two seconds 1.5 s each of the worker, of Metal's compiler, of what draws; 0.6 s of Spotlight.
    now |= {"worker": "0:02.50", "draws": "2:12.00", "mds": "1-00:00:05.60", "s": 105.1}
    summary = probe.stop(2.0)
    assert summary["foreign_load_cores"] == pytest.approx(0.3, abs=0.02)
    assert bool(summary["flags"]) == flagged
    assert interference.mac_processes()[300].busy_s == pytest.approx(86405.6)
    monkeypatch.setattr(machine, "run", lambda *_, **__: "")
    summary = probe.stop(2.0)
    assert (
        summary["foreign_load_cores"] is None and "ps" in summary["reasons"]["foreign_load_cores"]
    )


def test_a_mac_s_thermal_pressure_power_mode_and_swap(mac: Mac) -> None:
    """From the level "heavy" on it is throttling; low power mode is flagged."""
    mac.show(pressure=1)
    assert sampled(Sampled(mac.backend), 0.15).summaries["clocks"]["throttled"] is False
    mac.show(pressure=2, swapped_in=100, swapped_out=200)
    session = Sampled(mac.backend)
    with Sampler(session) as taken:  # type: ignore[arg-type]
        until(lambda: len(taken.samples) >= 2)
        mac.show(pressure=2, swapped_in=105, swapped_out=207)
    assert {sample["thermal_pressure_level"] for sample in taken.samples} == {2}
    found = taken.summaries["clocks"]
    assert found["throttled"] is True and found["power_capped"] is None
    assert found["limits"] == {"thermal pressure heavy": 1.0}
    assert "powermetrics" in found["reasons"]["gpu"]
    found = taken.summaries["interference"]
    assert (found["power_mode"], found["low_power_mode"]) == ("low", True)
    assert {"throttled", "low_power_mode"} <= session.codes()
    found = taken.summaries["page_faults"]
    assert found["swap_in_bytes"] == 5 * mmap.PAGESIZE
    assert found["swap_out_bytes"] == 7 * mmap.PAGESIZE
