"""Memory bandwidth as a curve over the working set: copy, triad and reduction.

Arrays exist and have been written before anything is timed. Warm: the same arrays every time. Cold:
one set of arrays after another, together more than twice the last-level cache; from that cache's
size on, warm arrays are not cached either. The bandwidth of memory is read from calls of 2 ms and
more, beside which launching and waiting are negligible. Shorter calls are timed in a row; a point
whose call is still not much longer than its launch is marked.

Every point is timed twice, in two rounds over all points and in new memory: else what slows a host down
for half a second could be all of a point's time, and its interval would not show it. Copies of 8 MiB
by two threads were seen at the rate of one thread while the triad a second later had that of two.

The points of a round share its memory, one long array of normal values, since making gigabytes for each
takes longer than timing them. Kernels read from its front and write at its back: only the reduction
reads what the triad wrote, and nothing reads what the reduction did, so that no value grows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from siliconprof.backends._kernels import Stream
from siliconprof.declarations import Bytes, Parameter
from siliconprof.hosts import caches
from siliconprof.parameters import Limits, Several
from siliconprof.probes.page_faults import read_faults
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import call_s, order, row_s
from siliconprof.stats import statistics
from siliconprof.workloads._operation import (
    CACHE_PARAMETER,
    WIDTH_BYTES,
    Caches,
    OperationWorkload,
    checked,
    dispatched,
    rotating,
)

SMALLEST_BYTES = 2**15
BANDWIDTH_ROUNDS = 2
USUAL_CACHE_BYTES = 2**25  # assumed by the plan
BEYOND_CACHE = 4  # the sweep's largest set, in last-level caches
CALL_S = 2e-3  # a call on the largest set lasts so long
IN_A_ROW = 100  # a timed row lasts so many times one launch and wait
MOST_CALLS = 1000
LAUNCH_BOUND_FACTOR = 2  # a call shorter than so many launches is bound by them
SIZE_LOOKS = 3
NEW_SHARE = 1 / 8  # of the cache, for the new results of a row
MEMORY_SHARE = 1 / 8  # of the device's memory: nothing larger is allocated, so that nothing swaps
CHECKED_VALUES = 2**16  # of an input, spread over all of it
FAULTED_ABOVE = 0.01  # share of the bytes; a fault costs as much as moving many pages


class Kernel(NamedTuple):
    """What a kernel reads and writes, in arrays of n values."""

    inputs: int
    written: float
    multiple: int  # n is one of this many values
    arrays: int  # that fill the working set


KERNELS = {
    "copy": Kernel(1, 1, 64, 2),
    "triad": Kernel(2, 1, 64, 3),
    "reduction": Kernel(1, 1 / 64, 4096, 1),  # see `backends._kernels.sum_blocks`
}
BANDWIDTH_METHOD = {
    "bytes": "read and written by the kernel; the line that a store fetches first is not counted",
    "largest_working_set": f"doubled until a call lasts {CALL_S} s, within {MEMORY_SHARE:.3g} of the "
    "memory; not where working_sets_bytes is set",
    "time": "mean of calls in a row, between two of the backend's marks: as many as last "
    f"{IN_A_ROW} times launch_and_wait_s, at most {MOST_CALLS} and what the backend's queue holds; "
    f"where results are new arrays, a row's fill {NEW_SHARE:.3g} of the cache at most; in two rounds "
    "over all points, in new memory each, which the points of a round share",
    "launch_bound": f"a call shorter than {LAUNCH_BOUND_FACTOR} times launch_s, that of the same kernel on "
    "its fewest values, in a row",
}


class Plugin(OperationWorkload):
    """bandwidth"""

    refuses = OperationWorkload.refuses | {
        "tf32": "tf32 is a way to multiply; in memory its values are fp32: ask for that"
    }
    POINT = {
        "kernel": Parameter("string", label="kernel"),
        "working_set_bytes": Parameter("integer", label="working set", unit="byte"),
        "cache": CACHE_PARAMETER,
    }
    working_set = "working_set_bytes"

    class Parameters(OperationWorkload.Parameters):
        working_sets_bytes: Annotated[
            Several[Annotated[int, Limits(ge=SMALLEST_BYTES)]] | None,
            "bytes of all arrays of one kernel together; null = a sweep from "
            f"{SMALLEST_BYTES // 2**10} KiB to {BEYOND_CACHE} times the last-level cache and on "
            f"until a call lasts {CALL_S * 1e3:g} ms, within an eighth of the device's memory; on a "
            "GPU half of its cache too",
        ] = None
        sweep_factor: Annotated[
            int, Limits(ge=2), "factor from one working set of the sweep to the next"
        ] = 4
        caches: Annotated[
            Caches,
            "`warm`: the same arrays every time; `cold`: sets of them in turn, together more than "
            "twice the last-level cache, for working sets below it",
        ] = ["warm", "cold"]
        allocator: Annotated[
            Literal["default", "retain"],
            "`retain` keeps freed host memory in the process, where the C library is "
            "glibc: MLX makes a new array for every result, and its pages would be faulted in again "
            "each time",
        ] = "retain"

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        """The sweep is limited to a share of the memory."""
        sizes = self.parameters["working_sets_bytes"]
        return {"arrays": 2 * max(sizes)} if sizes else {}

    def n_points(self) -> int:
        """The points of both rounds; a sweep's, for a cache of `USUAL_CACHE_BYTES`."""
        sizes, factor = self.parameters["working_sets_bytes"], self.parameters["sweep_factor"]
        spanned = BEYOND_CACHE * USUAL_CACHE_BYTES / SMALLEST_BYTES
        n_sizes = len(sizes) if sizes else 1 + int(math.log(spanned, factor))
        return BANDWIDTH_ROUNDS * len(KERNELS) * n_sizes * len(self.parameters["caches"])

    def measure(self, cell_run: CellRun) -> None:
        backend = cell_run.backend
        cache_bytes, source = backend.memory.last_level_cache()
        round_bytes = caches.beyond_bytes(cache_bytes)
        below = cache_bytes or round_bytes // 2
        streams = {name: backend.kernels.stream(name) for name in KERNELS}
        cell_run.method["bandwidth"] = {
            "kernels": {name: stream.means for name, stream in streams.items()},
            "last_level_cache_bytes": cache_bytes,
            "last_level_cache_source": source,
            **BANDWIDTH_METHOD,
            "launch_s": {},
            "launch_and_wait_s": {},
        }
        sizes = self.sizes(cell_run, below, cache_bytes)
        cold = "cold" in self.parameters["caches"]
        if cold and round_bytes > most_bytes(cell_run):
            cold = not_measured(cell_run, f"cold arrays of {round_bytes} bytes together are")
        planned: list[ArraySets] = []
        for name, stream in streams.items():
            fewest = ArraySets(cell_run, name, stream, 0, 0)
            launch = dispatched(backend.arrays, fewest.launches(long_values(cell_run, [fewest]))[0])
            in_row = min(IN_A_ROW, fewest.most_calls(SMALLEST_BYTES, 0))
            launch_s = looked_s(cell_run, launch, in_row)
            wait_s = min(call_s(launch, backend.clock) for _ in range(SIZE_LOOKS))
            cell_run.method["bandwidth"]["launch_s"][name] = launch_s
            cell_run.method["bandwidth"]["launch_and_wait_s"][name] = wait_s
            for size in sizes:
                if size == sizes[-1] and not self.parameters["working_sets_bytes"]:
                    size = grown(cell_run, name, stream, size)
                if "warm" in self.parameters["caches"]:
                    planned.append(ArraySets(cell_run, name, stream, size, 0))
                if cold and size < below:
                    planned.append(ArraySets(cell_run, name, stream, size, round_bytes))
        known = {"cache_bytes": cache_bytes, "cache_source": source}
        kept, left_out = [], []
        long = long_values(cell_run, planned)
        for arrays in planned:
            rotation = {"buffers": arrays.sets, "buffer_bytes": arrays.bytes} | known
            rotates = {"rotation": rotation} if arrays.cold else {}
            point = self.point(cell_run, arrays, long, below) | rotates
            if point["launch_bound"] and self.measures_host(cell_run, arrays, cache_bytes):
                left_out.append(arrays.what)
                continue
            cell_run.add_point(point)
            kept.append(arrays)
        if left_out:
            cell_run.method["bandwidth"]["left_out"] = left_out
        del long  # before there is another
        long = long_values(cell_run, kept)
        for arrays, point in zip(kept, cell_run.points, strict=True):
            self.again(cell_run, arrays, long, point)

    def sizes(self, cell_run: CellRun, below: int, cache_bytes: int | None) -> list[int]:
        """Working sets in bytes, smallest first; a flag names requested ones that are too large."""
        limit_bytes = most_bytes(cell_run)
        requested = self.parameters["working_sets_bytes"]
        for size in sorted(requested or []):
            if size > limit_bytes:
                not_measured(cell_run, f"a working set of {size} bytes is")
        sizes = {*(requested or [BEYOND_CACHE * below])}
        if not requested:
            size = SMALLEST_BYTES
            while size < BEYOND_CACHE * below:
                sizes.add(size)
                size *= self.parameters["sweep_factor"]
            # A GPU's cache is so fast that only calls on about all that surely fits outlast a launch.
            if cache_bytes and cell_run.cell.device_kind == "gpu":
                sizes.add(cache_bytes // 2)
        return sorted(size for size in sizes if size <= limit_bytes)

    def measures_host(self, cell_run: CellRun, arrays: ArraySets, cache_bytes: int | None) -> bool:
        """Whether a launch-bound point is dropped, since it measures the host and not its device.

        Sizes that were asked for stay, and so does the largest warm set that surely fits the cache.
        """
        at_least = not arrays.cold and arrays.size == (cache_bytes or 0) // 2
        asked = bool(self.parameters["working_sets_bytes"])
        return cell_run.cell.device_kind == "gpu" and not asked and not at_least

    def ready(self, cell_run: CellRun, launches: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        """A launcher that calls these in turn; all their results have been written once."""
        if not cell_run.backend.kernels.writes_into:  # into memory that exists already
            cell_run.backend.arrays.eval([launch() for launch in launches])
        cell_run.backend.clock.synchronize()
        return dispatched(cell_run.backend.arrays, rotating(launches))

    def point(self, cell_run: CellRun, arrays: ArraySets, long: Any, below: int) -> dict[str, Any]:
        """One point after the first round: checked against float64 on random data, then timed."""
        backend, stream = cell_run.backend, arrays.stream
        launches = arrays.launches(long)
        result_error = checked(arrays.error(launches[0]), cell_run.cell.precision, arrays.what)
        launch = self.ready(cell_run, launches)
        wait_s = cell_run.method["bandwidth"]["launch_and_wait_s"][arrays.name]
        calls = calls_in_row(
            cell_run, launch, IN_A_ROW * wait_s, arrays.most_calls(below, len(long))
        )
        faults, _ = read_faults()
        backend.memory.reset_peak()
        cache = "cold" if arrays.cold else "warm"
        flops = float(stream.flops_per_value * arrays.count)
        point = cell_run.repeat(arrays.what, launch, calls) | {
            "params": {"kernel": arrays.name, "working_set_bytes": arrays.size, "cache": cache},
            "flops": flops or None,
            "flops_source": f"{stream.flops_per_value} n" if flops else "none",
            "bytes": arrays.bytes,
            "result_error": result_error,
            "memory": cell_run.memory(),
            "calls_per_time": calls,
            "minor_faults": read_faults()[0] - faults,
        }
        return point | self.bound(cell_run, point)

    def again(self, cell_run: CellRun, arrays: ArraySets, long: Any, point: dict[str, Any]) -> None:
        """Add the second round to a point, and say where its memory was faulted in for it."""
        launch, calls = self.ready(cell_run, arrays.launches(long)), point["calls_per_time"]
        faults, _ = read_faults()
        measured = cell_run.repeat(arrays.what, launch, calls)
        cell_run.timed(calls * sum(measured["times"]["step_s"]))
        measured["minor_faults"] = read_faults()[0] - faults
        rounds = [dict(point), measured]
        # Pages that fault in one of the rounds only are not faulted by every call.
        anew = min(faulted_share(one, calls, arrays.bytes) for one in rounds)
        point["minor_faults"] += measured["minor_faults"]
        sound = [one for one in rounds if not one["disturbed"]]
        if len(sound) == 1:  # what was disturbed gives way to what was not
            (other,) = (one for one in rounds if one is not sound[0])
            point["attempts"] += [other["times"] | {"given_up": other["disturbed"]}]
        kept = sound or rounds
        names = measured["times"]
        point["times"] = {name: [s for one in kept for s in one["times"][name]] for name in names}
        point["attempts"] += measured["attempts"]
        point |= {
            name: kept[-1][name] for name in ("stopped_by", "disturbed", "gpu") if name in kept[-1]
        }
        point |= order(point["times"]["step_s"])
        point |= self.bound(cell_run, point)
        if anew > FAULTED_ABOVE:
            cell_run.flag(
                "faulted_anew",
                f"{arrays.what}: {anew:.1%} of its bytes are pages that were faulted in for it, "
                "which its time includes",
            )

    def bound(self, cell_run: CellRun, point: Mapping[str, Any]) -> dict[str, bool]:
        """Whether a point's call is bound by its launch."""
        launch_s = cell_run.method["bandwidth"]["launch_s"][point["params"]["kernel"]]
        call_s = statistics.median(point["times"]["step_s"])
        return {"launch_bound": call_s < LAUNCH_BOUND_FACTOR * launch_s}


def faulted_share(measured: Mapping[str, Any], calls: int, call_bytes: int) -> float:
    """The share of a round's bytes in pages faulted in for it, 0 for less than a page a call."""
    runs = [measured["times"], *measured["attempts"]]
    launches = calls * sum(len(run["warmup_step_s"]) + len(run["step_s"]) for run in runs)
    pages = measured["minor_faults"] if measured["minor_faults"] > launches else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / (launches * call_bytes)


def looked_s(cell_run: CellRun, launch: Callable[[], Any], calls: int) -> float:
    """The shortest mean of so many calls in a row, in seconds."""
    looks_s = [row_s(launch, cell_run.backend.clock, calls) for _ in range(SIZE_LOOKS)]
    cell_run.timed(calls * sum(looks_s))
    return min(looks_s)


def calls_in_row(cell_run: CellRun, launch: Callable[[], Any], least_s: float, most: int) -> int:
    """How many calls in a row last at least so long; `most` at most."""
    calls = 1
    while calls < most and (together_s := calls * looked_s(cell_run, launch, calls)) < least_s:
        calls = min(most, max(2 * calls, int(calls * least_s / max(together_s, 1e-9))))
    return calls


def grown(cell_run: CellRun, name: str, stream: Stream, size: int) -> int:
    """A working set in bytes, doubled until a call lasts `CALL_S` or no more may be allocated."""
    limit_bytes = most_bytes(cell_run)
    while 2 * size <= limit_bytes:
        arrays = ArraySets(cell_run, name, stream, size, 0)
        (launch,) = arrays.launches(long_values(cell_run, [arrays]))
        lasts_s = looked_s(cell_run, dispatched(cell_run.backend.arrays, launch), 1)
        if lasts_s >= CALL_S:
            break
        doublings = math.ceil(math.log2(CALL_S / lasts_s)) if lasts_s > 0 else 1
        size *= 2 ** min(doublings, math.floor(math.log2(limit_bytes / size)))
    return size


def long_values(cell_run: CellRun, points: Sequence[ArraySets]) -> Any:
    """New memory that is long enough for each of these points, full of normal values."""
    return cell_run.backend.arrays.repeated_normal(max((one.values for one in points), default=0))


def not_measured(cell_run: CellRun, what: str) -> bool:
    """Flag arrays that are too large; return False."""
    cell_run.flag("not_measured", f"{what} more than an eighth of the memory")
    return False


def most_bytes(cell_run: CellRun) -> float:
    """Bytes that a point may allocate."""
    memory_bytes = cell_run.cell.device_memory_bytes
    return MEMORY_SHARE * memory_bytes if memory_bytes else math.inf


class Launch:
    """A launcher on one set of arrays; it holds its last result until its next turn."""

    def __init__(self, run: Callable[..., Any], into: Any, inputs: Sequence[Any]) -> None:
        self.run, self.into, self.inputs = run, into, inputs
        self.result: Any = None

    def __call__(self) -> Any:
        self.result = None
        self.result = self.run(self.into, *self.inputs)
        return self.result


class ArraySets:
    """The arrays of one point: one set, or as many sets as exceed the cache.

    Args:
        size: bytes of one set's large arrays together, rounded down to whole ones.
        round_bytes: all sets are larger than this together; 0 = one set.
    """

    def __init__(
        self, cell_run: CellRun, name: str, stream: Stream, size: int, round_bytes: int
    ) -> None:
        self.cell_run, self.name, self.stream, self.size = cell_run, name, stream, size
        self.kernel = kernel = KERNELS[name]
        self.cold = round_bytes > 0
        self.what = f"the {'cold' if self.cold else 'warm'} {name} of {size} bytes"
        width = WIDTH_BYTES[cell_run.cell.precision]
        self.count = max(1, size // (width * kernel.arrays * kernel.multiple)) * kernel.multiple
        self.written = int(self.count * kernel.written)
        self.bytes = width * (kernel.inputs * self.count + self.written)
        self.sets = max(2, round_bytes // self.bytes + 1) if self.cold else 1
        self.into = self.written if cell_run.backend.kernels.writes_into else 0
        self.values = self.sets * (kernel.inputs * self.count + self.into)

    def most_calls(self, below: int, long: int) -> int:
        """How many calls may be timed in a row: as many as the queue holds, and the results fit.

        Args:
            below: bytes of the cache.
            long: values of the round's memory, which exists beside the results.
        """
        backend = self.cell_run.backend
        most = min(MOST_CALLS, backend.kernels.queue_depth or MOST_CALLS)
        if self.into:
            return most
        # Results are new arrays, and a row works on all of them: those of a set that fits the cache
        # fill `NEW_SHARE` of it, unless one alone fills more.
        width = WIDTH_BYTES[self.cell_run.cell.precision]
        beyond = self.cold or self.size >= below
        room = most_bytes(self.cell_run) - width * long if beyond else NEW_SHARE * below
        return int(min(most, max(1, room / (width * self.written))))

    def launches(self, long: Any) -> list[Launch]:
        """One launcher for each set, which reads from the front of a long array and writes at its back."""
        stream, inputs = self.stream, self.kernel.inputs * self.count
        back = len(long) - self.sets * self.into
        launches = []
        for turn in range(self.sets):
            first, into = turn * inputs, back + turn * self.into
            read = [
                stream.view(long[low : low + self.count])
                for low in range(first, first + inputs, self.count)
            ]
            write = long[into : into + self.into] if self.into else None
            launches.append(Launch(stream.run, write, read))
        self.cell_run.backend.arrays.eval([launch.inputs for launch in launches])
        return launches

    def error(self, launch: Launch) -> float:
        """The relative error of a result against float64, over a sample spread over all of it."""
        arrays, result = self.cell_run.backend.arrays, launch()
        arrays.eval(result)
        step = max(1, self.count // CHECKED_VALUES)
        inputs = (value[::step] for value in launch.inputs)
        return arrays.relative_error(result[::step], self.stream.reference, *inputs)
