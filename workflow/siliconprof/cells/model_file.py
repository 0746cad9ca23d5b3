"""What is known of a model before it is built, as a file; see `datasets.model_facts`.

    python -m siliconprof.cells.model_file --spec JSON --output results/models/NAME.json

torch and transformers look at its config on devices without memory: no weights are loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from siliconprof import options
from siliconprof.datasets import model_config, model_facts
from siliconprof.datasets.model_facts import ModelFacts
from siliconprof.store import temporary


def look_at_model(spec: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a model, which torch builds without memory for them.

    Raises:
        UserError: there is no such model, or it cannot be trained; one line.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from siliconprof.workloads import _causal_lm_torch

    return _causal_lm_torch.facts(spec)


def facts_file(spec: Mapping[str, Any], results: Path) -> Path:
    """Return a model's file below a run's results; make it where it is missing or its config has changed.

    Raises:
        UserError: see `look_at_model`.
    """
    path = results / model_facts.MODELS_FOLDER / f"{model_facts.name(spec)}.json"
    known = model_facts.load(path)
    if known is None or known.source != model_config.state(spec["model"]):
        write(spec=spec, output=path)
    return path


def write(
    *,
    spec: Annotated[Mapping[str, Any], "model or config, and LoRA", options.AS_JSON],
    output: Annotated[Path, "the file"],
) -> None:
    """Write a model's file.

    Raises:
        UserError: see `look_at_model`.
    """
    temporary.write(output, json.dumps(asdict(look_at_model(spec)), indent=1) + "\n")


if __name__ == "__main__":
    options.run(write)
