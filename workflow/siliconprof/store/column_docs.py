"""docs/columns.md, generated from `columns.yaml` and the plug-ins: `make docs` writes it.

A test compares the committed file with this output, so the two cannot drift apart.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from siliconprof import declarations
from siliconprof.store import columns
from siliconprof.store.columns import Column

INTRODUCTION = """\
# Columns of the tables

A run writes these tables to `results/tables/`, as CSV files, and `results.csv` beside that folder;
[notebook.md](notebook.md) reads them as pandas frames. An empty value is a missing one. Every line about a cell begins with the columns
that name the cell. This page is made from `workflow/siliconprof/store/columns.yaml` and the
plug-ins by `make docs`.
"""
TIMES = """\
A time that is measured in repeats is six columns, such as `forward_n` and `forward_median_s`: {parts}.
So are:"""


def _table(declared: Mapping[str, Column]) -> list[str]:
    """A Markdown table of columns."""
    lines = ["| Column | Type | Unit | Meaning |", "| --- | --- | --- | --- |"]
    for name, column in declared.items():
        kind = f"{column.type}, optional" if column.optional else column.type
        lines.append(f"| `{name}` | {kind} | {column.unit} | {column.help} |")
    return lines


def _times() -> list[str]:
    """What points.csv has of every time in repeats."""
    parts = [
        f"`_{part}` ({c.help.removeprefix('{label}: ')})" for part, c in columns.series().items()
    ]
    lines = [TIMES.format(parts=", ".join(parts)), "", "| Time | Meaning |", "| --- | --- |"]
    return lines + [
        f"| `{name.removesuffix('_s')}` | {quantity.label} |"
        for name, quantity in declarations.quantities().items()
        if quantity.series
    ]


def document() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    stems = [name.removesuffix("_s") for name, q in declarations.quantities().items() if q.series]
    of_times = {f"{stem}_{part}" for stem in stems for part in columns.series()}
    for name, text in columns.tables().items():
        declared = columns.of(name)
        lines += [f"## {name}.csv", "", text, ""]
        if columns.besides_key(name):
            told = of_times if name == columns.POINTS else set()
            lines += [*_table({c: one for c, one in declared.items() if c not in told}), ""]
        if name == columns.POINTS:
            lines += [*_times(), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(document())
