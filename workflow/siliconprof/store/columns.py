"""The declarations of all columns: fields of a record's models, of plug-ins, or in `columns.yaml`.

A field of a record with a description is a column, see `model.required` and `model.key`. The unit of
a number is the end of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from siliconprof import declarations, plugins
from siliconprof.store import contents, point, validation
from siliconprof.store.cell import AXES, Cell
from siliconprof.store.model import Columns

COLUMNS_FILE = Path(__file__).with_suffix(".yaml")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "text"}
UNITS = {  # by the last word of a number's name
    **{"bytes": "byte", "c": "°C", "cores": "cores", "flops": "FLOP", "gib": "GiB", "j": "J"},
    **{"mhz": "MHz", "mib": "MiB", "ms": "ms", "percent": "%", "s": "s", "seconds": "s"},
    **{"usd": "USD", "w": "W"},
}
RATE_UNITS = {"bytes": "byte/s", "flop": "FLOP/s"}  # by the word before `_per_s`; of counts 1/s
SUMMARY_WORDS = {"median": "median", "min": "lowest", "max": "highest"}  # of what probes read
POINTS, CELLS, PROBES_TABLE = "points", "cells", "probes"
MODELS: Mapping[str, tuple[type, ...]] = {  # table -> models whose fields are its columns
    CELLS: (contents.Record,),
    POINTS: (point.Point,),
    PROBES_TABLE: (contents.Probe,),
    "training_steps": (point.Steps,),
    "operators": (point.Operator, point.Operators),
    "energy": (point.Energy, point.EnergySource),
    "curves": (point.Curve,),
    "evaluations": (point.Evaluation,),
    "texts": (point.Text,),
}


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

    def with_unit(self, name: str) -> Column:
        """The column with the unit that its name ends in, unless it has one."""
        if self.unit or self.type not in ("number", "integer"):
            return self
        *_, end = name.removesuffix("_per_s").split("_")
        rate = RATE_UNITS.get(end, "1/s") if name.endswith("_per_s") else ""
        return self._replace(unit=rate or UNITS.get(end, ""))


# -- of records ----------------------------------------------------------------------------------


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation allows; of a list those of its entries."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {type(value) for value in inner}
    of = inner[:1] if origin is Annotated else inner
    return set().union(*map(_kinds, of)) if of else {annotation}


def _fields(model: Any) -> Mapping[str, FieldInfo]:
    """The fields of a model; `Cell` is none, since measuring processes load it without pydantic."""
    if model is not Cell:
        return model.model_fields
    hints = get_type_hints(Cell, include_extras=True).items()
    described = [(name, hint) for name, hint in hints if get_origin(hint) is Annotated]
    return {n: FieldInfo(annotation=h, description=h.__metadata__[0]) for n, h in described}


@cache
def columns_of_model(model: Any) -> dict[str, tuple[Column, tuple[str, ...]]]:
    """Name -> (column, path of attributes to its value) of a model."""
    found: dict[str, tuple[Column, tuple[str, ...]]] = {}
    for field, info in _fields(model).items():
        of = _kinds(info.annotation)
        kinds = of - {NoneType}
        if info.description:
            name = info.title or field
            type_ = TYPES[float if float in kinds else kinds.pop()]
            found[name] = Column(type_, info.description), (field,)
        for names in (one for one in info.metadata if isinstance(one, Columns)):
            for name, (column, path) in columns_of_model(kinds.pop()).items():
                column = column._replace(optional=NoneType in of)
                found[names.format(name)] = column, (field, *path)
    return found


def row(part: Any) -> dict[str, Any]:
    """The values of a part of a record by column; optional columns only where it has them."""
    values = {}
    for name, (column, (*way, last)) in columns_of_model(part.__class__).items():
        owner = reduce(lambda one, attribute: getattr(one, attribute, None), way, part)
        if owner is not None or not column.optional:
            values[name] = getattr(owner, last, None)
    return values


# -- of tables -----------------------------------------------------------------------------------


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = validation.load_yaml(COLUMNS_FILE)
    return document


def tables() -> Mapping[str, str]:
    """Name of each table -> what it is about."""
    return {name: table["help"] for name, table in _document()["tables"].items()}


def series() -> Mapping[str, Column]:
    """End of a column's name -> column of a time measured in repeats; `{label}` is in its help."""
    return {part: Column(**e).with_unit(part) for part, e in _document()["series"].items()}


def _begin(what: str | None) -> dict[str, Column]:
    """The columns that name a cell, a point or a pair of trainings."""
    cell = {
        "source": Column("text", "whose record it is: this host, another host or reference"),
        **{name: column for name, (column, _) in columns_of_model(Cell).items() if name in AXES},
    }
    point = cell | {"point": Column("integer", "index of the point in its cell")}
    pair = {
        "pair": Column("integer", "number of the pair of trainings"),
        "rule": Column("text", "why these two are compared"),
        **{
            f"{side}_{name}": column._replace(help=f"of the {side}er training: {column.help}")
            for side in ("fast", "slow")
            for name, column in point.items()
        },
    }
    return {"cell": cell, "point": point, "pair": pair}.get(what or "", {})


@cache
def declared_columns(table: str) -> dict[str, Column]:
    """The columns of a table without those of plug-ins, in order; empty if there is no such table."""
    document = _document()["tables"].get(table, {})
    columns = _begin(document.get("begins_with"))
    for model in MODELS.get(table, ()):
        columns |= {name: column for name, (column, _) in columns_of_model(model).items()}
    for names, entry in document.get("columns", {}).items():
        for name in names.split(", "):
            columns[name] = Column(**entry) if entry else _meaning(name, table)
    return {name: column.with_unit(name) for name, column in columns.items()}


def _meaning(name: str, table: str) -> Column:
    """The column of that name in points.csv, else in cells.csv, else of a plug-in."""
    of_points = {} if table == POINTS else declared_columns(POINTS)
    return (_parameters() | declared_columns(CELLS) | of_points)[name]


@cache
def columns_of_table(table: str) -> dict[str, Column]:
    """All columns that a table may have, those of plug-ins among them."""
    if table == POINTS:
        return declared_columns(table) | _parameters() | _quantities() | declared_columns(table)
    if table == PROBES_TABLE:
        return declared_columns(table) | _of_samples() | _read_by_probes()
    return declared_columns(table)


def _parameters() -> dict[str, Column]:
    return {
        name: Column("text" if one.type == "string" else one.type, one.label, one.unit)
        for name, one in declarations.parameters().items()
    }


def _quantities() -> dict[str, Column]:
    """The quantities of points: one column, or six of a series."""
    quantities: dict[str, Column] = {}
    for name, quantity in declarations.quantities().items():
        if not quantity.series:
            quantities[name] = Column("number", quantity.label, quantity.unit)
            continue
        for part, column in series().items():
            text = column.help.format(label=quantity.label)
            quantities[f"{name.removesuffix('_s')}_{part}"] = column._replace(help=text)
    return quantities


def _of_samples() -> dict[str, Column]:
    """Summaries of what probes sample: `gpu_power_median_w` of `gpu_power_w`."""
    return {
        f"{stem}_{statistic}_{end}": column._replace(help=f"{column.help}: {text}")
        for name, column in declared_columns("samples").items()
        for stem, _, end in [name.rpartition("_")]
        for statistic, text in SUMMARY_WORDS.items()
        if column.type == "number" and column.optional
    }


def _read_by_probes() -> dict[str, Column]:
    """The quantities that probes declare."""
    return {
        name: Column("number", quantity.label, quantity.unit, optional=True)
        for probe in plugins.names("probes")
        for name, quantity in plugins.load("probes", probe).QUANTITIES.items()
    }
