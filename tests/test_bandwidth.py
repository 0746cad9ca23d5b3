"""Memory bandwidth, transfers and first touches through the front door: bytes, caches, faults."""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import os
import time
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from conftest import QUICK, Checkout, codes, cpu_cell, record_problems
from measuring import session_of as session
from siliconprof.analyse import ceilings
from siliconprof.analyse.throughputs import PLACE
from siliconprof.backends import _kernels
from siliconprof.backends.base import Arrays, Backend, Clock, Memory
from siliconprof.hosts import caches, machine
from siliconprof.probes import page_faults
from siliconprof.session.cell_run import CellRun
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.stats import statistics
from siliconprof.workloads import bandwidth
from siliconprof.workloads.bandwidth import SMALLEST_BYTES
from siliconprof.workloads.first_touch import FAULTS_DIFFER_ABOVE

CPU_BACKENDS = ("torch-cpu", "mlx")
SMALL, LARGE = 2**16, 2**20
# Bytes of every kernel at the small size: values in whole steps, times width, read and written.
KERNELS = ("copy", "triad", "reduction")
COUNTED = {"copy": 2 * 8192 * 4, "triad": 3 * 5440 * 4, "reduction": (16384 + 256) * 4}
FAULTING = {"working_sets_bytes": [3 * 2**25], "caches": ["warm"]}
# What a kernel would give that was left out: the memory as it was, or what went in.
SKIPPED = {
    ("torch-cpu", "copy"): lambda into, a: into,
    ("torch-cpu", "triad"): lambda into, b, c: into,
    ("torch-cpu", "reduction"): lambda into, a: into.view(a.shape[0], a.shape[2]),
    ("mlx", "copy"): lambda into, a: a,
    ("mlx", "triad"): lambda into, b, c: b,
    ("mlx", "reduction"): lambda into, a: a[:, 0],
}
# Of a page's fault a median is wanted that one disturbed pass does not turn round.
OFTEN = {"bandwidth": {}, "first_touch": {"iterations": 9, "max_iterations": 9}}
CELLS = {
    "bandwidth": {"working_sets_bytes": [LARGE, SMALL]},
    "first_touch": {"pages": [512, 2048]},
}


@pytest.fixture(scope="module")
def records(project: Checkout) -> dict[tuple[str, str], dict[str, Any]]:
    """(workload, backend) -> record."""
    return {
        (module, backend): project.measure(
            cpu_cell(backend, module, parameters, timing=OFTEN[module])
        )
        for module, parameters in CELLS.items()
        for backend in CPU_BACKENDS
    }


# -- bandwidth ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_every_kernel_size_and_cache_is_a_point(records: Any, backend: str) -> None:
    """What was computed is right, and its bytes are what the kernel reads and writes."""
    record = records["bandwidth", backend]
    assert record["status"] == "ok", record["reason"]
    names = ("kernel", "working_set_bytes", "cache")
    found = {tuple(point["params"][name] for name in names): point for point in record["points"]}
    assert len(found) == len(record["points"])
    assert found.keys() == set(itertools.product(COUNTED, (SMALL, LARGE), ("warm", "cold")))
    for (kernel, size, _), point in found.items():
        if size == SMALL:
            assert point["bytes"] == COUNTED[kernel]
        assert point["bytes"] == pytest.approx(size, rel=0.02)
        rounds = [point["times"], *point["attempts"]]  # two; one that others disturbed gives way
        assert sum(len(one["step_s"]) for one in rounds) == 2 * QUICK["iterations"]
        assert min(point["times"]["step_s"]) > 0
        assert (point["flops"] is None) == (kernel == "copy")
        assert (point["result_error"] == 0) == (kernel == "copy")
        assert point["result_error"] < 1e-6
    kernels = record["method"]["bandwidth"]["kernels"]
    assert kernels.keys() == COUNTED.keys()
    assert ("MLX has no copy" in kernels["copy"]) == (backend == "mlx")
    assert "faulted_anew" not in codes(record)


@pytest.mark.slow
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_cold_cache_goes_round_more_than_the_cache_holds(records: Any, backend: str) -> None:
    record = records["bandwidth", backend]
    cache_bytes, source = caches.last_level_bytes()
    assert record["method"]["bandwidth"]["last_level_cache_bytes"] == cache_bytes
    for point in record["points"]:
        rotation = point.get("rotation")
        assert bool(rotation) == (point["params"]["cache"] == "cold")
        if rotation:
            assert rotation["buffer_bytes"] == point["bytes"]
            assert rotation["buffers"] * point["bytes"] > 2 * (cache_bytes or 0)
            assert (rotation["cache_bytes"], rotation["cache_source"]) == (cache_bytes, source)


def test_cold_arrays_are_apart_and_each_has_its_turn() -> None:
    """No two sets share a byte, all are used before the first again, all held different data."""
    asked = session(cpu_cell("torch-cpu", "bandwidth"))
    stream = asked.backend.kernels.stream("triad")
    arrays = bandwidth.ArraySets(asked, "triad", stream, SMALL, round_bytes=10 * SMALL)
    launches = arrays.launches(bandwidth.long_values(asked, [arrays]))
    assert arrays.sets == len(launches) == 11
    parts = [part for launch in launches for part in (launch.into, *launch.inputs)]
    ranges = sorted((part.data_ptr(), part.data_ptr() + 4 * part.numel()) for part in parts)
    assert all(low[1] <= high[0] for low, high in itertools.pairwise(ranges))
    assert sum(high - low for low, high in ranges) == arrays.sets * arrays.bytes
    assert len({part[:8].numpy().tobytes() for part in parts}) == len(parts)


@pytest.mark.parametrize(("backend", "kernel"), list(SKIPPED))
def test_a_kernel_that_does_not_do_its_work_is_not_timed(
    backend: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that it should write to never holds the right result before."""
    asked = session(cpu_cell(backend, "bandwidth", {"working_sets_bytes": [SMALL]}))
    stream = asked.backend.kernels.stream
    idle = stream(kernel)._replace(run=SKIPPED[backend, kernel])
    monkeypatch.setattr(
        asked.backend.kernels, "stream", lambda n: idle if n == kernel else stream(n)
    )
    with pytest.raises(ArithmeticError, match=f"the warm {kernel} of {SMALL} bytes is wrong"):
        asked.workload.measure(asked)
    assert kernel not in {point["params"]["kernel"] for point in asked.points}


def test_results_that_are_faulted_in_anew_are_flagged(project: Checkout) -> None:
    """MLX makes every result anew; where malloc returns large blocks, their pages are new too.

    The same cell as it is, and with glibc's own thresholds.
    """
    keeps = project.measure(cpu_cell("mlx", "bandwidth", FAULTING))
    returns = project.measure(cpu_cell("mlx", "bandwidth", FAULTING | {"allocator": "default"}))
    (kept, *_), (faulted, *_) = keeps["points"], returns["points"]
    assert "faulted_anew" not in codes(keeps)
    pages = kept["bytes"] / 2 / mmap.PAGESIZE
    assert kept["minor_faults"] < 0.01 * pages
    if page_faults.cannot_retain_memory() is None:
        assert "faulted_anew" in codes(returns)
        assert faulted["minor_faults"] >= 3 * pages  # once in warm-up, twice measured


def test_arrays_that_memory_cannot_hold_are_left_out_and_named() -> None:
    """Nothing above an eighth of the memory is allocated, cold sets together included."""
    asked = cpu_cell("torch-cpu", "bandwidth", {"working_sets_bytes": [SMALL, LARGE]})
    small = session(dataclasses.replace(asked, device_memory_bytes=2**20))
    small.workload.measure(small)
    assert [point["params"] for point in small.points] == [
        {"kernel": kernel, "working_set_bytes": SMALL, "cache": "warm"} for kernel in KERNELS
    ]
    assert [flag["code"] for flag in small.flags] == ["not_measured"] * 2
    assert f"working set of {LARGE} bytes" in small.flags[0]["detail"]
    assert "cold arrays" in small.flags[1]["detail"]


# -- a card whose calls are shorter than their launch ------------------------------------------


class QueueClock(Clock):
    """The host's, of which launches go to a queue, and only waiting waits for it."""

    wait_s = 10e-6

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0  # of the host, and when the queue is empty

    def read(self) -> float:
        self.now_s += 5e-8
        return self.now_s

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.free_s) + self.wait_s


class EventClock(QueueClock):
    """The same, whose marks are in the queue as CUDA's events are."""

    def mark(self) -> float:
        self.now_s += 1e-6
        self.free_s = max(self.now_s, self.free_s)
        return self.free_s


class CardArrays(Arrays):
    """Arrays that take no memory."""

    def repeated_normal(self, count: int) -> range:
        return range(count)

    def relative_error(self, result: Any, reference: Any, *inputs: Any) -> float:
        return 0.0


class CardKernels(_kernels.Kernels):
    """Streams as fast as the card's cache or its memory."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.moved_bytes = 0
        self.last_moved: dict[range, int] = {}  # a result -> bytes moved until it was written

    def stream(self, kernel: str) -> _kernels.Stream:
        card, clock = self.card, self.card.clock

        def run(into: range, *inputs: range) -> range:
            moved = 4 * sum(len(part) for part in (into, *inputs))
            self.moved_bytes += moved
            since = self.moved_bytes - self.last_moved.get(into, 0)
            self.last_moved[into] = self.moved_bytes
            rate = card.cached_bytes_per_s if since <= card.cache_bytes else card.bytes_per_s
            clock.now_s += card.launch_s
            clock.free_s = max(clock.now_s, clock.free_s) + moved / rate
            return into

        return _kernels.Stream(lambda flat: flat, run, lambda *_: None, 0, "simulated")


class CardMemory(Memory):
    """That of a card of this cache."""

    def last_level_cache(self) -> tuple[int, str]:
        return Card.cache_bytes, "simulated"


class Card(Backend):
    """A GPU with HBM on a virtual clock."""

    name = "card"
    framework = "torch"
    cache_bytes, cached_bytes_per_s = 50 * 2**20, 11e12
    bytes_per_s = 4.8e12
    launch_s = 4e-6

    def __init__(self, clock: QueueClock) -> None:
        self.clock: QueueClock = clock
        self.arrays: CardArrays = CardArrays()
        self.kernels = CardKernels(self)
        self.memory = CardMemory()


@pytest.mark.parametrize("clock", [QueueClock(), EventClock()], ids=["waits", "events"])
def test_the_ceilings_of_a_fast_card_are_its_own_and_not_its_launches(
    clock: QueueClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four caches are copied in 42 µs, a wait takes 10 and a launch 4: the set has to grow."""
    monkeypatch.setattr(time, "perf_counter", clock.read)
    monkeypatch.setattr(time, "sleep", lambda s: setattr(clock, "now_s", clock.now_s + s))
    own = {"device_kind": "gpu", "device_memory_bytes": 141 * 10**9, "timing": {"iterations": 5}}
    asked = cpu_cell("torch-cuda", "bandwidth", {"sweep_factor": 16}, **own)  # as by default
    simulated = CellRun(asked, Card(clock), ResolvedCell(asked).workload, lambda message: None)
    simulated.workload.measure(simulated)
    waits_s = simulated.method["bandwidth"]["launch_and_wait_s"].values()
    assert min(waits_s) > clock.wait_s  # events tell of no wait
    rows = [
        point["params"]
        | {"bytes_per_s": point["bytes"] / statistics.median(point["times"]["step_s"])}
        | {name: point.get(name) for name in ("calls_per_time", "launch_bound")}
        for point in simulated.points
    ]
    absent = dict.fromkeys((*PLACE, "precision", "launch"), "")
    points = pd.DataFrame(rows).assign(**absent, cache_bytes=float(Card.cache_bytes))
    best = {
        quantity: points.loc[points["bytes_per_s"].where(counts).idxmax()]
        for quantity, counts in ceilings.counting(points).items()
        if quantity.endswith("_bandwidth")
    }
    for kernel in KERNELS:
        memory = best[f"{kernel}_bandwidth"]
        assert memory["bytes_per_s"] == pytest.approx(Card.bytes_per_s, rel=0.05), memory
        assert memory["working_set_bytes"] <= 141e9 / 8
        assert not memory["launch_bound"]
    cache = best["cache_bandwidth"]
    assert cache["bytes_per_s"] > 1.05 * best["memory_bandwidth"]["bytes_per_s"]
    assert cache["working_set_bytes"] == Card.cache_bytes // 2
    assert cache["calls_per_time"] > 50  # of a few µs each
    bound = [
        row for row in rows if row["launch_bound"]
    ]  # others measure the host, and are left out
    assert {row["working_set_bytes"] for row in bound} <= {Card.cache_bytes // 2}
    left_out = simulated.method["bandwidth"]["left_out"]
    assert len(left_out) > len(rows) and f"the warm copy of {SMALLEST_BYTES} bytes" in left_out
    assert record_problems(simulated.points, "points") == []
    in_calls_s = (p["calls_per_time"] * sum(p["times"]["step_s"]) for p in simulated.points)
    assert simulated.timed_s >= sum(in_calls_s)


# -- transfers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [_kernels.HOST_TO_DEVICE, _kernels.DEVICE_TO_HOST])
def test_what_arrives_is_compared_with_what_was_sent(direction: str) -> None:
    """The frameworks' own code for a transfer, from this host's memory to this host's memory."""
    torch, mlx = (session(cpu_cell(name, "copy")).backend for name in ("torch-cpu", "mlx"))
    gpu = SimpleNamespace(type=mlx.mx.gpu)
    for kernels in (
        _kernels.TorchGpuKernels(torch.torch, torch.device),
        _kernels.MlxKernels(mlx.mx, gpu, mlx.dtype),
    ):
        transfer, _ = kernels.transfer(direction, False, 1000, 3)
        arrived = transfer.launch()
        assert transfer.arrived(arrived)
        assert not transfer.arrived(arrived + 1)


# -- first touch -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_first_touch_faults_once_a_page_and_a_second_does_not(records: Any, backend: str) -> None:
    record = records["first_touch", backend]
    assert record["status"] == "ok", record["reason"]
    assert [point["params"]["pages"] for point in record["points"]] == [512, 2048]
    for point in record["points"]:
        pages, times, faults = point["params"]["pages"], point["times"], point["faults"]
        assert point["params"]["page_size_bytes"] == mmap.PAGESIZE
        assert point["bytes"] == pages * mmap.PAGESIZE
        assert len(times["step_s"]) == OFTEN["first_touch"]["iterations"]
        runs = len(times["step_s"]) + len(times["warmup_step_s"])
        assert runs == len(times["first_pass_s"]) == len(times["second_pass_s"])
        assert runs == len(faults["first_pass"]) == len(faults["second_pass"])
        others = FAULTS_DIFFER_ABOVE * pages  # a busy system takes a page of the process away
        assert abs(statistics.median(faults["first_pass"]) - pages) <= others
        assert statistics.median(faults["second_pass"]) <= others
        first, second = (statistics.median(times[f"{n}_pass_s"]) for n in ("first", "second"))
        assert first > 2 * second
        assert 0 < point["quantities"]["fault_s_per_page"] < max(times["first_pass_s"]) / pages
    assert "faults_differ" not in codes(record)
    assert "huge pages" in record["method"]["first_touch"]["huge_pages"]


# -- the last-level cache ----------------------------------------------------------------------


def test_the_cache_of_a_linux_host_is_that_of_the_cpus_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shared caches count once; those of CPUs that this process may not use do not count."""
    files: dict[str, str] = {}
    for cpu in range(4):
        levels = [
            ("1", "Data", "32K", f"{cpu}"),
            ("1", "Instruction", "64M", f"{cpu}"),
            ("3", "Unified", "16384K", "0-1" if cpu < 2 else "2-3"),
        ]
        for index, values in enumerate(levels):
            names = ("level", "type", "size", "shared_cpu_list")
            folder = f"{caches.CPUS}/cpu{cpu}/cache/index{index}"
            files |= {f"{folder}/{n}": f"{v}\n" for n, v in zip(names, values, strict=True)}
    monkeypatch.setattr(machine, "is_mac", lambda: False)
    monkeypatch.setattr(machine, "read_text", lambda path: files.get(path, ""))
    for usable, expected in (({0, 1, 2, 3}, 32), ({0, 1}, 16), ({1, 2}, 32)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, u=usable: u, raising=False)
        found, source = caches.last_level_bytes()
        assert found == expected * 2**20
        assert f"{expected // 16} level-3" in source
    files.clear()
    found, reason = caches.last_level_bytes()
    assert found is None and "lists no caches" in reason
    assert caches.beyond_bytes(None) > caches.beyond_bytes(2**25) == 2**26


def test_the_cache_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all clusters: Apple's "Determining system capabilities"; there is no hw.l3cachesize."""
    values = {"hw.nperflevels": 2}
    for level, (size, cpus, each) in enumerate(((12 * 2**20, 8, 4), (4 * 2**20, 2, 2))):
        names = ("l2cachesize", "physicalcpu", "cpusperl2")
        pairs = zip(names, (size, cpus, each), strict=True)
        values |= {f"hw.perflevel{level}.{name}": value for name, value in pairs}
    monkeypatch.setattr(machine, "is_mac", lambda: True)
    monkeypatch.setattr(
        machine, "run", lambda command: f"{values[command[-1]]}\n" if command[-1] in values else ""
    )
    found, source = caches.last_level_bytes()
    assert found == 28 * 2**20 and "all clusters" in source
    values.clear()
    found, reason = caches.last_level_bytes()
    assert found is None and reason.startswith("macOS does not report")
