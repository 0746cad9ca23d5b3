"""What is known of a model before it is built, as a file; see `datasets.model_facts`.

    python -m siliconprof.cells.model_file --spec JSON --output results/models/NAME.json

torch and transformers look at its config on devices without memory: no weights are loaded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof import options, words
from siliconprof.datasets import model_config, model_facts
from siliconprof.datasets.model_facts import ModelFacts
from siliconprof.errors import stage
from siliconprof.memory.memory_model import BYTES_PER_PARAMETER, gibibytes
from siliconprof.store import temporary

MILLION = 1e6


def made(spec: Mapping[str, Any]) -> ModelFacts:
    """The facts of a model, by a look at it.

    Raises:
        UserError: there is no such model, or it cannot be trained; one line.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from siliconprof.workloads import _causal_lm_torch

    return _causal_lm_torch.facts(spec)


def line(facts: ModelFacts) -> str:
    """What is known of it, for a terminal."""
    parameters, name = facts.n_parameters, facts.model or facts.config["model_type"]
    memory = gibibytes(parameters * BYTES_PER_PARAMETER)
    others = f"; not under MLX: {facts.mlx_missing}" if facts.mlx_missing else ""
    return (
        f"model {name}: {parameters / MILLION:.1f} M parameters in {words.count(facts.n_layer, 'layer')}, "
        f"vocabulary {facts.vocab_size}; {memory} for weights, gradients and AdamW's state in fp32{others}"
    )


def write(spec: Mapping[str, Any], path: Path) -> str:
    """Write a model's file; what is known of it in a line.

    Raises:
        UserError: see `made`.
    """
    facts = made(spec)
    temporary.write(path, json.dumps(facts.to_document(), indent=1) + "\n")
    return line(facts)


def of(spec: Mapping[str, Any], results: Path) -> Path:
    """The file of a model below a run's results, made where it is missing or a folder's config is another.

    Raises:
        UserError: see `made`.
    """
    path = results / model_facts.FOLDER / f"{model_facts.name(spec)}.json"
    known = model_facts.load(path)
    if known is None or known.source != model_config.state(spec["model"]):
        write(spec, path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    parser = options.parser("siliconprof.cells.model_file", __doc__)
    parser.add_argument("--spec", type=json.loads, required=True, help="model or config, and LoRA")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    print(write(arguments.spec, arguments.output))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
