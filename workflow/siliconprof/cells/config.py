"""The experiment: read, checked all at once, defaults filled in.

`resolve` returns a plain dictionary in which every key of the schema is present, so no later code
needs a default. The keys that a workload module adds come from its `PARAMETERS`.
"""

from __future__ import annotations

import argparse
import copy
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.cells import cluster
from siliconprof.datasets import dataset_spec
from siliconprof.errors import UserError
from siliconprof.store.validation import (
    load_schema,
    load_yaml,
    nearest,
    one_line,
    problems,
    too_large,
)

DEFAULT = "config/config.yaml"


def read(configfile: str) -> dict[str, Any]:
    """A config file as it is written.

    Raises:
        UserError: it is missing, not YAML or not a mapping; one line.
    """
    content = load_yaml(configfile)
    if not isinstance(content, dict):
        raise UserError(f"{configfile}: is empty or no mapping; see config/README.md")
    return content


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options by which a command is told the experiment, as Snakemake is."""
    parser.add_argument(
        "--configfile",
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"laid over {DEFAULT}, a later one over an earlier one",
    )
    parser.add_argument(
        "--replace-workflow-config", action="store_true", help=f"in place of {DEFAULT}"
    )


def of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The resolved experiment of `add_options`.

    Raises:
        UserError: one line for each mistake.
    """
    from snakemake.utils import update_config  # 0.3 s, which no parse of the Snakefile needs

    replaced = arguments.replace_workflow_config and arguments.configfile
    files = [*([] if replaced else [DEFAULT]), *arguments.configfile]
    merged: dict[str, Any] = {}
    for file in files:
        update_config(merged, read(file))
    return resolve(merged, files[-1])


def common_workload_schema() -> Mapping[str, Any]:
    """The schema of what a workload entry has whatever its module."""
    common: Mapping[str, Any] = load_schema("config")["properties"]["workloads"]
    return common["additionalProperties"]


def workload_schema(module: str) -> dict[str, Any]:
    """The schema of one workload entry: the common keys and those of its module."""
    common, plugin = common_workload_schema(), plugins.load("workloads", module)
    return {
        **common,
        "properties": {**common["properties"], **plugin.PARAMETERS},
        "required": ["module", *plugin.REQUIRED],
        "additionalProperties": False,
    }


def check(config: Mapping[str, Any]) -> list[str]:
    """Every mistake of a config, one line each: where, what, expected, nearest spelling."""
    schema = load_schema("config")
    mistakes = problems(config, schema)
    reason = too_large(config, plain=True)
    if not isinstance(config, Mapping) or reason:
        return list(dict.fromkeys([*mistakes, *([f"(top level): {reason}"] if reason else [])]))
    for name, entry in _mapping(config.get("datasets")).items():
        if isinstance(entry, Mapping):
            for key, what in dataset_spec.problems(entry):
                mistakes.append(f"datasets.{name}.{key}: {what}")
    for name, entry in _mapping(config.get("workloads")).items():
        if isinstance(entry, Mapping):
            mistakes += _workload_problems(f"workloads.{name}", entry, config)
    for key in ("emulated_workloads", "quick"):
        mistakes += _unknown_workloads(key, config)
    mistakes += cluster.problems(_mapping(config.get("cluster")))
    return list(dict.fromkeys(map(one_line, mistakes)))


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: the schema already reports it."""
    return value if isinstance(value, Mapping) else {}


def _unknown_workloads(key: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Mistakes of a key that lists workloads by their names."""
    known, names = _mapping(config.get("workloads")), config.get(key)
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name not in known:
            yield f"{key}: '{name}' is no workload of this experiment{nearest(name, known)}"


def _workload_problems(
    where: str, entry: Mapping[str, Any], config: Mapping[str, Any]
) -> list[str]:
    """Mistakes of one workload entry beyond the common schema."""
    module = entry.get("module")
    if not isinstance(module, str) or module not in plugins.names("workloads"):
        return []  # the common schema has said so
    plugin = plugins.load("workloads", module)
    inherited = {"scenarios": config.get("scenarios", ["auto"])}
    own = problems(entry, workload_schema(module), f"{where}.")
    mistakes = [line.replace(f"{where}.(top level)", where) for line in own]
    trainer, trainers = entry.get("trainer"), plugins.names("trainers")
    if "trainer" in entry and not isinstance(trainer, str):
        pass  # the schema has said so
    elif plugin.kind == "training" and trainer not in trainers:
        problem = "is missing" if trainer is None else f"is '{trainer}'"
        hint = nearest(trainer, trainers) if trainer else ""
        mistakes.append(
            f"{where}.trainer: {problem}; expected one of: {', '.join(sorted(plugin.trainers))}{hint}"
        )
    elif plugin.kind == "training" and trainer not in plugin.trainers:
        mistakes.append(
            f"{where}.trainer: is '{trainer}', which does not train {module}; expected one of: "
            f"{', '.join(sorted(plugin.trainers))}"
        )
    elif plugin.kind != "training" and trainer is not None:
        mistakes.append(f"{where}.trainer: is '{trainer}'; {module} is not trained, leave it out")
    try:
        shlex.split(str(entry.get("capture", "")))
    except ValueError as error:
        mistakes.append(f"{where}.capture: is no command: {error}")
    datasets = _mapping(config.get("datasets"))
    dataset = entry.get("dataset")
    if "dataset" not in entry:
        mistakes += [f"{where}.{line}" for line in plugin.problems({**inherited, **entry}, None)]
    elif isinstance(dataset, str) and dataset not in datasets:
        listed = ", ".join(map(str, datasets)) or "none is defined"
        mistakes.append(
            f"{where}.dataset: is '{dataset}'; expected one of: {listed}"
            f"{nearest(dataset, datasets)}"
        )
    elif isinstance(dataset, str):
        chosen = _mapping(datasets[dataset])
        tokenised = (chosen.get("kind") or "text") in dataset_spec.TOKENISED
        if not tokenised or isinstance(chosen.get("vocab_size"), int):
            own = plugin.problems({**inherited, **entry}, chosen)
            mistakes += [f"{where}.{line}" for line in own]
    return mistakes


def _with_defaults(values: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the schema's defaults beneath them."""
    defaults = {key: copy.deepcopy(p["default"]) for key, p in properties.items() if "default" in p}
    return {**defaults, **copy.deepcopy(dict(values))}


def resolve(config: Mapping[str, Any], name: str = "config") -> dict[str, Any]:
    """A checked config with every default filled in.

    Args:
        name: of the file, for the errors.

    Raises:
        UserError: all mistakes, one line each, each beginning with `name`.
    """
    mistakes = check(config)
    if mistakes:
        raise UserError("\n".join(f"{name}: {line}" for line in mistakes))
    properties = load_schema("config")["properties"]
    resolved = _with_defaults(config, properties)
    resolved["timing"] = _with_defaults(resolved["timing"], properties["timing"]["properties"])
    resolved["report"] = _with_defaults(resolved["report"], properties["report"]["properties"])
    dataset = properties["datasets"]["additionalProperties"]["properties"]
    for key, entry in resolved["datasets"].items():
        foreign = dataset_spec.foreign_keys(entry.get("kind", dataset["kind"]["default"]))
        own = {name: schema for name, schema in dataset.items() if name not in foreign}
        resolved["datasets"][key] = _with_defaults(entry, own)
    node = properties["cluster"]["additionalProperties"]["properties"]
    resolved["cluster"] = {key: _with_defaults(e, node) for key, e in resolved["cluster"].items()}
    for key, entry in resolved["workloads"].items():
        plugin = plugins.load("workloads", entry["module"])
        filled = _with_defaults(entry, plugin.PARAMETERS)
        filled["timing"] = resolved["timing"] | filled.get("timing", {})
        filled.setdefault("device_kinds", ["cpu", "gpu"])
        for axis in ("backends", "precisions", "scenarios"):
            filled.setdefault(axis, list(resolved[axis]))
        filled.setdefault("repeats", resolved["repeats"])
        resolved["workloads"][key] = filled
    return resolved
