"""docs/columns.md, generated from what `columns` reads: `make docs` writes it.

What many tables share is printed once, and what `columns.yaml` names under `docs` is left out. A
test compares the committed file with this output, so the two cannot drift apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase

from siliconprof import declarations, formatting
from siliconprof.store import columns, validation
from siliconprof.store.columns import Column

COLUMNS_INTRODUCTION = """\
# Columns of the tables

A run writes these tables to `results/tables/`, as CSV files, and `results.csv` beside that folder;
[notebook.md](notebook.md) reads them as pandas frames. An empty value is a missing one. `make docs`
makes this page of the models of records (`contents.py` and `point.py` in `workflow/siliconprof/store/`),
the plug-ins, and `columns.yaml` beside those models; it lists what later versions keep, and those
files the rest.

Where a column is listed, others may stand beside it:

- `_reason`, `_how`, `_means`, `_note`: why it is missing, where it is from, what counts it, what to
  know of it;
- `_low` and `_high` (`_low_s`, `_low_ms`): the ends of its 95 % interval;
- `fast_` and `slow_` before a name: of the faster and of the slower training of a pair;
- `_largest` beside `_smallest`: the same at the largest batch, not the smallest;

"""
DOCS_HEADER = ["| Column | Type | Unit | Meaning |", "| --- | --- | --- | --- |"]


def _table(declared: Mapping[str, Column]) -> list[str]:
    return DOCS_HEADER + [
        f"| `{name}` | {column.type} | {column.unit} | {column.help} |"
        for name, column in declared.items()
    ]


def _of_points() -> list[str]:
    """What points.csv has of every time in repeats, and of every parameter."""
    times = [
        f"`{name.removesuffix('_s')}` ({quantity.label})"
        for name, quantity in declarations.quantities().items()
        if quantity.series
    ]
    parameters = [f"`{name}` ({one.label})" for name, one in declarations.parameters().items()]
    parts = [
        f"`_{part}` ({c.help.removeprefix('{label}: ')})" for part, c in columns.series().items()
    ]
    return [
        "A time that is measured in repeats is six columns, such as `forward_n` and "
        f"`forward_median_s`: {formatting.listing(parts)}. So are {formatting.listing(times)}.",
        "",
        f"Parameters of points, each where its workload has it: {formatting.listing(parameters)}.",
        "",
    ]


def document() -> str:
    """The whole page."""
    file = validation.load_yaml(columns.COLUMNS_FILE)
    skipped = file["docs"]
    detailed = {
        name: columns.columns_of_table(name)
        for name in columns.tables()
        if name not in skipped["tables"]
    }
    uses = Counter(pair for declared in detailed.values() for pair in declared.items())
    shared = {name: column for (name, column), n in uses.items() if n > 1}
    stems = [name.removesuffix("_s") for name, q in declarations.quantities().items() if q.series]
    of_points = {f"{stem}_{part}" for stem in stems for part in columns.series()}
    of_points |= set(declarations.parameters())
    lines = [COLUMNS_INTRODUCTION + "## Columns of several tables", "", *_table(shared), ""]
    for name, declared in detailed.items():
        patterns = skipped["columns"]["all"] + skipped["columns"].get(name, [])
        own = {
            column: one
            for column, one in declared.items()
            if shared.get(column) != one
            and not any(fnmatchcase(column, pattern) for pattern in patterns)
            and not (name == columns.POINTS and column in of_points)
        }
        what = file["tables"][name].get("begins_with")
        begins = f" Begins with the columns that name a {what}." if what else ""
        lines += [f"## {name}.csv", "", columns.tables()[name] + begins, "", *_table(own), ""]
        if name == columns.POINTS:
            lines += _of_points()
    others = [f"- `{name}.csv`: {columns.tables()[name]}" for name in skipped["tables"]]
    return "\n".join([*lines, "## Other tables", "", *others, ""])


if __name__ == "__main__":
    sys.stdout.write(document())
