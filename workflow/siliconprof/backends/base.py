"""The interface of a backend, the software path to a device.

Framework-specific code lives in backends and in the modules that they use, nowhere else. Importing
a backend's module imports no framework; `open` does.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from siliconprof.backends._kernels import Kernels
from siliconprof.backends._step import Operator, Stepper
from siliconprof.hosts import machine
from siliconprof.memory.footprint import MemoryProfile

# Relative error of an n = 256 product of normal matrices against float64, per effective dtype,
# measured with unit-variance inputs: root mean square error over root mean square result. Bands
# lie between the formats' unit round-offs (2^-24, 2^-11, 2^-11, 2^-9), fp16 and tf32 share one.
ERROR_BANDS = (("fp32", 0.0, 1e-5), ("tf32-or-fp16", 1e-5, 8e-4), ("bf16", 8e-4, 2e-2))
# What NVIDIA's GPUs compute in from compute capability 8.0 on: CUDA programming guide, appendix on it.
SINCE_AMPERE = ("bf16", "tf32")


class Unsupported(Exception):
    """The backend cannot do what the cell asks; the message is the record's reason."""


class Clock:
    """The host's clock, for a device that has finished when a call returns."""

    means: ClassVar[str] = (  # how phases and whole steps are timed, for the record
        "perf_counter at phase edges; eager and synchronous, nothing to wait for"
    )
    works_beside: ClassVar[bool] = False  # a step's code returns while the device works on

    def synchronize(self) -> None:
        """Wait until the device has finished everything handed to it."""

    def mark(self) -> Any:
        """A time mark at a phase's edge."""
        self.synchronize()
        return time.perf_counter()

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds between two marks."""
        return end - start

    def blocked_autorange(
        self, operation: Callable[[], Any], min_run_time_s: float
    ) -> dict[str, Any]:
        """An operation timed by `torch.utils.benchmark.Timer.blocked_autorange`.

        Returns:
            `reason` (None), `min_run_time_s`, `number_per_run` and `times_s`: the mean seconds of
            a call, one value per block; where there is no such tool, `reason` alone.
        """
        return {"reason": "torch.utils.benchmark.Timer is torch's own tool"}


class Memory:
    """The memory of a device on which the framework counts none."""

    means: ClassVar[str]  # what the counters count, or why there are none
    peak_means: ClassVar[str] = "no counter"  # what counts the peak, or why nothing does
    prefix: ClassVar[str] = "device"  # of the columns that `counters` fills
    # Why `set_limit` sets no hard limit; None = allocating beyond it raises.
    limit_yields: ClassVar[str | None] = None

    def allocated_bytes(self) -> int | None:
        """Bytes the framework holds on the device now; None where it does not count."""
        return None

    def peak_bytes(self) -> int | None:
        """The most bytes held since the last reset; None where it does not count."""
        return None

    def reset_peak(self) -> None:
        """Start a new peak."""

    def empty_cache(self) -> None:
        """Release the memory that the framework has freed and cached for reuse."""

    def counters(self, driver: bool = True) -> dict[str, int | None]:
        """Every counter of the framework, bytes by fixed keys; asking the driver is slow."""
        return {}

    def recommended_bytes(self) -> int | None:
        """What the device's driver recommends to stay below, or its whole memory; None on a CPU."""
        return None

    def set_limit(self, limit_bytes: int) -> str | None:
        """Limit this process's arrays, in bytes; return how, or None where only the system can."""
        return None

    def step_peak_bytes(
        self, step: Callable[[], Any] | None, persistent: Sequence[Any]
    ) -> tuple[int | None, str]:
        """(peak bytes of arrays in a training step or None, what counts them or why nothing does).

        A framework with a counter of its own reports the peak of all steps so far and runs none.

        Args:
            step: one more training step; None = it cannot be repeated by itself.
            persistent: arrays that exist between steps: weights and the optimizer's state.
        """
        return self.peak_bytes(), self.peak_means

    def last_level_cache(self) -> tuple[int | None, str]:
        """(bytes of the last cache before the device's memory or None, the source or the reason)."""
        return None, "this backend does not tell the device's caches"


class Arrays(Protocol):
    """Arrays of the cell's dtype on the device, for workloads that time kernels."""

    def normal(self, shape: Sequence[int], seed: int) -> Any:
        """Normally distributed array of the cell's dtype on the device; the same for a seed."""

    def matmul(self, a: Any, b: Any) -> Any:
        """Product of (…, m, k) and (…, k, n), handed to the device."""

    def vjp(self, a: Any, b: Any, cotangent: Any, forward: bool) -> Callable[[], Any]:
        """A launcher of the gradients of `a @ b` by both, for a cotangent of the product.

        It returns (product, gradient by a, gradient by b), or without `forward` the gradients
        alone; then no launch computes the product.

        Args:
            a, b, cotangent: (…, m, k), (…, k, n) and (…, m, n).
        """

    def copy(self, value: Any) -> Any:
        """The same values in memory of their own."""

    def eval(self, value: Any) -> None:
        """Have a lazy framework compute a value; nothing to do in an eager one."""
        return

    def async_eval(self, value: Any) -> None:
        """Have a lazy framework start on a value without waiting; nothing to do in an eager one."""
        return

    def relative_error(self, result: Any, reference: Callable[..., Any], *inputs: Any) -> float:
        """Root mean square error of a result against `reference(*inputs)` in float64, over its own."""

    def from_host(self, values: list[Any]) -> Any:
        """Array of the cell's dtype from (nested) lists, on the device: no kernel runs for it."""

    def sampled(self, array: Any) -> Any:
        """Up to `_kernels.SAMPLED_VALUES` values of an array, evenly spread, as a numpy array of float32."""

    def repeated_normal(self, count: int) -> Any:
        """New flat array of `count` normal values, the first `_kernels.DRAWN` of them repeated."""


class Profiler:
    """Lists and times the operators of a training step; this default refuses."""

    counts_flops: ClassVar[bool] = False  # by a counter of the framework's own

    def describe_step(self, clock: Any) -> AbstractContextManager[list[Operator]]:
        """A context whose list has the operators of the training step inside it, in order.

        The list is complete when the context has ended, before which the clock has stopped.

        Args:
            clock: a `timing.PhaseClock`, started for a split step.

        Raises:
            Unsupported: it cannot list them.
        """
        raise Unsupported("this backend does not tell the operators of a step")

    def time_step(self) -> AbstractContextManager[list[tuple[str, float]]]:
        """As `describe_step`, with (kind, seconds) of each operator."""
        raise Unsupported("this backend does not time operators inside of a step")

    def count_launches(self, step: Callable[[], Any]) -> int | None:
        """Operators that one more training step hands to a GPU; None on a CPU."""
        return None

    def describe_call(self, launch: Callable[[], Any]) -> list[Operator]:
        """The operators that a call hands to the device, with their operands and FLOPs.

        Raises:
            Unsupported: it cannot list them.
        """
        raise Unsupported("this backend does not tell the operators of a call")

    def total_flops(self, operators: Iterable[tuple[str, int | None, int]]) -> int | None:
        """Floating-point operations of operators; None where it knows none, or not all.

        Args:
            operators: (kind, FLOPs of one or None, how many).
        """
        return sum(count * flops for _, flops, count in operators if flops) or None

    def implementations(self, operators: Sequence[Operator]) -> dict[str, str]:
        """The `attention` and `adamw` that a training step runs; empty where unknown."""
        return {}


class Features:
    """What a backend can do on a host, answered without importing its framework."""

    precisions: ClassVar[Mapping[str, str | None]]  # precision -> reason why not, None = can
    attentions: ClassVar[tuple[str, ...]] = ()  # kernels that a training may ask for
    adamws: ClassVar[tuple[str, ...]] = ()  # implementations of AdamW that it may ask for
    usual_adamw: ClassVar[str | None] = None  # which runs where none is asked for; None = unknown
    offload: ClassVar[str | None] = None  # why it cannot offload to the host, None = can
    # What it keeps from a forward pass, for the memory model.
    memory_profile: ClassVar[MemoryProfile] = MemoryProfile()

    def environment(
        self, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """Variables that the measuring process must be started with.

        Args:
            index: the device's place among those that the host file counts.
            inherited: the environment that these variables are added to.
        """
        return {}

    def refuses(self, precision: str, capability: str | None) -> str | None:
        """Why it cannot compute in a precision, None where it can; see `memory_profile_on`."""
        if capability and float(capability) < 8 and precision.endswith(SINCE_AMPERE):
            return f"{precision} needs compute capability 8.0, this GPU has {capability}"
        return self.precisions.get(precision)

    def refuses_attention(self, name: str, precision: str, capability: str | None) -> str | None:
        """Why one of `attentions` cannot be had, None where it can; see `refuses`."""
        return None

    def emulates_on_cpu(self, dtype: str, system: str) -> bool:
        """Whether it computes a dtype on a CPU without the instructions that the CPU may have for it.

        Args:
            system: as `platform.system()`.
        """
        return False

    def cannot_compile(self, device_kind: str) -> str | None:
        """Why a training step cannot be compiled here, None where it can."""
        return None

    def memory_profile_on(self, capability: str | None) -> MemoryProfile:
        """Its `memory_profile` on a GPU of this compute capability, as `9.0`; None = none, or unknown."""
        return self.memory_profile

    def may_fork(self, device_kind: str) -> bool:
        """Whether a process that has imported the framework can fork one that opens the device."""
        return device_kind == "cpu"

    def bad_fork(self) -> bool:
        """Whether this process was forked from one that had opened the device."""
        return False


class Backend:
    """A software path to a device. Until `open` its parts are null objects."""

    features: Features
    clock: Clock = Clock()
    memory: Memory = Memory()
    profiler: Profiler = Profiler()
    arrays: Arrays  # of an open backend
    kernels: Kernels  # of an open backend
    # (vendor, NVML's UUID or "") of the GPU that is open, for `hosts.sensors`; None on a CPU.
    gpu_address: tuple[str, str] | None = None

    name: ClassVar[str]
    framework: ClassVar[str]  # torch or mlx: which of a workload's implementations it runs
    device_kind: ClassVar[str | None]  # cpu, gpu, or None for either
    packages: ClassVar[Sequence[str]]  # distributions whose version the numbers depend on
    LIBRARIES: ClassVar[Sequence[str]]  # those, and what they bring; the record has all versions
    caveat: tuple[str, str] | None = None  # a flag of every cell that is measured on it, once open
    compile_caveat: ClassVar[str | None] = None  # what to know of its compiled steps
    # Text of a process's output by which the device aborted work, which the framework may not report ->
    # its meaning and the remedy. The first that is found counts.
    aborts: ClassVar[Mapping[str, str]] = {}

    def import_framework(self) -> None:
        """Import the framework, and whatever must be loaded before it; examine no device."""
        raise NotImplementedError

    def available(self) -> tuple[bool, str]:
        """Whether this host can run it, and the version found or the reason. May import."""
        raise NotImplementedError

    def identity(self, device_kind: str, index: int) -> dict[str, Any]:
        """`name` and `memory_bytes` of the device that `open` would take; after `available`.

        Of a GPU also `compute_capability` and `working_set_bytes`, if it has them. A processor, and a GPU
        that is part of one, has the system's name for it.
        """
        chip = machine.cpu()
        return {"name": chip["model"], "memory_bytes": chip["memory_bytes"]}

    def n_gpus(self) -> int:
        """How many GPUs it sees, after `import_framework`; may raise the driver's reason for none."""
        return 0

    def _visible_index(self, index: int) -> int:
        """The index of a GPU in this process: a cell's sees its own only, the detection's all of them."""
        return index if index < self.n_gpus() else 0

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        """Import the framework, pin device, threads, arithmetic; `Unsupported` precisions raise."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Framework, device and arithmetic settings as they really are, for the record."""
        raise NotImplementedError

    def choose_attention(self, name: str) -> None:
        """Train by one of `attentions` from here on."""
        raise NotImplementedError

    def isolated_calls(self, workload: Any, batch: Any, clock: Any) -> list[Any]:
        """The `_isolated.Call` of each operator of a step that is only traced; may raise `Unsupported`."""
        raise NotImplementedError

    def stepper(self, workload: Any, seed: int) -> Stepper:
        """The training step of a workload in this framework."""
        raise NotImplementedError

    def prove_precision(self, seed: int = 0) -> dict[str, Any]:
        """Find the effective dtype of a product numerically: its error against float64."""
        a = self.arrays.normal((256, 256), seed)
        b = self.arrays.normal((256, 256), seed + 1)
        product = self.arrays.matmul(a, b)
        self.arrays.eval(product)
        error = self.arrays.relative_error(product, operator.matmul, a, b)
        effective = next((name for name, low, high in ERROR_BANDS if low <= error < high), None)
        return {"product_error": error, "effective_product": effective}
