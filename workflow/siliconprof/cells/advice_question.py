"""The training that advice is about, named as a person would, with all its mistakes at once.

    gpt2-large, batch 16, fp32, 128 tokens, trainer plain, at most 3000 USD

A model is `{module}-{size}` of a workload that has sizes, or a number of parameters. The number is
taken as a decoder of GPT-2's kind, whose shape is our assumption and is printed with the advice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof import plugins
from siliconprof.memory import memory_model
from siliconprof.store.validation import load_schema, nearest, problems
from siliconprof.workloads import gpt2

# Tokens of a sequence, or of a transcript, as config/paper.yaml takes the paper's trainings.
SEQ_LEN = 128
CLIP_SECONDS = 30  # what Whisper is made for
ALIASES = {"gpt2": "gpt2-small"}  # OpenAI's own name of its smallest
HEAD_CHANNELS = 64  # of GPT-2, all sizes
# Layers of GPT-2 and, where it ends, of GPT-3 (Brown et al. 2020, table 2.1), by parameters.
LAYERS_BY_PARAMETERS = (
    (124e6, 12), (355e6, 24), (774e6, 36), (1558e6, 48), (6.7e9, 32), (13e9, 40), (175e9, 96),
)  # fmt: skip
PARAMETERS = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmb]?)", re.I)
MULTIPLES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
LEAST, MOST = 1e7, 1e12  # parameters


class Shaped(gpt2.Plugin):
    """A decoder of GPT-2's kind with another number of layers and another width."""

    def __init__(self, parameters: Mapping[str, Any], n_layer: int, n_embd: int) -> None:
        super().__init__({**parameters, "size": "small"})
        self.n_layer, self.n_embd, self.n_head = n_layer, n_embd, n_embd // HEAD_CHANNELS


@dataclass(frozen=True)
class Question:
    """One training. All fields are checked; see `read`."""

    model: str | None  # `gpt2-large`; None when `parameters` is given
    batch_size: int
    precision: str = "fp32"
    seq_len: int = SEQ_LEN  # tokens of a sequence; of the transcript where sound is trained on
    lora_rank: int = 0
    trainer: str = "plain"
    budget_usd: float | None = None
    parameters: float | None = None

    @property
    def module(self) -> str:
        """The workload that trains it."""
        return models()[self.model][0] if self.model else "gpt2"

    @property
    def size(self) -> str | None:
        """Its size there; None for a shape of our own."""
        return models()[self.model][1] if self.model else None

    @property
    def title(self) -> str:
        """`gpt2-large, batch 16 × 128 tokens, fp32, trainer plain`."""
        name = self.model or f"{millions(self.parameters or 0.0)} parameters"
        sample = f"{self.seq_len} tokens"
        if self.module == "whisper":
            sample = f"{CLIP_SECONDS} s of sound"
        parts = [name, f"batch {self.batch_size} × {sample}", self.precision]
        if self.lora_rank:
            parts.append(f"LoRA {self.lora_rank}")
        return ", ".join([*parts, f"trainer {self.trainer}"])

    def workload(self) -> Any:
        """The training as a workload, for its work, memory and parameters; no model is built."""
        plugin = plugins.load("workloads", self.module)
        own = plugin.defaults()
        own |= {"batch_size": self.batch_size, "dataset_vocab_size": memory_model.VOCAB_SIZE}
        own |= {key: self.seq_len for key in ("seq_len", "target_len") if key in own}
        if self.lora_rank:
            own["lora_rank"] = self.lora_rank
        if self.size is not None:
            return plugin({**own, "size": self.size})
        assert self.parameters is not None
        return Shaped(own, *shape_of(self.parameters))

    def shape_assumption(self) -> str | None:
        """The shape assumed for a mere number of parameters; None for a named model."""
        if self.parameters is None:
            return None
        n_layer, n_embd = shape_of(self.parameters)
        return (
            f"{millions(self.parameters)} parameters are taken as a decoder of GPT-2's kind with {n_layer} "
            f"layers of width {n_embd}, an assumption: memory and work depend on the shape"
        )


def millions(n: float) -> str:
    """`774 M`, `70,000 M`: four significant digits, never in powers of ten."""
    return f"{float(f'{n / 1e6:.4g}'):,.10g} M"


def models() -> dict[str, tuple[str, str]]:
    """`gpt2-large` -> (module, size), of every workload that has sizes."""
    by_name = {}
    for module in plugins.names("workloads"):
        plugin = plugins.load("workloads", module)
        if plugin.kind == "training" and "size" in plugin.PARAMETERS:
            for size in plugin.PARAMETERS["size"]["enum"]:
                by_name[f"{module}-{size}"] = (module, size)
    return by_name


def shape_of(parameters: float) -> tuple[int, int]:
    """(layers, width) of GPT-2's kind with about so many parameters.

    Layers follow GPT-2 and GPT-3; the width is the multiple of a head's 64 channels with which
    12 n_layer n_embd² and the embeddings come nearest.
    """
    n_layer = min(LAYERS_BY_PARAMETERS, key=lambda p: abs(math.log(p[0] / parameters)))[1]
    vocab_size, n_positions = gpt2.SIZES["small"][3], gpt2.SIZES["small"][4]
    assert vocab_size is not None
    tables = vocab_size + n_positions
    root = math.sqrt(tables**2 + 48 * n_layer * parameters)
    width = (root - tables) / (24 * n_layer)  # 12 n_layer width² + tables width = parameters
    return n_layer, max(HEAD_CHANNELS, HEAD_CHANNELS * round(width / HEAD_CHANNELS))


def number_of_parameters(text: str) -> float | None:
    """`1.5e9`, `1.5B` or `774M` as a number; None for anything else."""
    match = PARAMETERS.fullmatch(text.strip())
    return float(match[1]) * MULTIPLES[match[2].lower()] if match else None


def read(entry: Mapping[str, Any]) -> tuple[Question | None, list[tuple[str, str]]]:
    """The question, or None, and its mistakes as (key, what is wrong and how to mend it).

    Args:
        entry: of the config's `report.advice`; what is None in it is absent.
    """
    entry = {key: value for key, value in entry.items() if value is not None}
    schema = load_schema("config")["properties"]["report"]["properties"]["advice"]["items"]
    mistakes = [
        (key, what) for key, _, what in (line.partition(": ") for line in problems(entry, schema))
    ]
    supported = models()
    name, parameters = entry.get("model"), entry.get("parameters")
    model = ALIASES.get(name, name) if isinstance(name, str) else None
    if (name is None) == (parameters is None):
        problem = "give one of model and parameters, not both" if name is not None else "is missing"
        mistakes.append(("model", f"{problem}; expected one of: {', '.join(supported)}"))
    elif name is not None and model not in supported:
        listed = ", ".join(supported)
        mistakes.append(
            ("model", f"is '{name}'; expected one of: {listed}{nearest(name, supported)}")
        )
    elif isinstance(parameters, int | float) and not LEAST <= parameters <= MOST:
        mistakes.append(("parameters", f"is {parameters:g}; expected 1e7 to 1e12"))
    if {key for key, _ in mistakes} <= {"precision", "trainer", "budget_usd"}:
        mistakes += _limits(entry, supported[model][0] if model else "gpt2")
    return (None, mistakes) if mistakes else (Question(**{**entry, "model": model}), [])


def _limits(entry: Mapping[str, Any], module: str) -> list[tuple[str, str]]:
    """Mistakes about what this model does not have: such long sequences, adapters."""
    schema = plugins.load("workloads", module).PARAMETERS
    length = schema.get("seq_len") or schema.get("target_len") or {}
    maximum, seq_len = length.get("maximum"), entry.get("seq_len")
    problems = []
    if maximum and seq_len and seq_len > maximum:
        problems.append(("seq_len", f"is {seq_len}; {module} has at most {maximum} positions"))
    if entry.get("lora_rank") and "lora_rank" not in schema:
        problems.append(("lora_rank", f"{module} has no LoRA here; leave it out"))
    return problems
