"""The pages that are made of declarations: config/README.md and docs/columns.md.

    PYTHONPATH=workflow python docs/generate.py

A test compares the committed files with this output, so that they cannot drift apart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from siliconprof import declarations, formatting, plugins
from siliconprof.hosts import models
from siliconprof.store import columns, model, validation
from siliconprof.store.columns import Column
from siliconprof.store.experiment import Dataset, Experiment, Node, Report, Timing, Workload

ROOT = Path(__file__).parents[1]

# -- config/README.md ------------------------------------------------------------------------------

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


def config_page() -> str:
    """config/README.md: every key with its meaning, type and default."""
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


# -- docs/columns.md ------------------------------------------------------------------------------

COLUMNS_INTRODUCTION = """\
# Columns of the tables

A run writes these tables to `results/tables/`, as CSV files, and `results.csv` beside that folder;
[notebook.md](notebook.md) reads them as pandas frames. An empty value is a missing one. `make docs`
makes this page of the models of records (`contents.py` and `point.py` in `workflow/siliconprof/store/`),
the plug-ins, and `columns.yaml` beside those models; it lists what later versions keep, and those
files the rest.

Where a column is listed, others may stand beside it:

- `_reason`, `_how`, `_means`, `_note`: why it is missing, where it is from, what counts it, what to
  know of it;
- `_low` and `_high` (`_low_s`, `_low_ms`): the ends of its 95 % interval;
- `fast_` and `slow_` before a name: of the faster and of the slower training of a pair;
- `_largest` beside `_smallest`: the same at the largest batch, not the smallest;

"""
DOCS_HEADER = ["| Column | Type | Unit | Meaning |", "| --- | --- | --- | --- |"]


def _table(declared: Mapping[str, Column]) -> list[str]:
    return DOCS_HEADER + [
        f"| `{name}` | {column.type} | {column.unit} | {column.help} |"
        for name, column in declared.items()
    ]


def _of_points() -> list[str]:
    """What points.csv has of every time in repeats, and of every parameter."""
    times = [
        f"`{name.removesuffix('_s')}` ({quantity.label})"
        for name, quantity in declarations.quantities().items()
        if quantity.series
    ]
    parameters = [f"`{name}` ({one.label})" for name, one in declarations.parameters().items()]
    parts = [
        f"`_{part}` ({c.help.removeprefix('{label}: ')})" for part, c in columns.series().items()
    ]
    return [
        "A time that is measured in repeats is six columns, such as `forward_n` and "
        f"`forward_median_s`: {formatting.listing(parts)}. So are {formatting.listing(times)}.",
        "",
        f"Parameters of points, each where its workload has it: {formatting.listing(parameters)}.",
        "",
    ]


def columns_page() -> str:
    """docs/columns.md. What many tables share is printed once, what `columns.yaml` names under `docs` not."""
    file = validation.load_yaml(columns.COLUMNS_FILE)
    skipped = file["docs"]
    detailed = {
        name: columns.columns_of_table(name)
        for name in columns.tables()
        if name not in skipped["tables"]
    }
    uses = Counter(pair for declared in detailed.values() for pair in declared.items())
    shared = {name: column for (name, column), n in uses.items() if n > 1}
    stems = [name.removesuffix("_s") for name, q in declarations.quantities().items() if q.series]
    of_points = {f"{stem}_{part}" for stem in stems for part in columns.series()}
    of_points |= set(declarations.parameters())
    lines = [COLUMNS_INTRODUCTION + "## Columns of several tables", "", *_table(shared), ""]
    for name, declared in detailed.items():
        patterns = skipped["columns"]["all"] + skipped["columns"].get(name, [])
        own = {
            column: one
            for column, one in declared.items()
            if shared.get(column) != one
            and not any(fnmatchcase(column, pattern) for pattern in patterns)
            and not (name == columns.POINTS and column in of_points)
        }
        what = file["tables"][name].get("begins_with")
        begins = f" Begins with the columns that name a {what}." if what else ""
        lines += [f"## {name}.csv", "", columns.tables()[name] + begins, "", *_table(own), ""]
        if name == columns.POINTS:
            lines += _of_points()
    others = [f"- `{name}.csv`: {columns.tables()[name]}" for name in skipped["tables"]]
    return "\n".join([*lines, "## Other tables", "", *others, ""])


if __name__ == "__main__":
    (ROOT / "config/README.md").write_text(config_page(), encoding="utf-8")
    (ROOT / "docs/columns.md").write_text(columns_page(), encoding="utf-8")
