"""Sensors that this host lacks: NVML and macOS, and an energy meter that hurries.

NVML and macOS are stood in for below ctypes, by libraries compiled from `fake_nvml.cpp` and
`fake_macos.cpp`, so that the real bindings run; zeus-apple-silicon by a module with the methods
of its 1.1.0.
"""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import opened
from siliconprof.hosts import machine
from siliconprof.hosts.sensors import apple
from siliconprof.session import energy
from siliconprof.session.energy import EnergyMeter

UUID = "GPU-fa4e0000-0000-0000-0000-000000000000"


class Sampled:
    """What a sampler sees of a session, and the flags that it was given."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.under_way = True
        self.flags: list[tuple[str, str]] = []

    def flag(self, code: str, detail: str) -> None:
        self.flags.append((code, detail))

    def codes(self) -> set[str]:
        return {code for code, _ in self.flags}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-ins, compiled."""
    folder = tmp_path_factory.mktemp("fakes")
    for name in ("fake_nvml", "fake_macos"):
        files = (folder / f"{name}.so", Path(__file__).with_name(f"{name}.cpp"))
        subprocess.run(["c++", "-shared", "-fPIC", "-std=c++17", "-o", *files], check=True)
    return folder


class Nvidia:
    """The GPU that the stand-in shows, and a CPU backend that says it works on it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.fake_set.argtypes = (ctypes.c_char_p, ctypes.c_double)
        library.fake_reset()
        self.show(power_mw=250_000, limit_mw=700_000, sm_mhz=1980, memory_mhz=3201)
        self.show(temperature_c=61, pstate=0, busy_percent=0, reasons=0)
        self.backend = opened("torch-cpu")

    def show(self, **values: float) -> None:
        for name, value in values.items():
            self.library.fake_set(name.encode(), float(value))


@pytest.fixture
def gpu(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Nvidia:
    """The real bindings on the stand-in library, for one test."""
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(libraries / "fake_nvml.so")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    shown = Nvidia(pynvml.nvmlLib)
    monkeypatch.setattr(type(shown.backend), "gpu_address", ("nvidia", UUID))
    return shown


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second instead of ten; what is required of the readings in it stays."""
    monkeypatch.setattr(energy, "READ_EVERY_S", 0.01)
    monkeypatch.setattr(energy, "LEAST_WINDOW_S", 0.5)
    monkeypatch.setattr(energy, "SETTLE_S", 0.0)
    monkeypatch.setattr(energy, "LONGEST_WINDOWS", 40)  # a busy host may pause for longer than six


def train(meter: EnergyMeter) -> int:
    """Steps of 20 ms until the meter has enough; how many."""
    meter.begin()
    steps = 0
    while not meter.enough():
        time.sleep(0.02)
        steps += 1
    meter.end(steps, 4)
    return steps


def by_name(meter: EnergyMeter) -> dict[str, dict[str, Any]]:
    summary = meter.summary()
    json.dumps(summary, allow_nan=False)
    return {source["name"]: source for source in summary["sources"]}


def plan(window_s: float, idle_s: float) -> Any:
    return SimpleNamespace(energy_window_s=window_s, energy_idle_s=idle_s)


class Mac:
    """A Mac whose chip draws a known power, in milliwatts by field, and a backend on its GPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.backend = opened("torch-cpu")
        self.powers: dict[str, float | None] = {
            "cpu_total_mj": 4000,
            "gpu_mj": 20_000,
            "dram_mj": 1000,
            "ane_mj": 0,
        }
        self.energy = dict.fromkeys(self.powers, 1e6)
        self.at_s = time.perf_counter()
        self.chip = "Apple M2 Max"
        self.show()

    def show(self, pressure: int = 0, swapped_in: int = 0, swapped_out: int = 0) -> None:
        """A level of thermal pressure, and pages swapped since a fixed point."""
        self.library.fake_set(pressure, swapped_in, swapped_out)

    def get_cumulative_energy(self) -> SimpleNamespace:
        """As AppleEnergyMonitor's: whole millijoules since a fixed point; absent ones are None."""
        before_s, self.at_s = self.at_s, time.perf_counter()
        found = {}
        for field, power in self.powers.items():
            self.energy[field] += (power or 0) * (self.at_s - before_s)
            found[field] = None if power is None else int(self.energy[field])
        return SimpleNamespace(**found)


@pytest.fixture
def mac(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    path = str(libraries / "fake_macos.so")
    fake = ctypes.CDLL(path)
    fake.fake_set.argtypes = (ctypes.c_uint64,) * 3
    made = Mac(fake)  # torch is imported as on Linux
    monkeypatch.setattr(type(made.backend), "gpu_address", ("apple", ""))
    monkeypatch.setattr(apple, "SYSTEM_LIBRARY", path)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine, "cpu_model", lambda: made.chip)
    monkeypatch.setattr(machine, "run", lambda *_, **__: " lowpowermode         1\n")
    monkeypatch.setattr(metadata, "version", lambda name: "1.1.0")
    module: Any = SimpleNamespace(AppleEnergyMonitor=lambda: made)
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    return made
