"""results/matrix.json, as every stage after the expansion reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents, validation
from siliconprof.store.cell import AXES

PARTS = {"experiment": dict, "host": dict, "hosts": list, "cells": list, "not_measured": list}


def read(path: Path) -> dict[str, Any]:
    """The expansion: `experiment`, `host`, `hosts`, `cells`, `not_measured`, see `matrix.main`.

    Raises:
        UserError: the file is missing or damaged; one line.
    """
    try:
        document = documents.read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); delete it to have it made again") from None
    if isinstance(document, dict):
        document.setdefault("hosts", [document.get("host")])  # of a version that knew one host
    problem = _problem(document)
    if problem:
        raise UserError(f"{path}: damaged ({problem}); delete it to have it made again")
    return document


def _problem(document: Any) -> str | None:
    """The first problem that would stop a stage, or None."""
    if not isinstance(document, dict):
        return "not a mapping"
    for part, kind in PARTS.items():
        if not isinstance(document.get(part), kind):
            return f"no {part}"
    schema = validation.load_schema("host")
    problems = validation.problems(document["host"], schema, "host.")
    for index, host in enumerate(document["hosts"]):
        problems += validation.problems(host, schema, f"hosts.{index}.")
    report = document["experiment"].get("report", {})
    schema = validation.load_schema("config")["properties"]["report"]
    problems += validation.problems(report, schema, "experiment.report.")
    if problems:
        return problems[0]
    for index, planned in enumerate(document["cells"]):
        cell = planned.get("cell") if isinstance(planned, Mapping) else None
        axes = [str(cell.get(axis)) for axis in AXES] if isinstance(cell, Mapping) else []
        if not axes:
            return f"cells.{index} is not a cell"
        if not str(planned.get("record")).endswith(f"/records/{'/'.join(axes)}.json"):
            return f"cells.{index}.record is not the path of that cell's record"
    for index, missing in enumerate(document["not_measured"]):
        values = missing.values() if isinstance(missing, Mapping) else [None]
        if not all(isinstance(value, str) for value in values) or "device" not in missing:
            return f"not_measured.{index} is not a device with a reason"
    return None
