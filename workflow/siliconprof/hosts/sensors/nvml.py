"""NVIDIA's management library, through the official bindings (PyPI `nvidia-ml-py`).

Names, units and error codes are those of pynvml.py 13.615.71; what the figures mean is from
NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api), groups Device Queries and Clocks
Event Reasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from siliconprof.hosts import machine
from siliconprof.hosts.machine import Unreadable
from siliconprof.hosts.sensors.base import EnergySensor, Gpu, Readings, Source

COUNTER = Source(
    "nvml-counter",
    "gpu",
    "counter",
    "nvmlDeviceGetTotalEnergyConsumption, millijoules since the driver was loaded; the board with "
    "its memory, on a Grace Hopper the whole module",
)
POWER = Source(
    "nvml-power",
    "gpu",
    "integral",
    "nvmlDeviceGetPowerUsage, trapezoids between readings; a reading is the mean of 1 s on Ampere "
    "(but GA100) and newer, the moment's power on older GPUs",
)

# Bits of nvmlClocksEventReasons. Idling, chosen application clocks, a sync group and a display
# (bits 0, 1, 4 and 8) are left out: they do not limit a measurement.
POWER_CAPS = {0x004: "power cap"}
THROTTLING = {
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
}
OTHER_THROTTLES = {0x200: "board limit", 0x400: "reliability"}
LIMITS = POWER_CAPS | THROTTLING | OTHER_THROTTLES

POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT of nvml.h, milliwatts; older bindings lack its name

NOT_NOW = ("Timeout", "NotReady", "InUse", "NoData")
# A query -> its name before, which bindings or a driver of then have alone: nvidia-ml-py 12.535 and
# pynvml 11.5 lack the temperature's, drivers before 535 the reasons'.
OLDER = {
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
}


def bindings() -> Any:
    """The module `pynvml`, with the library open.

    Raises:
        Unreadable: no bindings, no driver, or no GPU.
    """
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise Unreadable(
            "NVML: nvidia-ml-py is missing; for an NVIDIA GPU: pip install nvidia-ml-py"
        ) from None
    if not hasattr(module, "nvmlInit"):
        raise Unreadable(
            f"NVML: the module pynvml here ({getattr(module, '__file__', 'a folder')}) is not NVIDIA's: "
            "pip install --force-reinstall nvidia-ml-py"
        )
    try:
        module.nvmlInit()
        count = module.nvmlDeviceGetCount()
    except module.NVMLError as error:
        raise Unreadable(f"no NVIDIA GPU with a working driver ({error})") from None
    if not count:
        raise Unreadable("NVML: the driver finds no GPU here")
    return module


def available() -> tuple[bool, str]:
    """Whether NVML works here, and its version or the reason."""
    version, why = machine.reading(lambda: bindings().nvmlSystemGetDriverVersion())
    return why is None, why or f"NVML of driver {version}"


def gpu(uuid: str) -> Gpu:
    """The GPU of a UUID such as `GPU-4d0a…`, as CUDA gives it to frameworks."""
    made, why = machine.reading(lambda: NvidiaGpu(bindings(), uuid))
    return made or Gpu(why, COUNTER, POWER)


class NvidiaGpu(Gpu):
    """One GPU. A query that this GPU cannot answer, or not any more, is not repeated.

    Raises:
        Unreadable: NVML has no such GPU, or it is a slice of one (MIG), which NVML does not report.
    """

    throttling = frozenset(THROTTLING.values())
    power_caps = frozenset(POWER_CAPS.values())
    limits_shown = ("gpu_clock_event_mask", "the GPU's clock event reasons (NVML)")

    def __init__(self, module: Any, uuid: str) -> None:
        super().__init__(None, COUNTER, POWER)
        self.nvml = module
        self.unanswered: dict[tuple[Any, ...], str] = {}  # query and arguments -> why no answer
        known = (f"NVMLError_{name}" for name in NOT_NOW)
        self._not_now = tuple(getattr(module, name) for name in known if hasattr(module, name))
        self._names: dict[str, str] = {}  # query -> the older name that answers it here
        if uuid.startswith("MIG-"):
            raise Unreadable(f"NVML: {uuid} is a slice of a GPU, whose own figures NVML lacks")
        try:
            self.handle = module.nvmlDeviceGetHandleByUUID(uuid)
        except module.NVMLError as error:
            raise Unreadable(f"NVML: {uuid}: {error}") from None

    def ask(self, query: str, *arguments: Any) -> Any:
        """The answer of a query, None where there is none."""
        key = (query, *arguments)
        if key in self.unanswered:
            return None
        answer, why = machine.reading(lambda: self._now(query, *arguments))
        if why is not None:
            self.unanswered[key] = f"NVML: {query}: {why}"
        return answer

    def _now(self, query: str, *arguments: Any) -> Any:
        name = self._names.get(query, query)
        try:
            return getattr(self.nvml, name)(self.handle, *arguments)
        except self._not_now:
            return None
        except (AttributeError, self.nvml.NVMLError_FunctionNotFound):
            if name not in OLDER:
                raise
        self._names[query] = OLDER[query]
        return self._now(query, *arguments)

    def energy(self) -> EnergySensor:
        return NvidiaEnergy(self)

    def clocks(self) -> Readings:
        return self._columns(
            gpu_sm_clock_mhz=("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            gpu_clock_event_mask=("nvmlDeviceGetCurrentClocksEventReasons",),
        )

    def state(self) -> Readings:
        state = self._columns(
            gpu_memory_clock_mhz=("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            gpu_temperature_c=("nvmlDeviceGetTemperatureV", self.nvml.NVML_TEMPERATURE_GPU),
            gpu_utilization_percent=("nvmlDeviceGetUtilizationRates",),
            gpu_performance_state=("nvmlDeviceGetPerformanceState",),
        )
        rates: Any = state["gpu_utilization_percent"]  # NVML's period is 1/6 s to 1 s
        return state | {"gpu_utilization_percent": None if rates is None else rates.gpu}

    def now(self) -> dict[str, Any]:
        """The power is that of the moment: `nvmlDeviceGetPowerUsage` has the mean of a second."""
        readings = self.clocks()
        answer = self.ask("nvmlDeviceGetFieldValues", (POWER_INSTANT,))
        known = answer is not None and answer[0].nvmlReturn == self.nvml.NVML_SUCCESS
        return {
            "sm_clock_mhz": readings["gpu_sm_clock_mhz"],
            "power_w": answer[0].value.uiVal / 1e3 if known else None,
            "limits": self.limits(readings),
        }

    def _columns(self, **queries: tuple[Any, ...]) -> Readings:
        """The answers by column, after a reason is set for each that is None."""
        readings = {column: self.ask(*query) for column, query in queries.items()}
        for column, value in readings.items():
            if value is None:
                self.reasons[column] = self.unanswered.get(queries[column], "NVML: no answer yet")
            else:
                self.reasons.pop(column, None)
        return readings

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        mask = readings.get("gpu_clock_event_mask")
        if mask is None:
            return None
        return tuple(name for bit, name in LIMITS.items() if int(mask) & bit)

    def power_limit_w(self) -> float | None:
        limit_mw = self.ask("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit_mw is None else limit_mw / 1e3

    def processes(self) -> list[tuple[int, int | None]] | None:
        """Processes that compute, not those that draw."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        return None if processes is None else [(each.pid, each.usedGpuMemory) for each in processes]


class NvidiaEnergy(EnergySensor):
    """The energy counter (Volta and newer) and the power sensor of one GPU."""

    QUERIES = {COUNTER: "nvmlDeviceGetTotalEnergyConsumption", POWER: "nvmlDeviceGetPowerUsage"}

    def __init__(self, gpu: NvidiaGpu) -> None:
        self.gpu = gpu
        super().__init__()
        readings = self.read()
        self.sources = tuple(
            source if source.name in readings else source.without(self._why(source))
            for source in self.QUERIES
        )

    def _why(self, source: Source) -> str:
        query = self.QUERIES[source]
        return self.gpu.unanswered.get((query,), f"NVML: {query}: no answer")

    def read(self) -> dict[str, float]:
        readings = {source: self.gpu.ask(query) for source, query in self.QUERIES.items()}
        unanswered = [s for s, query in self.QUERIES.items() if (query,) in self.gpu.unanswered]
        self.lost |= {source.name: self._why(source) for source in unanswered}
        # from millijoules and milliwatts
        return {source.name: mj / 1e3 for source, mj in readings.items() if mj is not None}
