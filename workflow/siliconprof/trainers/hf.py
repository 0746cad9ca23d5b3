"""transformers' Trainer: the paper's "Hugging Face platform".

The phases are told apart by wrapping `compute_loss`, `accelerator.backward` and the optimizer's
`step`; split and unsplit steps alternate. Batches are the plain trainer's, in the same order.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from siliconprof.backends._torch import observed_dtypes
from siliconprof.timing import Pace, PhaseClock, Plan, StepTimes
from siliconprof.trainers.base import Trainer, training_point

if TYPE_CHECKING:
    from siliconprof.session import Session

ENDLESS = 10**7  # steps; the callback ends the run


class Plugin(Trainer):
    """hf"""

    frameworks = ("torch",)

    @classmethod
    def packages(cls, framework: str) -> tuple[str, ...]:
        """See `Trainer.packages`."""
        return ("transformers", "accelerate")

    def supports(self, framework: str, device_kind: str, precision: str) -> str | None:
        """See `Trainer.supports`."""
        if precision == "amp-fp16" and device_kind == "cpu":
            return "the Trainer's fp16=True silently runs fp32 on a CPU"
        return super().supports(framework, device_kind, precision)

    def run(self, session: Session) -> None:
        """See `Trainer.run`."""
        session.progress("import transformers", 0)
        import transformers
        from torch.utils.data import SequentialSampler

        cell, backend = session.cell, session.backend
        workload: Any = session.workload
        model = workload.torch_model(cell.seed).to(backend.dtype)  # type: ignore[attr-defined]
        probe = StepProbe(session)
        train_dataset = dataset(session)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                **training_arguments(session),
            )

            class TimedTrainer(transformers.Trainer):
                """Marks phase edges; reads data in our order."""

                def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
                    return SequentialSampler(self.train_dataset)

                def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
                    probe.clock.edge("other_s")
                    loss = super().compute_loss(*args, **kwargs)
                    probe.clock.edge("forward_s")
                    probe.loss = (loss[0] if isinstance(loss, tuple) else loss).detach()
                    return loss

                def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
                    optimizer = super().create_optimizer(*args, **kwargs)
                    probe.wrap(self.optimizer, "step", "optimizer_s")
                    return optimizer

            trainer = TimedTrainer(
                model=model,
                args=arguments,
                train_dataset=train_dataset,
                callbacks=[callback(probe)],
            )
            probe.wrap(trainer.accelerator, "backward", "backward_s")
            self.check_precision(trainer, session)
            backend.reset_peak_memory()
            trainer.train()
        session.evidence |= observed_dtypes(model, lambda: forward(trainer, train_dataset))
        session.method["split"] = (
            "split and unsplit steps alternate; other_s holds zero_grad, the gradient norm that "
            "the Trainer computes even when it clips nothing, and its bookkeeping"
        )
        session.add_point(training_point(session, probe.times, probe.losses))

    @staticmethod
    def check_precision(trainer: Any, session: Session) -> None:
        """Refuse a run in which the Trainer silently left mixed precision out."""
        if session.cell.precision.startswith("amp-") and not trainer.accelerator.native_amp:
            raise RuntimeError("the Trainer did not turn mixed precision on")


def forward(trainer: Any, rows: Any) -> None:
    """One forward pass as the Trainer makes it, with its own autocast and nothing timed."""
    import torch

    batch = trainer._prepare_inputs(trainer.data_collator([rows[0]]))
    with torch.no_grad(), trainer.compute_loss_context_manager():
        trainer.model_wrapped(**batch)


def training_arguments(session: Session) -> dict[str, Any]:
    """The Trainer's settings: the plain loop's optimizer, no clipping, no network, no logs."""
    cell = session.cell
    settings = session.workload.optimizer_settings(cell.precision)  # type: ignore[attr-defined]
    return {
        "per_device_train_batch_size": cell.parameters["batch_size"],
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
        "dataloader_pin_memory": cell.device_kind != "cpu",
        "seed": cell.seed,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
    }


def dataset(session: Session) -> Any:
    """An endless map-style data set whose rows follow the plain trainer's batches."""
    import torch

    cell = session.cell
    batch_size = cell.parameters["batch_size"]
    batches = session.data.batches(batch_size, cell.parameters["seq_len"], cell.seed)

    class Rows(torch.utils.data.Dataset):
        """Row i of the sequence of batches; read in order only."""

        def __init__(self) -> None:
            self.rows: list[Any] = []

        def __len__(self) -> int:
            return ENDLESS * batch_size

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index % batch_size == 0:
                self.rows = [torch.from_numpy(row).long() for row in next(batches)]  # (T,) each
            row = self.rows[index % batch_size]
            labels = row.clone()
            # Nothing predicts the first token. The Trainer divides by the number of labels that
            # are not -100, before the shift: left in, it would make the loss (T - 1) / T small.
            labels[0] = -100
            return {"input_ids": row, "labels": labels}

    return Rows()


class StepProbe:
    """Keeps time over the Trainer's steps; alternates split and unsplit ones."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = PhaseClock(session.backend)
        self.clock.split = False
        self.pace = Pace(Plan.of(session.cell.timing))
        self.times = StepTimes()
        self.losses: list[float] = []
        self.loss: Any = None
        self.next_split = False

    def wrap(self, owner: Any, method: str, phase: str) -> None:
        """Make `owner.method` end `other_s` before it and `phase` after it."""
        original = getattr(owner, method)
        clock = self.clock

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            clock.edge("other_s")
            result = original(*args, **kwargs)
            clock.edge(phase)
            return result

        # The learning-rate scheduler looks for __func__ on the optimizer's step.
        wrapped.__func__ = getattr(original, "__func__", original)  # type: ignore[attr-defined]
        wrapped.__self__ = owner  # type: ignore[attr-defined]
        setattr(owner, method, wrapped)

    def begin(self) -> None:
        """A step, with the fetching of its data, starts."""
        self.clock.start(self.next_split)

    def end(self) -> bool:
        """A step is over; True when the run may stop."""
        step_s, phases = self.clock.stop()
        self.losses.append(float(self.loss))
        if self.pace.warming_up():
            self.pace.warmup_times.append(step_s)
            self.session.progress("warm-up", len(self.losses))
            return False
        self.times.warmup_step_s = self.pace.warmup_times
        if self.next_split:
            self.times.add_split(step_s, phases)
        else:
            self.times.unsplit_step_s.append(step_s)
            self.pace.times.append(step_s)
        self.next_split = not self.next_split
        self.session.progress("training step", len(self.losses))
        # Stop with as many split steps as unsplit ones.
        return self.pace.done() and len(self.times.step_s) == len(self.times.unsplit_step_s)


def callback(probe: StepProbe) -> Any:
    """The Trainer's callback that starts and stops the clock."""
    from transformers import TrainerCallback

    class Timing(TrainerCallback):
        """Step n ends where step n + 1, with its data, begins."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            probe.begin()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            probe.clock.edge("data_s")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if probe.end():
                control.should_training_stop = True
            probe.begin()

    return Timing()
