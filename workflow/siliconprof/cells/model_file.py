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

from siliconprof import options
from siliconprof.datasets import model_config, model_facts
from siliconprof.datasets.model_facts import ModelFacts
from siliconprof.errors import stage
from siliconprof.store import temporary


def made(spec: Mapping[str, Any]) -> ModelFacts:
    """The facts of a model, by a look at it.

    Raises:
        UserError: there is no such model, or it cannot be trained; one line.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from siliconprof.workloads import _causal_lm_torch

    return _causal_lm_torch.facts(spec)


def write(spec: Mapping[str, Any], path: Path) -> None:
    """Write a model's file.

    Raises:
        UserError: see `made`.
    """
    temporary.write(path, json.dumps(made(spec).to_document(), indent=1) + "\n")


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
    write(arguments.spec, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
