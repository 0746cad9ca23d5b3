"""What the Snakefile asks at parse time: config, host, matrix, in one call.

Every job of a cluster parses the Snakefile again, under another hostname. So only the main
process looks at the host (in a process of its own; no framework is ever imported here), checks
records and may stop; jobs read what it has stored.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
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
    progress,
    records,
    registry,
    validation,
)
from siliconprof.cell import canonical_json
from siliconprof.errors import USER_ERROR_EXIT_STATUS, UserError
from siliconprof.measure import PIPELINE_VARIABLE, PROGRESS_FILE_VARIABLE

RESULTS = Path("results")
REGISTRY = Path("config/devices.yaml")
BUNDLE_SCHEMAS = [f"workflow/schemas/{name}.schema.yaml" for name in ("manifest", "record", "host")]
NOTHING = "(?!)"  # a pattern that matches no wildcard value


@dataclass(frozen=True)
class Workflow:
    """All that rules look up."""

    experiment: Mapping[str, Any]  # resolved config
    host: str  # label
    cells: Mapping[str, Any]  # nested by axis, for lookup()
    records: list[str]  # own
    foreign: list[str]  # other hosts', plain leaf inputs
    reference: list[str]  # folders of shipped bundles
    bundle_schemas: list[str]
    template: list[str]  # the page's own files
    published: list[str]
    patterns: Mapping[str, str]  # axis -> regular expression of this host's own values
    experiment_json: str
    datasets: Mapping[str, str]  # name -> canonical JSON of the entry
    dataset_patterns: Mapping[str, str]  # kind -> regular expression of its data sets' names

    def code(self, stage: str) -> list[str]:
        """The import closure of a stage's module, as inputs."""
        return closure.files([f"siliconprof.{stage}"])


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
        cells=expansion.nested(),
        records=own,
        foreign=foreign,
        reference=[f"results/reference/{path.stem}" for path in _files("config/measured/*.zip")],
        bundle_schemas=BUNDLE_SCHEMAS,
        template=[path.as_posix() for path in _files("report/*")],
        published=[path.as_posix() for path in _files("config/published/*.csv")],
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
    )
