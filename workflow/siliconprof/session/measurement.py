"""Measure one cell, from its first check to its last flag, in a process of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from siliconprof import packages
from siliconprof.backends.base import Backend, Unsupported
from siliconprof.datasets import prepared
from siliconprof.errors import UserError, in_one_line
from siliconprof.hosts import machine, node_check
from siliconprof.hosts.sensors import sources as sensors
from siliconprof.probes import page_faults
from siliconprof.session import memory_limit, quality, self_checks, sweep, weight_watch
from siliconprof.session.cell_run import CellRun
from siliconprof.session.energy import EnergyMeter
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.session.sampler import Sampler
from siliconprof.session.timing import GPU_WARM_UP_S, Plan

WARM_UP_SIDE, WARM_UP_IN_ROW = 1024, 20  # of products between two waits
OPERANDS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
TRAINS_WITH = {  # precision -> dtypes of weights that are updated, of activations
    "fp32": ("float32", "float32"),
    "tf32": ("float32", "float32"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "amp-bf16": ("float32", "bfloat16"),
    "amp-fp16": ("float32", "float16"),
}


def effective_precision(requested: str, evidence: dict[str, Any], training: bool) -> str | None:
    """The precision that was really used, from a numerical proof and the observed dtypes.

    A product proves the arithmetic; the dtypes of weights and activations show how a training used
    it. Where they contradict each other, the result lists what was observed.
    """
    product = evidence.get("effective_product")
    operands = evidence.get("operands") or []
    if any(dtype != OPERANDS[requested] for dtype in operands):
        return f"{product} products of {' and '.join(operands)} operands"
    if not training or product is None:
        either = product == "tf32-or-fp16" and requested in ("tf32", "fp16")
        return requested if either else product
    weights, activations = evidence.get("master_weights"), evidence.get("activations")
    afterwards = evidence.get("effective_product_afterwards", product)
    if product == "tf32-or-fp16":
        product = "fp16" if activations == "float16" else "tf32"
    inferred = product
    if product in ("bf16", "fp16") and weights == "float32":
        inferred = f"amp-{product}"
    if afterwards != evidence["effective_product"]:
        return f"{inferred} before the training, and {afterwards} after it"
    if (weights, activations) != TRAINS_WITH[inferred]:
        return f"{weights} weights, {activations} activations and {product} products"
    return inferred


def opened_session(
    resolved: ResolvedCell,
    report: Any,
    checkpoints: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> CellRun:
    """The run of a cell on its open backend, with its scenario, before anything is measured.

    Args:
        checkpoints: folder for those of a whole training.
        expected: the device that a node of a cluster must have, see `node_check`.

    Raises:
        Unsupported: this host cannot run the backend.
        packages.NotLoaded: an import fails, maybe by a package that the cell does not need.
        UserError: a package that it needs is not there or does not load; this node has another device.
    """
    cell, backend = resolved.cell, resolved.backend()
    report({"doing": f"import {backend.framework}", "step": 0})
    available, explanation = backend.available()
    if expected:
        identity: Mapping[str, Any] = {"reason": explanation}
        if available:
            identity = backend.identity(cell.device_kind, cell.device_index)
        node_check.require(cell, expected, identity)
    if not available:
        if why := packages.failure(resolved.packages):
            raise UserError(why)
        raise Unsupported(explanation)
    beside_framework = {*resolved.packages} - {*backend.packages}
    if missing := sorted(filter(packages.is_absent, beside_framework)):
        raise UserError(
            f"needs {', '.join(missing)}, which this Python does not have: "
            f"pip install {' '.join(missing)}"
        )
    for name, make_import in resolved.imports():
        report({"doing": f"import {name}", "step": 0})
        try:
            make_import()
        except Exception as error:  # a package that is broken raises anything
            if not packages.has_isolated_packages():
                raise packages.NotLoaded from error
            why = packages.failure(resolved.packages)
            raise UserError(why or f"{name} cannot be imported: {in_one_line(error)}") from error
    gc.freeze()  # the collector need not walk all that was imported again for every point of a sweep
    if cell.parameters.get("allocator") == "retain":
        page_faults.retain_freed_memory()
    backend.open(cell.device_kind, cell.device_index, cell.threads, cell.precision)
    cell_run = CellRun(cell, backend, resolved.workload, report, checkpoints)
    cell_run.scenario = resolved.scenario()
    if cell.device_kind == "gpu":
        cell_run.gpu = sensors.gpu(backend.gpu_address)
    return cell_run


def warm_up(backend: Backend) -> None:
    """Run products until the GPU's clock and the host's launching are at their working pace."""
    arrays = backend.arrays
    a = arrays.normal((WARM_UP_SIDE, WARM_UP_SIDE), 0)
    until = time.perf_counter() + GPU_WARM_UP_S
    while time.perf_counter() < until:
        for _ in range(WARM_UP_IN_ROW):
            arrays.async_eval(arrays.matmul(a, a))
        backend.clock.synchronize()
    del a
    backend.memory.empty_cache()


def measure(
    resolved: ResolvedCell,
    report: Any,
    partial: dict[str, Any] | None = None,
    checkpoints: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure a cell; return the parts of its record that only this process knows.

    Args:
        partial: filled on the way with the parts that are worth having when the cell fails.
        checkpoints, expected: see `opened_session`.

    Raises:
        Unsupported: this host cannot run the backend, or the device computes in another precision.
    """
    partial = {} if partial is None else partial
    started = time.perf_counter()
    cell_run = opened_session(resolved, report, checkpoints, expected)
    cell, backend, trainer = resolved.cell, cell_run.backend, resolved.trainer
    if backend.caveat:
        cell_run.flag(*backend.caveat)
    if resolved.compiles and backend.compile_caveat:
        cell_run.flag("young_compiler", backend.compile_caveat)
    if resolved.smaller_batch:
        cell_run.flag("smaller_batch", resolved.smaller_batch)
    sampler = Sampler(cell_run, cell.parameters.get("probes"))
    partial["simulated"] = machine.simulated_device(backend.framework)
    if cell.device_kind == "gpu":
        report({"doing": "warm up", "step": 0})
        warm_up(backend)
    report({"doing": "check clock, work and precision", "step": 0})
    checks = partial["checks"] = {}
    partial |= {"scenario": cell_run.scenario, "flags": cell_run.flags, "points": cell_run.points}
    checking = time.perf_counter()
    checks |= self_checks.checks_before(cell_run)
    checked = time.perf_counter()
    cell_run.evidence |= backend.prove_precision(cell.seed)
    if cell.precision == "tf32" and cell_run.evidence["effective_product"] == "fp32":
        raise Unsupported("tf32: asked for, but this device multiplies in fp32")
    if trainer is not None:
        cell_run.under_way = False  # until its first step
        trainer.prepare(cell_run)
    report({"doing": "set up", "step": 0})
    if trainer is not None:
        memory_limit.apply(cell_run, trainer.run)
    opened = time.perf_counter()
    if trainer is not None:
        cell_run.energy = EnergyMeter(backend, Plan.of(cell.timing))
        cell_run.energy.idle("before")
    with sampler:
        partial |= {"samples": sampler.samples, "probes": sampler.summaries}
        cell_run.zero = sampler.started
        if trainer is None:
            resolved.workload.measure(cell_run)
        else:
            trainer.run(cell_run)
            again = backend.prove_precision(cell.seed)  # a trainer may change global settings
            cell_run.evidence["effective_product_afterwards"] = again["effective_product"]
    if trainer is not None or cell_run.windows:
        memory_limit.sampled(cell_run, sampler.summaries.get("memory", {}), sampler.samples)
    if trainer is not None:
        memory_limit.check(cell_run)
    sweep.flag(cell_run)
    quality.noise_flags(cell_run)
    quality.disturbed_flags(cell_run)
    quality.split_flags(cell_run)
    quality.diverged(cell_run)
    is_trained = "master_weights" in cell_run.evidence  # else no training, or all failed
    seen = (point["observed"]["operands"] for point in cell_run.points if point.get("observed"))
    if operands := sorted({*chain.from_iterable(seen)}):
        cell_run.evidence["operands"] = operands
    effective = effective_precision(cell.precision, cell_run.evidence, is_trained)
    checks |= {
        "precision": self_checks.precision_check(cell.precision, effective, cell_run.evidence),
        "drift": quality.order_flags(cell_run),
        "work": quality.work_check(cell_run),
        **({"trained": weight_watch.check(cell_run)} if is_trained else {}),
    }
    return partial | {
        "precision": {
            "requested": cell.precision,
            "effective": effective,
            "evidence": cell_run.evidence,
        },
        "dataset": {
            "name": cell_run.data.name,
            "data_sha256": cell_run.data.sha256,
            "vocab_size": cell_run.data.vocab_size,
            "synthetic": bool(prepared.read_facts(Path(cell.dataset)).get("synthetic")),
        }
        if cell.dataset
        else None,
        "backend": backend.describe(),
        "method": {"time": backend.clock.means} | cell_run.method,
        "accounting": {
            "open_s": opened - started,
            "check_s": checked - checking,  # within open_s
            "measure_s": time.perf_counter() - opened,
            "timed_s": cell_run.timed_s,
        },
    }
