"""Memory bandwidth as a curve over the working set: copy, triad and reduction.

Bytes are what a kernel reads and writes: copy 2 n, triad 3 n, reduction n and its sums (n / 64).
The fetch of a line that a store misses (write-allocate) is not counted. Arrays exist and have been
written before anything is timed; frameworks use several threads only for large ones, and that is
what is measured. Warm: the same arrays every time. Cold: one set of arrays after another, together
more than twice the last-level cache; from that cache's size on, warm arrays are not cached either.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from siliconprof.declarations import Parameter
from siliconprof.hosts import caches
from siliconprof.probes.page_faults import read_faults
from siliconprof.workloads._operation import (
    BURST_PARAMETERS,
    CACHE,
    COLD_BYTES_PARAMETER,
    WIDTH_BYTES,
    OperationWorkload,
    caches_parameter,
    checked,
    rotating,
)

if TYPE_CHECKING:
    from siliconprof.backends._streams import Stream
    from siliconprof.session.session import Session

SMALLEST_BYTES = 2**15
BEYOND_CACHE = 4  # the largest of the sweep, in last-level caches
MEMORY_SHARE = 1 / 8  # of the device's memory: nothing larger is allocated, so that nothing swaps
CHECKED_VALUES = 2**18  # of an input, spread over all of it
FAULTED_ABOVE = 0.01  # of the bytes moved: a fault takes as long as moving many pages


class Kernel(NamedTuple):
    """What a kernel reads and writes, in arrays of n values."""

    inputs: int
    written: float
    multiple: int  # n is one of this many values
    arrays: int  # that fill the working set


KERNELS = {
    "copy": Kernel(1, 1, 64, 2),
    "triad": Kernel(2, 1, 64, 3),
    "reduction": Kernel(1, 1 / 64, 4096, 1),  # see `backends._streams.sum_blocks`
}
COUNTED = "read and written by the kernel; the line that a store fetches first is not counted"


class Plugin(OperationWorkload):
    """bandwidth"""

    POINT = {
        "kernel": Parameter("string", label="kernel"),
        "working_set_bytes": Parameter("integer", label="working set", unit="byte"),
        "cache": CACHE,
    }
    PARAMETERS = {
        "kernels": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"enum": list(KERNELS)},
            "default": list(KERNELS),
            "description": "copy (a = b), triad (a = b + s c), reduction (sums)",
        },
        "working_sets_bytes": {
            "type": ["array", "null"],
            "minItems": 1,
            "items": {"type": "integer", "minimum": SMALLEST_BYTES},
            "default": None,
            "description": "bytes of all arrays of one kernel together; null = a sweep from "
            f"{SMALLEST_BYTES // 2**10} KiB to {BEYOND_CACHE} times the last-level cache, within "
            "an eighth of the device's memory",
        },
        "sweep_factor": {
            "type": "integer",
            "minimum": 2,
            "default": 4,
            "description": "factor from one working set of the sweep to the next",
        },
        "caches": caches_parameter(
            "`warm`: the same arrays every time; `cold`: sets of them in turn, together more than "
            "`cold_bytes`, for working sets below the last-level cache"
        ),
        "cold_bytes": COLD_BYTES_PARAMETER,
        "allocator": {
            "enum": ["default", "retain"],
            "default": "retain",
            "description": "`retain` keeps freed host memory in the process (glibc): MLX makes a "
            "new array for every result, and its pages would be faulted in again each time",
        },
        **BURST_PARAMETERS,
        "burst_budget_s": {**BURST_PARAMETERS["burst_budget_s"], "default": 0.3},
    }

    @classmethod
    def working_set_bytes(cls, row: Mapping[str, Any]) -> float | None:
        """See `Workload.working_set_bytes`."""
        return row.get("working_set_bytes")

    def supports(self, framework: str, precision: str) -> str | None:
        """See `Workload.supports`."""
        if precision == "tf32":
            return "tf32 is a way to multiply; in memory its values are fp32: ask for that"
        return super().supports(framework, precision)

    def memory_bytes(self, precision: str, backend: str) -> dict[str, int]:
        """See `Workload.memory_bytes`; the sweep is limited to a share of the memory."""
        sizes = self.parameters["working_sets_bytes"]
        return {"arrays": 2 * max(sizes)} if sizes else {}

    def measure(self, session: Session) -> None:
        """See `KernelWorkload.measure`."""
        backend = session.backend
        cache_bytes, source = backend.last_level_cache()
        round_bytes = self.parameters["cold_bytes"] or caches.beyond_bytes(cache_bytes)
        below = cache_bytes or round_bytes // 2
        streams = {name: backend.stream(name) for name in self.parameters["kernels"]}
        session.method["bandwidth"] = {
            "kernels": {name: stream.means for name, stream in streams.items()},
            "bytes": COUNTED,
            "last_level_cache_bytes": cache_bytes,
            "last_level_cache_source": source,
        }
        sizes = self.sizes(session, below)
        cold = self.cold(session, round_bytes)
        for name, stream in streams.items():
            for size in sizes:
                if "warm" in self.parameters["caches"]:
                    session.add_point(self.point(session, Arrays(session, name, stream, size, 0)))
                if cold and size < below:
                    arrays = Arrays(session, name, stream, size, round_bytes)
                    rotation = {
                        "buffers": arrays.sets,
                        "buffer_bytes": arrays.bytes,
                        "cache_bytes": cache_bytes,
                        "cache_source": source,
                    }
                    session.add_point(self.point(session, arrays) | {"rotation": rotation})

    def sizes(self, session: Session, cache_bytes: int) -> list[int]:
        """Working sets in bytes, smallest first; a flag names requested ones that are too large."""
        requested = self.parameters["working_sets_bytes"]
        sizes = sorted(requested or sweep(cache_bytes, self.parameters["sweep_factor"]))
        limit_bytes = most_bytes(session)
        for size in sizes:
            if requested and size > limit_bytes:
                session.flag(
                    "not_measured",
                    f"a working set of {size} bytes is more than an eighth of the memory",
                )
        return [size for size in sizes if size <= limit_bytes]

    def cold(self, session: Session, round_bytes: int) -> bool:
        """Whether cold points are requested and possible; a flag says why they are not."""
        if "cold" not in self.parameters["caches"]:
            return False
        if round_bytes > most_bytes(session):
            session.flag(
                "not_measured",
                f"cold arrays of {round_bytes} bytes together are more than an eighth of the memory",
            )
            return False
        return True

    def burst(
        self, session: Session, launch: Callable[[], Any], fastest_s: float
    ) -> dict[str, Any]:
        """See `OperationWorkload.burst`; none where every result is a new array: they add up."""
        if session.backend.writes_into:
            return super().burst(session, launch, fastest_s)
        return {
            "burst_mean_s": None,
            "burst_reason": "every launch of a row makes a new array before the last one's is "
            "free: another working set",
        }

    def point(self, session: Session, arrays: Arrays) -> dict[str, Any]:
        """One point: checked against float64 on random data, all results written, then timed."""
        backend = session.backend
        launches = arrays.launches()
        result_error = checked(arrays.error(launches[0]), session.cell.precision, arrays.what)
        for launch in launches:  # now every result's memory is there, in a lazy framework's too
            backend.evaluate(launch())
        backend.synchronize()
        flops = arrays.stream.flops_per_value * arrays.count
        faults, _ = read_faults()
        point = self.timed_point(
            session,
            arrays.what,
            {
                "kernel": arrays.name,
                "working_set_bytes": arrays.size,
                "cache": "cold" if arrays.cold else "warm",
            },
            rotating(launches),
            {
                "flops": float(flops) or None,
                "flops_source": f"{arrays.stream.flops_per_value} n" if flops else "none",
                "bytes": arrays.bytes,
                "result_error": result_error,
            },
        )
        point["minor_faults"] = read_faults()[0] - faults
        launches_timed = timed_launches(point)
        faulted_bytes = point["minor_faults"] * os.sysconf("SC_PAGE_SIZE")
        share = faulted_bytes / (launches_timed * arrays.bytes)
        if share > FAULTED_ABOVE and point["minor_faults"] > launches_timed:
            session.flag(
                "faulted_anew",
                f"{arrays.what}: {share:.1%} of its bytes are pages that were faulted in for it, "
                "which its time includes",
            )
        return point


def sweep(cache_bytes: int, factor: int) -> Iterator[int]:
    """Sizes in bytes from the smallest by a factor to the largest."""
    size, last = SMALLEST_BYTES, BEYOND_CACHE * cache_bytes
    while size < last:
        yield size
        size *= factor
    yield last


def most_bytes(session: Session) -> float:
    """Bytes that a point may allocate."""
    memory_bytes = session.cell.device_memory_bytes
    return MEMORY_SHARE * memory_bytes if memory_bytes else math.inf


def timed_launches(point: Mapping[str, Any]) -> int:
    """How often a point's operation ran, abandoned attempts and its burst included."""
    runs = [point["times"], *point.get("attempts", [])]
    burst = point.get("burst_count", 0) + point.get("burst_warmup", 0)
    return sum(len(run["warmup_step_s"]) + len(run["step_s"]) for run in runs) + burst


class Launch:
    """A launcher on one set of arrays; it holds its last result until its next turn."""

    def __init__(self, run: Callable[..., Any], into: Any, inputs: Sequence[Any]) -> None:
        self.run, self.into, self.inputs = run, into, inputs
        self.result: Any = None

    def __call__(self) -> Any:
        self.result = None
        self.result = self.run(self.into, *self.inputs)
        return self.result


class Arrays:
    """The arrays of one point: one set, or as many sets as exceed the cache.

    Args:
        size: bytes of one set's large arrays together, rounded down to whole ones.
        round_bytes: all sets are larger than this together; 0 = one set.
    """

    def __init__(
        self, session: Session, name: str, stream: Stream, size: int, round_bytes: int
    ) -> None:
        self.session, self.name, self.stream, self.size = session, name, stream, size
        self.kernel = kernel = KERNELS[name]
        self.cold = round_bytes > 0
        self.what = f"the {'cold' if self.cold else 'warm'} {name} of {size} bytes"
        width = WIDTH_BYTES[session.cell.precision]
        self.count = max(1, size // (width * kernel.arrays * kernel.multiple)) * kernel.multiple
        self.written = int(self.count * kernel.written)
        self.bytes = width * (kernel.inputs * self.count + self.written)
        self.sets = max(2, round_bytes // self.bytes + 1) if self.cold else 1

    def launches(self) -> list[Launch]:
        """One launcher for each set, on parts of one long random array."""
        backend, stream = self.session.backend, self.stream
        into = self.written if backend.writes_into else 0
        each = into + self.kernel.inputs * self.count
        seed = self.session.cell.seed + len(self.session.points)  # new data for every point
        long = backend.repeated_normal(self.sets * each, seed)
        launches = []
        for start in range(0, self.sets * each, each):
            first = start + into
            inputs = [
                stream.view(long[low : low + self.count])
                for low in range(first, start + each, self.count)
            ]
            launches.append(Launch(stream.run, long[start:first] if into else None, inputs))
        backend.evaluate([launch.inputs for launch in launches])
        return launches

    def error(self, launch: Launch) -> float:
        """The relative error of a result against float64, over a sample spread over all of it."""
        backend = self.session.backend
        result = launch()
        backend.evaluate(result)
        step = max(1, self.count // CHECKED_VALUES)
        inputs = (value[::step] for value in launch.inputs)
        return backend.relative_error(result[::step], self.stream.reference, *inputs)
