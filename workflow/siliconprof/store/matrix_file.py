"""results/matrix.json, as every stage after the expansion reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import contents, documents, validation
from siliconprof.store.cell import Cell, canonical_sha256

PARTS = {"experiment": dict, "host": dict, "hosts": list, "cells": list, "not_measured": list}


def experiment_file(experiment: Mapping[str, Any]) -> str:
    """Where a resolved config lies: named by its content, so that another is a newer file in any case."""
    return f"results/experiments/{canonical_sha256(experiment)[:16]}.json"


class Planned(contents.Part):
    """A cell of the run, and the path of its record."""

    cell: Cell
    record: str


class Matrix(contents.Part):
    """The expansion of a config, see `cells.matrix`."""

    experiment: Mapping[str, Any]  # the resolved config
    host: Mapping[str, Any]  # the host file that the page is about
    hosts: Sequence[Mapping[str, Any]]  # of all that the run measures
    cells: Sequence[Planned]
    not_measured: Sequence[Mapping[str, str]]  # a device, and the reason

    @property
    def labels(self) -> list[str]:
        """Of the hosts that the run measures; the page may be about another."""
        return [host["label"] for host in self.hosts]

    @property
    def report(self) -> Mapping[str, Any]:
        """What the config says of the page."""
        return self.experiment.get("report", {})


def read(path: Path) -> Matrix:
    """The expansion.

    Raises:
        UserError: the file is missing or damaged; one line.
    """
    try:
        document = documents.read(path)
        if isinstance(document, dict):
            document.setdefault("hosts", [document.get("host")])  # of a version that knew one host
        if problem := _problem(document):
            raise ValueError(problem)
        return contents.made(Matrix, document)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); delete it to have it made again") from None


def _problem(document: Any) -> str | None:
    """The first problem that would stop a stage, or None."""
    if not isinstance(document, dict):
        return "not a mapping"
    for part, kind in PARTS.items():
        if not isinstance(document.get(part), kind):
            return f"no {part}"
    host = validation.load_schema("host")
    report = validation.load_schema("config")["properties"]["report"]
    for value, schema, where in (
        (document["host"], host, "host."),
        *((one, host, f"hosts.{index}.") for index, one in enumerate(document["hosts"])),
        (document["experiment"].get("report", {}), report, "experiment.report."),
    ):
        if problems := validation.problems(value, schema, where):
            return problems[0]
    for index, planned in enumerate(document["cells"]):
        try:
            one = contents.made(Planned, planned)
            if not one.record.endswith(f"/records/{one.cell.path}.json"):
                return f"cells.{index}.record is not the path of that cell's record"
        except (TypeError, AttributeError):
            return f"cells.{index} is not a cell"
    for index, missing in enumerate(document["not_measured"]):
        values = missing.values() if isinstance(missing, Mapping) else [None]
        if not all(isinstance(value, str) for value in values) or "device" not in missing:
            return f"not_measured.{index} is not a device with a reason"
    return None
