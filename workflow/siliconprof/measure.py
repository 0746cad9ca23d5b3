"""Measure one cell: start a child, watch it, and leave a record whatever happens to it.

    python -m siliconprof.measure --cell JSON --output results/records/….json

The supervisor is light (no framework) because frameworks abort and the kernel kills: MLX ends
with an uncaught C++ exception when memory runs out, and SIGKILL can be caught by nobody. It
needs the standard library only, so that a bare host with just torch or mlx can take part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof import (
    capture,
    closure,
    environment,
    exhaustion,
    lock,
    memory_limit,
    plugins,
    record,
    support,
)
from siliconprof.cell import Cell
from siliconprof.errors import UserError, stage
from siliconprof.probes import page_faults
from siliconprof.timing import Plan

PIPELINE_VARIABLE = "SILICONPROF_PIPELINE_PID"
PROGRESS_FILE_VARIABLE = "SILICONPROF_PROGRESS_FILE"
POLL_S = 0.25
CHECKOUT = Path(__file__).resolve().parent.parent.parent
TAIL_LINES = 200


def code_roots(cell: Cell) -> list[str]:
    """Modules from which everything that this cell can load is reached."""
    roots = ["siliconprof.measure", "siliconprof.worker"]
    roots += [plugins.module_name("probes", name) for name in plugins.names("probes")]
    roots.append(plugins.module_name("backends", cell.backend))
    roots.append(plugins.module_name("workloads", cell.module))
    if cell.trainer:
        roots.append(plugins.module_name("trainers", cell.trainer))
    if "of_workload" in cell.parameters:  # whose step gives the shapes
        roots.append(plugins.module_name("workloads", cell.parameters["of_workload"]["module"]))
    roots += [plugins.module_name("captures", name) for name in capture.asked(cell)]
    return roots


def child_environment(cell: Cell) -> dict[str, str]:
    """The child's environment: threads as the cell says, whatever Snakemake exported."""
    threads = str(cell.threads)
    package_parent = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    backend = plugins.load("backends", cell.backend)
    own = backend.environment(cell.device_index, cell.precision, os.environ)
    if cell.parameters.get("allocator") == "retain":
        own = own | page_faults.allocator_environment()[0]
    return (
        dict(os.environ)
        | own
        | {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "VECLIB_MAXIMUM_THREADS": threads,
            "NUMEXPR_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "ACCELERATE_MIXED_PRECISION": "no",  # else transformers takes the shell's
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": package_parent + (os.pathsep + inherited if inherited else ""),
            "PYTHONUNBUFFERED": "1",
        }
    )


def show(line: str) -> None:
    """Leave the child's progress where the pipeline's live display looks for it."""
    path = os.environ.get(PROGRESS_FILE_VARIABLE)
    if path:
        try:
            Path(path).write_text(line, encoding="utf-8")
        except OSError:
            pass  # a courtesy; the measurement goes on


class PipelineGone(Exception):
    """The pipeline that wanted this cell has died."""


class Child:
    """The measuring process, its last words and its last sign of progress.

    Args:
        launch: how it is started where it is a capture's.
    """

    def __init__(
        self,
        cell: Cell,
        result: Path,
        lock_descriptor: int,
        launch: capture.Launch = capture.MEASURE,
    ) -> None:
        read_end, write_end = os.pipe()
        self.witness = exhaustion.Witness()
        self.process = subprocess.Popen(
            [
                *launch.under,
                sys.executable,
                "-m",
                "siliconprof.worker",
                "--cell",
                cell.to_json(),
                "--result",
                str(result),
                "--supervisor",
                str(os.getpid()),
                *([] if launch.under else ["--progress-fd", str(write_end)]),
                *launch.arguments,
            ],
            env=child_environment(cell) | dict(launch.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end, lock_descriptor),
            start_new_session=True,
        )
        os.close(write_end)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.progress: dict[str, Any] = {"doing": "start", "step": 0}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._await_end, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_progress, args=(read_end,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _await_end(self) -> None:
        # `wait(timeout=…)` polls up to 2000 times a second and would disturb what is timed.
        self.process.wait()
        self._ended.set()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            text = line.decode(errors="replace")
            self.tail.append(text)
            sys.stderr.write(text)
            sys.stderr.flush()

    def _read_progress(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            for line in stream:
                try:
                    self.progress = json.loads(line)
                except ValueError:
                    continue  # cut off by the child's death
                show(line)

    def kill(self) -> None:
        """End the child and everything it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def wait(self, limit_s: float) -> tuple[int | None, float]:
        """(exit code, or None after a time-out; seconds it took).

        Raises:
            PipelineGone: the pipeline died meanwhile.
        """
        started = time.monotonic()
        timed_out = False
        while not self._ended.wait(POLL_S):
            self.witness.look(self.process.pid)
            require_pipeline()
            if time.monotonic() - started > limit_s:
                timed_out = True
                self.kill()
                break
        for thread in self._threads:
            thread.join(timeout=5)
        return None if timed_out else self.process.returncode, time.monotonic() - started


def pipeline_alive() -> bool:
    """Whether the Snakemake process that wants this cell lives; True when started by hand."""
    pid = os.environ.get(PIPELINE_VARIABLE)
    if not pid:
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:  # a killed process that nobody has waited for still has its number
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"


def require_pipeline() -> None:
    """Raise `PipelineGone` once nobody wants this cell any more."""
    if not pipeline_alive():
        raise PipelineGone


def outcome(
    child: Child,
    code: int | None,
    limit_s: float,
    result: Path,
    limited: memory_limit.Trace | None = None,
) -> dict[str, Any]:
    """Status and reason, with whatever the child left behind.

    Args:
        limited: what the child's own memory cgroup has told, if it had one.
    """
    reached = f"while: {child.progress['doing']}, step {child.progress['step']}"
    if code is None:
        return {
            "status": "timeout",
            "reason": f"still running after its limit of {limit_s:g} s; {reached}",
        }
    if code == 0 and result.is_file():
        return json.loads(result.read_text(encoding="utf-8"))
    tail = "".join(child.tail)
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")
    if code < 0:
        found = limited.evidence() if limited and -code == signal.SIGKILL else None
        found = found or exhaustion.evidence(child.process.pid, -code, child.witness, tail)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
        killed = f"killed by signal {-code} ({name}); {reached}"
        if found:
            return {"status": "oom", "reason": f"{killed}; {found}"}
        return {"status": "failed", "reason": killed + (f"; {last[:200]}" if last else "")}
    return {"status": "failed", "reason": f"exit status {code}; {reached}; {last[:200]}"}


def compose(
    cell: Cell, result: Mapping[str, Any], declared: Mapping[str, Any], started: datetime
) -> dict[str, Any]:
    """The whole record of a cell from what its child left and what its supervisor knows."""
    before = result["surroundings"]
    flags = list(result.get("flags", []))
    changed = [
        path for path, sha256 in code_hashes(cell).items() if before["code"].get(path) != sha256
    ]
    if changed:
        flags.append(
            {
                "code": "code_changed",
                "detail": f"edited while it was measured: {', '.join(changed)}",
            }
        )
    accounting = dict(result.get("accounting") or {})
    accounting["wall_s"] = (datetime.now(UTC) - started).total_seconds()
    method: dict[str, Any] = {"timing": asdict(Plan.of(cell.timing))}
    captures = {}
    if capture.asked(cell):
        not_ok = f"not captured: the cell is {result['status']}"
        captures = {"captures": result.get("captures") or capture.nothing(cell, not_ok)}
        method["captures"] = capture.METHOD
    return captures | {
        "schema_version": record.SCHEMA_VERSION,
        "method_version": record.METHOD_VERSION,
        "cell": json.loads(cell.to_json()),
        "status": result["status"],
        "reason": result.get("reason"),
        "started_at": started.isoformat(timespec="seconds"),
        "scenario": result.get("scenario") or support.scenario(cell),
        "precision": result.get("precision")
        or {"requested": cell.precision, "effective": None, "evidence": {}},
        "checks": result.get("checks") or {},
        "points": result.get("points", []),
        "samples": result.get("samples", []),
        "probes": result.get("probes", {}),
        "flags": flags,
        "dataset": result.get("dataset"),
        "method": method | result.get("method", {}),
        "environment": before["environment"]
        | {
            "backend": result.get("backend"),
            "declared": dict(declared),
            "python": result.get("python") or platform.python_version(),
        },
        "code": before["code"],
        "modules_loaded": result.get("modules_loaded", []),
        "progress": result.get("progress"),
        "accounting": accounting,
    }


def code_hashes(cell: Cell) -> dict[str, str]:
    """SHA-256 of every module that the cell can load, by path in the checkout."""
    return {path: closure.sha256(CHECKOUT / path) for path in closure.files(code_roots(cell))}


def surroundings(cell: Cell) -> dict[str, Any]:
    """Code and environment as they are just before the child starts, which is what it runs in."""
    return {"code": code_hashes(cell), "environment": environment.capture(CHECKOUT)}


def run(
    cell: Cell, result: Path, descriptor: int, launch: capture.Launch = capture.MEASURE
) -> dict[str, Any]:
    """Run one child to its end: how it went, how far it was, and how long it took.

    Raises:
        PipelineGone: the pipeline died; the child has been ended.
    """
    limit_s = Plan.of(cell.timing).time_limit_s
    child = Child(cell, result, descriptor, launch)
    try:
        code, wall_s = child.wait(limit_s)
    finally:
        child.kill()
        limited = memory_limit.remove(child.process.pid)
    found = outcome(child, code, limit_s, result, limited)
    if limited is not None and "scenario" not in found:
        found["scenario"] = limited.into(support.scenario(cell))
    accounting = dict(found.get("accounting") or {}) | {"child_wall_s": wall_s}
    return found | {"progress": child.progress, "accounting": accounting}


def supervise(cell: Cell, keep: Path | None = None) -> dict[str, Any]:
    """Run the child to its end and say how it went; then the captures, where any are asked for.

    Args:
        keep: the folder for the captures' files.

    Raises:
        PipelineGone: the pipeline died; the child has been ended and no record is due.
    """
    refusal = support.refusal(cell)
    if refusal:
        status, reason = refusal
        return {"status": status, "reason": reason, "surroundings": surroundings(cell)}
    show(json.dumps({"doing": "wait for the host", "step": ""}))
    locked = lock.alone(require_pipeline)
    with locked as (descriptor, waited_s), tempfile.TemporaryDirectory() as folder:
        require_pipeline()
        result = Path(folder) / "result.json"
        before = surroundings(cell)
        found = run(cell, result, descriptor) | {"surroundings": before}
        if found["status"] == "ok":
            found["captures"] = capture.take(
                cell, keep, lambda launch, result: run(cell, result, descriptor, launch)
            )
        found["accounting"]["waited_for_lock_s"] = waited_s
        return found


def check(cell: Cell) -> None:
    """Refuse a cell that names parts which do not exist.

    Raises:
        UserError: one line.
    """
    try:
        support.parts(cell)
        for name in capture.asked(cell):
            plugins.load("captures", name)
        Plan.of(cell.timing)
    except (LookupError, TypeError) as error:
        raise UserError(f"--cell: {error}") from None


def interrupt(signum: int, frame: object) -> None:
    """SIGTERM ends the child as Ctrl-C does."""
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one cell and write its record; 0 whatever became of the cell."""
    parser = argparse.ArgumentParser(prog="siliconprof.measure", description=__doc__)
    parser.add_argument("--cell", required=True, help="the cell as canonical JSON")
    parser.add_argument("--output", type=Path, required=True, help="where the record goes")
    parser.add_argument(
        "--environment", default="{}", help="versions that the pipeline declared, as JSON"
    )
    parser.add_argument("--history", type=Path, help="folder that keeps every record ever made")
    parser.add_argument("--captures", type=Path, help="folder for what profilers leave")
    arguments = parser.parse_args(argv)
    cell = Cell.from_json(arguments.cell)
    check(cell)
    signal.signal(signal.SIGTERM, interrupt)
    started = datetime.now(UTC)
    try:
        result = supervise(cell, arguments.captures)
    except PipelineGone:
        print("the pipeline is gone: cell ended without a record", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: cell ended without a record", file=sys.stderr)
        return 130
    whole = compose(cell, result, json.loads(arguments.environment), started)
    record.write(whole, arguments.output, arguments.history)
    line = f"{cell.path}: {whole['status']}"
    print(line + (f": {whole['reason']}" if whole["reason"] else ""), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
