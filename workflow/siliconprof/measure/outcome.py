"""How a measuring process ended: the status and the reason of its cell."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import CANNOT_WRITE_STATUS, CannotWrite
from siliconprof.hosts import cgroups
from siliconprof.lifetime import killed_by
from siliconprof.measure.child import Child, Output
from siliconprof.session import memory_limit, oom


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
    """The report of a child, failed where its output tells that the device gave up work.

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
