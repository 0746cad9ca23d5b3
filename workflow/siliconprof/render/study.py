"""Seed 003's study: the grid, wide against deep, the optimizer sweep, and what the seed printed."""

from __future__ import annotations

from collections.abc import Callable

from siliconprof import words
from siliconprof.hosts import registry
from siliconprof.render import beside, grid, optimizer_sweep, wide_deep
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, published
from siliconprof.render.variants import Row, has_no_speed

PUBLISHED = "seed003_speedups"
NO_PAIR = "the two models were not trained on both of these devices"
NO_NORMS = "no wide and deep model were trained alike"


def add(own: Data, book: Book, everyone: Data) -> None:
    """The study's section.

    Args:
        everyone: with other hosts and reference bundles, for what stands beside printed numbers.
    """
    if present(own):
        grid.add(own, book)
        wide_deep.add(own, book)
        optimizer_sweep.add(own, book)
    else:
        book.note(
            "No transformer grid, no whole training and no optimizer sweep is part of the "
            "experiment on this host; what seed 003 printed stands among the published "
            "numbers."
        )
    if present(everyone):
        book.heading("What seed 003 printed", anchor="seed003")
        book.table("seed003", "seed003", statements(everyone))


def present(part: Data) -> bool:
    """Whether a host measured anything of this study."""
    modules = (grid.MODULE, optimizer_sweep.MODULE)
    return any(
        cell["module"] in modules or cell["trainer"] == wide_deep.TRAINER for cell in part.cells
    )


def add_elsewhere(part: Data, book: Book, prefix: str) -> None:
    """The same of another host or a reference bundle."""
    grid.add(part, book, prefix)
    wide_deep.add(part, book, prefix)
    optimizer_sweep.add(part, book, prefix)


def statements(data: Data) -> Table:
    """Each printed statement beside the results of our own trainings and of data sheets."""
    table = Table(
        [
            Column("Statement"),
            Column("Value"),
            Column("Compared"),
            Column("Of what", folds=True),
            Column("measured", folds=True),
            Column("by data sheets", "×", True, folds=True),
            Column("Source", folds=True),
            Column("How to read it", folds=True),
        ]
    )
    for row in data.published[PUBLISHED]:
        devices = [row["device_a"], row["device_b"]]
        names = [
            data.registry["devices"][device]["name"]
            for device in devices
            if device in data.registry["devices"]
        ]
        unit = {"times": "×"}.get(row["unit"] or "", row["unit"] or "")
        table.add(
            Value(row["statement"], sort=row["statement"], mark="prose"),
            published(f"{row['value_min']} {unit}".strip(), row["source"]),
            Value(" against ".join(names) or words.DASH, mark="prose"),
            Value(row["model"] or words.DASH, sort=row["model"] or "", mark="prose"),
            _measured(data, row),
            _by_sheets(data, row),
            Value(row["source"], sort=row["source"], mark="prose"),
            Value(row["note"] or "", mark="note"),
        )
    return table


def _measured(data: Data, row: Row) -> Value:
    """Our measurement for a statement: longer elevated norms, or how many times as fast one is."""
    trained_pairs = [pair for pair in wide_deep.pairs(wide_deep.trainings(data))]
    if row["unit"] != "times":
        return _norms(data, trained_pairs)
    models_named = str(row["model"] or "")
    sides: list[tuple[str, Callable[[tuple[Row, Row]], Row]]] = [
        (name, pick)
        for name, pick in (("wide", lambda pair: pair[0]), ("deep", lambda pair: pair[1]))
        if name in models_named or "both" in models_named
    ]
    ratios = []
    for name, pick in sides:
        models = [pick(pair) for pair in trained_pairs if not has_no_speed(pick(pair))]
        a, b = (
            [m for m in models if m["device"] == row[side]] for side in ("device_a", "device_b")
        )
        for fast in a:
            for slow in b:
                if _alike(fast, slow):
                    ratios.append(f"{name}: {_ratio(fast, slow)}")
    return Value("; ".join(ratios), mark="measured") if ratios else missing(NO_PAIR)


def _alike(a: Row, b: Row) -> bool:
    """Whether two trainings do the same work by the same method."""
    same = ("n_parameters", "samples_per_step", "tokens_per_step", "precision", "method_version")
    took = (words.number(row.get("unsplit_step_median_s")) for row in (a, b))
    return all(a.get(name) == b.get(name) for name in same) and all(took)


def _ratio(fast: Row, slow: Row) -> str:
    times = slow["unsplit_step_median_s"] / fast["unsplit_step_median_s"]
    sides = " against ".join(
        f"{words.backend_name(row)} {beside.origin(row)}" for row in (fast, slow)
    )
    return f"{words.significant(times)} × ({sides}, {fast['precision']})"


def _norms(data: Data, trained_pairs: list[tuple[Row, Row]]) -> Value:
    differences = []
    for wide, deep in trained_pairs:
        ends = [wide_deep.elevated_until(data, row) for row in (wide, deep)]
        if ends[0] is not None and ends[1] is not None:
            more = f"{ends[1] - ends[0]:+d}".replace("-", "−")
            differences.append(
                f"{more} steps ({words.backend_name(deep)}, {deep['device']}, "
                f"{deep['precision']}) {beside.origin(deep)}"
            )
    return Value("; ".join(differences), mark="measured") if differences else missing(NO_NORMS)


def _by_sheets(data: Data, row: Row) -> Value:
    """The ratio of both devices' fp32 peaks, computed from the registry."""
    entries = [data.registry["devices"].get(row[side]) for side in ("device_a", "device_b")]
    peaks = [registry.peak_tflops(entry, "fp32") if entry else None for entry in entries]
    if row["unit"] != "times" or not peaks[0] or not peaks[1]:
        return missing("no two peaks in fp32 to compare")
    ratio = peaks[0] / peaks[1]
    title = f"computed from the registry: {peaks[0]:g} over {peaks[1]:g} TFLOPS in fp32"
    return Value(words.significant(ratio), sort=ratio, mark="computed", title=title)
