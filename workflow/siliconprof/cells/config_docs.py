"""config/README.md from the schema: every key with its meaning, type and default.

    python -m siliconprof.cells.config_docs >config/README.md

A test compares the committed file with this output, so the two cannot drift apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.store.validation import load_schema

INTRODUCTION = """\
# Configuration

`config.yaml` is the default experiment. Files of `snakemake --configfile FILE ...` are laid over it, a
later one over an earlier one: `--configfile config/careful.yaml` measures each cell in five processes.
A whole other experiment takes its place: `--configfile config/paper.yaml --replace-workflow-config`, or
`make report ARGS="--configfile config/paper.yaml --replace-workflow-config"`. What belongs to a machine
or a cluster (cores, limits, scheduler) is in `profiles/`, not here. Units end every physical
name: `_s` seconds, `_bytes` bytes, `_gib` GiB. A wrong file is refused with all its mistakes,
one line each. This page is made from the schema by `make docs`.

- `devices.yaml`: the device registry; its keys are described in
  `workflow/schemas/devices.schema.yaml`.
- `claims.yaml`: every published claim with the comparison that tests it; its keys are described
  in `workflow/schemas/claims.schema.yaml`.
- `published/`: every published number, with its source; see `published/README.md`.
- `measured/*.zip`: bundles of records measured elsewhere, shown as reference.
"""


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a key, for a person."""
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    types = schema.get("type", "any")
    names = [types] if isinstance(types, str) else list(types)
    if names == ["array"]:
        inner = schema.get("items", {})
        return f"list of {kind(inner)}" if inner else "list"
    return " or ".join(names)


def rows(properties: Mapping[str, Any], required: list[str]) -> Iterator[str]:
    """One table row per key."""
    for name, schema in properties.items():
        if "default" in schema:
            default = f"`{json.dumps(schema['default'])}`"
        else:
            default = "required" if name in required else "absent"
        yield f"| `{name}` | {kind(schema)} | {default} | {schema.get('description', '')} |"


def table(properties: Mapping[str, Any], required: list[str]) -> list[str]:
    """A Markdown table of keys."""
    head = ["| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    return head + list(rows(properties, required))


def document() -> str:
    """The whole page."""
    schema = load_schema("config")
    keys = schema["properties"]
    lines = [INTRODUCTION, "## Top level", ""]
    lines += table(keys, schema["required"])
    for name, title in (("timing", "`timing`"), ("report", "`report`")):
        lines += ["", f"## {title}", "", *table(keys[name]["properties"], [])]
    for name, title in (
        ("cluster", "An entry of `cluster`"),
        ("datasets", "An entry of `datasets`"),
        ("workloads", "An entry of `workloads`: keys of all modules"),
    ):
        entry = keys[name]["additionalProperties"]
        lines += ["", f"## {title}", "", *table(entry["properties"], entry["required"])]
    for module in plugins.names("workloads"):
        plugin = plugins.load("workloads", module)
        lines += ["", f"### Keys of module `{module}`", ""]
        lines += table(plugin.PARAMETERS, plugin.required())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
