"""A whole training: its curve, evaluations on held-out data, checkpoints and generated texts.

Every step is timed whole; evaluations and checkpoints come between. A run that is killed goes on
from its checkpoint with the losses that it would have had, to the last bit where the backend's
arithmetic is reproducible: its models have no dropout, so there is no random generator to restore.

A checkpoint is one file, `step-000200.safetensors`. `course.json` names it and has the course so
far; it is written once the file is whole, and only then is an older one removed. The folder is of
one cell, code and host alone; a cell that has ended leaves no course.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from siliconprof.backends._step import Stepper
from siliconprof.errors import UserError, in_one_line
from siliconprof.session.cell_run import COURSE, CellRun
from siliconprof.stats import training_course
from siliconprof.store import temporary
from siliconprof.trainers.base import StepSchedule, Trainer

TOKENIZER = "tokenizer.json"
PROMPT_TOKENS = 16  # the first of the held-out text
TEXT_METHOD = (
    "from the final weights, continuing the first held-out tokens; drawn from "
    "softmax(logits / temperature), the likeliest token at temperature 0"
)
RUN_METHOD = {
    "split": "not split: every step is timed whole",
    "evaluation": "between the timed steps: mean loss over the first held-out batches",
    "resume": (
        "between the timed steps: weights, moments, step count and gradient scaler as safetensors; "
        "a killed run resumes from the latest. Times of steps before that are those of the earlier "
        "process, whose steps began at negative times"
    ),
}


class Plugin(Trainer):
    """training_run"""

    cannot_offload = "trainer training_run does not offload"

    def run(self, cell_run: CellRun) -> None:
        cell_run.progress("build the model", 0)
        stepper = cell_run.backend.stepper(cell_run.workload, cell_run.cell.seed)
        cell_run.method |= RUN_METHOD
        run = Run(cell_run, stepper)
        cell_run.backend.memory.reset_peak()
        run.train()
        cell_run.evidence |= stepper.inference.dtypes(run.held_out[0])
        texts: dict[str, Any] = {}
        try:
            texts["texts"] = run.texts()
            cell_run.method["texts"] = TEXT_METHOD
        except (ImportError, OSError, ArithmeticError) as error:
            cell_run.method["texts"] = f"none: {in_one_line(error)}"
        run.run_freely(stepper, run.batches)  # steps that are not in the curve
        point = run.point() | texts
        run.watch_more(point, stepper, run.batches)
        cell_run.add_point(point)


class Run(StepSchedule):
    """A training from its first step, or its checkpoint, to its last."""

    def __init__(self, cell_run: CellRun, stepper: Stepper) -> None:
        super().__init__(cell_run)
        workload = cell_run.workload
        self.stepper, self.workload = stepper, workload
        self.parameters = workload.parameters
        self.batches = workload.batches(cell_run.data, cell_run.cell.seed)
        self.held_out = list(workload.evaluation_batches(cell_run.data))
        self.norms: list[float | None] = []  # of the gradients, before clipping
        self.evaluations: list[dict[str, Any]] = []
        self.checkpoint: dict[str, Any] = {}  # path and step of the latest
        if cell_run.checkpoints is None:
            cell_run.method["resume"] = "nothing is saved: started without a folder for it"

    @property
    def done(self) -> int:
        """The number of steps done, with those of an earlier process."""
        return len(self.losses)

    def train(self) -> None:
        """Run all steps that are not done yet, with evaluations and checkpoints between them."""
        self._resume()
        while True:
            self._between_steps()
            if self.done >= self.parameters["steps"]:
                break
            self.cell_run.under_way = True
            self.step("whole", self.stepper, self.batches)
            self.norms.append(self.stepper.gradient_norm())
        self.pace.stopped_by = "max_iterations"

    def _between_steps(self) -> None:
        """Evaluate and save what is due after the steps so far; no step's time includes it."""
        self.cell_run.under_way = False
        step, last = self.done, self.done == self.parameters["steps"]
        evaluated = bool(self.evaluations) and self.evaluations[-1]["step"] == step
        if (last or step % self.parameters["evaluate_every"] == 0) and not evaluated:
            self.evaluations.append(self._evaluation(step))
        due = last or step % self.parameters["checkpoint_every"] == 0
        if step and due and self.checkpoint.get("step") != step:
            self._save(step)

    def _evaluation(self, step: int) -> dict[str, Any]:
        self.cell_run.progress("evaluate", step)
        started_s = time.perf_counter()
        losses = [self.stepper.inference.evaluate(batch) for batch in self.held_out]
        seconds = time.perf_counter() - started_s
        mean = math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None
        return {
            "step": step,
            "loss": mean,
            "perplexity": None if mean is None or mean > math.log(1e300) else math.exp(mean),
            "seconds": seconds,
        }

    def _resume(self) -> None:
        """Go on from the checkpoint of an earlier process, if there is one that can be read."""
        folder = self.cell_run.checkpoints
        if folder is None or not (folder / COURSE).exists():
            return
        try:
            course = json.loads((folder / COURSE).read_text(encoding="utf-8"))
            self.stepper.load(folder / course["checkpoint"]["path"])
        except (UserError, OSError, ValueError, LookupError) as error:
            self.cell_run.method["checkpoints"] = f"the latest is not used: {in_one_line(error)}"
            return
        self.restore(course["schedule"])
        self.checkpoint = course["checkpoint"]
        self.norms, self.evaluations = course["norms"], course["evaluations"]
        for _ in range(self.done):  # to the same position in the data
            next(self.batches)

    def _save(self, step: int) -> None:
        """Save the training as it is; where that fails, the method says why, and it goes on."""
        folder = self.cell_run.checkpoints
        if folder is None:
            return
        self.cell_run.progress("keep a checkpoint", step)
        path = folder / f"step-{step:06d}.safetensors"
        unfinished = temporary.temporary_path(path).with_suffix(
            ".safetensors"
        )  # which MLX would add
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.stepper.save(unfinished)
            unfinished.replace(path)
            self.checkpoint = {"path": path.name, "step": step}
            course = {
                "checkpoint": self.checkpoint,
                "schedule": self.state(),
                "norms": self.norms,
                "evaluations": self.evaluations,
            }
            temporary.write(folder / COURSE, json.dumps(course))  # NaN stays NaN
            for old in [file for file in folder.iterdir() if file.name not in (COURSE, path.name)]:
                old.unlink()
        except Exception as error:  # a full disk raises another error in each library
            reason = f"the one after {step} steps was not saved: {in_one_line(error)}"
            self.cell_run.method["checkpoints"] = reason
            temporary.remove(unfinished)

    def texts(self) -> list[dict[str, Any]]:
        """`temperature`, `prompt` and `text` for each temperature.

        Raises:
            ImportError, OSError: the data set's tokenizer cannot be had.
            ArithmeticError: the model's outputs are not finite.
        """
        from tokenizers import Tokenizer

        folder = Path(self.cell_run.cell.dataset or "")
        tokenizer = Tokenizer.from_str((folder / TOKENIZER).read_text(encoding="utf-8"))
        prompt = [int(token) for token in self.held_out[0]["input_ids"][0, :PROMPT_TOKENS]]
        # A model may have more tokens than its data: an embedding is often rounded up.
        n_tokens = min(tokenizer.get_vocab_size(with_added_tokens=True), self.workload.vocab_size)
        texts = []
        for place, temperature in enumerate(self.parameters["sample_temperatures"]):
            self.cell_run.progress(f"write at temperature {temperature}", place)
            continuation = self._continuation(prompt, place, temperature, n_tokens)
            texts.append(
                {
                    "temperature": temperature,
                    "prompt": tokenizer.decode(prompt, skip_special_tokens=False),
                    "text": tokenizer.decode(continuation, skip_special_tokens=False),
                }
            )
        return texts

    def _continuation(
        self, prompt: list[int], place: int, temperature: float, n_tokens: int
    ) -> list[int]:
        """The tokens, all below `n_tokens`, that the model writes after a prompt."""
        import numpy as np

        generator = np.random.Generator(np.random.PCG64([self.cell_run.cell.seed, place]))
        tokens, seq_len = list(prompt), self.workload.seq_len
        for _ in range(self.parameters["sample_tokens"]):
            ids = np.array([tokens[-seq_len:]], np.int32)  # (1, T)
            logits = self.stepper.inference.outputs({"input_ids": ids})[0, -1, :n_tokens].astype(
                np.float64
            )
            if not np.isfinite(logits).all():
                raise ArithmeticError("the model's outputs are no longer finite")
            if temperature == 0:
                tokens.append(int(logits.argmax()))
                continue
            likely = np.exp((logits - logits.max()) / temperature)
            cumulated = likely.cumsum()
            drawn = np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right")
            tokens.append(int(min(drawn, n_tokens - 1)))
        return tokens[len(prompt) :]

    def point(self, **extra: list[float]) -> dict[str, Any]:
        steps = self.parameters["steps"]
        losses = self.losses[:steps]
        whole = super().point(**extra)
        whole["params"] |= {"steps": steps}
        return whole | {
            "curve": {
                "loss": losses,
                "gradient_norm": self.norms,
                "learning_rate": [self.workload.learning_rate_at(step) for step in range(steps)],
            },
            "evaluations": self.evaluations,
            "outcome": training_course.outcome(losses),
            "resumed_at": self.resumed_at,
            **({"checkpoints": {"latest": self.checkpoint}} if self.checkpoint else {}),
        }
