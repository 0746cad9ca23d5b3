"""Entries of the claims file, and what the stage says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from conftest import ROOT
from siliconprof.claims import judge
from siliconprof.store import columns, table_files
from synthetic_results import CPU, host_file, run, table

SHIPPED = ROOT / "config/claims.yaml"
Tables = dict[str, list[dict[str, Any]]]


def judged(
    folder: Path, entries: Sequence[Mapping[str, Any]], given: Tables
) -> list[dict[str, Any]]:
    """Run the stage on some claims and tables; return the rows of claims.csv."""
    for name in columns.tables():
        table_files.write(folder / f"tables/{name}.csv", given.get(name, []))
    document = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    (folder / "claims.yaml").write_text(yaml.safe_dump(document | {"claims": list(entries)}))
    matrix = {"experiment": {}, "host": host_file([CPU]), "hosts": [], "cells": []}
    matrix |= {"not_measured": []}
    (folder / "matrix.json").write_text(json.dumps(matrix))
    run(judge, folder, folder / "claims.yaml")
    return table(folder, "claims")


def claim(kind: str, quantity: str, workloads: str, expects: str, **compare: Any) -> dict[str, Any]:
    """An entry of the claims file.

    Args:
        expects: `about 20 0.5`: what is expected, the value and its tolerance where there are any.
    """
    expect, *numbers = expects.split()
    compare |= {"words": [expect]} if kind == "finding" else {"expect": expect}
    if numbers:
        compare["value"] = float(numbers[0])
    if len(numbers) > 1:
        compare |= {"tolerance": float(numbers[1]), "tolerance_reason": "a test"}
    compare.setdefault("cases", "typical")
    compare |= {"kind": kind, "quantity": quantity, "workloads": workloads.split()}
    return {"id": kind, "text": f"A {kind}", "source": "wide/deep report", "compare": compare}


def altered(entry: Mapping[str, Any], name: str, **compare: Any) -> dict[str, Any]:
    """An entry of another name that compares otherwise; None leaves a key out."""
    other = {k: v for k, v in (entry["compare"] | compare).items() if v is not None}
    return dict(entry) | {"id": name, "compare": other}


def shipped() -> list[dict[str, Any]]:
    """The entries of the shipped claims file."""
    entries: list[dict[str, Any]] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))["claims"]
    return entries


GROWS = claim("trend", "throughput", "transformer_grid", "more", of={}, along="batch_size")
