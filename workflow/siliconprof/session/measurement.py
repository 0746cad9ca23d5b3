"""Measure one trial, from its first check to its last flag, in a process of its own."""

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
from siliconprof.session import memory_limit, quality, self_checks, sweep, trained
from siliconprof.session.energy import EnergyMeter
from siliconprof.session.sampler import Sampler
from siliconprof.session.session import Session
from siliconprof.session.timing import GPU_WARM_UP_S, Plan
from siliconprof.session.trial import Trial

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
    trial: Trial,
    report: Any,
    checkpoints: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> Session:
    """The trial's session on its open backend, with its scenario; nothing has run yet.

    Args:
        checkpoints: folder for those of a whole training.
        expected: the device that a node of a cluster must have, see `node_check`.

    Raises:
        Unsupported: this host cannot run the backend.
        packages.NotLoaded: an import fails, maybe by a package that the cell does not need.
        UserError: a package that it needs is not there or does not load; this node has another device.
    """
    cell, backend = trial.cell, trial.backend()
    report({"doing": f"import {backend.framework}", "step": 0})
    available, explanation = backend.available()
    if expected:
        identity: Mapping[str, Any] = {"reason": explanation}
        if available:
            identity = backend.identity(cell.device_kind, cell.device_index)
        node_check.require(cell, expected, identity)
    if not available:
        if why := packages.failure(trial.packages):
            raise UserError(why)
        raise Unsupported(explanation)
    if missing := trial.missing_packages():
        raise UserError(
            f"needs {', '.join(missing)}, which this Python does not have: "
            f"pip install {' '.join(missing)}"
        )
    for name, make_import in trial.imports():
        report({"doing": f"import {name}", "step": 0})
        try:
            make_import()
        except Exception as error:  # a package that is broken raises anything
            if not packages.is_alone():
                raise packages.NotLoaded from error
            why = packages.failure(trial.packages)
            raise UserError(why or f"{name} cannot be imported: {in_one_line(error)}") from error
    gc.freeze()  # the collector need not walk all that was imported again for every point of a sweep
    backend.open(cell.device_kind, cell.device_index, cell.threads, cell.precision)
    session = Session(cell, backend, trial.workload, report, checkpoints)
    session.scenario = trial.scenario()
    if cell.device_kind == "gpu":
        session.gpu = sensors.gpu(backend.gpu_address())
    return session


def warm_up(backend: Backend) -> None:
    """Have a GPU at its clock, and the host at the pace of launching, as they are in the midst of work."""
    a = backend.normal((WARM_UP_SIDE, WARM_UP_SIDE), 0)
    until = time.perf_counter() + GPU_WARM_UP_S
    while time.perf_counter() < until:
        for _ in range(WARM_UP_IN_ROW):
            backend.dispatch(backend.matmul(a, a))
        backend.synchronize()
    del a
    backend.release_memory()


def measure(
    trial: Trial,
    report: Any,
    partial: dict[str, Any] | None = None,
    checkpoints: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure a trial; the parts of its record that only this process knows.

    Args:
        partial: filled on the way with the parts that are worth having when the cell fails.
        checkpoints, expected: see `opened_session`.

    Raises:
        Unsupported: this host cannot run the backend, or the device computes in another precision.
    """
    partial = {} if partial is None else partial
    started = time.perf_counter()
    session = opened_session(trial, report, checkpoints, expected)
    cell, backend, trainer = trial.cell, session.backend, trial.trainer
    if backend.caveat:
        session.flag(*backend.caveat)
    if trial.compiles and backend.compile_caveat:
        session.flag("young_compiler", backend.compile_caveat)
    if trial.smaller_batch:
        session.flag("smaller_batch", trial.smaller_batch)
    sampler = Sampler(session, cell.parameters.get("probes"))
    partial["emulated"] = machine.emulated(backend.framework)
    if cell.device_kind == "gpu":
        report({"doing": "warm up", "step": 0})
        warm_up(backend)
    report({"doing": "check clock, work and precision", "step": 0})
    checks = partial["checks"] = {}
    partial |= {"scenario": session.scenario, "flags": session.flags, "points": session.points}
    checking = time.perf_counter()
    checks |= self_checks.before(session)
    checked = time.perf_counter()
    session.evidence |= backend.prove_precision(cell.seed)
    if cell.precision == "tf32" and session.evidence["effective_product"] == "fp32":
        raise Unsupported("tf32: asked for, but this device multiplies in fp32")
    if trainer is not None:
        session.under_way = False  # until its first step
        trainer.prepare(session)
    report({"doing": "set up", "step": 0})
    if trainer is not None:
        memory_limit.apply(session, trainer.run)
    opened = time.perf_counter()
    if trainer is not None:
        session.energy = EnergyMeter(backend, Plan.of(cell.timing))
        session.energy.idle("before")
    with sampler:
        partial |= {"samples": sampler.samples, "probes": sampler.summaries}
        session.zero = sampler.started
        if trainer is None:
            trial.workload.measure(session)
        else:
            trainer.run(session)
            again = backend.prove_precision(cell.seed)  # a trainer may change global settings
            session.evidence["effective_product_afterwards"] = again["effective_product"]
    if trainer is not None or session.windows:
        memory_limit.sampled(session, sampler.summaries.get("memory", {}), sampler.samples)
    if trainer is not None:
        memory_limit.check(session)
    sweep.flag(session)
    quality.noise_flags(session)
    quality.disturbed_flags(session)
    quality.split_flags(session)
    quality.diverged(session)
    is_trained = (
        "master_weights" in session.evidence
    )  # else nothing was, or all that was tried failed
    seen = (point["observed"]["operands"] for point in session.points if point.get("observed"))
    if operands := sorted({*chain.from_iterable(seen)}):
        session.evidence["operands"] = operands
    effective = effective_precision(cell.precision, session.evidence, is_trained)
    checks |= {
        "precision": self_checks.precision_check(cell.precision, effective, session.evidence),
        "drift": quality.order_flags(session),
        "work": quality.work_check(session),
        **({"trained": trained.check(session)} if is_trained else {}),
    }
    return partial | {
        "precision": {
            "requested": cell.precision,
            "effective": effective,
            "evidence": session.evidence,
        },
        "dataset": {
            "name": session.data.name,
            "data_sha256": session.data.sha256,
            "vocab_size": session.data.vocab_size,
            "synthetic": bool(prepared.read_facts(Path(cell.dataset)).get("synthetic")),
        }
        if cell.dataset
        else None,
        "backend": backend.describe(),
        "method": {"time": backend.time_method} | session.method,
        "accounting": {
            "open_s": opened - started,
            "check_s": checked - checking,  # of those
            "measure_s": time.perf_counter() - opened,
            "timed_s": session.timed_s,
        },
    }
