"""NVIDIA's management library, through the official bindings (PyPI `nvidia-ml-py`).

Names, units and error codes are those of pynvml.py 13.615.71; what the figures mean is from
NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api), groups Device Queries and Clocks
Event Reasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from siliconprof.hosts.sensors.base import EnergySensor, Gpu, Readings, Source, Unreadable

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
OTHERS = {0x200: "board limit", 0x400: "reliability"}
LIMITS = POWER_CAPS | THROTTLING | OTHERS

NO_ANSWER = (
    *("NotSupported", "FunctionNotFound", "NoPermission", "NotFound", "InvalidArgument"),
    *("ArgumentVersionMismatch", "Deprecated"),
)
NOT_NOW = ("Timeout", "NotReady", "InUse", "NoData")


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
    try:
        return True, f"NVML of driver {bindings().nvmlSystemGetDriverVersion()}"
    except Unreadable as error:
        return False, str(error)


def gpu(uuid: str) -> Gpu:
    """The GPU of a UUID such as `GPU-4d0a…`, as CUDA gives it to frameworks."""
    try:
        return NvidiaGpu(bindings(), uuid)
    except Unreadable as error:
        return Gpu(str(error), COUNTER, POWER)


class NvidiaGpu(Gpu):
    """One GPU. A query that this GPU cannot answer is not repeated; a lost GPU raises.

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
        self._no_answer, self._not_now = (
            tuple(getattr(module, f"NVMLError_{name}") for name in names)
            for names in (NO_ANSWER, NOT_NOW)
        )
        if uuid.startswith("MIG-"):
            raise Unreadable(f"NVML: {uuid} is a slice of a GPU, whose own figures NVML lacks")
        try:
            self.handle = module.nvmlDeviceGetHandleByUUID(uuid)
        except module.NVMLError as error:
            raise Unreadable(f"NVML: {uuid}: {error}") from None

    def ask(self, query: str, *arguments: Any) -> Any:
        """The answer of a query, None where there is none.

        Raises:
            Unreadable: the GPU is lost, or the driver broke.
        """
        key = (query, *arguments)
        if key in self.unanswered:
            return None
        try:
            return getattr(self.nvml, query)(self.handle, *arguments)
        except self._not_now:
            return None
        except self._no_answer as error:
            self.unanswered[key] = str(error)
            return None
        except self.nvml.NVMLError as error:
            raise Unreadable(f"NVML: {query}: {error}") from None

    def energy(self) -> EnergySensor:
        try:
            return NvidiaEnergy(self)
        except Unreadable as error:
            return EnergySensor(*(source.without(str(error)) for source in self.sources))

    def clocks(self) -> Readings:
        return self._with_reasons(
            gpu_sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            gpu_clock_event_mask=self.ask("nvmlDeviceGetCurrentClocksEventReasons"),
        )

    def state(self) -> Readings:
        sensor = self.nvml.NVML_TEMPERATURE_GPU
        return self._with_reasons(
            gpu_memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            gpu_temperature_c=self.ask("nvmlDeviceGetTemperatureV", sensor),
            gpu_utilization_percent=self.utilization_percent(),
            gpu_performance_state=self.ask("nvmlDeviceGetPerformanceState"),
        )

    def _with_reasons(self, **readings: float | int | None) -> Readings:
        """The readings, after a reason is set for each that is None."""
        for column, value in readings.items():
            if value is None:
                self.reasons[column] = "NVML does not report it for this GPU"
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

    def utilization_percent(self) -> float | None:
        """NVML's period is 1/6 s to 1 s."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.gpu

    def processes(self) -> list[tuple[int, int | None]] | None:
        """Processes that compute, not those that draw."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        return None if processes is None else [(each.pid, each.usedGpuMemory) for each in processes]


class NvidiaEnergy(EnergySensor):
    """The energy counter (Volta and newer) and the power sensor of one GPU."""

    QUERIES = {COUNTER: "nvmlDeviceGetTotalEnergyConsumption", POWER: "nvmlDeviceGetPowerUsage"}

    def __init__(self, gpu: NvidiaGpu) -> None:
        self.gpu = gpu
        readings = self.read()
        super().__init__(
            *(
                source
                if source.name in readings
                else source.without(f"NVML: {query}: {gpu.unanswered.get((query,), 'no answer')}")
                for source, query in self.QUERIES.items()
            )
        )

    def read(self) -> dict[str, float]:
        readings = {source.name: self.gpu.ask(query) for source, query in self.QUERIES.items()}
        # from millijoules and milliwatts
        return {name: value / 1e3 for name, value in readings.items() if value is not None}
