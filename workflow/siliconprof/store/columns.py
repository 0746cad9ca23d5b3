"""What the columns of the tables mean: `columns.yaml`, and what plug-ins declare of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from siliconprof import declarations, plugins
from siliconprof.store import validation

FILE = Path(__file__).with_suffix(".yaml")
TYPES = {"string": "text"}  # a plug-in's name of a type -> ours, where they differ
POINTS, CELLS, PROBES = "points", "cells", "probes"  # whose columns plug-ins and `~` refer to


class Column(NamedTuple):
    """One column of a table.

    Args:
        type: text, number, integer or boolean.
        help: what it means, in one line.
        unit: SI, such as `s` or `byte/s`; empty for ratios, counts and words.
        optional: it is written where there is something to say.
    """

    type: str
    help: str
    unit: str = ""
    optional: bool = False


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = validation.load_yaml(FILE)
    return document


def tables() -> Mapping[str, str]:
    """What each table is about, by name."""
    return {name: table["help"] for name, table in _document()["tables"].items()}


def series() -> Mapping[str, Column]:
    """The columns of one time in repeats by the end of their names, `{label}` in their help."""
    return {part: Column(**entry) for part, entry in _document()["series"].items()}


@cache
def own(table: str) -> dict[str, Column]:
    """The columns that the file declares for a table, in their order; empty for no such table."""
    tables, shared = _document()["tables"], _document()["shared"]
    declared = tables.get(table, {})
    elsewhere = [shared["cell"], tables[CELLS]["columns"], tables[POINTS]["columns"]]
    known = {name: entry for part in elsewhere for name, entry in part.items() if entry}
    entries = shared.get(declared.get("begins_with"), {}) | declared.get("columns", {})
    return {
        name: Column(**found) if (found := entry or known.get(name)) else _parameters()[name]
        for name, entry in entries.items()
    }


@cache
def of(table: str) -> dict[str, Column]:
    """All columns that a table may have, those of plug-ins among them."""
    if table == POINTS:
        return own(table) | _parameters() | _quantities() | own(table)
    if table == PROBES:
        return own(table) | _read_by_probes()
    return own(table)


def _parameters() -> dict[str, Column]:
    """The parameters of points."""
    return {
        name: Column(TYPES.get(one.type, one.type), one.label, one.unit)
        for name, one in declarations.parameters().items()
    }


def _quantities() -> dict[str, Column]:
    """What points yield: one number, or six of a series."""
    quantities: dict[str, Column] = {}
    for name, quantity in declarations.quantities().items():
        if not quantity.series:
            quantities[name] = Column("number", quantity.label, quantity.unit)
            continue
        for part, column in series().items():
            text = column.help.format(label=quantity.label)
            quantities[f"{name.removesuffix('_s')}_{part}"] = column._replace(help=text)
    return quantities


def _read_by_probes() -> dict[str, Column]:
    """What probes declare of their summaries."""
    return {
        name: Column("number", quantity.label, quantity.unit, optional=True)
        for probe in plugins.names("probes")
        for name, quantity in plugins.load("probes", probe).QUANTITIES.items()
    }
