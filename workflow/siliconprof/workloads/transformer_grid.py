"""Grid search over a transformer's shape: one training iteration of every combination.

A point is a whole iteration of `transformer_lm` on tokens drawn at random, timed by our own
repeats, each synchronised, and, as the wide/deep report does, by `torch.utils.benchmark.Timer`,
which MLX lacks. The cheapest comes first. One that the memory model predicts not to fit is skipped;
one that runs out of memory all the same costs itself only (`sweep`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from siliconprof.declarations import Quantity, Settings
from siliconprof.errors import in_one_line
from siliconprof.memory import footprint, memory_model
from siliconprof.parameters import Count, EachOnce, Limits, Positive, Several
from siliconprof.session import sweep
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import PhaseClock
from siliconprof.session.weight_watch import WeightWatch
from siliconprof.workloads import transformer_lm
from siliconprof.workloads._operation import together
from siliconprof.workloads._training import Batch, MemoryBudget

SWEPT = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "batch_size")  # n_embd before n_head
MODEL_KEYS = (
    "gradient_checkpointing",
    "learning_rate",
    "weight_decay",
    "betas",
    "max_gradient_norm",
)
BLOCKED_AUTORANGE = (
    "torch.utils.benchmark.Timer(...).blocked_autorange(min_run_time_s): after a warm-up that finds "
    "how many iterations make a block, blocks until that time is spent, synchronised around each; a "
    "block of one iteration longer than that time is not repeated"
)


class Plugin(transformer_lm.Sweep):
    """transformer_grid"""

    swept = SWEPT
    POINT = {**transformer_lm.Sweep.POINT, **transformer_lm.SHAPE_POINT}
    QUANTITIES = {
        **transformer_lm.Sweep.QUANTITIES,
        "device_launches": Quantity("operators of a step, counted on a GPU", ""),
    }

    class Parameters(transformer_lm.OptimizerParameters):
        n_layer: Annotated[Several[Count], EachOnce, "of each: layers"] = [4]
        n_embd: Annotated[
            Several[Annotated[int, Limits(ge=2)]],
            EachOnce,
            "of each: channels, a multiple of 2 n_head",
        ] = [128]
        n_head: Annotated[
            Several[Count], EachOnce, "of each: attention heads of n_embd / n_head channels"
        ] = [4]
        d_ff: Annotated[
            Several[Count | None],
            EachOnce,
            "of each: channels of the SwiGLU feed-forward; null = 8/3 n_embd rounded up to a "
            "multiple of 8",
        ] = [None]
        seq_len: Annotated[
            Several[Annotated[int, Limits(ge=2)]], EachOnce, "of each: tokens per sequence"
        ] = [128]
        batch_size: Annotated[
            Several[Count],
            EachOnce,
            "of each: sequences per training step; all combinations of the six lists are points, "
            "except those whose head dimension is not an even number",
        ]
        vocab_size: Annotated[
            int, Limits(ge=2), "tokens, drawn at random, and rows of the embedding and of the head"
        ] = 1024
        min_run_time_s: Annotated[
            Positive, "least seconds that blocked_autorange spends; the default is its own"
        ] = 0.2
        memory_budget_gib: Annotated[
            MemoryBudget,
            "predicted device memory that a point may need, GiB; the measurement itself is not "
            "limited; null = all that the device has",
        ] = None

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        values = cls.defaults() | dict(parameters)
        widths, heads = values["n_embd"], values["n_head"]
        try:
            if any(_even(n_embd, n_head) for n_embd in widths for n_head in heads):
                return []
        except (TypeError, ZeroDivisionError):
            return []  # the schema says so
        return [f"n_embd: is {widths}; expected one that is a multiple of 2 n_head of {heads}"]

    def settings(self) -> tuple[list[dict[str, Any]], int]:
        """(combinations of the lists that are models, number of the other combinations)."""
        lists = (self.parameters[name] for name in SWEPT)
        combinations = [
            dict(zip(SWEPT, values, strict=True)) for values in itertools.product(*lists)
        ]
        valid = [setting for setting in combinations if _even(setting["n_embd"], setting["n_head"])]
        return valid, len(combinations) - len(valid)

    def models(self) -> list[transformer_lm.Plugin]:
        """The model of each point, the cheapest first; equal ones once."""
        common = {name: self.parameters[name] for name in (*MODEL_KEYS, "vocab_size")}
        models = [transformer_lm.Plugin(common | setting) for setting in self.settings()[0]]
        models.sort(key=lambda model: model.flops_per_step()[0])
        return list({name_of(model): model for model in models}.values())

    def n_points(self) -> int:
        return len(self.models())

    def planned_s(self, each_s: float) -> float:
        return super().planned_s(each_s) + self.n_points() * self.parameters["min_run_time_s"]

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        return self.models()[0].imports(framework)

    def measure(self, cell_run: CellRun) -> None:
        models, skipped = self.models(), self.settings()[1]
        cell_run.method["grid"] = {
            "points": len(models),
            "skipped": skipped,
            "skipped_because": "n_embd is no multiple of 2 n_head",
            "iteration": "batch to the device, forward, backward, clipping, AdamW; a whole step",
            "order": "by operations per step, the fewest first",
            "blocked_autorange": BLOCKED_AUTORANGE,
        }
        cell_run.evidence |= self.evidence(cell_run, models[0])
        sweep.free(cell_run)
        cell, capacity = cell_run.cell, memory_model.capacity_of(cell_run.cell)
        for place, model in enumerate(models, 1):
            flops, source = model.flops_per_step()
            parts = model.memory_bytes(cell.precision, cell.backend, cell.device_capability)
            need = footprint.total(parts)
            facts: dict[str, Any] = {
                "params": model.sizes(),
                "flops": flops,
                "flops_source": source,
                "memory": {"predicted_bytes": need, "predicted_parts_bytes": parts},
            }
            force = self.parameters["force"]
            question = memory_model.ScenarioInputs("fits", need, *capacity, force=force)
            reason = memory_model.decide(question).reason or sweep.overrun(cell_run, len(models))
            if reason:
                sweep.skip(cell_run, facts, reason)
                continue
            what = f"point {place} of {len(models)}"
            measured = partial(self.point, cell_run, model, facts["memory"], what)
            sweep.point(cell_run, name_of(model), facts, measured)

    def evidence(self, cell_run: CellRun, model: transformer_lm.Plugin) -> dict[str, Any]:
        """The dtypes that the smallest model of the grid trains in; empty where even that fails."""
        try:
            stepper = cell_run.backend.stepper(model, cell_run.cell.seed)
            return dict(stepper.inference.dtypes(drawn(model, cell_run.cell.seed)))
        except Exception:  # its point has the reason
            return {}

    def point(
        self, cell_run: CellRun, model: transformer_lm.Plugin, memory: Mapping[str, Any], what: str
    ) -> dict[str, Any]:
        """One model: trained for as many steps as both ways of timing take."""
        backend, seed = cell_run.backend, cell_run.cell.seed
        backend.memory.reset_peak()
        stepper = backend.stepper(model, seed)
        batch = drawn(model, seed)
        clock = PhaseClock(backend.clock)
        clock.split = False  # it is never started, and reads nothing

        def iteration() -> None:
            stepper.step(batch, clock)

        measured = cell_run.repeat(what, iteration)
        trained = WeightWatch(cell_run, model, stepper.weights)
        while trained.due:
            trained.before()
            iteration()
            trained.after()
        cell_run.progress(f"{what}: blocked_autorange", 0, always=True)
        autorange: dict[str, Any] = {"blocked_autorange": {"reason": "the step took too long"}}
        if measured["stopped_by"] != "overrun":
            least_s = self.parameters["min_run_time_s"]
            autorange = cell_run.undisturbed(
                lambda: {"blocked_autorange": backend.clock.blocked_autorange(iteration, least_s)}
            )
        device_bytes = backend.memory.allocated_bytes()
        try:
            peak_bytes, means = backend.memory.step_peak_bytes(
                iteration, stepper.persistent_arrays()
            )
            launches = backend.profiler.count_launches(iteration)
        except Exception as error:  # counting needs memory, too; the times stand
            peak_bytes, means, launches = None, f"not counted: {in_one_line(error)}", None
        device = {"device_peak_bytes": peak_bytes, "device_peak_means": means}
        return together(measured, autorange) | {
            **trained.facts(),
            "memory": {**memory, "device_bytes": device_bytes, **device},
            "quantities": {"device_launches": launches},
        }


def _even(n_embd: int, n_head: int) -> bool:
    """Whether so many heads have an even number of channels each, as rotary positions need."""
    return n_embd % (2 * n_head) == 0


def name_of(model: transformer_lm.Plugin) -> str:
    """A point's name: all that the grid varies."""
    sizes = model.sizes()
    return " ".join(f"{key}={sizes[key]}" for key in SWEPT)


def drawn(model: transformer_lm.Plugin, seed: int) -> Batch:
    """input_ids and labels, both int32 of shape (B, T): windows of random tokens."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(seed))
    shape = (model.batch_size, model.seq_len + 1)
    return transformer_lm.aligned(generator.integers(0, model.vocab_size, shape, dtype=np.int32))
