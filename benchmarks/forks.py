"""Does a forked cell measure what a fresh interpreter measures, and what does it save?

    python benchmarks/forks.py --configfile CONFIG --rounds 10

The config's cells on this host's CPU are measured forked and fresh, each once a round, in shuffled
order, as the pipeline measures them. For each cell, forked over fresh: the median step, with a 95 %
interval of the ratio over the rounds, the peak memory, the page faults of a step, and the seconds
of a cell beside those that it timed. The data sets must have been prepared (`make report`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from siliconprof.measure import fork_server  # noqa: E402
from siliconprof.stats.statistics import median, median_interval  # noqa: E402

WAYS = ("fresh", "forked")


def python(*words: str, **more: Any) -> str:
    """What a module of this checkout prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | more, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def figures(record: dict[str, Any]) -> dict[str, float]:
    """What is compared, of the first point of a record."""
    point, accounting = record["points"][0], record["accounting"]
    times = point["times"]
    found = {
        "step_s": median(times.get("unsplit_step_s") or times["step_s"]),
        "beside_s": accounting["wall_s"] - accounting["timed_s"],
    }
    if peak := point["memory"].get("device_peak_bytes"):
        found["peak_bytes"] = peak
    if faults := point.get("steps", {}).get("minor_faults"):
        found["faults"] = median(faults[len(faults) // 2 :]) + 1
    return found


def ratio(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The median over rounds of one side over the other, and the ends of its 95 % interval.

    The interval is by order statistics: now and then a process is slow for all of its life.
    """
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return (median(ratios), *median_interval(ratios))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--configfile", default=str(ROOT / "config" / "config.yaml"))
    parser.add_argument("--cells", nargs="*", default=[], help="only those whose path has a word")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    plan = json.loads(
        python("siliconprof.cells.plan", "--configfile", arguments.configfile, "--json")
    )
    cells = {}
    for entry in plan["cells"]:
        cell = entry["cell"]
        name = f"{cell['backend']}/{cell['workload']}/{cell['precision']}"
        wanted = not arguments.cells or any(word in name for word in arguments.cells)
        if cell["device_kind"] == "cpu" and wanted:
            cell["timing"]["energy_window_s"] = 0
            cells[name] = json.dumps(cell)
    fork_server.start()
    forks = {fork_server.VARIABLE: os.environ.pop(fork_server.VARIABLE)}
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "record.json")
        for number in range(arguments.rounds + 1):
            runs = [(name, way) for name in cells for way in WAYS]
            random.Random(number).shuffle(runs)
            for name, way in runs:
                measured = ("siliconprof.measure", "--cell", cells[name], "--output", str(output))
                python(*measured, **(forks if way == "forked" else {}))
                record = json.loads(output.read_text(encoding="utf-8"))
                if record["status"] != "ok":
                    print(f"{name}: {record['status']}: {record['reason']}", file=sys.stderr)
                    continue
                if number:  # the first of each pays for the imports
                    for key, value in figures(record).items():
                        found[name, way][key].append(value)
    print("cell | step, forked over fresh (95 %) | peak memory | faults of a step | beside, s")
    for name in cells:
        fresh, forked = (found[name, way] for way in WAYS)
        if not fresh:
            continue
        shown = [
            name,
            "{:.3f} ({:.3f} to {:.3f})".format(*ratio(forked["step_s"], fresh["step_s"])),
        ]
        for key in ("peak_bytes", "faults"):
            medians = [median(one[key]) for one in (forked, fresh) if one[key]]
            shown.append(f"{medians[0] / medians[1]:.3f}" if len(medians) == 2 else "-")
        beside = [median(one["beside_s"]) for one in (fresh, forked)]
        print(" | ".join([*shown, f"{beside[0]:.2f} -> {beside[1]:.2f}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
