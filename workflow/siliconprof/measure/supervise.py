"""Measure one cell: start a child, watch it, and write a record whatever happens to it.

    python -m siliconprof.measure --cell JSON --output results/records/….json

The supervisor imports no framework because frameworks abort and the kernel kills: MLX ends with an
uncaught C++ exception when memory runs out, and no process can catch SIGKILL. It checks files with
pydantic, which the measuring process is spared: 10 MB beside what is measured.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from siliconprof import fingerprint, formatting, options
from siliconprof.cells import method
from siliconprof.datasets import dataset_spec, prepared
from siliconprof.errors import UserError, writing
from siliconprof.hosts import cgroups, environment, machine, node_check
from siliconprof.measure import (
    cell_line,
    contention,
    environment_filter,
    lock,
    scratch,
)
from siliconprof.measure.child import Child, PipelineGone, aborted, outcome, require_pipeline
from siliconprof.plugins import CHECKOUT
from siliconprof.session import memory_limit
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.session.timing import Plan
from siliconprof.store import record, temporary
from siliconprof.store.cell import Cell, canonical_sha256, identity, point_name
from siliconprof.store.contents import Record
from siliconprof.store.point import OfProcess

NO_POINT = "it came to its end without a point: nothing was measured"
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # of a terminal, of a scheduler
# Parts of a record, which are empty where its child has none
LISTED = ("points", "samples", "modules_loaded")
BY_NAME = ("checks", "probes", "accounting")
SHOWN_PROCESSES = 5  # killed ones, by name
REACHES_ALL_WITHIN_S = 3.0  # a signal that a scheduler sends to a whole job


def compose(
    resolved: ResolvedCell,
    result: Mapping[str, Any],
    declared: Mapping[str, Any],
    started: datetime,
    planned: str | None,
) -> dict[str, Any]:
    """The record of a cell, from its child's result and what its supervisor knows.

    Args:
        result: as `supervise` returns it.
        declared: versions that the pipeline declared.
        started: when the supervisor started, in UTC.
        planned: version of the method and fingerprint of its code, as the pipeline saw it.
    """
    cell = resolved.cell
    before = result["surroundings"]
    flags = list(result.get("flags", []))
    was, now = before["code"]["fingerprint"], method_code(cell)["fingerprint"]
    if was != now or planned not in (None, f"{record.METHOD_VERSION}:{now}"):
        detail = "edited between the start of the run and the end of the cell"
        flags.append({"code": "code_changed", "detail": detail})
    simulated = result.get("simulated") or declared.get("simulated")
    if simulated:
        flags.append({"code": "simulated", "detail": f"{simulated}: no measurement"})
    variables = environment_filter.account(os.environ, resolved.environment(os.environ))
    if variables["left"] and result.get("points"):
        detail = f"set in the shell: {', '.join(variables['left'])}"
        flags.append({"code": environment_filter.VARIABLES_FLAG, "detail": detail})
    method: dict[str, Any] = {"timing": asdict(Plan.of(cell.timing))}
    host = dict(before["environment"])
    if cell.threads != host.pop("threads_auto"):
        host["threads_rule"] = "cpu_threads of the experiment"
    composed = {
        "schema_version": record.RECORD_SCHEMA_VERSION,
        "method_version": record.METHOD_VERSION,
        "cell": json.loads(cell.to_json()),
        "status": result["status"],
        "reason": result.get("reason"),
        "started_at": started.isoformat(timespec="seconds"),
        "scenario": result.get("scenario") or resolved.scenario(),
        "precision": result.get("precision")
        or {"requested": cell.precision, "effective": None, "evidence": {}},
        **{part: result.get(part, []) for part in LISTED},
        **{part: result.get(part, {}) for part in BY_NAME},
        **{part: result.get(part) for part in ("dataset", "progress")},
        "flags": flags,
        "method": method | result.get("method", {}),
        "environment": {
            **host,
            "backend": result.get("backend"),
            "declared": dict(declared),
            "variables": variables,
            "python": result.get("python") or platform.python_version(),
        },
        "code": before["code"],
    }
    if simulated:
        composed["simulated"] = simulated
    return composed


def method_code(cell: Cell) -> dict[str, Any]:
    """The `code` of a record: the fingerprint of the method code as it is on disk now."""
    code = fingerprint.fingerprint_of(method.code_roots(cell), fingerprint.Package())
    return {"fingerprint": code.sha256, "modules": dict(code.modules)}


def surroundings(cell: Cell) -> dict[str, Any]:
    """Code and environment as they are just before the child starts, which is what it runs in."""
    return {"code": method_code(cell), "environment": environment.capture(CHECKOUT)}


def run(
    resolved: ResolvedCell,
    result: Path,
    job: Mapping[str, Any],
    under: Sequence[str],
    spent_s: float = 0.0,
) -> dict[str, Any]:
    """Run one child to its end: its outcome, its progress and how long it took.

    Args:
        result, job, under: see `Child`.
        spent_s: seconds of the cell's time limit that earlier processes have taken.

    Raises:
        PipelineGone: the pipeline died; the child has been ended.
    """
    limit_s = Plan.of(resolved.cell.timing).time_limit_s
    code_folder = result.with_name(scratch.CODE)
    scratch.take(code_folder, resolved.compiles)
    child = Child(resolved, result, job, under)
    try:
        code, wall_s = child.wait(limit_s - spent_s)
        if code is not None and -code in ENDINGS:
            time.sleep(REACHES_ALL_WITHIN_S)  # if it ends us as well, there is no record
    finally:
        child.end()
    group = cgroups.existing(child.pid)
    report = outcome(child, code, limit_s, result, group)
    if group:
        if "scenario" not in report:
            report["scenario"] = memory_limit.read_into(resolved.scenario(), group)
        group.remove()
    if report["status"] == "ok" and not report.get("points"):
        report |= {"status": "failed", "reason": NO_POINT}
    report = aborted(report, resolved.backend.aborts, child.output)
    if report["status"] == "ok":
        scratch.give_back(code_folder, resolved.compiles)
    elif report["status"] == "failed" and any(code_folder.rglob("*.so")):
        why = machine.not_executable(result.parent.parent)
        report["reason"] = "; ".join([*(why or ()), report["reason"]])
    if report["status"] == "failed" and resolved.compiles and resolved.backend.compile_caveat:
        report["reason"] += f"; {resolved.backend.compile_caveat}"
    flags = list(report.get("flags", []))
    if child.killed:
        names = formatting.listing(child.killed, SHOWN_PROCESSES)
        print(f"killed leftover processes: {names}", file=sys.stderr)
        flags.append({"code": "left_processes", "detail": f"{len(child.killed)} killed: {names}"})
    if under:
        detail = f"by {Path(under[0]).name}: it is slower than alone"
        flags.append({"code": "captured", "detail": detail})
    return report | {
        "flags": flags,
        "method": dict(report.get("method") or {}) | {"process": child.started},
        "progress": child.progress,
        "accounting": dict(report.get("accounting") or {}) | {"child_wall_s": wall_s},
    }


def repeat(report: dict[str, Any], further: Mapping[str, Any]) -> None:
    """Merge the points of a further process, or its failure, into the report of the first."""
    flags = report["flags"]
    codes = {flag["code"] for flag in flags}
    if further["status"] != "ok":
        flag = {"code": "repeat_failed", "detail": f"{further['status']}: {further['reason']}"}
        flags += [flag] if flag["code"] not in codes else []
        return
    flags += [flag for flag in further.get("flags", []) if flag["code"] not in codes]
    points = {point_name(point["params"]): point for point in further["points"]}
    for point in report["points"]:
        again = points.get(point_name(point["params"]))
        if again and any(again["times"].values()):
            own = {name: again[name] for name in OfProcess.model_fields if name in again}
            point.setdefault("repeats", []).append(own)


def checkpoint_folder(
    folder: Path, cell: Cell, before: Mapping[str, Any], declared: Mapping[str, Any]
) -> Path:
    """The folder for checkpoints of just this cell, code, data and node; older ones are removed."""
    environment = before["environment"]
    data = prepared.read_facts(Path(cell.dataset))["sha256"] if cell.dataset else None
    own = [identity(vars(cell)), before["code"]["fingerprint"], dict(declared), data]
    key = canonical_sha256(
        [*own, record.METHOD_VERSION, environment["packages"], environment["node"]]
    )
    own_folder = folder / cell.path / key[:16]
    for other in own_folder.parent.glob("*"):
        if other != own_folder:
            temporary.remove(other)
    return own_folder


def supervise(
    resolved: ResolvedCell,
    results: Path | None,
    beside: Path,
    declared: Mapping[str, Any],
    expected: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Run the cell to its end; return its result.

    Args:
        beside: where its temporary folder is made.
        results: the folder of its captures and checkpoints; None = `results`, and no checkpoints.
        declared: versions that the pipeline declared.
        expected: the device that a node of a cluster must have, see `node_check`.

    Raises:
        PipelineGone: the pipeline died; the child has been ended and no record is due.
        CannotWrite: the result, or the folder of captures, cannot be written.
    """
    cell, refusal = resolved.cell, resolved.refusal()
    if cell.dataset and not refusal:
        try:
            dataset_spec.read_facts(Path(cell.dataset))
        except prepared.DataError as error:
            refusal = "failed", str(error)
    captures = (results or Path("results")) / "captures" / cell.path
    words = shlex.split(cell.parameters.get("capture", ""))
    under = [word.replace("{output}", str(captures / Path(words[0]).name)) for word in words]
    if under and not shutil.which(under[0]):
        refusal = refusal or ("failed", f"capture: {under[0]} is not on PATH")
    if refusal:
        status, reason = refusal
        return {"status": status, "reason": reason, "surroundings": surroundings(cell)}
    if under:
        with writing(captures):
            shutil.rmtree(captures, ignore_errors=True)
            captures.mkdir(parents=True)
    locked = lock.exclusive_host(require_pipeline, cell.path)
    with locked as waited_s, scratch.cell_folder(beside) as own_folder:
        require_pipeline()
        before = surroundings(cell)
        job = {"expect": expected, "checkpoints": None}
        own = {}
        if results:
            folder = checkpoint_folder(results / "checkpoints", cell, before, declared)
            own = {"checkpoints": str(folder)}
        report = run(resolved, own_folder / "result.json", job | own, under)
        accounting = report["accounting"]
        for index in range(1, cell.parameters.get("repeats", 1)):
            if report["status"] == "ok":
                require_pipeline()
                spent_s, file = accounting["child_wall_s"], own_folder / f"result-{index}.json"
                further = run(resolved, file, job, under, spent_s)
                accounting["child_wall_s"] += further["accounting"]["child_wall_s"]
                repeat(report, further)
        report["surroundings"] = before
        accounting["waited_for_lock_s"] = waited_s
        return report


def resolved_cell_of(text: str, time_limit_s: float | None) -> ResolvedCell:
    """The resolved cell of a cell's JSON.

    Args:
        time_limit_s: seconds for the whole cell, None for the cell's own.

    Raises:
        UserError: it is not a cell, or names plug-ins that do not exist; one line.
    """
    cell = Cell.from_json(text)
    if time_limit_s is not None:
        cell = replace(cell, timing={**cell.timing, "time_limit_s": time_limit_s})
    try:
        resolved = ResolvedCell(cell)
        Plan.of(cell.timing)
    except (LookupError, TypeError) as error:
        raise UserError(f"--cell: {error}") from None
    return resolved


def interrupt(signum: int, frame: object) -> None:
    """End the cell; a second signal does not disturb that."""
    hear(signal.SIG_IGN, ENDINGS)
    raise KeyboardInterrupt


def hear(handler: Any, numbers: Sequence[signal.Signals]) -> None:
    """Handle these signals of `ENDINGS`: SIGTERM and a closed terminal end a cell as Ctrl-C does."""
    for number in numbers:
        signal.signal(number, handler)


def main(
    *,
    cell: Annotated[str, "the cell as canonical JSON"],
    output: Annotated[Path, "file of the record"],
    time_limit: Annotated[
        float | None, "seconds it may take; default: its own limit", {"metavar": "S"}
    ] = None,
    environment: Annotated[
        dict[str, Any] | None, "versions that the pipeline declared", options.AS_JSON
    ] = None,
    expect: Annotated[
        dict[str, Any] | None,
        "name and memory_bytes of the device that a node of a cluster must have",
        options.AS_JSON,
    ] = None,
    method_: Annotated[
        str | None, "version of the method and fingerprint of its code, as the pipeline saw it"
    ] = None,
    results: Annotated[
        Path | None,
        "folder for the history of records, checkpoints and captures; default: no history, no "
        "checkpoints, and captures in results",
    ] = None,
    remeasure_within: Annotated[
        float,
        "measure a training that other processes disturbed once more if it took no longer",
        {"metavar": "S"},
    ] = 0.0,
) -> int:
    """Measure one cell and write its record; 0 whatever the cell's status."""
    resolved = resolved_cell_of(cell, time_limit)
    heard = [number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN]
    hear(interrupt, heard)
    declared, history = environment or {}, None
    if results:
        history = results / "history"
        fingerprint.load_cache(history / fingerprint.CACHE_FILE)
    beside = results / scratch.SCRATCH_FOLDER if results else output.parent

    def measured() -> dict[str, Any]:
        # Durations come from a clock that nobody sets, the date from the one that people read.
        started, began_s = datetime.now(UTC), time.monotonic()
        result = supervise(resolved, results, beside, declared, expect)
        if node_check.refused(result.get("reason")) or prepared.FIX in str(result.get("reason")):
            # No record: the next run has another node, or the data.
            raise UserError(result["reason"])
        wall_s = time.monotonic() - began_s
        result["accounting"] = (result.get("accounting") or {}) | {"wall_s": wall_s}
        # The log stays on this host: it has the reason as it was.
        reason = f": {result['reason']}" if result.get("reason") else ""
        print(f"{resolved.cell.path}: {result['status']}{reason}", file=sys.stderr)
        return compose(resolved, result, declared, started, method_)

    stands: Record | None = None
    try:
        made = measured()
        hear(signal.SIG_IGN, heard)  # an interrupt while the record is written would lose the cell
        stands = record.write(made, output, history)
        if contention.is_over(stands, remeasure_within):
            hear(interrupt, heard)
            again = measured()
            hear(signal.SIG_IGN, heard)
            again["method"]["instead_of"] = stands.sha256
            second = record.write(again, None, history)
            if contention.is_less(second, stands):
                stands = record.write(again, output, None)
    except PipelineGone:
        print("the pipeline has died: the cell ended without a record", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not stands:
            print("interrupted: the cell ended without a record", file=sys.stderr)
            return 130
    except UserError:
        if not stands:
            raise
    if results and stands:
        print(cell_line.line_of_record(stands, cell_line.records_of_same_work(results, stands)))
    return 0
