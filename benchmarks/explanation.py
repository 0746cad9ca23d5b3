"""Is a training step what its operators and the framework take, and is a planted cause found?

    python benchmarks/explanation.py [--rounds 5]

For each of several trainings, in torch with one thread and with two, and in MLX: the step that its
operators, timed inside of steps, predict together with the framework's time, which is measured in
another model, the same at the least shapes: what that one's step lasts beyond its own operators. As in a
prediction one factor closes the sum: of a training that of the others, so that it is never fitted.
Then causes of known kind are planted into one side of a pair in torch, both sides measured in turn in
one process: how much of the gap between their whole steps the parts that should have it get.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import pandas as pd
import shared
from siliconprof.analyse import operator_rows, prediction, step_parts
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.session import operators, thread_time
from siliconprof.stats.statistics import median
from siliconprof.store import model
from siliconprof.store.contents import Point
from siliconprof.workloads import gpt2

PLANTED_IN = "gpt2-tiny 4 x 128"
# By size, batch size and sequence length.
TRAININGS: Mapping[str, dict[str, Any]] = {
    f"gpt2-{size} {batch} x {tokens}{' LoRA' * bool(rank)}": {"size": size, "batch_size": batch}
    | {"seq_len": tokens, "lora_rank": rank}
    for size, batch, tokens, rank in (
        ("nano", 1, 32, 0), ("nano", 4, 64, 0), ("tiny", 4, 128, 0), ("tiny", 4, 128, 8),
        ("nano", 8, 128, 0), ("mini", 2, 128, 0),
    )
}  # fmt: skip
LEAST = {"batch_size": 1, "seq_len": 2, "dataset_vocab_size": 256}
PLANTED_S = 10e-3
WHOLE_STEPS = 10  # in each round
NO_FAULTS: dict[str, Any] = {"started_s": [], "minor_faults": [], "major_faults": []}
BEYOND = (BLOCKED, WAITING, FRAMEWORK)
OF_OPERATORS = tuple(part for part in PARTS if part not in BEYOND)


class Measured(NamedTuple):
    """A training's point, and its lines of operators.csv."""

    point: dict[str, Any]
    operators: pd.DataFrame


def timed_trainings(rounds: Sequence[Measured]) -> prediction.TimedTrainings:
    """Return the rounds as trainings whose operators are timed."""
    points = pd.DataFrame([one.point for one in rounds])
    lines = [one.operators.assign(training=index) for index, one in enumerate(rounds)]
    return prediction.timed(points, pd.concat(lines, ignore_index=True))


class Training(shared.Training):
    """A training whose whole steps, and whose parts of a step, are timed on request."""

    def __init__(
        self, name: str, threads: int, backend: str = "torch-cpu", least: bool = False
    ) -> None:
        own = TRAININGS[name]
        told = {"dataset_vocab_size": 1024} | own | (LEAST if least else {})
        workload = shared.workload_of("gpt2", **told)
        if least:
            sizes = workload.facts
            workload.known = gpt2.facts(
                sizes.n_layer, sizes.n_head, sizes.n_head, sizes.vocab_size, workload.lora_rank
            )
        super().__init__(workload, workload.parameters, backend, "fp32", threads)
        self.model = ("gpt2", "plain", own.get("lora_rank", 0), "fp32")
        self.walls: list[float] = []  # of whole steps since the parts were last asked for
        self.used: list[dict[str, float | None]] = []

    def whole_step_s(self) -> float:
        """Seconds of a whole step."""
        thread = threading.get_ident()
        before = thread_time.read(thread)
        self.walls.append(shared.whole_step_s(self))
        self.used.append(thread_time.between(before, thread_time.read(thread)))
        return self.walls[-1]

    def median_s(self, steps: int = WHOLE_STEPS) -> float:
        """The median seconds of some whole steps."""
        return median([self.whole_step_s() for _ in range(steps)])

    def watched(self) -> Point:
        """The point of the whole steps since the last call, with a step's operators."""
        nobody, cell = (lambda *_: None), SimpleNamespace(timing={})
        session: Any = SimpleNamespace(
            backend=self.backend, cell=cell, method={}, progress=nobody, timed=nobody
        )
        point = operators.watch_step(session, self.step, self.clock)
        steps = {name: [used[name] for used in self.used] for name in self.used[0]}
        point |= {
            "times": {"whole_step_s": self.walls},
            "steps": steps | {"kind": ["whole"] * len(self.walls)} | NO_FAULTS,
        }
        self.walls, self.used = [], []
        return model.validated(
            Point, point | dict.fromkeys(("flops", "bytes")) | {"params": {}, "memory": {}}
        )

    def measured(self) -> Measured:
        """Return a round as the analysis reads it."""
        point = dict(zip(prediction.MODEL, self.model, strict=True))
        point["whole_step_median_s"] = self.median_s()
        return Measured(point, pd.DataFrame(operator_rows.operators_of_point(self.watched())))

    def parts(self) -> dict[str, float]:
        """Seconds of each part of a step."""
        lines = step_parts.parts_of_point(self.watched())
        found = {line["part"]: line["seconds"] for line in lines}
        return {part: found.get(part, 0.0) for part in PARTS}


class Plant(NamedTuple):
    """A cause of known kind, present while its context is open."""

    planted: Callable[[Training], Any]
    found_in: str  # the part that should have it
    most_threads: int | None = None  # with which it is of that kind alone


@contextmanager
def before_update(training: Training, wait: Callable[[], None]) -> Iterator[None]:
    """Something that happens before each update."""
    hook = training.stepper.optimizer.register_step_pre_hook(lambda *_: wait())
    yield
    hook.remove()


def burn() -> None:
    """Keep the interpreter busy."""
    end = time.perf_counter() + PLANTED_S
    while time.perf_counter() < end:
        pass


@contextmanager
def activation(training: Training, again: Callable[[Any], Any]) -> Iterator[None]:
    """Something done to the result of every activation, besides."""
    modules = training.stepper.model.modules()
    activations = [module for module in modules if "GELU" in type(module).__name__]
    assert activations
    hooks = [one.register_forward_hook(lambda *told: again(told[-1])) for one in activations]
    yield
    for hook in hooks:
        hook.remove()


def slower_elementwise(values: Any) -> Any:
    """Passes that change nothing."""
    for _ in range(24):
        values = values * 1.0
    return values


def slower_products(values: Any) -> Any:
    """A product that changes nothing that matters."""
    import torch

    flat = values.detach().reshape(-1, values.shape[-1])
    torch.mm(torch.mm(flat.t(), flat), flat.t())
    return values


@contextmanager
def other_process(_: Training) -> Iterator[None]:
    """Another process that keeps the same core busy."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        time.sleep(0.2)
        yield
        other.kill()
    os.sched_setaffinity(0, cores)


SLEEP = partial(time.sleep, PLANTED_S)
PLANTS: Mapping[str, Plant] = {
    "a sleep before each update": Plant(partial(before_update, wait=SLEEP), BLOCKED, 1),
    "another process on the same core": Plant(other_process, WAITING, 1),
    "work in Python before each update": Plant(partial(before_update, wait=burn), FRAMEWORK),
    "elementwise passes": Plant(
        partial(activation, again=slower_elementwise), "elementwise operators"
    ),
    "further products": Plant(partial(activation, again=slower_products), "products"),
}


def predicted(backend: str, threads: int, rounds: int) -> pd.DataFrame:
    """Each training in turn: its step, measured and as the sum of its parts.

    Returns:
        a row for each training; all in seconds: `step_s`; `operators_s`, its own, timed inside of
        steps; `twin_s`, the framework's time in the twin.
    """
    tested = {name: Training(name, threads, backend=backend) for name in TRAININGS}
    twins = {name: Training(name, threads, backend=backend, least=True) for name in TRAININGS}
    own: dict[str, list[Measured]] = {name: [] for name in TRAININGS}
    framework: dict[str, list[float]] = {name: [] for name in TRAININGS}
    for index in range(rounds + 1):  # the first warms up
        for name, training in tested.items():
            one, twin = training.measured(), twins[name]
            least = twin.median_s(10 * WHOLE_STEPS)
            of_twin = twin.parts()
            if index:
                own[name].append(one)
                framework[name].append(least - sum(of_twin[part] for part in OF_OPERATORS))
    lines = []
    for name in TRAININGS:
        steps = timed_trainings(own[name]).trainings
        line = {"step_s": steps["whole_step_median_s"], "operators_s": steps["operators_s"]}
        lines.append(pd.DataFrame(line).median())
    return pd.DataFrame(lines, [*TRAININGS]).assign(twin_s=pd.Series(framework).map(median))


def summary(errors: pd.Series) -> str:
    """Return the mean size, the bias and the worst of some errors as text."""
    worst = errors.loc[errors.abs().idxmax()]
    return f"mean of sizes {errors.abs().mean():.1%}, bias {errors.mean():+.1%}, worst {worst:+.1%}"


def found(plant: Plant, rounds: int, threads: int) -> pd.Series:
    """Seconds: `gap` that was planted, found in the `right` part, and in `none`."""
    plain, planted = (Training(PLANTED_IN, threads) for _ in range(2))
    lines = []
    for index in range(rounds + 1):  # the first warms up
        steps, parts = [], []
        for training, context in ((plain, nullcontext()), (planted, plant.planted(planted))):
            with context:
                steps.append(training.median_s())
                parts.append(training.parts())
        gap_s, change = steps[1] - steps[0], pd.Series(parts[1]) - pd.Series(parts[0])
        line = {"gap": gap_s, "right": change[plant.found_in], "none": gap_s - change.sum()}
        lines += [line] * bool(index)
    return pd.DataFrame(lines).median()


def main() -> None:
    """Measure and print."""
    rounds = shared.arguments(__doc__, rounds=5).rounds
    for backend, threads in (("torch-cpu", 1), ("torch-cpu", 2), ("mlx", 2)):
        print(f"\n{backend}, {threads} thread(s); an error is relative to the step")
        steps = predicted(backend, threads, rounds)
        ratios = (steps["operators_s"] + steps["twin_s"]) / steps["step_s"]
        # A factor of all trainings but one closes that one's sum.
        factors = pd.Series({name: (1 / ratios.drop(name)).median() for name in ratios.index})
        timed = factors * ratios - 1
        table = pd.DataFrame(
            {
                "step ms": 1e3 * steps["step_s"],
                "its operators": 1e3 * steps["operators_s"],
                "framework, elsewhere": 1e3 * steps["twin_s"],
                "error": timed.map("{:+.1%}".format),
            }
        )
        print(table.to_string(float_format="%.2f"))
        print(f"operators timed: {summary(timed)}; without the factor: {summary(ratios - 1)}")
        if backend != "torch-cpu":
            continue
        print("\nplanted                             gap ms  in the right parts  in none")
        for name, plant in PLANTS.items():
            if threads > (plant.most_threads or threads):
                continue
            s = found(plant, rounds, threads)
            shares = f"{s['right'] / s['gap']:19.0%} {s['none'] / s['gap']:8.0%}"
            print(f"{name:34} {1e3 * s['gap']:7.2f} {shares}", flush=True)


if __name__ == "__main__":
    main()
