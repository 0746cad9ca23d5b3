"""A run on a cluster as Snakemake sees it: rules per label, cells once a node has been detected.

Snakemake 9 forgets the jobs of a Snakemake that was killed, so the next one submits their cells
again while the first jobs may still run. The host's lock keeps two on one node apart; each writes a
whole record under a temporary name, so the last stands and the history has both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from siliconprof import fingerprint
from siliconprof.cells import cluster, matrix
from siliconprof.errors import UserError
from siliconprof.hosts import detect, host_file, node_check, registry
from siliconprof.pipeline.run_here import Detecting, Measuring, cells_of
from siliconprof.store import record
from siliconprof.store.cell import canonical_json


class Nodes:
    """The hosts of a run on the cluster; `run_here.Here` is the counterpart of any other run.

    Args:
        checkpoints: Snakemake's, in the main process; None in a job.

    Raises:
        UserError: the config's devices or labels are wrong.
    """

    def __init__(
        self,
        experiment: Mapping[str, Any],
        devices: registry.Registry,
        results: Path,
        checkpoints: Any,
    ) -> None:
        self.experiment = experiment
        if checkpoints is not None:  # a job's own host is a node, which may be named as a label is
            cluster.check(experiment, devices, host_file.submitting(results, experiment["host"]))
        self.not_measured = cluster.missing(experiment, devices)
        self.labels = cluster.chosen(experiment)
        self.focus: list[str] = []
        self.facts_sha256 = None  # what a node is, a checkpoint finds, and its file is an input
        self._results = results
        self._checkpoints = checkpoints
        if checkpoints is not None:
            self._refuse_imported()
        self._expanded: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}

    def _refuse_imported(self) -> None:
        """Refuse to overwrite imported records: an import leaves a note, see `bundle_import`.

        Raises:
            UserError: one line for each label.
        """
        notes = {label: self._results / "imported" / f"{label}.json" for label in self.labels}
        lines = [
            f"config: cluster.{label}: records of a host with this label were imported; choose "
            f"another label, or delete {note} if they may be replaced"
            for label, note in notes.items()
            if note.exists()
        ]
        if lines:
            raise UserError("\n".join(lines))

    def cells(self, label: str) -> Mapping[str, Mapping[str, Any]]:
        """Cell path -> what its rule needs, for one label.

        Raises:
            snakemake.exceptions.IncompleteCheckpointException: a node must be detected first, or
                again; Snakemake does that and calls this again.
        """
        if self._checkpoints is not None:
            getattr(self._checkpoints, f"host_{label}").get()
        path = self._host_file(label)
        key = label, path.stat().st_mtime_ns
        if key not in self._expanded:
            self._expanded[key] = self._needs(host_file.stored(self._results, label))
        return self._expanded[key]

    def _host_file(self, label: str) -> Path:
        return self._results / "hosts" / f"{label}.json"

    def _needs(self, host: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        expansion = matrix.expand_node(self.experiment, host)
        longest_s = cluster.longest_s(self.experiment)
        needs = expansion.by_path()
        for planned in expansion.cells:
            entry = self.experiment["workloads"][planned.cell.workload]
            minutes = cluster.minutes(entry["timing"], longest_s)
            needs[planned.cell.path]["minutes"] = minutes
        return needs

    def records(self) -> list[Callable[[Any], list[str]]]:
        """A function per label, so that a label whose nodes are not available delays no other."""

        def of(label: str) -> Callable[[Any], list[str]]:
            return lambda wildcards: [f"results/records/{path}.json" for path in self.cells(label)]

        return [of(label) for label in self.labels]

    def planned(self) -> list[matrix.PlannedCell]:
        """The cells of the labels whose nodes have been detected."""
        return [
            planned
            for label in self.labels
            if self._host_file(label).exists()
            for planned in matrix.expand_node(
                self.experiment, host_file.stored(self._results, label)
            ).cells
        ]

    def lying_here(self) -> list[str]:
        """Records of these labels that exist, today's and others."""
        folders = [self._results / "records" / label for label in self.labels]
        return [path.as_posix() for folder in folders for path in sorted(folder.rglob("*.json"))]

    def prepare(self) -> None:
        """Delete what failed only because the node was of another kind, so that it runs again.

        The config's resources are no input of a cell, so mending them alone would rerun nothing.
        """
        for label in self.labels:
            path = self._host_file(label)
            entry = self.experiment["cluster"][label]
            if path.exists():
                host = host_file.stored(self._results, label)
                if cluster.device_of(entry, host) is None:
                    path.unlink()
        for name in self.lying_here():
            try:
                earlier = record.load(Path(name), check_schema=False)
            except UserError:
                continue  # of an earlier version: measured anew in any case
            if node_check.refused(earlier.reason):
                Path(name).unlink()  # the history keeps it

    def detecting(self) -> list[Detecting]:
        """The checkpoints, one for each label."""
        method = fingerprint.of([*host_file.DETECTOR, "siliconprof.hosts.cluster_host"]).sha256
        checkpoints = []
        for label in self.labels:
            entry = self.experiment["cluster"][label]
            packages = detect.package_versions()
            question = canonical_json({"entry": entry, "packages": packages, "method": method})
            resources = entry["resources"] | {"runtime": cluster.DETECTION_MINUTES}
            checkpoints.append(Detecting(f"host_{label}", label, question, resources))
        return checkpoints

    def measuring(self) -> list[Measuring]:
        """The rules, one for each label; a label's cells are known once a node is detected."""
        rules = []
        for label in self.labels:
            resources = {"runtime": self._minutes} | self.experiment["cluster"][label]["resources"]
            rules.append(Measuring(f"measure_{label}", cells_of([label]), resources))
        return rules

    def _minutes(self, wildcards: Any) -> int:
        return self.cells(wildcards.cell.split("/")[0])[wildcards.cell]["minutes"]
