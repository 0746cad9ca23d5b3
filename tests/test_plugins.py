"""One contract for every plug-in that is found, and proof on the backends that run here.

A new backend, workload, trainer or probe joins these tests by being a file. What needs a real
device runs on the CPU backends; the same contract holds on a GPU, where this host has one.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NoClock, cpu_cell, opened, record_problems
from measuring import python, session_of
from models import gpt2, images, model, parameters_of, tokens
from siliconprof import declarations, plugins
from siliconprof.backends.base import Backend, Unsupported
from siliconprof.hosts import caches
from siliconprof.probes import interference
from siliconprof.probes.base import Probe
from siliconprof.session import measurement, timing
from siliconprof.store import columns
from siliconprof.store import model as store_model
from siliconprof.store.cell import AXES, PRECISIONS
from siliconprof.store.experiment import Workload as Entry
from siliconprof.trainers.base import Trainer
from siliconprof.workloads._training import TrainingWorkload
from siliconprof.workloads.base import KernelWorkload, Workload

BASES = {"backends": Backend, "workloads": Workload, "trainers": Trainer, "probes": Probe}
ALL = [(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)]
BACKENDS = plugins.names("backends")
CPU_BACKENDS = [
    name for name in BACKENDS if plugins.load("backends", name).device_kind in (None, "cpu")
]
if os.environ.get(
    "SILICONPROF_SIMULATED"
):  # test_simulated.py runs this file beside a simulated GPU
    CPU_BACKENDS = ["torch-cpu", "torch-cuda"]
WORKLOADS = plugins.names("workloads")
HEAVY = {"torch", "mlx", "mlx_lm", "transformers", "datasets", "accelerate", "psutil", "numpy"}
HEAVY |= {"pydantic"}


def usable(name: str) -> list[str]:
    """Precisions that a backend does not refuse by name."""
    return [
        p
        for p, reason in plugins.load("backends", name).features.precisions.items()
        if reason is None
    ]


# -- every plug-in -----------------------------------------------------------------------------


def test_plugins_import_no_framework() -> None:
    """Their modules can be loaded where nothing is installed: to list them, plan, or refuse."""
    modules = [plugins.module_name(kind, name) for kind, name in ALL]
    program = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        f"    assert not {HEAVY} & {{m.split('.')[0] for m in sys.modules}}, name\n"
    )
    python(program)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_plugin_is_one_class_found_by_its_file(kind: str, name: str) -> None:
    """`Plugin` derives from its kind's base, and carries the name of its file where it has one."""
    plugin = plugins.load(kind, name)
    assert issubclass(plugin, BASES[kind]) and plugin is not BASES[kind] and plugin.__doc__
    if kind in ("backends", "probes"):
        assert plugin.name == name, f"its name is that of its file, {name}"
    if kind == "backends":
        assert set(plugin.packages) <= set(declarations.libraries())
        assert set(plugin.features.precisions) == set(PRECISIONS)
        assert plugin.features.precisions["fp32"] is None


# -- backends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_backend_computes_in_the_precision_asked_for(name: str) -> None:
    """The error of a product against float64 lies in the band of what was asked, or it refuses."""
    bands = {"fp32": "fp32", "tf32": "tf32-or-fp16", "fp16": "tf32-or-fp16", "bf16": "bf16"}
    proved = set()
    for precision in usable(name):
        try:
            backend = opened(name, precision)
        except Unsupported as refused:
            assert precision in str(refused)
            continue
        evidence = backend.prove_precision()
        assert evidence["product_error"] > 1e-8  # of fp32 too, since the reference is float64
        assert evidence["effective_product"] == bands[precision.removeprefix("amp-")], evidence
        assert precision.startswith("amp-") or (
            measurement.effective_precision(precision, evidence, training=False) == precision
        )
        weights, activations = measurement.TRAINS_WITH[precision]
        seen = evidence | {"master_weights": weights, "activations": activations}
        assert measurement.effective_precision(precision, seen, training=True) == precision
        told = measurement.effective_precision(precision, seen | {"activations": "float64"}, True)
        assert told != precision
        proved.add(precision)
    assert proved >= {"fp32", "fp16", "bf16", "amp-bf16"}
    assert ("tf32" in proved) == (name == "torch-cuda")  # a GPU's format


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_backend_makes_arrays_and_launches(name: str) -> None:
    """The same numbers for a seed; an operator that really computes; copies and gradients apart."""
    backend = opened(name)
    a, again, other = (backend.arrays.normal((50, 50), seed) for seed in (3, 3, 4))
    before = numpy_of(a).copy()
    assert np.array_equal(before, numpy_of(again)) and not np.array_equal(before, numpy_of(other))
    assert float(before.std()) == pytest.approx(1, abs=0.1)
    added = backend.kernels.add_one(backend.arrays.copy(a))  # in place, as the framework may
    backend.clock.synchronize()
    assert numpy_of(added) == pytest.approx(before + 1)
    copy = backend.arrays.copy(a)
    copy += 1
    for forward in (True, False):
        made = backend.arrays.vjp(a, again, other, forward)()
        backend.clock.synchronize()
        for value in (*made, backend.arrays.matmul(a, again)):
            assert not getattr(value, "requires_grad", False)
    assert np.array_equal(numpy_of(a), before)
    kernel, note = backend.kernels.empty()
    assert note and (kernel is None or callable(kernel))


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_memory_is_counted_or_said_to_be_unknown(name: str) -> None:
    backend = opened(name)
    before = backend.memory.allocated_bytes()
    if before is None:
        assert backend.memory.peak_bytes() is None
        backend.memory.reset_peak()
        return
    backend.memory.reset_peak()
    size = 4 * 1000 * 1000
    kept = backend.arrays.normal((1000, 1000), 0)
    held = backend.memory.allocated_bytes()
    assert held - before == pytest.approx(size, rel=0.05)
    assert backend.memory.peak_bytes() >= held
    del kept
    assert backend.memory.allocated_bytes() - before < size / 2
    assert backend.memory.peak_bytes() >= held
    backend.memory.reset_peak()
    assert backend.memory.peak_bytes() < held


def numpy_of(value: Any) -> np.ndarray:
    """A framework's array as numpy's."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.array(value)


# -- workloads ---------------------------------------------------------------------------------


TABLE_COLUMNS = {"source", *AXES, "module", "trainer", "point", "params", "point_status", "flags"}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_declares_its_keys_and_its_numbers(name: str) -> None:
    """What a config may set, what tells points apart, and what they yield, with label and unit."""
    plugin = plugins.load("workloads", name)
    taken = store_model.model_of(plugin.Parameters, store_model.Open)
    assert not taken.model_fields.keys() & Entry.model_fields.keys()
    assert all(field.description for field in taken.model_fields.values())
    assert store_model.problems(taken, parameters_of(name)) == []
    assert any(parameter.identifies for parameter in plugin.POINT.values())
    assert all(
        p.type in ("integer", "number", "string", "boolean") and p.label
        for p in plugin.POINT.values()
    )
    assert plugin.QUANTITIES, "QUANTITIES is empty"
    for key, quantity in plugin.QUANTITIES.items():
        assert quantity.label and quantity.better in ("lower", "higher", ""), key
        assert not quantity.series or (key.endswith("_s") and quantity.unit == "s"), key
    assert not TABLE_COLUMNS & {*plugin.POINT, *plugin.QUANTITIES}
    for key, parameter in plugin.POINT.items():  # names of all workloads agree
        assert declarations.parameters()[key].type == parameter.type, key
    for key, quantity in plugin.QUANTITIES.items():
        assert declarations.quantities()[key].series == quantity.series, key
        assert key not in declarations.parameters(), key


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_answers_before_anything_is_imported(name: str) -> None:
    """Where it can run, what it needs and how large it is are asked of a plan, not of a run."""
    plugin = plugins.load("workloads", name)
    base = {"training": TrainingWorkload, "kernels": KernelWorkload}[plugin.kind]
    assert issubclass(plugin, base)
    assert set(plugin.frameworks) <= {"torch", "mlx"}
    workload = plugin(parameters_of(name))
    runs = 0
    for framework in ("torch", "mlx"):
        if framework in plugin.frameworks:
            assert set(workload.packages(framework)) <= set(declarations.libraries())
        for precision in PRECISIONS:
            reason = workload.supports(framework, precision)
            assert reason is None or (isinstance(reason, str) and reason)
            assert reason or framework in plugin.frameworks
            runs += reason is None
            for backend in BACKENDS:
                if plugins.load("backends", backend).framework == framework:
                    parts = workload.memory_bytes(precision, backend)
                    assert all(type(size) is int and size >= 0 for size in parts.values()), parts
    assert runs
    assert workload.supports("abacus", "fp32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (name, backend)
        for name in WORKLOADS
        for backend in CPU_BACKENDS
        if plugins.load("workloads", name).kind == "kernels"
        # Ten processes that import torch; test_default_run looks at such a record.
        and not (name == "kernel_launch" and backend.startswith("torch"))
    ],
)
def test_kernels_give_points_that_a_record_takes(
    name: str, backend: str, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every point passes the record's schema, with as many times as were asked for."""
    # Arrays outgrow the cache, and a server's takes minutes.
    monkeypatch.setattr(caches, "last_level_bytes", lambda: (2**20, "of the test"))
    plugin = plugins.load("workloads", name)
    reads = any(text.startswith("dataset:") for text in plugin.problems(parameters_of(name), None))
    data = str(words) if reads else None
    session = session_of(cpu_cell(backend, name, parameters_of(name), dataset=data))
    began = time.perf_counter()
    try:
        session.workload.measure(session)
    except Unsupported as refused:  # a CPU has no other memory to copy to
        assert name == "copy" and str(refused) and not session.points
        return
    assert record_problems(json.loads(json.dumps(session.points)), "points") == []
    assert session.points
    for point in session.points:
        assert point["times"]
        for times in point["times"].values():
            assert times
            assert all(math.isfinite(seconds) and seconds > 0 for seconds in times)
    assert 0 < session.timed_s < time.perf_counter() - began


# -- GPT-2 -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_stepper_marks_every_phase_in_order(name: str) -> None:
    class Recorder(NoClock):
        def __init__(self, split: bool) -> None:
            super().__init__(split)
            self.phases: list[str] = []

        def edge(self, phase: str) -> None:
            self.phases.append(phase)

    for precision, clips in (("fp32", False), ("fp32", True), ("amp-fp16", False)):
        if precision not in usable(name):
            continue
        found = {}
        for split in (True, False):
            clock = Recorder(split)
            workload = gpt2(max_gradient_norm=0.1 if clips else None)
            stepper = opened(name, precision).stepper(workload, 5)
            stepper.step(tokens(3), clock)
            found[split] = stepper.step(tokens(4), clock)()
            half = clock.phases[: len(clock.phases) // 2]
            assert clock.phases == half * 2
            ordered = [phase for phase in timing.PHASES if phase in half and phase != "other_s"]
            assert [phase for phase in half if phase != "other_s"] == ordered
            assert half[-1] == "optimizer_s" and len(half) == len(set(half))
            assert {"data_s", "forward_s", "backward_s", "optimizer_s"} <= set(half)
            assert ("other_s" in half) == (clips or precision != "fp32")  # clipping, unscaling
            assert ("trace_s" in half) == (name == "mlx")
        assert found[True] == pytest.approx(found[False], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_training_goes_on_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    """Loss by loss as if it had not been interrupted: weights, moments, scale, steps.

    What is evaluated in between trains nothing.
    """

    def three(stepper: Any, first: int) -> list[float]:
        return [
            stepper.step(tokens(seed), NoClock(split=True))() for seed in range(first, first + 3)
        ]

    path = tmp_path / "saved.safetensors"
    for precision in ("fp32", "amp-fp16") if "amp-fp16" in usable(name) else ("fp32",):
        one = opened(name, precision).stepper(gpt2(learning_rate=0.003), 5)
        three(one, 0)
        one.save(path)
        seen = one.inference.evaluate(tokens(9))
        assert (
            seen == one.inference.evaluate(tokens(9))
            and one.inference.outputs(tokens(9)).dtype == np.float32
        )
        expected = three(one, 3)
        other = opened(name, precision).stepper(gpt2(learning_rate=0.003), 6)
        other.load(path)
        assert other.steps == 3
        assert other.inference.evaluate(tokens(9)) == pytest.approx(seen, rel=1e-5)
        assert three(other, 3) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_dropout_is_of_training_alone(name: str) -> None:
    """Losses differ from step to step though nothing is learnt, alike for a seed; evaluations agree."""
    workload = model("mlp", dropout=0.5)
    workload.learning_rate_at = lambda step: 0.0
    for part in (workload.torch, workload.mlx):  # such as weights that come from the hub
        part.model = lambda seed, build=part.model: build(seed).eval()
    backend, batch, losses = opened(name), images(), []
    for _ in range(2):
        stepper = backend.stepper(workload, 5)
        losses.append([stepper.step(batch, NoClock(split=True))() for _ in range(3)])
    assert losses[0] == losses[1]
    assert stepper.inference.evaluate(batch) == stepper.inference.evaluate(batch)
    afterwards = [stepper.step(batch, NoClock(split=True))() for _ in range(2)]
    assert len({*losses[1], *afterwards}) == 5


# -- probes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plugins.names("probes"))
def test_a_probe_starts_samples_and_stops(name: str) -> None:
    plugin = plugins.load("probes", name)
    can, means = plugin.available()
    assert isinstance(can, bool) and means
    probe = plugin()  # where the hardware is absent, null objects stand for it
    begin(probe)
    first, second = probe.sample(), probe.sample()
    assert first.keys() == second.keys()
    for key, value in {**first, **second}.items():
        assert value is None or (isinstance(value, (int, float)) and value >= 0), key
        units = ("_s", "_bytes", "_faults", "_w", "_mhz", "_c", "_percent", "_count")
        units += ("_mask", "_level", "_state", "_processes")
        assert key.endswith(units), f"{key}: no unit at its end, such as {', '.join(units)}"
    undeclared = first.keys() - columns.columns_of_table("samples").keys()
    assert not undeclared, f"without a line in store/columns.yaml: {sorted(undeclared)}"
    summary = probe.stop(0.5)
    assert isinstance(summary, dict) and summary, f"stop() returns no summary: {summary!r}"
    unknown = plugin.QUANTITIES.keys() - summary.keys()
    assert not unknown or not can, f"stop() does not return {sorted(unknown)} of QUANTITIES"
    json.dumps(summary, allow_nan=False)


def begin(probe: Any) -> None:
    """Start a probe as the sampler does."""
    backend = opened(CPU_BACKENDS[0])
    probe.start(backend)


def test_touched_memory_shows_in_page_faults_and_resident_size() -> None:
    size = 200_000_000
    probes = [plugins.load("probes", name)() for name in ("page_faults", "memory")]
    for probe in probes:
        begin(probe)
    before = probes[0].sample() | probes[1].sample()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    for start in range(0, size, mmap.PAGESIZE):
        memory[start] = 1
    after = probes[0].sample() | probes[1].sample()
    summary = probes[0].stop(1.0) | probes[1].stop(1.0)
    memory.close()
    pages = pytest.approx(size / mmap.PAGESIZE, rel=0.1)
    assert after["minor_faults"] - before["minor_faults"] == pages
    assert summary["minor_faults"] == pages
    assert summary["faulted_bytes"] == pytest.approx(size, rel=0.1)
    assert after["rss_bytes"] - before["rss_bytes"] == pytest.approx(size, rel=0.1)
    peak = summary["rss_peak_sampled_bytes"] - summary["rss_at_start_bytes"]
    assert peak == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize(("foreign_s", "flagged"), [(0.0, False), (0.3, False), (0.5, True)])
def test_ones_own_work_is_no_interference(
    foreign_s: float, flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_s = 3.0
    now = {"busy": 100.0, "own": 7.0}
    monkeypatch.setattr(interference, "busy_seconds", lambda: (now["busy"], None))
    monkeypatch.setattr(interference.time, "process_time", lambda: now["own"])
    probe = interference.Plugin()
    begin(probe)
    now["own"] += own_s
    now["busy"] += own_s + foreign_s
    summary = probe.stop(2.0)
    assert bool(summary["flags"]) == flagged
    assert summary["foreign_load_cores"] == pytest.approx(foreign_s / 2, abs=1e-9)
