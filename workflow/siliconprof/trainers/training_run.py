"""A whole training: its curve, evaluations on held-out data, checkpoints and generated texts.

Every step is timed whole; evaluations and checkpoints come between. A run that is killed goes on
from its latest checkpoint with the losses that it would have had, to the last bit where the
backend's arithmetic is reproducible: its models have no dropout, so there is no random generator to
restore.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.backends.base import Stepper
from siliconprof.stats import training_course
from siliconprof.trainers._checkpoints import BEST, LATEST, Checkpoints
from siliconprof.trainers.base import StepSchedule, Trainer

if TYPE_CHECKING:
    from siliconprof.session.session import Session

TOKENIZER = "tokenizer.json"
PROMPT_TOKENS = 16  # the first of the held-out text
HOW = (
    "from the final weights, continuing the first held-out tokens; drawn from "
    "softmax(logits / temperature), the likeliest token at temperature 0"
)


class NoText(Exception):
    """There is no text to show; the message is the record's reason."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that a data set was prepared with, or `NoText`."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NoText("the package tokenizers is not installed") from None
    try:
        return Tokenizer.from_str((folder / TOKENIZER).read_text(encoding="utf-8"))
    except OSError:
        raise NoText(f"the data set has no {TOKENIZER}") from None
    except Exception as error:  # whatever the library raises on bad content
        raise NoText(f"{TOKENIZER} cannot be read: {' '.join(str(error).split())[:200]}") from None


def decode(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens; bytes that are not valid UTF-8 become U+FFFD."""
    text: str = tokenizer.decode(tokens, skip_special_tokens=False)
    return text.encode("utf-8", "replace").decode("utf-8")


METHOD = {
    "split": "not split: every step is timed whole",
    "evaluation": "between the timed steps: mean loss over the first held-out batches",
    "resume": (
        "between the timed steps: weights, moments, step count and gradient scaler as safetensors; "
        "a killed run resumes from `latest`. Times of steps before that are those of the earlier "
        "process, whose steps began at negative times"
    ),
}


class Plugin(Trainer):
    """training_run"""

    cannot_offload = "trainer training_run does not offload"

    def run(self, session: Session) -> None:
        session.progress("build the model", 0)
        stepper = session.backend.stepper(session.workload, session.cell.seed)
        run = Run(session, stepper)
        session.backend.reset_peak_memory()
        run.train()
        session.method |= METHOD
        session.evidence |= stepper.dtypes(run.held_out[0])
        texts: dict[str, Any] = {}
        try:
            texts["texts"] = run.texts()
            session.method["texts"] = HOW
        except NoText as error:
            session.method["texts"] = f"none: {error}"
        run.run_freely(stepper, run.batches)  # steps that are not in the curve
        point = run.point() | texts
        run.watch_more(point, stepper, run.batches)
        session.add_point(point)


class Run(StepSchedule):
    """A training from its first step, or its latest checkpoint, to its last."""

    def __init__(self, session: Session, stepper: Stepper) -> None:
        super().__init__(session)
        workload: Any = session.workload
        self.stepper, self.workload = stepper, workload
        self.parameters = workload.parameters
        self.batches = workload.batches(session.data, session.cell.seed)
        self.held_out = list(workload.evaluation_batches(session.data))
        self.norms: list[float | None] = []  # of the gradients, before clipping
        self.evaluations: list[dict[str, Any]] = []
        self.checkpoints = Checkpoints(session.checkpoints)

    @property
    def done(self) -> int:
        """The number of steps done, with those of an earlier process."""
        return len(self.times.whole_step_s)

    # -- to the last step ------------------------------------------------------------------

    def train(self) -> None:
        """Run all steps that are not done yet, with evaluations and checkpoints between them."""
        if earlier := self.checkpoints.resume(self.stepper):
            self.restore(earlier["schedule"])
            self.norms, self.evaluations = earlier["norms"], earlier["evaluations"]
            for _ in range(self.done):  # to the same position in the data
                next(self.batches)
        while True:
            self._between_steps()
            if self.done >= self.parameters["steps"]:
                break
            self.session.under_way = True
            self.step("whole", self.stepper, self.batches)
            self.norms.append(self.stepper.gradient_norm())
        self.pace.stopped_by = "max_iterations"

    def _between_steps(self) -> None:
        """Evaluate and save what is due after the steps so far; no step's time includes it."""
        self.session.under_way = False
        step, last = self.done, self.done == self.parameters["steps"]
        evaluated = bool(self.evaluations) and self.evaluations[-1]["step"] == step
        roles = set()
        if (last or step % self.parameters["evaluate_every"] == 0) and not evaluated:
            self.evaluations.append(self._evaluation(step))
            if step and best(self.evaluations) == step:
                roles |= {BEST, LATEST}
        if step and (last or step % self.parameters["checkpoint_every"] == 0):
            roles.add(LATEST)
        if self.checkpoints.files.get(LATEST, {}).get("step") == step:
            return  # the run has just resumed from it
        if roles:
            self.session.progress("keep a checkpoint", step)
            schedule = {
                "schedule": self.state(),
                "norms": self.norms,
                "evaluations": self.evaluations,
            }
            self.checkpoints.save(self.stepper, step, schedule, roles)

    def _evaluation(self, step: int) -> dict[str, Any]:
        self.session.progress("evaluate", step)
        started_s = time.perf_counter()
        losses = [self.stepper.evaluate(batch) for batch in self.held_out]
        seconds = time.perf_counter() - started_s
        mean = math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else None
        return {
            "step": step,
            "loss": mean,
            "perplexity": None if mean is None or mean > math.log(1e300) else math.exp(mean),
            "seconds": seconds,
        }

    # -- after it --------------------------------------------------------------------------

    def texts(self) -> list[dict[str, Any]]:
        """`temperature`, `prompt` and `text` for each temperature, or `NoText`."""
        tokenizer = load_tokenizer(Path(self.session.cell.dataset or ""))
        prompt = [int(token) for token in self.held_out[0]["input_ids"][0, :PROMPT_TOKENS]]
        # A model may have more tokens than its data: an embedding is often rounded up.
        n_tokens = min(tokenizer.get_vocab_size(with_added_tokens=True), self.workload.vocab_size)
        texts = []
        for place, temperature in enumerate(self.parameters["sample_temperatures"]):
            self.session.progress(f"write at temperature {temperature}", place)
            continuation = self._continuation(prompt, place, temperature, n_tokens)
            texts.append(
                {
                    "temperature": temperature,
                    "prompt": decode(tokenizer, prompt),
                    "text": decode(tokenizer, continuation),
                }
            )
        return texts

    def _continuation(
        self, prompt: list[int], place: int, temperature: float, n_tokens: int
    ) -> list[int]:
        """The tokens, all below `n_tokens`, that the model writes after a prompt, or `NoText`."""
        import numpy as np

        generator = np.random.Generator(np.random.PCG64([self.session.cell.seed, place]))
        tokens, seq_len = list(prompt), self.workload.seq_len
        for _ in range(self.parameters["sample_tokens"]):
            ids = np.array([tokens[-seq_len:]], np.int32)  # (1, T)
            logits = self.stepper.outputs({"input_ids": ids})[0, -1, :n_tokens].astype(np.float64)
            if not np.isfinite(logits).all():
                raise NoText("the model's outputs are no longer finite")
            if temperature == 0:
                tokens.append(int(logits.argmax()))
                continue
            likely = np.exp((logits - logits.max()) / temperature)
            cumulated = likely.cumsum()
            drawn = np.searchsorted(cumulated, generator.random() * cumulated[-1], side="right")
            tokens.append(int(min(drawn, n_tokens - 1)))
        return tokens[len(prompt) :]

    def point(self, **extra: list[float]) -> dict[str, Any]:
        steps, checkpoints = self.parameters["steps"], self.checkpoints
        losses = self.losses[:steps]
        if checkpoints.folder is None:
            self.session.method["resume"] = "nothing is saved: started without a folder for it"
        if checkpoints.problem:
            self.session.method["checkpoints"] = checkpoints.problem
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
            **({"checkpoints": checkpoints.files} if checkpoints.files else {}),
        }


def best(evaluations: Sequence[dict[str, Any]]) -> int | None:
    """The step with the lowest held-out loss, the first of equals, not step 0; None without one."""
    trained = [entry for entry in evaluations if entry["step"] and entry["loss"] is not None]
    return min(trained, key=lambda entry: entry["loss"])["step"] if trained else None
