"""Probes and the energy meter on an NVIDIA GPU, for whose NVML stands fake_sensors.py."""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType
from typing import Any

import pytest
from conftest import until
from fake_sensors import Nvidia, Sampled, by_name, plan, train
from measuring import sampled
from siliconprof.hosts.sensors import nvml, sources
from siliconprof.probes import interference
from siliconprof.session import energy
from siliconprof.session.energy import EnergyMeter
from siliconprof.session.sampler import Sampler
from siliconprof.store.captions import flag_words

# They sleep, for windows and clocks that are compared.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=1)]


def test_energy_is_power_times_time_by_counter_and_by_integral(gpu: Nvidia, hasty: None) -> None:
    """250 W for about half a second and 60 W at rest, as the stand-in's own clock makes them."""
    meter = EnergyMeter(gpu.backend, plan(0.55, 0.4))
    assert meter.enabled
    gpu.show(power_mw=60_000)
    meter.idle("before")
    gpu.show(power_mw=250_000)
    steps = train(meter)
    gpu.show(power_mw=60_000)
    meter.idle("after")
    summary, sources = meter.summary(), by_name(meter)
    assert summary["reason"] is None and summary["steps"] == steps
    assert summary["window_s"] >= 0.55
    assert {s["scope"] for s in sources.values() if s["energy_j"]} == {"gpu"}
    for name, quality in (("nvml-counter", "counter"), ("nvml-power", "integral")):
        found = sources[name]
        assert found["quality"] == quality and found["updates"] >= energy.LEAST_UPDATES
        assert found["energy_j"] == pytest.approx(250 * summary["window_s"], rel=0.08), name
        assert found["energy_per_step_j"] == pytest.approx(found["energy_j"] / steps)
        assert found["energy_per_sample_j"] == pytest.approx(found["energy_j"] / steps / 4)
        assert found["idle_before_w"] == pytest.approx(60, rel=0.1)
        assert found["idle_after_w"] == pytest.approx(60, rel=0.1)
        net = (250 - 60) * summary["window_s"] / steps
        assert found["net_energy_per_step_j"] == pytest.approx(net, rel=0.1)
        assert found["reason"] is None


def test_a_gpu_s_clock_power_and_limit_of_a_moment(gpu: Nvidia) -> None:
    """Beside an operation that has just ended; the power is not the mean of the second before."""
    gpu.show(power_mw=698_000, sm_mhz=1410, reasons=0x4)
    now = sources.gpu(gpu.backend.gpu_address).now()
    assert now == {"sm_clock_mhz": 1410, "power_w": 698, "limits": ("power cap",)}
    gpu.show(**{"no power_mw": 1})
    assert sources.gpu(gpu.backend.gpu_address).now() == now | {"power_w": None}


def test_a_window_that_is_too_short_is_no_measurement(gpu: Nvidia) -> None:
    meter = EnergyMeter(gpu.backend, plan(10.5, 0))
    meter.begin()
    assert not meter.enough()
    time.sleep(0.2)
    meter.end(10, 4)  # a time limit struck
    for found in by_name(meter).values():
        assert found["energy_j"] is found["energy_per_step_j"] is found["idle_before_w"] is None
        if found["scope"] == "gpu":
            assert "at least 10 s are needed" in found["reason"]
    assert meter.summary()["reason"]
    never = EnergyMeter(gpu.backend, plan(0.4, 1))
    assert not never.enabled and "0.4 s (energy_window_s)" in never.summary()["reason"]


def test_a_slow_counter_is_waited_for_and_a_dead_one_is_not(gpu: Nvidia, hasty: None) -> None:
    """20 updates 40 ms apart take longer than the window; a counter that never moves is None."""
    gpu.show(counter_period_s=0.04)
    meter = EnergyMeter(gpu.backend, plan(0.55, 0))
    train(meter)
    assert meter.summary()["window_s"] > 0.75
    assert by_name(meter)["nvml-counter"]["energy_j"] > 0
    gpu.show(counter_period_s=0)
    meter = EnergyMeter(gpu.backend, plan(0.55, 0))
    train(meter)
    assert meter.summary()["window_s"] < 0.5 * energy.LONGEST_WINDOWS * 0.55
    dead = by_name(meter)["nvml-counter"]
    assert dead["energy_j"] is None and dead["reason"].startswith("0 updates")
    assert by_name(meter)["nvml-power"]["energy_j"] > 0


def test_a_gpu_that_is_lost_becomes_a_reason(gpu: Nvidia, hasty: None) -> None:
    """In the window, in the samples and before anything began; the training goes on."""
    meter = EnergyMeter(gpu.backend, plan(0.55, 0))
    session = Sampled(gpu.backend)
    with Sampler(session) as taken:  # type: ignore[arg-type]
        meter.begin()
        time.sleep(0.25)
        gpu.show(lost=15)  # NVML_ERROR_GPU_IS_LOST
        until(meter.enough, 10.0)  # there is nothing to wait for any more
        meter.end(10, 4)
        seen = len(taken.samples)
        until(lambda: len(taken.samples) >= seen + 6)  # what is read once a second as well
    for found in by_name(meter).values():
        assert found["energy_j"] is None
        if found["scope"] == "gpu":
            assert "lost in the window" in found["reason"] and "GPU is lost" in found["reason"]
    for name in ("clocks", "energy"):
        reasons = taken.summaries[name]["reasons"]
        of_gpu = {column: why for column, why in reasons.items() if column.startswith("gpu_")}
        assert of_gpu and all("GPU is lost" in why for why in of_gpu.values()), of_gpu
    assert taken.summaries["clocks"]["throttled"] is None
    assert taken.samples[0]["gpu_power_w"] and taken.samples[-1]["gpu_power_w"] is None
    assert all("rss_bytes" in sample for sample in taken.samples)
    late = EnergyMeter(gpu.backend, plan(0.55, 0))
    assert not late.enabled and "GPU is lost" in late.summary()["reason"]


def test_throttling_and_a_power_cap_are_told_apart(gpu: Nvidia) -> None:
    """Bits of the clock event reasons, over the samples in which they were set."""
    for reasons, capped in ((0x1 | 0x2, False), (0x4, True)):  # idle, application clocks: no limits
        session = Sampled(gpu.backend)
        gpu.show(reasons=reasons)
        found = sampled(session, 0.4).summaries["clocks"]
        assert found["throttled"] is False and found["power_capped"] is capped
        assert "throttled" not in session.codes()
        assert ("power_capped" in session.codes()) is capped
    assert found["gpu_sm_clock_median_mhz"] == 1980
    assert found["gpu_temperature_max_c"] == 61 and found["gpu_memory_clock_max_mhz"] == 3201
    hot = Sampled(gpu.backend)
    gpu.show(reasons=0)
    with Sampler(hot) as taken:  # type: ignore[arg-type]
        until(lambda: len(taken.samples) >= 5)
        gpu.show(reasons=0x40 | 0x8, sm_mhz=990)
        until(lambda: len(taken.samples) >= 10)
    found = taken.summaries["clocks"]
    assert found["throttled"] is True and found["power_capped"] is False
    (detail,) = [text for code, text in hot.flags if code == "throttled"]
    assert "hardware thermal slowdown in" in detail and "hardware slowdown in" in detail
    assert "samples" in detail
    masks = [sample["gpu_clock_event_mask"] for sample in taken.samples]
    assert masks[0] == 0 and masks[-1] == 0x48
    share = masks.count(0x48) / len(masks)
    assert found["limits"]["hardware thermal slowdown"] == pytest.approx(share, abs=1e-3)
    assert found["gpu_sm_clock_min_mhz"] == 990
    assert {"throttled", "power_capped", "contended"} <= flag_words().keys()


def test_what_a_gpu_does_not_tell_is_none_with_a_reason(gpu: Nvidia) -> None:
    gpu.show(**{f"no {query}": 1 for query in ("reasons", "temperature_c", "energy")})
    taken = sampled(Sampled(gpu.backend), 0.4)
    found = taken.summaries["clocks"]
    assert found["throttled"] is None
    assert {"gpu_temperature_c", "gpu_clock_event_mask"} <= found["reasons"].keys()
    assert all(sample["gpu_clock_event_mask"] is None for sample in taken.samples)
    assert all(sample["gpu_sm_clock_mhz"] == 1980 for sample in taken.samples)
    power = [sample["gpu_power_w"] for sample in taken.samples]
    assert power == pytest.approx([250] * len(power), rel=0.01)
    assert taken.summaries["energy"]["gpu_power_limit_w"] == 700
    assert taken.summaries["energy"]["gpu_power_median_w"] == pytest.approx(250, rel=0.01)


@pytest.mark.parametrize("older", ["bindings", "driver"])
def test_what_older_bindings_and_drivers_call_otherwise_is_read(
    older: str, gpu: Nvidia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynvml 11.5 has neither name and one error less; before driver 535 the reasons had the older."""
    import pynvml

    pointer = pynvml._nvmlGetFunctionPointer

    def of_older_driver(name: str) -> Any:
        if name in nvml.OLDER:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return pointer(name)

    if older == "driver":
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", of_older_driver)
    else:
        for name in (*nvml.OLDER, "NVMLError_NotReady"):
            monkeypatch.delattr(pynvml, name)
    gpu.show(reasons=0x4)
    taken = sampled(Sampled(gpu.backend), 0.4)
    found = taken.summaries["clocks"]
    assert found["power_capped"] is True and found["gpu_temperature_max_c"] == 61
    assert found["gpu_sm_clock_median_mhz"] == 1980
    assert taken.summaries["energy"]["gpu_power_limit_w"] == 700
    sources = EnergyMeter(gpu.backend, plan(10, 0)).summary()["sources"]
    assert not [s["reason"] for s in sources if s["scope"] == "gpu" and "NVML" in str(s["reason"])]


def test_a_module_that_is_only_called_pynvml_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml", "of somebody else"))
    works, why = nvml.available()
    assert not works and "is not NVIDIA's: pip install --force-reinstall nvidia-ml-py" in why


@pytest.mark.parametrize(
    ("listed", "count", "held", "flagged"),
    [
        ([(os.getpid(), 5), (1, 2**30)], 1, 2**30, True),
        ([(4_000_001, 5), (4_000_002, 7)], 1, None, True),  # a container: the host's ids
        ([], None, None, False),  # a container that is shown nobody
    ],
)
def test_others_on_the_gpu_are_counted(
    listed: list[tuple[int, int]],
    count: int | None,
    held: int | None,
    flagged: bool,
    gpu: Nvidia,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tests before this one may have started some.
    monkeypatch.setattr(interference, "descendants", set)
    for index, (pid, held_bytes) in enumerate(listed):
        gpu.show(**{f"pid {index}": pid, f"bytes {index}": held_bytes})
    session = Sampled(gpu.backend)
    found = sampled(session, 0.25, only=["interference"]).summaries["interference"]
    assert (found["gpu_foreign_processes"], found["gpu_foreign_bytes"]) == (count, held)
    said = [text for code, text in session.flags if code == "contended" and "GPU" in text]
    assert bool(said) == flagged
    assert "container" in found["gpu_means"] or listed == [] or listed[0][0] == os.getpid()
