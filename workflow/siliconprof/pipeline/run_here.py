"""A run on this host as Snakemake sees it; `cluster_run` is the other kind, with the same methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siliconprof.cells import cluster, matrix
from siliconprof.hosts import host_file, registry
from siliconprof.store.cell import AXES

NOTHING = "(?!)"  # a pattern that matches no wildcard value


@dataclass(frozen=True)
class Measuring:
    """One rule that measures: of this host, or of a label of the cluster."""

    rule: str
    cells: str  # regular expression of the wildcard `cell`: paths of this rule's cells
    resources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Detecting:
    """One checkpoint: what the nodes of a label are."""

    rule: str
    label: str
    asked: str  # what leads to the node and what is installed for it: a change looks again
    resources: Mapping[str, Any]


def pattern(values: Iterable[str]) -> str:
    """A regular expression of these values and no other."""
    return "|".join(map(re.escape, sorted(values))) or NOTHING


def cells_of(labels: Iterable[str]) -> str:
    """A regular expression of the paths of all cells that some hosts could have."""
    return f"(?:{pattern(labels)})" + "/[^/]+" * (len(AXES) - 1)


class Here:
    """The one host of a run that submits nothing.

    Args:
        main_process: whether to detect the host; else its host file is read.
        dry_run: nothing is written.

    Raises:
        UserError: the host, or the config's devices or labels, are wrong.
    """

    def __init__(
        self,
        experiment: Mapping[str, Any],
        devices: registry.Registry,
        results: Path,
        main_process: bool,
        dry_run: bool,
    ) -> None:
        if main_process:
            host = host_file.resolve(results, experiment["host"], devices, write=not dry_run)
        else:
            host = host_file.stored(results, experiment["host"])
        present = [device["id"] for device in host["devices"]]
        cluster.check(experiment, devices, host["label"], present)
        self.host = host
        self.labels = [host["label"]]
        self.facts_sha256 = host_file.facts_sha256(host)
        self._expansion = matrix.expand(experiment, devices, host)
        self._cells = self._expansion.by_path()
        elsewhere = [
            label
            for label in cluster.chosen(experiment)
            if (results / "hosts" / f"{label}.json").exists()
            and any((results / "records" / label).rglob("*.json"))
        ]
        self.focus = [] if self._cells else elsewhere[:1]
        self.not_measured = [
            cluster.not_looked_at(label, experiment["cluster"][label])
            for label in cluster.chosen(experiment)
            if label not in elsewhere
        ]

    def cells(self, label: str) -> Mapping[str, Mapping[str, Any]]:
        """Cell path -> what its rule needs."""
        return self._cells if label in self.labels else {}

    def records(self) -> list[Callable[[Any], list[str]]]:
        """A function for this host's records: three rules would each list every record."""
        return [lambda wildcards: self._expansion.records()]

    def planned(self) -> list[matrix.PlannedCell]:
        """The cells of this run."""
        return self._expansion.cells

    def lying_here(self) -> list[str]:
        """Paths of records to be checked before anything starts."""
        return self._expansion.records()

    def prepare(self) -> None:
        """Nothing is due before a run here."""

    def detecting(self) -> list[Detecting]:
        """No checkpoint: the main process has detected this host."""
        return []

    def measuring(self) -> list[Measuring]:
        """The one rule, for this host's own cells and nothing else."""
        return [Measuring("measure", cells_of(self.labels if self._cells else []))]
