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
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from shared import CONFIG, as_ratio, measured, planned_cells, python, ratio
from siliconprof.measure import fork_server
from siliconprof.stats.statistics import median

__all__ = ["python", "ratio"]  # of bare.py
WAYS = ("fresh", "forked")


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


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--configfile", default=CONFIG)
    parser.add_argument("--cells", nargs="*", default=[], help="only those whose path has a word")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    cells = {
        f"{cell['backend']}/{cell['workload']}/{cell['precision']}": json.dumps(cell)
        for cell in planned_cells(arguments.configfile)
    }
    if arguments.cells:
        cells = {n: cell for n, cell in cells.items() if any(w in n for w in arguments.cells)}
    fork_server.start()
    forks = {fork_server.VARIABLE: os.environ.pop(fork_server.VARIABLE)}
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds + 1):
            runs = [(name, way) for name in cells for way in WAYS]
            random.Random(number).shuffle(runs)
            for name, way in runs:
                record = measured(cells[name], Path(folder), **(forks if way == "forked" else {}))
                if record["status"] != "ok":
                    print(f"{name}: {record['status']}: {record['reason']}", file=sys.stderr)
                elif number:  # the first of each pays for the imports
                    for key, value in figures(record).items():
                        found[name, way][key].append(value)
    print("cell | step, forked over fresh (95 %) | peak memory | faults of a step | beside, s")
    for name in cells:
        fresh, forked = (found[name, way] for way in WAYS)
        if not fresh:
            continue
        shown = [name, as_ratio(ratio(forked["step_s"], fresh["step_s"]))]
        for key in ("peak_bytes", "faults"):
            medians = [median(one[key]) for one in (forked, fresh) if one[key]]
            shown.append(f"{medians[0] / medians[1]:.3f}" if len(medians) == 2 else "-")
        beside = [median(one["beside_s"]) for one in (fresh, forked)]
        print(" | ".join([*shown, f"{beside[0]:.2f} -> {beside[1]:.2f}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
