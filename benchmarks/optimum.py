"""A figure by us against optimum-benchmark: `python benchmarks/optimum.py --environment DIR`

The seconds of a process, imports and exit included, that leaves the median training step of one GPT-2
with a 95 % interval of at most 2 %. Ours: the config's `hf` cell by its command, without an energy
window. Theirs: the training scenario of optimum-benchmark 0.6 (optimum.yaml), in an environment that
is made in DIR. Both in turn, in an order that is drawn. Printed: the ratio of the seconds, ours over
theirs, with its 95 % interval over the rounds, and what each side's runs were like.

Equal: the model with its weights, batch, precision, torch, threads and environment variables, the
Trainer, AdamW, and the rule that ends warm-up and run (session/timing.py). A cell applies it as it
goes; their number of steps is the median of those after which it would have ended a few long runs.

Not equal. Theirs: the launcher `inline`, no memory or energy tracked, random tokens, a step without
fetching them, transformers 4.57. Ours: every other step is split, free-running steps follow, probes
and checks run, and a second process supervises. Data sets must be prepared (`make report`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from shared import CONFIG, as_ratio, measured, planned_cells, ratio
from siliconprof.measure import child
from siliconprof.session import timing
from siliconprof.session.trial import Trial
from siliconprof.stats.statistics import block_median_interval
from siliconprof.store.cell import Cell

SCENARIO = Path(__file__).resolve().with_suffix(".yaml")
# torch first: what follows takes the build that is there
PINS = (
    ("torch==2.13.0",),
    ("optimum-benchmark==0.6.0", "transformers==4.57.6", "datasets==4.8.5", "accelerate==1.15.0"),
)
SIDES = ("siliconprof", "optimum-benchmark")
PILOTS = 3


class Run(NamedTuple):
    """A process: its seconds, those inside its steps, its number of steps, the steps judged."""

    wall_s: float
    inside_s: float
    steps: int
    judged_s: list[float]


def environment(folder: Path) -> None:
    """Make optimum-benchmark's environment where there is none."""
    if (folder / "bin" / "optimum-benchmark").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for pins in PINS:
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *pins]
        subprocess.run(command, check=True)


def is_narrow(times: list[float], plan: timing.Plan) -> bool:
    """Whether the interval of the median is as narrow as the plan asks."""
    low, high = block_median_interval(times)
    return high - low <= plan.relative_interval * statistics.median(times)


def needed(times: list[float], plan: timing.Plan) -> tuple[int, int]:
    """Of a run's steps: how many our rule calls warm-up, and after how many more it ends."""
    warm_up = plan.warmup_iterations
    while not timing.settled(times[:warm_up]) and sum(times[:warm_up]) < plan.warmup_budget_s:
        warm_up += 1
    rest, look, spent_s = times[warm_up:], timing.FIRST_LOOK, 0.0
    for count, step_s in enumerate(rest, 1):
        spent_s += step_s
        if count >= plan.iterations and spent_s >= plan.budget_s:
            return warm_up, count
        if count == look:
            if is_narrow(rest[:count], plan):
                return warm_up, count
            look = math.ceil(timing.LOOK_GROWTH * look)
    return warm_up, len(rest)


def ours(cell: Cell, folder: Path) -> Run:
    """Measure the cell by its command."""
    began = time.perf_counter()
    record = measured(cell.to_json(), folder)
    wall_s = time.perf_counter() - began
    if record["status"] != "ok":
        raise SystemExit(f"{cell.workload}: {record['status']}: {record['reason']}")
    times = record["points"][0]["times"]
    steps = len(record["points"][0]["steps"]["kind"])
    return Run(wall_s, record["accounting"]["timed_s"], steps, times["unsplit_step_s"])


def theirs(cell: Cell, folder: Path, command: Path, warm_up: int, steps: int) -> Run:
    """Run optimum-benchmark's training scenario for so many steps after the warm-up."""
    parameters, shapes = cell.parameters, "+scenario.dataset_shapes"
    settings = (
        "+launcher=inline",
        f"backend.model={folder / 'model'}",
        f"scenario.max_steps={warm_up + steps}",
        f"scenario.warmup_steps={max(warm_up, 1)}",  # its report fails with none
        f"{shapes}.sequence_length={parameters['seq_len']}",
        f"+scenario.training_arguments.per_device_train_batch_size={parameters['batch_size']}",
        f"+scenario.training_arguments.learning_rate={parameters['learning_rate']}",
        f"hydra.run.dir={folder / 'run'}",
    )
    variables = child.child_environment(Trial(cell), folder)
    del variables["PYTHONPATH"]
    variables |= {"HF_HUB_OFFLINE": "1", "OVERRIDE_BENCHMARKS": "1"}
    words = [str(command), "--config-dir", str(SCENARIO.parent), "--config-name", SCENARIO.stem]
    both: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    began = time.perf_counter()
    done = subprocess.run([*words, *settings], env=variables, text=True, check=False, **both)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout)
    report = json.loads((folder / "run" / "benchmark_report.json").read_text(encoding="utf-8"))
    every = report["overall"]["latency"]["values"]
    return Run(wall_s, sum(every), len(every), every[warm_up:])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--environment", type=Path, required=True, help="optimum-benchmark's")
    parser.add_argument("--configfile", default=CONFIG)
    parser.add_argument("--workload", default="gpt2-nano-hf", help="an entry of GPT-2 under hf")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    environment(arguments.environment)
    command = arguments.environment.absolute() / "bin" / "optimum-benchmark"
    wanted = ("torch-cpu", arguments.workload, "fp32")
    for entry in planned_cells(arguments.configfile):
        if (entry["backend"], entry["workload"], entry["precision"]) == wanted:
            break
    else:
        raise SystemExit(f"no cell of {', '.join(wanted)} here")
    entry["timing"]["relative_interval"] = 0.02
    cell = Cell.from_json(json.dumps(entry))
    plan = timing.Plan.of(cell.timing)
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        workload: Any = Trial(cell).workload
        with contextlib.redirect_stdout(sys.stderr):  # deepspeed writes to it when imported
            workload.torch_model(cell.seed).save_pretrained(folder / "model")
        ours(cell, folder)
        asked = (cell, folder, command)
        pilots = [needed(theirs(*asked, 0, 1000).judged_s, plan) for _ in range(PILOTS)]
        warm_up, steps = (int(statistics.median(numbers)) for numbers in zip(*pilots, strict=True))
        for number in range(arguments.rounds):
            for side in random.Random(number).sample(SIDES, len(SIDES)):
                run = ours(cell, folder) if side == SIDES[0] else theirs(*asked, warm_up, steps)
                runs[side].append(run)
    found = ratio(*([run.wall_s for run in runs[side]] for side in SIDES))
    print("side | seconds | inside steps, s | steps | median step, ms | narrow enough")
    for side, done in runs.items():
        wall_s = statistics.median(run.wall_s for run in done)
        inside_s = statistics.median(run.inside_s for run in done)
        made = statistics.median(run.steps for run in done)
        step_ms = 1000 * statistics.median(statistics.median(run.judged_s) for run in done)
        narrow = f"{sum(is_narrow(run.judged_s, plan) for run in done)} of {len(done)}"
        print(f"{side:17} | {wall_s:.2f} | {inside_s:.2f} | {made:.0f} | {step_ms:.2f} | {narrow}")
    print(f"their steps by the rule, warm-up and after, of the pilots: {pilots}")
    print(f"seconds, ours over theirs: {as_ratio(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
