"""The child process in which one cell is really measured.

`python -m siliconprof.worker --cell JSON --result FILE --progress-fd N`, started by
`siliconprof.measure` only. It ends when its supervisor is gone, and it is the first that the
kernel's out-of-memory killer takes. With `--capture TOOL` it measures nothing: the same training
runs a few steps under the tool.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof import (
    exhaustion,
    memory_limit,
    node_check,
    plugins,
    prepared,
    quality,
    support,
    sweep,
    truth,
)
from siliconprof.backends.base import Unsupported
from siliconprof.captures.base import STEPS, Over, Window
from siliconprof.cell import Cell
from siliconprof.energy import EnergyMeter
from siliconprof.errors import CANNOT_WRITE_STATUS, CannotWrite, UserError, in_one_line
from siliconprof.journal import Journal
from siliconprof.lifetime import end_with
from siliconprof.record import finite, write_atomically
from siliconprof.sampler import Sampler
from siliconprof.session import Session
from siliconprof.timing import Plan

TRAINS_WITH = {  # precision -> dtypes of weights that are updated, of activations
    "fp32": ("float32", "float32"),
    "tf32": ("float32", "float32"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "amp-bf16": ("float32", "bfloat16"),
    "amp-fp16": ("float32", "float16"),
}


def effective_precision(asked: str, evidence: dict[str, Any], training: bool) -> str | None:
    """The precision that was really used, from what was proved numerically and observed.

    A product proves the arithmetic; what a training did with it, the dtypes of its weights and
    activations say. Where they contradict each other, the answer is what was seen.
    """
    product = evidence.get("effective_product")
    if not training or product is None:
        if product == "tf32-or-fp16":
            return asked if asked in ("tf32", "fp16") else product
        return product
    weights, activations = evidence.get("master_weights"), evidence.get("activations")
    afterwards = evidence.get("effective_product_afterwards", product)
    if product == "tf32-or-fp16":
        product = "fp16" if activations == "float16" else "tf32"
    named = product
    if product in ("bf16", "fp16") and weights == "float32":
        named = f"amp-{product}"
    if afterwards != evidence["effective_product"]:
        return f"{named} before the training, and {afterwards} after it"
    if (weights, activations) != TRAINS_WITH[named]:
        return f"{weights} weights, {activations} activations and {product} products"
    return named


def modules_loaded() -> list[str]:
    """Files of this package in the process, relative to the checkout."""
    root = Path(__file__).resolve().parent.parent.parent
    files = (
        getattr(module, "__file__", None)
        for name, module in sys.modules.items()
        if name == "siliconprof" or name.startswith("siliconprof.")
    )
    own = [str(Path(__file__).resolve().relative_to(root))]  # runs as __main__
    return sorted({*own, *(str(Path(f).resolve().relative_to(root)) for f in files if f)})


def opened_session(
    cell: Cell,
    report: Any,
    journal: Journal | None = None,
    keep: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> Session:
    """The cell's session on its open backend, with its scenario; nothing has run yet.

    Args:
        journal: points that are finished already; those that follow go there.
        keep: the cell's folder for what outlives its process.
        expected: the device that a node of a cluster must have, see `node_check`.

    Raises:
        Unsupported: this host cannot run the backend, or has not what the workload imports.
        UserError: this node has another device.
    """
    backend_class, workload, _ = support.parts(cell)
    backend = backend_class()
    report({"doing": f"import {backend.framework}", "step": 0})
    can, found = backend.available()
    if expected:
        there = backend.identity(cell.device_kind, cell.device_index) if can else {"reason": found}
        node_check.require(cell, expected, there)
    if not can:
        raise Unsupported(found)
    if lacks := support.lacking(cell):
        raise Unsupported(
            f"needs {', '.join(lacks)}, which this Python has not: pip install {' '.join(lacks)}"
        )
    backend.open(cell.device_kind, cell.device_index, cell.threads, cell.precision)
    session = Session(cell, backend, workload, report, journal, keep)
    session.scenario = support.scenario(cell)
    return session


def look(cell: Cell, name: str, folder: Path, report: Any) -> dict[str, Any]:
    """Let a tool look at a few steps of the cell's training; what it says of them.

    Raises:
        UserError: the tool failed, and why.
    """
    session = opened_session(cell, report)
    tool = plugins.load("captures", name)(session.backend, cell.device_kind, folder)
    session.capture = Window(tool)
    _, _, trainer = support.parts(cell)
    trainer.prepare(session)
    memory_limit.apply(session, trainer)
    try:
        trainer.run(session)
    except Over:
        pass
    return {"capture": {"steps": STEPS} | session.capture.facts}


def measure(
    cell: Cell,
    report: Any,
    kept: dict[str, Any] | None = None,
    journal: Journal | None = None,
    keep: Path | None = None,
    expected: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure a cell; the parts of its record that only the child knows.

    Args:
        kept: is filled on the way with those of them that are worth having when the cell fails.
        journal, keep, expected: see `opened_session`.

    Raises:
        Unsupported: this host cannot run the backend, or the device computes in another precision.
    """
    kept = {} if kept is None else kept
    started = time.perf_counter()
    session = opened_session(cell, report, journal, keep, expected)
    backend = session.backend
    workload: Any = session.workload
    _, _, trainer = support.parts(cell)
    report({"doing": "check clock, work and precision", "step": 0})
    checks = kept["checks"] = {}
    kept |= {"scenario": session.scenario, "flags": session.flags, "points": session.points}
    checking = time.perf_counter()
    checks |= truth.before(session)
    checked = time.perf_counter()
    session.evidence |= backend.prove_precision(cell.seed)
    if cell.precision == "tf32" and session.evidence["effective_product"] == "fp32":
        raise Unsupported("tf32: asked for, this device multiplies in fp32 all the same")
    if trainer is not None:
        session.under_way = False  # until its first step
        trainer.prepare(session)
    report({"doing": "set up", "step": 0})
    memory_limit.apply(session, trainer)
    opened = time.perf_counter()
    if trainer is not None:
        session.energy = EnergyMeter.of(backend, Plan.of(cell.timing))
        session.energy.idle("before")
    with Sampler(session, cell.parameters.get("probes")) as sampler:
        kept |= {"samples": sampler.samples, "probes": sampler.summaries}
        session.zero = sampler.started
        if trainer is None:
            workload.measure(session)
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
    quality.split_flags(session)
    quality.diverged(session)
    trained = trainer is not None or "master_weights" in session.evidence
    effective = effective_precision(cell.precision, session.evidence, trained)
    checks |= {
        "precision": truth.precision_check(cell.precision, effective, session.evidence),
        "results": truth.results_check(session.points),
        "drift": quality.order_flags(session),
    }
    return kept | {
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
        "method": {"time": backend.time_method} | truth.METHOD | session.method,
        "modules_loaded": modules_loaded(),
        "accounting": {
            "open_s": opened - started,
            "check_s": checked - checking,  # of those
            "measure_s": time.perf_counter() - opened,
            "timed_s": session.timed_s,
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and leave a result file that says how it went."""
    parser = argparse.ArgumentParser(prog="siliconprof.worker")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--supervisor", type=int, required=True)
    parser.add_argument("--progress-fd", type=int)
    parser.add_argument("--journal", type=Path, help="file of the points that are finished")
    parser.add_argument("--key", default="", help="under which they count")
    parser.add_argument("--keep", type=Path, help="the cell's folder for what outlives it")
    parser.add_argument("--expect", type=json.loads, help="the device that this node must have")
    parser.add_argument("--capture", help="look with this tool instead of measuring")
    parser.add_argument("--capture-folder", type=Path)
    arguments = parser.parse_args(argv)
    end_with(arguments.supervisor)
    cell = Cell.from_json(arguments.cell)
    Plan.of(cell.timing)
    # What a tool starts may not inherit the pipe.
    where_to = os.devnull if arguments.progress_fd is None else arguments.progress_fd
    progress = open(where_to, "w", encoding="utf-8", buffering=1)
    reached: dict[str, Any] = {"doing": "start", "step": 0}

    def report(message: dict[str, Any]) -> None:
        reached.update(message)
        try:
            progress.write(json.dumps(message) + "\n")
        except OSError:
            pass  # the supervisor is gone; end_with ends us

    result: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    try:
        result = {"status": "ok", "reason": None}
        if arguments.capture:
            result |= look(cell, arguments.capture, arguments.capture_folder, report)
        else:
            journal = Journal(arguments.journal, arguments.key)
            result |= measure(cell, report, kept, journal, arguments.keep, arguments.expect)
            result["status"], result["reason"] = sweep.status(kept["points"])
            result["complete"] = True
            effective = result["precision"]["effective"]
            if result["status"] == "ok" and effective != cell.precision:
                result["status"] = "failed"
                result["reason"] = (
                    f"asked for {cell.precision}, but the arithmetic was {effective}: "
                    "not kept under the name it was asked for"
                )
    except Unsupported as error:
        result = {"status": "unsupported", "reason": str(error)}
    except CannotWrite as error:
        return _gives_up(error)
    except UserError as error:
        result = {"status": "failed", "reason": str(error)}
    except BaseException as error:
        traceback.print_exc()
        evidence = exhaustion.raised(error)
        where = f"while: {reached['doing']}, step {reached['step']}"
        result = {
            "status": "oom" if evidence else "failed",
            "reason": f"{in_one_line(error)}; {where}",
        }
    result = kept | result
    result["python"] = platform.python_version()
    try:
        write_atomically(arguments.result, json.dumps(finite(result)))
    except CannotWrite as error:
        return _gives_up(error)
    return 0


def _gives_up(error: CannotWrite) -> int:
    """A disk that is full says nothing of the cell: its supervisor stops without a record."""
    print(error, flush=True)
    return CANNOT_WRITE_STATUS


if __name__ == "__main__":
    sys.exit(main())
