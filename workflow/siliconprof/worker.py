"""The child process in which one cell is really measured.

`python -m siliconprof.worker --cell JSON --result FILE --progress-fd N`, started by
`siliconprof.measure` only. It ends when its supervisor is gone, and it is the first that the
kernel's out-of-memory killer takes. With `--capture TOOL` it measures nothing: the same training
runs a few steps under the tool.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconprof import exhaustion, memory_limit, plugins, statistics, support
from siliconprof.backends.base import Unsupported
from siliconprof.captures.base import STEPS, Over, Window
from siliconprof.cell import Cell
from siliconprof.energy import EnergyMeter
from siliconprof.errors import UserError
from siliconprof.record import write_atomically
from siliconprof.sampler import Sampler
from siliconprof.session import Session
from siliconprof.timing import Plan, clock_check

PR_SET_PDEATHSIG = 1  # linux/prctl.h
OOM_SCORE_ADJ = 800  # of -1000 to 1000: dies before its supervisor
NOISY_ABOVE = 0.10  # IQR over median
SPLIT_DIFFERS_ABOVE = 0.05  # of the unsplit step, for steps of at least the following
SPLIT_CHECKED_FROM_S = 0.020


def exists(pid: int) -> bool:
    """Whether there is such a process of ours."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_with(supervisor: int) -> None:
    """Die when the supervisor dies, by the kernel on Linux and by watching elsewhere.

    Where a capture's tool was started in between, the parent is the tool or what it forked, whose
    end means nothing: there only watching helps.
    """
    direct = os.getppid() == supervisor
    if sys.platform == "linux":
        if direct:
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            score = Path("/proc/self/oom_score_adj")
            inherited = int(score.read_text(encoding="ascii"))
            score.write_text(str(max(OOM_SCORE_ADJ, inherited)), encoding="ascii")
        except OSError:
            pass  # a hardened container; the evidence for oom does not rest on it

    def watch() -> None:
        while os.getppid() == supervisor if direct else exists(supervisor):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def out_of_memory(error: BaseException) -> str | None:
    """The evidence that an exception is the exhaustion of memory, or None."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return text
    return text if exhaustion.said(text) else None


def effective_precision(asked: str, evidence: dict[str, Any], training: bool) -> str | None:
    """The precision that was really used, from what was proved numerically and observed."""
    product = evidence.get("effective_product")
    if product == "tf32-or-fp16":
        if not training:
            return asked if asked in ("tf32", "fp16") else product
        halves = evidence.get("activations") == "float16"
        product = "fp16" if halves else "tf32"
    if not training or product is None:
        return product
    if product in ("bf16", "fp16") and evidence.get("master_weights") == "float32":
        return f"amp-{product}"
    return product


def noise_flags(session: Session) -> None:
    """Flag points whose spread is wide."""
    for point in session.points:
        for name in ("unsplit_step_s", "step_s", "launch_and_wait_s"):
            times = point["times"].get(name)
            if times and len(times) > 3:
                share = statistics.iqr(times) / statistics.median(times)
                if share > NOISY_ABOVE:
                    session.flag(
                        "noisy", f"{name}{label(point)} has an IQR of {share:.0%} of its median"
                    )


def split_flags(session: Session) -> None:
    """Flag a training whose phases do not sum to its unsplit step."""
    for point in session.points:
        times = point["times"]
        if times.get("step_s") and times.get("unsplit_step_s"):
            unsplit = statistics.median(times["unsplit_step_s"])
            differs = statistics.median(times["step_s"]) / unsplit - 1
            if unsplit >= SPLIT_CHECKED_FROM_S and abs(differs) > SPLIT_DIFFERS_ABOVE:
                session.flag("split_differs", f"the phases sum to {differs:+.1%} of the whole step")


def label(point: dict[str, Any]) -> str:
    """Which of a cell's points, as ` (batch=1 k=64 …)`; nothing where there is only one."""
    parameters = {key: v for key, v in point["params"].items() if key not in ("note", "burst")}
    if "batch_size" in parameters:
        return ""
    return f" ({' '.join(f'{key}={value}' for key, value in parameters.items())})"


def finite(value: Any) -> Any:
    """The same value with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def diverged(session: Session) -> None:
    """Flag losses that are no numbers any more; a record holds None for them."""
    for point in session.points:
        lost = sum(not math.isfinite(loss) for loss in point.get("loss") or [])
        if lost:
            session.flag(
                "loss_not_finite", f"{lost} of {len(point['loss'])} losses are NaN or infinite"
            )


def check_clock(session: Session) -> dict[str, float]:
    """Measure the clock first; flag one that measures a known sleep as shorter than it was."""
    found = clock_check()
    if found["sleep_measured_s"] < found["sleep_asked_s"]:
        session.flag(
            "clock",
            f"a sleep of {found['sleep_asked_s']} s was measured as {found['sleep_measured_s']} s",
        )
    return found


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


def opened_session(cell: Cell, report: Any) -> Session:
    """The cell's session on its open backend, with its scenario; nothing has run yet.

    Raises:
        Unsupported: this host cannot run the backend.
    """
    backend_class, workload, _ = support.parts(cell)
    backend = backend_class()
    report({"doing": f"import {backend.framework}", "step": 0})
    can, found = backend.available()
    if not can:
        raise Unsupported(found)
    backend.open(cell.device_kind, cell.device_index, cell.threads, cell.precision)
    session = Session(cell, backend, workload, report)
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
    memory_limit.apply(session, trainer)
    try:
        trainer.run(session)
    except Over:
        pass
    return {"capture": {"steps": STEPS} | session.capture.facts}


def measure(cell: Cell, report: Any) -> dict[str, Any]:
    """Measure a cell; the parts of its record that only the child knows."""
    started = time.perf_counter()
    session = opened_session(cell, report)
    backend = session.backend
    workload: Any = session.workload
    _, _, trainer = support.parts(cell)
    clock = check_clock(session)
    session.evidence |= backend.prove_precision(cell.seed)
    memory_limit.apply(session, trainer)
    opened = time.perf_counter()
    if trainer is not None:
        session.energy = EnergyMeter.of(backend, Plan.of(cell.timing))
        session.energy.idle("before")
    with Sampler(session, cell.parameters.get("probes")) as sampler:
        session.zero = sampler.started
        if trainer is None:
            workload.measure(session)
        else:
            trainer.run(session)
    noise_flags(session)
    split_flags(session)
    diverged(session)
    effective = effective_precision(cell.precision, session.evidence, trainer is not None)
    return {
        "points": session.points,
        "samples": sampler.samples,
        "scenario": session.scenario,
        "probes": sampler.summaries,
        "flags": session.flags,
        "precision": {
            "requested": cell.precision,
            "effective": effective,
            "evidence": session.evidence,
        },
        "dataset": {
            "name": session.data.name,
            "data_sha256": session.data.sha256,
            "vocab_size": session.data.vocab_size,
        }
        if cell.dataset
        else None,
        "backend": backend.describe(),
        "clock": clock,
        "method": {"time": backend.time_method} | session.method,
        "modules_loaded": modules_loaded(),
        "accounting": {
            "open_s": opened - started,
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
    try:
        result = {"status": "ok", "reason": None}
        if arguments.capture:
            result |= look(cell, arguments.capture, arguments.capture_folder, report)
        else:
            result |= measure(cell, report)
            effective = result["precision"]["effective"]
            if effective != cell.precision:
                result["status"] = "failed"
                result["reason"] = (
                    f"asked for {cell.precision}, but the arithmetic was {effective}: "
                    "not kept under the name it was asked for"
                )
    except Unsupported as error:
        result = {"status": "unsupported", "reason": str(error)}
    except UserError as error:
        result = {"status": "failed", "reason": str(error)}
    except BaseException as error:
        traceback.print_exc()
        evidence = out_of_memory(error)
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        where = f"while: {reached['doing']}, step {reached['step']}"
        result = {
            "status": "oom" if evidence else "failed",
            "reason": f"{reason[:500]}; {where}",
        }
    result["python"] = platform.python_version()
    write_atomically(arguments.result, json.dumps(finite(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
