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
from typing import Any

from siliconprof import closure, config, hosts, matrix, progress, records, registry
from siliconprof.cell import canonical_json
from siliconprof.errors import UserError
from siliconprof.measure import PIPELINE_VARIABLE

RESULTS = Path("results")
REGISTRY = Path("config/devices.yaml")
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
    template: list[str]  # the page's own files
    published: list[str]
    patterns: Mapping[str, str]  # axis -> regular expression of this host's own values
    experiment_json: str
    datasets: Mapping[str, str]  # name -> canonical JSON of the entry
    dataset_pattern: str

    def code(self, stage: str) -> list[str]:
        """The import closure of a stage's module, as inputs."""
        return closure.files([f"siliconprof.{stage}"])


def _pattern(values: list[str]) -> str:
    return "|".join(map(re.escape, values)) or NOTHING


def dry_run_asked(argv: Sequence[str]) -> bool:
    """Whether this is `snakemake -n`; Snakemake itself knows only after the parse."""
    return any(
        word in ("--dry-run", "--dryrun") or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", word)
        for word in argv
    )


def _files(pattern: str) -> list[Path]:
    return sorted(path for path in Path().glob(pattern) if path.is_file())


def prepare(raw: Mapping[str, Any], main_process: bool, dry_run: bool) -> Workflow:
    """Resolve config, host and matrix; exit with clear lines when something is wrong.

    Args:
        raw: Snakemake's `config`.
        main_process: false in jobs that parse the Snakefile again.
        dry_run: nothing is stored or set aside.
    """
    try:
        return _prepare(raw, main_process, dry_run)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(2) from None


def _prepare(raw: Mapping[str, Any], main_process: bool, dry_run: bool) -> Workflow:
    experiment = config.resolve(raw)
    devices = registry.load(REGISTRY)
    if main_process:
        host = hosts.resolve(RESULTS, experiment["host"], devices, write=not dry_run)
    else:
        host = hosts.stored(RESULTS, experiment["host"])
    expansion = matrix.expand(experiment, devices, host)
    own = expansion.records()
    foreign = [path.as_posix() for path in matrix.foreign_records(RESULTS, host["label"])]
    if main_process:
        os.environ[PIPELINE_VARIABLE] = str(os.getpid())
        records.set_damaged_aside([*own, *foreign], RESULTS, dry_run)
        if not dry_run:
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
        template=[path.as_posix() for path in _files("report/*")],
        published=[path.as_posix() for path in _files("config/published/*.csv")],
        patterns=patterns,
        experiment_json=canonical_json(experiment),
        datasets={
            name: canonical_json({"name": name} | entry)
            for name, entry in experiment["datasets"].items()
        },
        dataset_pattern=_pattern(list(experiment["datasets"])),
    )
