"""What the Snakefile asks at parse time: config, host, matrix, in one call.

Every job of a cluster parses the Snakefile again, under another hostname. So only the main
process looks at the host (in a process of its own; no framework is ever imported here), checks
records and may stop; jobs read what it has stored.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from siliconprof import (
    closure,
    config,
    dataset_spec,
    hosts,
    lock,
    matrix,
    plugins,
    progress,
    provenance,
    records,
    registry,
    source_files,
    validation,
)
from siliconprof.cell import AXES, canonical_json
from siliconprof.child import PIPELINE_VARIABLE, PROGRESS_FILE_VARIABLE
from siliconprof.errors import USER_ERROR_EXIT_STATUS, UserError

RESULTS = Path("results")
REGISTRY = Path("config/devices.yaml")
BUNDLE_SCHEMAS = [f"workflow/schemas/{name}.schema.yaml" for name in ("manifest", "record", "host")]
BUILTIN_TEXT = "workflow/siliconprof/data/builtin_text.txt"
# Plug-ins that a stage loads by name, for all of which it says something: the parameters of every
# model, the code and the packages of every cell, which device would do for a training.
PLUGINS_OF = {
    "aggregate": ("workloads",),
    "render.page": ("backends", "workloads", "trainers"),
    "matrix": ("backends", "workloads", "trainers", "probes", "captures"),
}
NOTHING = "(?!)"  # a pattern that matches no wildcard value


@dataclass(frozen=True)
class Workflow:
    """All that rules look up."""

    experiment: Mapping[str, Any]  # resolved config
    host: str  # label
    cells: Mapping[str, Mapping[str, Any]]  # path of a cell -> what its rule needs
    records: list[str]  # own
    foreign: list[str]  # other hosts', plain leaf inputs
    reference: list[str]  # folders of shipped bundles
    noise_floors: list[str]  # of the hosts that have measured one
    bundle_schemas: list[str]
    template: list[str]  # the page's own files
    published: list[str]
    shown: provenance.Shown  # what Snakemake's own report says of figures and tables
    patterns: Mapping[str, str]  # axis -> regular expression of this host's own values
    experiment_json: str
    datasets: Mapping[str, str]  # name -> canonical JSON of the entry
    dataset_patterns: Mapping[str, str]  # kind -> regular expression of its data sets' names
    dataset_texts: Mapping[str, list[str]]  # name -> the built-in text, where it is of that
    sources: Mapping[str, str]  # name -> a word that changes with the files of a person's folder

    def of_cell(self, key: str) -> Callable[[Any], Any]:
        """What a cell's rule needs, as a function of its wildcards.

        Snakemake's `lookup` would walk through every list of every cell each time.
        """
        return lambda wildcards: self.cells["/".join(getattr(wildcards, a) for a in AXES)][key]

    def code(self, stage: str) -> list[str]:
        """The import closure of a stage's module and of the plug-ins it loads, as inputs."""
        roots = [
            plugins.module_name(kind, name)
            for kind in PLUGINS_OF.get(stage, ())
            for name in plugins.names(kind)
        ]
        return closure.files([f"siliconprof.{stage}", *roots])


def _pattern(values: list[str]) -> str:
    return "|".join(map(re.escape, values)) or NOTHING


def dry_run_asked(argv: Sequence[str]) -> bool:
    """Whether this is `snakemake -n`, or another that measures nothing.

    Snakemake itself knows only after the parse.
    """
    return any(
        word in ("--dry-run", "--dryrun", "--lint", "-l", "--list-rules", "--summary")
        or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", word)
        for word in argv
    )


def _files(pattern: str) -> list[Path]:
    return sorted(path for path in Path().glob(pattern) if path.is_file())


def prepare(raw: Mapping[str, Any], main_process: bool, dry_run: bool) -> Workflow:
    """Resolve config, host and matrix; exit with clear lines when something is wrong.

    Args:
        raw: Snakemake's `config`.
        main_process: false in jobs that parse the Snakefile again.
        dry_run: nothing is set aside; only what the host is may be stored.
    """
    try:
        return _prepare(raw, main_process, dry_run)
    except UserError as error:
        _stop(error)


def check_readable(configfile: str) -> str:
    """The same name, once the file is known to be YAML: Snakemake would not say where it is not."""
    try:
        if not isinstance(validation.load_yaml(configfile), dict):
            raise UserError(f"{configfile}: is empty or no mapping; see config/README.md")
    except UserError as error:
        _stop(error)
    return configfile


def _stop(error: UserError) -> NoReturn:
    print(error, file=sys.stderr)
    sys.stderr.flush()
    raise SystemExit(USER_ERROR_EXIT_STATUS)


def _checked(raw: Mapping[str, Any]) -> tuple[dict[str, Any], registry.Registry]:
    """(experiment, registry), both checked before anything is said.

    Raises:
        UserError: all mistakes of both, one line each.
    """
    mistakes: list[str] = []
    devices: registry.Registry = {"devices": {}}
    try:
        devices = registry.load(REGISTRY)
    except UserError as error:
        mistakes.append(str(error))
    try:
        experiment = config.resolve(raw)
    except UserError as error:
        mistakes.insert(0, str(error))
        if len(mistakes) == 1:
            mistakes += _unknown_devices(raw, devices)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return experiment, devices


def _unknown_devices(raw: Mapping[str, Any], devices: registry.Registry) -> list[str]:
    """Devices that nobody knows, of a config that has other mistakes as well."""
    asked, label = raw.get("devices"), raw.get("host", "auto")
    if not isinstance(asked, list) or not isinstance(label, str):
        return []
    try:
        host = hosts.resolve(RESULTS, label, devices, write=False)
        matrix.select_devices({"devices": [str(name) for name in asked]}, devices, host)
    except UserError as error:
        return [str(error)]
    return []


def _prepare(raw: Mapping[str, Any], main_process: bool, dry_run: bool) -> Workflow:
    experiment, devices = _checked(raw)
    if main_process:
        # In a dry run too: the file is an input, and without it a fresh clone has none to show.
        host = hosts.resolve(RESULTS, experiment["host"], devices)
    else:
        host = hosts.stored(RESULTS, experiment["host"])
    expansion = matrix.expand(experiment, devices, host)
    own = expansion.records()
    foreign = [path.as_posix() for path in matrix.foreign_records(RESULTS, host["label"])]
    # A cluster job inherits the environment of the host that submitted it; the process that its
    # cell must not outlive is the one that parses here.
    os.environ[PIPELINE_VARIABLE] = str(os.getpid())
    os.environ.pop(PROGRESS_FILE_VARIABLE, None)
    if main_process:
        records.set_damaged_aside([*own, *foreign], RESULTS, dry_run)
        if not dry_run:
            lock.clear_stale()
            progress.attach()
    axes = ("device", "backend", "workload", "scenario", "precision")
    patterns = {axis: _pattern(expansion.values(axis)) for axis in axes}
    patterns["host"] = _pattern([host["label"]]) if own else NOTHING
    return Workflow(
        experiment=experiment,
        host=host["label"],
        cells=expansion.by_path(),
        records=own,
        foreign=foreign,
        reference=[f"results/reference/{path.stem}" for path in _files("config/measured/*.zip")],
        noise_floors=[path.as_posix() for path in _files("results/noise-floor/*.json")],
        bundle_schemas=BUNDLE_SCHEMAS,
        template=[path.as_posix() for path in _files("report/*")],
        published=[path.as_posix() for path in _files("config/published/*.csv")],
        shown=provenance.Shown(RESULTS / "figures"),
        patterns=patterns,
        experiment_json=canonical_json(experiment),
        datasets={
            name: canonical_json({"name": name} | entry)
            for name, entry in experiment["datasets"].items()
        },
        dataset_patterns={
            kind: _pattern([n for n, e in experiment["datasets"].items() if e["kind"] == kind])
            for kind in dataset_spec.KINDS
        },
        dataset_texts={
            name: [BUILTIN_TEXT] if entry["source"] == "builtin" else []
            for name, entry in experiment["datasets"].items()
        },
        sources={
            name: source_files.state(Path(matrix.DATA_DIR) / name)
            for name in experiment["datasets"]
        },
    )
