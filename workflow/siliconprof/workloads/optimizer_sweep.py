"""One model trained from the same weights on the same data under many settings of its optimizer.

Each combination is a point with the curve of its training, all in one process, steps timed whole.
Divergence is an outcome: a training ends where its loss is no longer finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Annotated, Any

from typing_extensions import TypedDict

from siliconprof.declarations import Bytes, Settings
from siliconprof.parameters import Count, EachOnce, NotNegative, Positive, Several, Whole
from siliconprof.session import memory_limit, operators, sweep
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import PhaseClock
from siliconprof.session.weight_watch import WeightWatch
from siliconprof.stats import training_course
from siliconprof.store.cell import canonical_json
from siliconprof.workloads import transformer_lm
from siliconprof.workloads._training import Allocator

SWEPT = ("learning_rate", "warmup_steps", "weight_decay", "betas", "max_gradient_norm")


class Swept(TypedDict, total=False):
    """Lists of values of a model's settings."""

    learning_rate: Annotated[Several[Positive], EachOnce]
    warmup_steps: Annotated[Several[Whole], EachOnce]
    weight_decay: Annotated[Several[NotNegative], EachOnce]
    betas: Annotated[Several[transformer_lm.Betas], EachOnce]
    max_gradient_norm: Annotated[Several[Positive | None], EachOnce]


class Plugin(transformer_lm.Sweep):
    """optimizer_sweep"""

    swept = ("sweep",)
    POINT = {
        **transformer_lm.Sweep.POINT,
        "n_layer": transformer_lm.SHAPE_POINT["n_layer"],
        "n_embd": transformer_lm.SHAPE_POINT["n_embd"],
    }

    class Parameters(transformer_lm.ModelParameters):
        allocator: Allocator = "default"
        batch_size: Annotated[Count, "samples per training step"] = 8
        steps: Annotated[Count, "training steps under each setting"] = 60
        sweep: Annotated[
            Swept,
            "lists of values of learning_rate, warmup_steps, weight_decay, betas or "
            "max_gradient_norm: every combination is trained, and is a point",
        ] = {"learning_rate": [0.0003, 0.003, 0.03]}

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        return transformer_lm.Plugin.problems(parameters, dataset)

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        return self.model({}).memory_bytes(precision, backend, capability)

    def model(self, settings: Mapping[str, Any]) -> transformer_lm.Plugin:
        """The training under a setting."""
        own = {k: v for k, v in self.parameters.items() if k not in ("sweep", "steps")}
        return transformer_lm.Plugin({**own, **settings})

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination, in an order that does not depend on that of the keys."""
        lists = self.parameters["sweep"]
        names = [key for key in SWEPT if key in lists]
        for values in product(*(lists[key] for key in names)):
            yield dict(zip(names, values, strict=True))

    def n_points(self) -> int:
        return len([*self.settings()])

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        return self.model({}).imports(framework)

    def measure(self, cell_run: CellRun) -> None:
        for settings in self.settings():
            workload = self.model(settings)
            facts = {"params": self.params(workload)}
            steps = self.parameters["steps"]
            sweep.point(cell_run, name(workload), facts, partial(train, cell_run, workload, steps))
        cell_run.method |= {
            "split": "not split: every step is timed whole",
            "sweep": "each setting from the same weights over the same batches; a training whose "
            "loss is not finite any more ends there; nothing is evaluated on held-out data",
        }

    def params(self, workload: transformer_lm.Plugin) -> dict[str, Any]:
        """The parameters of a point."""
        own = transformer_lm.with_betas(workload.parameters)
        names = (*SWEPT, "decay_steps", "beta1", "beta2")
        swept = {name: own[name] for name in names if name != "betas"}
        return {**swept, "steps": self.parameters["steps"], **workload.sizes()}


def name(workload: transformer_lm.Plugin) -> str:
    """A point's name: everything that can be swept, whether it is or not."""
    return " ".join(f"{key}={canonical_json(workload.parameters[key])}" for key in SWEPT)


def train(cell_run: CellRun, workload: transformer_lm.Plugin, steps: int) -> dict[str, Any]:
    """One training from its first step to its last, or to where its loss is no longer finite."""
    backend, seed = cell_run.backend, cell_run.cell.seed
    stepper = backend.stepper(workload, seed)
    batches = workload.batches(cell_run.data, seed)
    backend.memory.reset_peak()
    clock, what = PhaseClock(backend.clock), name(workload)
    times: list[float] = []
    curve: dict[str, list[Any]] = {"loss": [], "gradient_norm": [], "learning_rate": []}
    trained = WeightWatch(cell_run, workload, stepper.weights)
    for step in range(steps):
        cell_run.progress(what, step)
        watches = trained.due
        if watches:
            trained.before()
        clock.start(split=False)
        loss = stepper.step(next(batches), clock)
        step_s, _ = clock.stop()
        if watches:
            trained.after()
        times.append(step_s)
        curve["loss"].append(loss())
        curve["gradient_norm"].append(stepper.gradient_norm())
        curve["learning_rate"].append(workload.learning_rate_at(step))
        if not math.isfinite(curve["loss"][-1]):
            break
    cell_run.evidence |= stepper.inference.dtypes(next(batches))

    def again() -> Any:
        return stepper.step(next(batches), clock)

    flops, source = workload.flops_per_step()
    memory = cell_run.memory()
    watched = operators.watch_step(cell_run, again, clock)
    return {
        "times": {"whole_step_s": times},
        "flops": flops,
        "flops_source": source,
        "bytes": None,
        "memory": memory | memory_limit.peak_of_step(cell_run, again, stepper.persistent_arrays()),
        "curve": curve,
        **trained.facts(),
        "outcome": training_course.outcome(curve["loss"]),
        **watched,
    }
