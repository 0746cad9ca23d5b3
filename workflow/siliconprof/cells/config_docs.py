"""config/README.md from the models: every key with its meaning, type and default.

    python -m siliconprof.cells.config_docs >config/README.md

A test compares the committed file with this output, so the two cannot drift apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.hosts import models
from siliconprof.store import model
from siliconprof.store.experiment import Dataset, Experiment, Node, Report, Timing, Workload

CONFIG_INTRODUCTION = """\
# Configuration

`config.yaml` is the default experiment. Files of `snakemake --configfile FILE ...` are laid over it, a
later one over an earlier one: `--configfile config/careful.yaml` measures each cell in five processes.
A whole other experiment takes its place: `--configfile config/paper.yaml --replace-workflow-config`, or
`make report ARGS="--configfile config/paper.yaml --replace-workflow-config"`. What belongs to a machine
or a cluster (cores, limits, scheduler) is in `profiles/`, not here. Units end every physical
name: `_s` seconds, `_bytes` bytes, `_gib` GiB. A wrong file is refused with all its mistakes,
one line each. This page is made from the models of these files by `make docs`.

- `devices.yaml`: the device registry; its keys are in the last tables below.
- `claims.yaml`: every published claim with the comparison that tests it; its keys are described
  in `workflow/siliconprof/claims/claims_file.py`.
- `published/`: every published number, with its source; see `published/README.md`.
- `measured/*.zip`: bundles of records measured elsewhere, shown as reference.
"""
DOCUMENTED_MODELS: dict[str, type[model.Part]] = {
    "## Top level": Experiment,
    "## `timing`": Timing,
    "## `report`": Report,
    "## An entry of `cluster`": Node,
    "## An entry of `datasets`": Dataset,
    "## An entry of `workloads`: keys of all modules": Workload,
}
TABLES = {part.__name__ for part in DOCUMENTED_MODELS.values()}  # where their defaults stand
REGISTRY_SECTIONS: dict[str, type[model.Part]] = {
    "## `devices.yaml`": models.Registry,
    "### A source": models.Source,
    "### A device": models.Device,
    "### `match`": models.Match,
    "### `peak_tflops`": models.Peaks,
    "### A figure, such as `memory_gib`": models.Figure,
    "### `price_usd`": models.Price,
}


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a key, for a person."""
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(map(kind, schema["anyOf"]))
    types = schema.get("type", "object")
    names = [types] if isinstance(types, str) else list(types)
    if names == ["array"]:
        return f"list of {kind(schema['items'])}"
    return " or ".join(names)


def table(properties: Mapping[str, Any], required: Collection[str]) -> list[str]:
    """A Markdown table of keys."""
    lines = ["| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, schema in properties.items():
        default = "required" if name in required else "absent"
        if "default" in schema:
            has_table = schema.get("$ref", "").rpartition("/")[2] in TABLES
            default = f"`{'{}' if has_table else json.dumps(schema['default'])}`"
        lines.append(f"| `{name}` | {kind(schema)} | {default} | {schema.get('description', '')} |")
    return lines


def document() -> str:
    """The whole page."""
    lines = [CONFIG_INTRODUCTION]
    lines += _of_models(DOCUMENTED_MODELS)
    for module in plugins.names("workloads"):
        parameters = model.model_of(plugins.load("workloads", module).Parameters, model.Part)
        lines += _of_models({f"### Keys of module `{module}`": parameters})
    return "\n".join([*lines, *_of_models(REGISTRY_SECTIONS)])


def _of_models(titled: Mapping[str, type[model.Part]]) -> Iterator[str]:
    for title, part in titled.items():
        schema = model.schema_of(part)
        yield from (title, "", *table(schema["properties"], schema.get("required", ())), "")


if __name__ == "__main__":
    sys.stdout.write(document())
