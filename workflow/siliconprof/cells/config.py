"""The experiment: read, checked all at once, defaults filled in.

`resolve` returns a plain dictionary in which every key of `Experiment` is present, so no later code
needs a default. The keys that a workload module adds come from its `Parameters`.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import yaml

from siliconprof import plugins
from siliconprof.cells import cluster, of_model
from siliconprof.datasets import dataset_spec
from siliconprof.errors import UserError, nearest
from siliconprof.parameters import one_of
from siliconprof.store import model
from siliconprof.store.experiment import AnyWorkload, Experiment, Workload
from siliconprof.store.names import case_collision
from siliconprof.store.validation import control_characters, load_yaml, one_line

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


def with_types(value: Any, given: Any) -> Any:
    """Return a value of Snakemake's config with its types, where `--config` has given it.

    Snakemake hands over what is inside of a list or mapping there as texts.

    Args:
        given: the value of `--config`.
    """
    if isinstance(value, Mapping) and isinstance(given, Mapping):
        return {key: with_types(v, given[key]) if key in given else v for key, v in value.items()}
    if isinstance(value, list) and value == given:
        return [with_types(one, one) for one in value]
    if isinstance(value, str) and value == given:
        with suppress(yaml.YAMLError):
            return yaml.safe_load(value)
    return value


def resolved_experiment(
    configfile: Sequence[str], is_alone: bool, more: Sequence[str]
) -> dict[str, Any]:
    """Return the resolved experiment of a command that takes Snakemake's options for it.

    Args:
        is_alone: in place of the default config, not over it.
        more: of KEY=VALUE.

    Raises:
        UserError: one line for each mistake.
    """
    # 0.3 s, which no parse of the Snakefile needs
    from snakemake.cli import parse_config
    from snakemake.utils import update_config

    files = [*([] if is_alone and configfile else [DEFAULT]), *configfile]
    merged: dict[str, Any] = {}
    for file in files:
        update_config(merged, read(file))
    try:
        update_config(merged, parse_config(more))
    except ValueError as error:
        raise UserError(f"--config {' '.join(more)}: {error}") from None
    return resolve(merged, files[-1])


@cache
def entry_model(module: str) -> type[Workload]:
    """Return the model of an entry of `workloads`: the common keys and those of its module."""
    plugin = plugins.load("workloads", module)
    if plugin.kind != "training":
        return model.model_of(plugin.Parameters, Workload)
    trainer = Annotated[str, one_of(sorted(plugin.trainers))]
    return model.model_of(plugin.Parameters, Workload, trainer=trainer)


def check(config: Mapping[str, Any]) -> list[str]:
    """Every mistake of a config, one line each: where, what, expected, nearest spelling."""
    mistakes = model.problems(Experiment, config)
    if not isinstance(config, Mapping):
        return mistakes
    mistakes += control_characters(config)
    for section in ("workloads", "datasets", "cluster"):
        names = map(str, _mapping(config.get(section)))
        mistakes += [
            f"{section}.{name}: differs from '{other}' in case alone, and not every file system keeps "
            "them apart; choose another name"
            for other, name in case_collision(names)
        ]
    for name, entry in _mapping(config.get("datasets")).items():
        if isinstance(entry, Mapping):
            for key, what in dataset_spec.problems(entry):
                mistakes.append(f"datasets.{name}.{key}: {what}")
    for name, entry in _mapping(config.get("workloads")).items():
        if isinstance(entry, Mapping):
            mistakes += _workload_problems(f"workloads.{name}", entry, config)
    for key in ("emulated_workloads", "only_forked", "quick"):
        mistakes += _unknown_workloads(key, config)
    if cluster.RESERVED in _mapping(config.get("cluster")):
        mistakes.append(f"cluster.{cluster.RESERVED}: is no host's name; choose another label")
    mistakes = [_other_name(line, config) + line for line in mistakes]
    return list(dict.fromkeys(map(one_line, mistakes)))


def _other_name(mistake: str, config: Mapping[str, Any]) -> str:
    """Return a hint at the nearest entry, where one lacks its key of kind: its name may be misspelt."""
    for section, key in (("workloads", "module"), ("datasets", "source"), ("cluster", "device")):
        entries = _mapping(config.get(section))
        for name in entries:
            if mistake.startswith(f"{section}.{name}.{key}: is missing"):
                near = nearest(name, [other for other in entries if other != name])
                return f"{section}: no entry '{name}'{near} Else " if near else ""
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: the model reports it."""
    return value if isinstance(value, Mapping) else {}


def _unknown_workloads(key: str, config: Mapping[str, Any]) -> Iterator[str]:
    known, names = _mapping(config.get("workloads")), config.get(key)
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name not in known:
            yield f"{key}: '{name}' is no workload of this experiment{nearest(name, known)}"


def _workload_problems(
    where: str, entry: Mapping[str, Any], config: Mapping[str, Any]
) -> list[str]:
    """Return the mistakes of one workload entry, also in relation to other sections."""
    module = entry.get("module")
    if not isinstance(module, str) or module not in plugins.names("workloads"):
        return model.problems(AnyWorkload, entry, f"{where}.")
    plugin = plugins.load("workloads", module)
    mistakes = model.problems(entry_model(module), entry, f"{where}.")
    if not mistakes:
        entry = model.validated(entry_model(module), entry).model_dump(exclude_unset=True)
    inherited = {"scenarios": config.get("scenarios", ["auto"])}
    if plugin.kind != "training" and isinstance(trainer := entry.get("trainer"), str):
        mistakes.append(f"{where}.trainer: is '{trainer}'; {module} is not trained, leave it out")
    if entry.get("fit_batch") and type(entry.get("batch_size")) is not int:
        mistakes.append(
            f"{where}.fit_batch: is true; it is for a training whose batch_size is a number"
        )
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


def resolve(config: Mapping[str, Any], name: str = "config") -> dict[str, Any]:
    """A checked config with every default filled in.

    Args:
        name: of the file, for the errors.

    Raises:
        UserError: all mistakes, one line each, each beginning with `name`.
    """
    config = of_model.expanded(config)
    if mistakes := check(config):
        raise UserError("\n".join(f"{name}: {line}" for line in mistakes))
    resolved = model.validated(Experiment, config).model_dump()
    for key, entry in resolved["datasets"].items():
        foreign = dataset_spec.foreign_keys(entry["kind"])
        resolved["datasets"][key] = {k: v for k, v in entry.items() if k not in foreign}
    common = {"device_kinds": Workload.model_fields["device_kinds"].default}
    common |= {axis: resolved[axis] for axis in ("backends", "precisions", "scenarios", "repeats")}
    for key, entry in resolved["workloads"].items():
        own = model.validated(entry_model(entry["module"]), entry).model_dump(exclude_unset=True)
        timing = resolved["timing"] | own.get("timing", {})
        defaults = plugins.load("workloads", entry["module"]).defaults()
        resolved["workloads"][key] = copy.deepcopy(common | defaults | own | {"timing": timing})
    return resolved
