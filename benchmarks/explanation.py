"""Is a training step what its operators and the framework take, and is a planted cause found?

    python benchmarks/explanation.py [--rounds 5]

For each of several trainings, in torch with one thread and with two, and in MLX: the step that its
operators, timed inside of steps, predict together with the framework's time, which is measured in
another model, the same at the least shapes: what that one's step lasts beyond its own operators. As in a
prediction one factor closes the sum: of a training that of the others, so that it is never fitted.
Then causes of known kind are planted into one side of a pair in torch, both sides measured in turn in
one process: how much of the gap between their whole steps the parts that should have it get.
Besides, each of these steps is predicted as `siliconprof predict` does it, from the trainings of
config/calibration.yaml alone, of other shapes, measured in turn with it.
"""

from __future__ import annotations

import argparse
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
from typing import Any, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import pandas as pd
import shared
import yaml
from siliconprof.analyse import operator_rows, prediction, step_parts
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.session import operators, thread_time
from siliconprof.stats.statistics import median
from siliconprof.store import model
from siliconprof.store.contents import Point
from siliconprof.workloads import gpt2

PLANTED_IN = "gpt2-tiny 4 x 128"
TINY = {"size": "tiny", "batch_size": 4, "seq_len": 128}
TRAININGS: Mapping[str, dict[str, Any]] = {
    "gpt2-nano 1 x 32": {"size": "nano", "batch_size": 1, "seq_len": 32},
    "gpt2-nano 4 x 64": {"size": "nano", "batch_size": 4, "seq_len": 64},
    PLANTED_IN: TINY,
    "gpt2-tiny LoRA": TINY | {"lora_rank": 8},
    "gpt2-nano 8 x 128": {"size": "nano", "batch_size": 8, "seq_len": 128},
    "gpt2-mini 2 x 128": {"size": "mini", "batch_size": 2, "seq_len": 128},
}
LEAST = {"batch_size": 1, "seq_len": 2, "dataset_vocab_size": 256}
# Trainings of other shapes, which the shapes above are predicted from: those of an experiment.
ASKED = yaml.safe_load((shared.ROOT / "config/calibration.yaml").read_text(encoding="utf-8"))
NO_PARAMETERS = ("module", "trainer", "dataset")
CALIBRATION: Mapping[str, dict[str, Any]] = {
    name: {key: value for key, value in entry.items() if key not in NO_PARAMETERS}
    | {"dataset_vocab_size": ASKED["datasets"][entry["dataset"]]["vocab_size"]}
    for name, entry in ASKED["workloads"].items()
    if entry["module"] == "gpt2"
}
PLANTED_S = 10e-3
WHOLE_STEPS = 10  # in each round
NO_FAULTS: dict[str, Any] = {"started_s": [], "minor_faults": [], "major_faults": []}
BEYOND = (BLOCKED, WAITING, FRAMEWORK)
OF_OPERATORS = tuple(part for part in PARTS if part not in BEYOND)


class Measured(NamedTuple):
    """A training's point, and its lines of operators.csv."""

    point: dict[str, Any]
    operators: pd.DataFrame


def of_rounds(rounds: Sequence[Measured]) -> prediction.TimedTrainings:
    """What some rounds tell of operators."""
    points = pd.DataFrame([one.point for one in rounds])
    lines = [one.operators.assign(training=index) for index, one in enumerate(rounds)]
    return prediction.timed(points, pd.concat(lines, ignore_index=True))


class Training(shared.Training):
    """A training whose whole steps, and whose parts of a step, are timed on request."""

    def __init__(
        self, name: str, threads: int, backend: str = "torch-cpu", least: bool = False
    ) -> None:
        own = {**TRAININGS, **CALIBRATION}[name]
        told = {"dataset_vocab_size": 1024} | own | (LEAST if least else {})
        workload = shared.workload_of("gpt2", **told)
        if least:
            sizes = workload.facts
            workload.known = gpt2.facts(
                sizes.n_layer, sizes.n_head, sizes.n_head, sizes.vocab_size, workload.lora_rank
            )
        super().__init__(workload, workload.parameters, backend, "fp32", threads)
        self.cell = SimpleNamespace(timing={})  # as a session's
        self.model = ("gpt2", "plain", own.get("lora_rank", 0), "fp32")
        self.walls: list[float] = []  # of whole steps since the parts were last asked for
        self.used: list[dict[str, float | None]] = []

    def progress(self, *_: Any) -> None:
        """As a session's."""

    timed = progress

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
        point = operators.watch_step(cast(Any, self), self.step, self.clock)
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
        """A round of it, as the analysis has it."""
        point = dict(zip(prediction.MODEL, self.model, strict=True))
        point["whole_step_median_s"] = self.median_s()
        return Measured(point, pd.DataFrame(operator_rows.operators_of_point(self.watched())))

    def parts(self) -> dict[str, float]:
        """Seconds of each part of a step."""
        parts = {
            line["part"]: line["seconds"] for line in step_parts.parts_of_point(self.watched())
        }
        return dict.fromkeys(PARTS, 0.0) | parts


class Plant(NamedTuple):
    """A cause of known kind, present while its context is open."""

    planted: Callable[[Training], Any]
    found_in: tuple[str, ...]  # parts that should have it
    most_threads: int | None = None  # with which it is of that kind alone


@contextmanager
def before_update(training: Training, wait: Callable[[], None]) -> Iterator[None]:
    """Something that happens before each update."""
    hook = training.stepper.optimizer.register_step_pre_hook(lambda *_: wait())
    yield
    hook.remove()


def sleep() -> None:
    """Wait."""
    time.sleep(PLANTED_S)


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
def other_process() -> Iterator[None]:
    """Another process that keeps the same core busy."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        yield
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)


PLANTS: Mapping[str, Plant] = {
    "a sleep before each update": Plant(
        partial(before_update, wait=sleep), (BLOCKED,), most_threads=1
    ),
    "another process on the same core": Plant(
        lambda _: other_process(), (WAITING,), most_threads=1
    ),
    "work in Python before each update": Plant(partial(before_update, wait=burn), (FRAMEWORK,)),
    "elementwise passes": Plant(
        partial(activation, again=slower_elementwise), ("elementwise operators",)
    ),
    "further products": Plant(partial(activation, again=slower_products), ("products",)),
}


class Predicted(NamedTuple):
    """A training's step: measured, and by what was measured elsewhere; all in seconds."""

    step_s: float
    operators_s: float  # its own, timed inside of steps
    twin_s: float  # the framework's time in the twin
    unseen_s: float | None  # of the whole step, by the calibration alone; None where it refuses


def predicted(backend: str, threads: int, rounds: int) -> dict[str, Predicted]:
    """Each training, and the calibration's, in turn."""
    tested = {name: Training(name, threads, backend=backend) for name in TRAININGS}
    twins = {name: Training(name, threads, backend=backend, least=True) for name in TRAININGS}
    calibration = [Training(name, threads, backend=backend) for name in CALIBRATION]
    known: list[Measured] = []
    own: dict[str, list[Measured]] = {name: [] for name in TRAININGS}
    framework: dict[str, list[float]] = {name: [] for name in TRAININGS}
    for index in range(rounds + 1):  # the first warms up
        calibrated = [training.measured() for training in calibration]
        for name, training in tested.items():
            one, twin = training.measured(), twins[name]
            least = twin.median_s(10 * WHOLE_STEPS)
            of_twin = twin.parts()
            if index:
                own[name].append(one)
                framework[name].append(least - sum(of_twin[part] for part in OF_OPERATORS))
        known += calibrated * bool(index)
    timed, results = of_rounds(known), {}
    for name, training in tested.items():
        itself = of_rounds(own[name])
        first = itself.operators[itself.operators["training"] == 0]
        unseen = timed.predict(first, training.model)
        results[name] = Predicted(
            float(itself.trainings["whole_step_median_s"].median()),
            float(itself.trainings["operators_s"].median()),
            median(framework[name]),
            None if unseen.refusal else unseen.seconds,
        )
    return results


def closure(of: str, found: Mapping[str, Predicted]) -> float:
    """A step over its operators and the twin's framework, the median of all trainings but one."""
    others = (one for name, one in found.items() if name != of)
    return median([one.step_s / (one.operators_s + one.twin_s) for one in others])


def summary(errors: Sequence[float]) -> str:
    """Their mean size, bias and worst."""
    size, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
    return f"mean of sizes {size:.1%}, bias {bias:+.1%}, worst {max(errors, key=abs):+.1%}"


def found(plant: Plant, rounds: int, threads: int) -> tuple[float, float, float]:
    """(seconds of the gap that was planted, found in the right parts, found in none)."""
    plain, planted = (Training(PLANTED_IN, threads) for _ in range(2))
    gaps, right, rest = [], [], []
    for index in range(rounds + 1):  # the first warms up
        steps, parts = [], []
        for training, context in ((plain, nullcontext()), (planted, plant.planted(planted))):
            with context:
                steps.append(training.median_s())
                parts.append(training.parts())
        if index:
            change = {part: parts[1][part] - parts[0][part] for part in PARTS}
            gaps.append(steps[1] - steps[0])
            right.append(sum(change[part] for part in plant.found_in))
            rest.append(gaps[-1] - sum(change[part] for part in PARTS))
    return median(gaps), median(right), median(rest)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for backend, threads in (("torch-cpu", 1), ("torch-cpu", 2), ("mlx", 2)):
        on = f"{backend}, {threads} thread(s)"
        print(
            f"\n| training, {on} | step ms | its operators | framework, elsewhere | error "
            "| shapes unseen | error |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        plain, timed, unseen = [], [], []
        measured = predicted(backend, threads, rounds)
        for name, one in measured.items():
            plain.append((one.operators_s + one.twin_s) / one.step_s - 1)
            timed.append(closure(name, measured) * (1 + plain[-1]) - 1)
            told = "refused | -"
            if one.unseen_s is not None:
                unseen.append(one.unseen_s / one.step_s - 1)
                told = f"{1e3 * one.unseen_s:.2f} | {unseen[-1]:+.1%}"
            figures = " | ".join(f"{1e3 * s:.2f}" for s in one[:3])
            print(f"| {name} | {figures} | {timed[-1]:+.1%} | {told} |", flush=True)
        print(f"operators timed: {summary(timed)}; without the factor: {summary(plain)}")
        if unseen:
            print(f"shapes unseen: {summary(unseen)}")
        if backend != "torch-cpu":
            continue
        print(f"\n| planted, {on} | gap ms | in the right parts | in none |")
        print("| --- | --- | --- | --- |")
        for name, plant in PLANTS.items():
            if threads > (plant.most_threads or threads):
                continue
            gap_s, right_s, rest_s = found(plant, rounds, threads)
            shares = f"{right_s / gap_s:.0%} | {rest_s / gap_s:.0%}"
            print(f"| {name} | {1e3 * gap_s:.2f} | {shares} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
