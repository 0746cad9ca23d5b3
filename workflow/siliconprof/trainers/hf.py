"""transformers' Trainer: the paper's "Hugging Face platform".

The phases are separated by wrapping `compute_loss`, `accelerator.backward` and the optimizer's
`step`; under DeepSpeed its engine's `backward` and `step`, because accelerate's backward then
runs both. Per-phase and whole steps alternate. Batches are the plain trainer's, in the same order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from siliconprof.backends._torch import TorchBackend
from siliconprof.backends._torch_stepper import (
    adamw_arguments,
    cpu_tensors,
    observed_dtypes,
    persistent_tensors,
    updates,
)
from siliconprof.session import memory_limit
from siliconprof.session.cell_run import CellRun
from siliconprof.session.weight_watch import WeightWatch
from siliconprof.trainers import _offload
from siliconprof.trainers.base import StepSchedule, Trainer
from siliconprof.workloads._training import TrainingWorkload

OF_ALL_MODELS = ("torch._dynamo", "transformers.modeling_utils")  # what every model imports first
ENDLESS = 10**7  # steps, more than any run has; the callback ends the run


class Plugin(Trainer):
    """hf"""

    frameworks = ("torch",)
    LIBRARIES = {"torch": ("transformers", "accelerate")}

    def supports(self, framework: str, device_kind: str, precision: str) -> str | None:
        if precision == "amp-fp16" and device_kind == "cpu":
            return "the Trainer's fp16=True silently runs fp32 on a CPU"
        return super().supports(framework, device_kind, precision)

    def imports(
        self, own: list[tuple[str, Callable[[], Any]]], workload: Any
    ) -> list[tuple[str, Callable[[], Any]]]:
        """The Trainer before the model, so that one process serves all models, and DeepSpeed with it.

        accelerate imports that wherever it is installed.
        """

        def import_trainer(name: str) -> None:
            import transformers

            getattr(transformers, name)
            with suppress(ImportError):
                import deepspeed  # noqa: F401

        of_all = sum(name in OF_ALL_MODELS for name, _ in own)
        classes = dict.fromkeys(("Trainer", workload.trainer_class))
        mine = [(name, partial(import_trainer, name)) for name in classes]
        return [*own[:of_all], *mine, *own[of_all:]]

    def run(self, cell_run: CellRun) -> None:
        import transformers

        cell, backend = cell_run.cell, cell_run.backend
        workload = cell_run.workload
        model = workload.torch.model(cell.seed).to(backend.dtype)  # type: ignore[attr-defined]
        offload: dict[str, Any] = {}  # arguments to add or replace
        if cell_run.offloads:
            config = _offload.configured(cell_run, model)
            offload = {name: config[name]["enabled"] for name in ("bf16", "fp16")}
            offload["deepspeed"] = config
        schedule = StepSchedule(cell_run)
        schedule.trained = WeightWatch(cell_run, workload, lambda: _offload.weights(model))
        train_dataset = rows(cell_run)
        with tempfile.TemporaryDirectory() as folder:
            name = workload.trainer_class
            arguments = getattr(transformers, name.replace("Trainer", "TrainingArguments"))(
                output_dir=folder, **(training_arguments(cell_run) | offload)
            )
            trainer = timed(getattr(transformers, name), schedule)(
                model=model, args=arguments, train_dataset=train_dataset
            )
            trainer.add_callback(callback(schedule, trainer))
            if cell.precision == "amp-fp16":
                schedule.updates = lambda: (
                    _offload.updates(trainer.model_wrapped)
                    if offload
                    else updates(trainer.optimizer)
                )
            if not offload:  # else DeepSpeed sets the precision, and its engine is wrapped
                wrap(schedule, trainer.accelerator, "backward", "backward_s")
                amp = cell.precision.startswith("amp-")
                if amp != bool(trainer.accelerator.native_amp):
                    action = "did not turn mixed precision on" if amp else "turned it on"
                    raise RuntimeError(f"precision is {cell.precision}, but the Trainer {action}")
            backend.memory.reset_peak()
            trainer.train()
        observe = _offload.observed_dtypes if offload else observed_dtypes
        trained = trainer.model_wrapped if offload else model  # DeepSpeed's engine, or the model
        cell_run.evidence |= observe(trained, lambda: forward(trainer, train_dataset))
        other = "" if offload else "zero_grad, the gradient norm (always computed) and "
        cell_run.method["split"] = (
            f"per-phase and whole steps alternate; other_s includes {other}the Trainer's bookkeeping"
        )
        point = schedule.point()
        again = None if offload else lambda: one_more_step(trainer, train_dataset)
        between = [] if offload else persistent_tensors(model, trainer.optimizer)
        point["memory"] |= memory_limit.peak_of_step(cell_run, again, between)
        cell_run.add_point(point)


def timed(trainer_class: Any, schedule: StepSchedule) -> Any:
    """A subclass of a transformers Trainer that marks phase edges and reads data in order."""
    from torch.utils.data import SequentialSampler

    class TimedTrainer(trainer_class):
        loss: Any = None

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            schedule.clock.edge("other_s")
            loss = super().compute_loss(*args, **kwargs)
            schedule.clock.edge("forward_s")
            self.loss = (loss[0] if isinstance(loss, tuple) else loss).detach()
            return loss

        @staticmethod
        def get_optimizer_cls_and_kwargs(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            adamw, arguments = trainer_class.get_optimizer_cls_and_kwargs(*args, **kwargs)
            return adamw, arguments | adamw_arguments(schedule.cell_run.workload)

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            optimizer = super().create_optimizer(*args, **kwargs)
            if self.is_deepspeed_enabled:  # its engine steps, and is wrapped when training begins
                return optimizer
            wrap(schedule, self.optimizer, "step", "optimizer_s")
            return optimizer

    return TimedTrainer


def wrap(schedule: StepSchedule, owner: Any, method: str, phase: str) -> None:
    """Make `owner.method` end `other_s` before it and `phase` after it."""
    original = getattr(owner, method)
    clock = schedule.clock

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        clock.edge("other_s")
        result = original(*args, **kwargs)
        clock.edge(phase)
        return result

    # The learning-rate scheduler looks for __func__ on the optimizer's step.
    wrapped.__func__ = getattr(original, "__func__", original)  # type: ignore[attr-defined]
    wrapped.__self__ = owner  # type: ignore[attr-defined]
    setattr(owner, method, wrapped)


def forward(trainer: Any, dataset: Any) -> None:
    """Run one forward pass as the Trainer does, with its own autocast and untimed."""
    import torch

    batch = trainer._prepare_inputs(trainer.data_collator([dataset[0]]))
    with torch.no_grad(), trainer.compute_loss_context_manager():
        trainer.model_wrapped(**batch)


def one_more_step(trainer: Any, dataset: Any) -> None:
    """Run one training step as the Trainer does, outside its loop."""
    batch_size = trainer.args.per_device_train_batch_size
    batch = trainer.data_collator([dataset[index] for index in range(batch_size)])
    trainer.training_step(trainer.model_wrapped, batch)
    trainer.optimizer.step()
    trainer.model_wrapped.zero_grad()


def training_arguments(cell_run: CellRun) -> dict[str, Any]:
    """The Trainer's settings: the plain loop's optimizer, no clipping, no network, no logs."""
    cell, backend = cell_run.cell, cell_run.backend
    workload = cell_run.workload
    assert isinstance(workload, TrainingWorkload) and isinstance(backend, TorchBackend)
    settings = workload.optimizer_settings(cell.precision)
    return {
        "per_device_train_batch_size": workload.parameters["batch_size"],
        "max_steps": ENDLESS,
        "learning_rate": settings["lr"],
        "adam_beta1": settings["betas"][0],
        "adam_beta2": settings["betas"][1],
        "adam_epsilon": settings["eps"],
        "weight_decay": settings["weight_decay"],
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "bf16": cell.precision == "amp-bf16",
        "fp16": cell.precision == "amp-fp16",
        "tf32": True if cell.precision == "tf32" else None,
        "use_cpu": cell.device_kind == "cpu",
        # As in the plain loop, see `base.DATA_PATH`.
        "dataloader_pin_memory": backend.pins,
        "accelerator_config": {"non_blocking": backend.pins},
        "remove_unused_columns": False,
        "seed": cell.seed,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
    }


def rows(cell_run: CellRun) -> Any:
    """An endless map-style data set with the rows of the plain trainer's batches, in order."""
    import torch

    workload = cell_run.workload
    backend: Any = cell_run.backend
    batch_size = workload.parameters["batch_size"]
    batches = workload.batches(cell_run.data, cell_run.cell.seed)

    class Rows(torch.utils.data.Dataset):
        """Row i of the sequence of batches; rows must be read in order."""

        def __init__(self) -> None:
            self.batch: dict[str, Any] = {}

        def __len__(self) -> int:
            return ENDLESS * batch_size

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index % batch_size == 0:
                self.batch = cpu_tensors(backend, next(batches))
            return {name: values[index % batch_size] for name, values in self.batch.items()}

    return Rows()


def callback(schedule: StepSchedule, trainer: Any) -> Any:
    """The Trainer's callback that starts and stops the clock."""
    from transformers import TrainerCallback

    class Timing(TrainerCallback):
        """Step n ends where step n + 1, with its data, begins."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.deepspeed:
                engine = trainer.model_wrapped  # kwargs have the model inside it
                wrap(schedule, engine, "backward", "backward_s")
                wrap(schedule, engine, "step", "optimizer_s")
            schedule.begin(schedule.next_kind() or "warm-up")

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            schedule.clock.edge("data_s")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            schedule.end(trainer.loss.item)
            kind = schedule.next_kind()
            if kind:
                schedule.begin(kind)
            else:
                control.should_training_stop = True

    return Timing()
