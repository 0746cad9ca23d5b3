"""A line for each record: step, process, SM clock, predicted against measured memory, flags.

PYTHONPATH=workflow python benchmarks/accelerator/statuses.py [--clear]    remove those that failed
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from siliconprof.measure.child import FORKED_METHOD, FRESH


def started(record: dict[str, Any]) -> str:
    """How its process was, and why it was no fork."""
    process = str(record["method"].get("process", "no process"))
    return {FORKED_METHOD: "forked"}.get(process, process.replace(FRESH, "fresh"))


def step(record: dict[str, Any]) -> str:
    times = record["points"][-1]["times"] if record["points"] else {}
    steps = times.get("whole_step_s") or times.get("step_s")
    return f"{statistics.median(steps) * 1e3:.3f} ms" if steps else ""


def clock(record: dict[str, Any]) -> str:
    """Of a GPU's cell, where its probes have run."""
    probe = (record.get("probes") or {}).get("clocks")
    if record["cell"]["device_kind"] != "gpu" or probe is None:
        return ""
    mhz, reasons = probe.get("gpu_sm_clock_median_mhz"), probe.get("reasons") or {}
    why = reasons.get("gpu_sm_clock_mhz") or reasons.get("gpu") or probe.get("reason") or reasons
    return f"SM {mhz:.0f} MHz" if mhz else f"LOOK no SM clock: {why}"


def memory(record: dict[str, Any]) -> str:
    """Of a training: the predicted peak less the measured one, of the latter, within 5 %."""
    predicted = (record.get("scenario") or {}).get("predicted_bytes")
    memories = [point.get("memory") or {} for point in record["points"]]
    peak = max((m.get("device_peak_bytes") or 0 for m in memories), default=0)
    if not predicted or not peak or not record["cell"]["trainer"]:
        return ""
    off = predicted / peak - 1
    return f"{'LOOK ' if abs(off) > 0.05 else ''}{peak / 1e6:.0f} MB predicted {off:+.1%}"


def main() -> None:
    for path in sorted(Path("results/records").rglob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        wall_s = (record.get("accounting") or {}).get("wall_s") or 0
        facts = [
            f"{record['status']:11} {'/'.join(path.parts[4:])[:-5]:62} {step(record):>12}",
            f"cell {wall_s:3.0f} s",
            started(record),
            clock(record),
            memory(record),
            ",".join(sorted({flag["code"] for flag in record["flags"]})),
            (record["reason"] or "")[:120],
        ]
        print("  ".join(filter(None, facts)))
        if "--clear" in sys.argv and record["status"] not in ("ok", "unsupported"):
            path.unlink()  # so that the same command measures it again


if __name__ == "__main__":
    main()
