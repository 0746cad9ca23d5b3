"""The measuring process as its supervisor sees it: its start, output, progress, end and outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.errors import CANNOT_WRITE_STATUS, CannotWrite, printable
from siliconprof.hosts import cgroups
from siliconprof.lifetime import killed_by, pipeline_alive
from siliconprof.measure import fork_server, process_cleanup, scratch
from siliconprof.session import memory_limit, oom
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store import documents

POLL_S = 0.25
FRESH = "an interpreter of its own"
FORKED_METHOD = "a fork of one that had imported its libraries and computed nothing"
CHUNK_BYTES = 2**16  # what a pipe holds
ENDS_WITHIN_S = 12.0  # a killed process and its children, unless stuck in the kernel
HEAD_BYTES = TAIL_BYTES = 2**20  # of the output, in the log
TAIL_LINES = 200
LONGEST_LINE = 1000  # characters of a last line


class PipelineGone(Exception):
    """The pipeline that started this cell has died."""


class Output:
    """The output of a process; its first `HEAD_BYTES` go to the log, standard error, as they come.

    The last `TAIL_BYTES` follow at `close`, after a line that counts the bytes left out between.

    Args:
        signs: texts to look for in all of it.

    Attributes:
        found: those that occurred.
    """

    def __init__(self, signs: Iterable[str] = ()) -> None:
        self._end = bytearray()  # at least the last TAIL_BYTES
        self._n_bytes = 0
        self._signs = {sign: sign.encode() for sign in signs}
        self._longest = max(map(len, self._signs.values()), default=0)
        self.found: set[str] = set()

    def add(self, chunk: bytes) -> None:
        """Take in what the process wrote."""
        if self._signs:
            joint = self._end[-self._longest :] + chunk  # a sign may lie across two chunks
            self.found |= {sign for sign, text in self._signs.items() if text in joint}
        self._write(chunk[: max(HEAD_BYTES - self._n_bytes, 0)])
        self._n_bytes += len(chunk)
        self._end += chunk
        if len(self._end) > 2 * TAIL_BYTES:
            del self._end[:-TAIL_BYTES]

    def _write(self, content: bytes) -> None:
        with suppress(OSError):  # a full disk must not keep a cell from writing
            sys.stderr.buffer.write(content)
            sys.stderr.flush()

    @property
    def tail(self) -> str:
        """The last lines."""
        text = self._end[-TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    @property
    def last_line(self) -> str:
        """The last line that is not empty, printable and cut where long."""
        lines = (line.strip() for line in reversed(self.tail.splitlines()))
        return printable(next((line for line in lines if line), "")[:LONGEST_LINE])

    def close(self) -> None:
        """Write the end to the log."""
        n_end = min(self._n_bytes - HEAD_BYTES, TAIL_BYTES)
        if n_end > 0:
            omitted = self._n_bytes - HEAD_BYTES - n_end
            note = f"\n[siliconprof: {omitted} bytes of output are left out here]\n"
            self._write((note.encode() if omitted else b"") + self._end[-n_end:])


class Child:
    """The measuring process; after its end also its last progress and its points until then.

    Args:
        result: the file that the process writes at its end.
        job: arguments of the worker beside the common ones.
        under: the command that starts it, see `capture` of a workload's entry.

    Attributes:
        started: how it was started, for the record.
        killed: names of its leftover processes, which were killed.
    """

    def __init__(
        self,
        resolved: ResolvedCell,
        result: Path,
        job: Mapping[str, Any],
        under: Sequence[str],
    ) -> None:
        self.oom_kills_before, self.started_s = oom.cgroup_kills(), time.monotonic()
        self._messages = result.with_suffix(".progress")
        self.output = Output(resolved.backend.aborts)
        own = {"supervisor": os.getpid(), "result": str(result), "progress": str(self._messages)}
        job = {"cell": json.loads(resolved.cell.to_json()), **own, **job}
        environment = fork_server.child_environment(resolved, result.with_name(scratch.CODE))
        says, to_say = os.pipe()
        try:
            self.pid, self._ended, self.started = _start(resolved, job, under, environment, to_say)
        finally:
            os.close(to_say)
        self.returncode = 0
        self.killed: list[str] = []
        self.progress: dict[str, Any] = {"doing": "start", "step": 0}
        self.points: list[dict[str, Any]] = []
        self._threads = [
            threading.Thread(target=self._await_end, daemon=True),
            threading.Thread(target=self._read_output, args=(says,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _await_end(self) -> None:
        self.returncode, self.killed = self._ended()

    def _read_output(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                self.output.add(chunk)

    def end(self) -> None:
        """Kill it and its group; read its last progress and output."""
        until = time.monotonic() + ENDS_WITHIN_S
        if self._threads[0].is_alive():
            with suppress(ProcessLookupError, PermissionError):
                # macOS gives EPERM for a group of dead processes that nobody has waited for
                os.killpg(self.pid, signal.SIGKILL)
        for thread in self._threads:  # a living descendant may hold the pipe open
            thread.join(max(until - time.monotonic(), 0))
        self.output.close()
        lines = self._messages.read_bytes().splitlines() if self._messages.exists() else []
        for line in lines:
            try:
                message = documents.parsed(line)
            except ValueError:
                continue  # cut off by the child's death
            if "point" in message:
                self.points.append(message["point"])
            else:
                self.progress = message

    def wait(self, limit_s: float) -> tuple[int | None, float]:
        """(exit code, or None after a time-out; seconds it took).

        Raises:
            PipelineGone: the pipeline died meanwhile.
        """
        started = time.monotonic()
        while self._threads[0].is_alive():
            require_pipeline()
            if time.monotonic() - started > limit_s:
                return None, time.monotonic() - started
            self._threads[0].join(POLL_S)
        return self.returncode, time.monotonic() - started


Ended = Callable[[], tuple[int, list[str]]]  # waits: (exit code, leftovers that were killed)


def _start(
    resolved: ResolvedCell,
    job: Mapping[str, Any],
    under: Sequence[str],
    environment: Mapping[str, str],
    output: int,
) -> tuple[int, Ended, str]:
    """(process id, function that waits for its end, how it was started)."""
    started = FRESH
    if fork_server.may_fork(resolved) and fork_server.SERVER_VARIABLE in os.environ:
        try:
            forked = fork_server.forked(resolved, environment, job, output, require_pipeline)
            return *forked, FORKED_METHOD
        except fork_server.NoFork as error:
            started = f"{FRESH}, since {error}"
            print(f"not forked: {error}; starts {FRESH}", file=sys.stderr)
    process_cleanup.adopt()
    process = subprocess.Popen(
        [*under, sys.executable, "-m", fork_server.WORKER, json.dumps(job)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # 0 where whoever started us ignores SIGCHLD; the result file then has the status
    return process.pid, lambda: (process.wait(), process_cleanup.end(process.pid)), started


def require_pipeline() -> None:
    """Check that the pipeline lives.

    Raises:
        PipelineGone: it has died, so the cell's record would be for nobody.
    """
    if not pipeline_alive():
        raise PipelineGone


def outcome(
    child: Child,
    code: int | None,
    limit_s: float,
    result: Path,
    group: cgroups.Group | None,
) -> dict[str, Any]:
    """Status and reason, with the child's result or, if it left none, its points so far.

    Args:
        code: exit code of the child; None after a time-out.
        limit_s: the cell's time limit in seconds.
        result: the file that the child writes as its last act.
        group: the child's own memory cgroup, if it had one.

    Raises:
        CannotWrite: the child could not write; the child's own line.
    """
    if code == CANNOT_WRITE_STATUS:  # no result of the cell: no record, so that it is tried again
        raise CannotWrite(child.output.last_line)
    reached = f"while: {child.progress['doing']}, step {child.progress['step']}"
    if result.is_file():  # written whole, as the child's last act
        report = json.loads(result.read_text(encoding="utf-8"))
        if code != 0:
            how = "was still running at its limit" if code is None else f"ended with status {code}"
            detail = f"the process {how} after it had left its result"
            flag = {"code": "crashed_at_exit", "detail": detail}
            report["flags"] = [*report.get("flags", []), flag]
        return report
    if code is None:
        reason = f"still running after its limit of {limit_s:g} s; {reached}"
        return {"status": "timeout", "reason": reason, "points": child.points}
    died = {"status": "failed", "points": child.points}
    tail, last = child.output.tail, child.output.last_line
    if code < 0:
        evidence = memory_limit.evidence(group) if group and -code == signal.SIGKILL else None
        evidence = evidence or oom.evidence(
            child.pid, -code, child.started_s, child.oom_kills_before, tail
        )
        killed = f"{killed_by(-code)}; {reached}"
        if evidence:
            return died | {"status": "oom", "reason": f"{killed}; {evidence}"}
        return died | {"reason": killed + (f"; {last[:200]}" if last else "")}
    return died | {"reason": f"exit status {code}; {reached}; {last[:200]}"}


def aborted(report: dict[str, Any], aborts: Mapping[str, str], output: Output) -> dict[str, Any]:
    """The report of a child, as failed if its output shows that the device aborted work.

    Args:
        aborts: of the backend.
    """
    sign = next((sign for sign in aborts if sign in output.found), None)
    if sign is None or report["status"] in ("oom", "unsupported"):
        return report
    if report["status"] != "ok":
        return report | {"reason": f"{report['reason']}; {aborts[sign]}"}
    line = oom.exhaustion_line(output.tail)
    reason = f"{aborts[sign]}; its output: {line or sign}"
    return report | {"status": "oom" if line else "failed", "reason": reason, "points": []}
