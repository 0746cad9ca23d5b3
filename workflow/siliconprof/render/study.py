"""The wide/deep report's study: the grid, wide against deep, the optimizer sweep, and what it printed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from siliconprof import words
from siliconprof.hosts import registry
from siliconprof.render import beside, grid, grid_points, optimizer_sweep, wide_deep
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, published, told
from siliconprof.render.variants import Row, has_no_speed

PUBLISHED = "wide_deep_report_speedups"
SIDES = ("device_a", "device_b")
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
            "experiment on this host; what the wide/deep report printed stands among the published "
            "numbers."
        )
    if present(everyone):
        book.heading("What the wide/deep report printed", anchor="wide-deep-printed")
        book.table("wide-deep-printed", "wide-deep-printed", statements(everyone))


def present(part: Data) -> bool:
    """Whether a host measured anything of this study."""
    modules = (grid_points.MODULE, optimizer_sweep.MODULE)
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
    known = data.registry["devices"]
    trained = wide_deep.pairs(wide_deep.trainings(data))

    def compared(row: Row) -> str:
        ids = (row["device_a"], row["device_b"])
        return " against ".join(known[name]["name"] for name in ids if name in known)

    def measured(row: Row) -> Value:
        times = row["unit"] == "times"
        texts = _speedups(row, trained) if times else _norms(data, trained)
        none = missing(NO_PAIR if times else NO_NORMS)
        return Value("; ".join(texts), mark="measured") if texts else none

    def by_sheets(row: Row) -> Value:
        entries = [known.get(row[side]) for side in SIDES]
        peaks = [registry.peak_tflops(entry, "fp32") if entry else None for entry in entries]
        if row["unit"] != "times" or not peaks[0] or not peaks[1]:
            return missing("no two peaks in fp32 to compare")
        ratio = peaks[0] / peaks[1]
        title = f"computed from the registry: {peaks[0]:g} over {peaks[1]:g} TFLOPS in fp32"
        return Value(words.significant(ratio), sort=ratio, mark="computed", title=title)

    columns = [
        told("Statement", "statement", mark="prose"),
        told("Value", _printed),
        told("Compared", lambda row: Value(compared(row) or words.DASH, mark="prose")),
        told("Of what", "model", folds=True, mark="prose"),
        told("measured", measured, folds=True),
        Column("by data sheets", "×", True, folds=True, value=by_sheets),
        told("Source", "source", folds=True, mark="prose"),
        told("How to read it", lambda row: Value(row["note"] or "", mark="note"), folds=True),
    ]
    return Table.of(data.published[PUBLISHED], columns, about=lambda row: None)


def _printed(row: Row) -> Value:
    unit = {"times": "×"}.get(row["unit"] or "", row["unit"] or "")
    return published(f"{row['value_min']} {unit}".strip(), row["source"])


def _speedups(row: Row, trained: Sequence[tuple[Row, Row]]) -> list[str]:
    """How many times as fast one device trains either model, or both, as the other device."""
    of = str(row["model"] or "")
    texts = []
    for index, name in enumerate(("wide", "deep")):
        models = [pair[index] for pair in trained if not has_no_speed(pair[index])]
        fast, slow = ([m for m in models if m["device"] == row[side]] for side in SIDES)
        if name in of or "both" in of:
            texts += [f"{name}: {_ratio(*two)}" for two in product(fast, slow) if _alike(*two)]
    return texts


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


def _norms(data: Data, trained: Sequence[tuple[Row, Row]]) -> list[str]:
    """How many steps longer the deep model's norms are elevated."""
    texts = []
    for pair in trained:
        wide_end, deep_end = (wide_deep.elevated_until(data, row) for row in pair)
        if wide_end is not None and deep_end is not None:
            deep, more = pair[1], f"{deep_end - wide_end:+d}".replace("-", "−")
            where = f"{words.backend_name(deep)}, {deep['device']}, {deep['precision']}"
            texts.append(f"{more} steps ({where}) {beside.origin(deep)}")
    return texts
