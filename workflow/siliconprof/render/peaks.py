"""Memory: what the model predicts against the peak that was measured, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.equal_work import compiles
from siliconprof.render import hover, marks, style
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Row, has_no_speed, label, model

WITHIN = 0.15  # of the measured peak: what the memory model promises, for tiny and larger models
NOT_PROMISED = ("nano",)
MIB = 2.0**20
FOLD_ABOVE = 16
NO_PROBE = "the memory probe was not available"
CHECK_ONLY = "a mechanism check: what is offloaded stays in the memory that the peak would count"


def peak(row: Row) -> float | None:
    """The measured peak of device memory in bytes; None where nothing counts it."""
    return words.number(row.get("device_peak_bytes"))


def predicted(row: Row) -> float | None:
    """What was predicted for the training as it ran, in bytes; None where nothing was."""
    column = "predicted_offloaded_bytes" if row.get("offloads") else "predicted_memory_bytes"
    return words.number(row.get(column))


def predicted_over_measured(row: Row) -> float | None:
    """The ratio of the two; None where one is missing, or they are of different memories.

    Of an offloaded training the prediction is what stays on the device. Where that is the host's
    own memory, a measured peak holds what was offloaded as well. What is predicted is an eager
    step's, which keeps more than a compiled one.
    """
    if has_no_speed(row) or compiles(row):
        return None
    foretold, measured = predicted(row), peak(row)
    return foretold / measured if foretold and measured else None


def is_within(ratio: float) -> bool:
    """Whether a prediction is near enough."""
    return abs(ratio - 1) <= WITHIN


def checked(data: Data) -> list[tuple[Row, float]]:
    """Training points of which both numbers are known, with their ratio."""
    pairs = ((row, predicted_over_measured(row)) for row in data.training())
    return [(row, ratio) for row, ratio in pairs if ratio is not None]


def finding(data: Data) -> Finding | None:
    """How many predictions lie within the band, and each that does not."""
    compared = checked(data)
    if not compared:
        return None
    promised = [(row, ratio) for row, ratio in compared if row.get("size") not in NOT_PROMISED]
    n_promised_within = sum(is_within(ratio) for _, ratio in promised)
    rest = len(compared) - len(promised)
    n_other_within = sum(is_within(ratio) for _, ratio in compared) - n_promised_within
    within = f"within {words.whole_percent(WITHIN)} of the measured one"
    parts = []
    if promised:
        parts.append(
            f"{n_promised_within} of {words.count(len(promised), 'cell')} of tiny and larger models"
        )
    if rest:
        parts.append(
            f"{n_other_within} of {words.count(rest, 'cell')} of nano, for which it promises nothing"
        )
    sentence = f"The memory model's peak lies {within} in {' and in '.join(parts)}."
    return Finding(
        "Predicted memory", sentence, [_miss(*pair) for pair in missed(compared)], "peaks"
    )


def missed(compared: Iterable[tuple[Row, float]]) -> list[tuple[Row, float]]:
    """Those outside, the farthest first."""
    return sorted((p for p in compared if not is_within(p[1])), key=lambda pair: -abs(pair[1] - 1))


def _miss(row: Row, ratio: float) -> str:
    foretold, measured = predicted(row), peak(row)
    assert foretold and measured
    return (
        f"Missed: {model(row)}, {label(row)}: predicted {words.mebibytes(foretold)}, measured "
        f"{words.mebibytes(measured)} ({_difference(ratio)})."
    )


def _difference(ratio: float) -> str:
    return f"{'+' if ratio > 1 else '−'}{words.whole_percent(abs(ratio - 1))}"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """The figure where anything can be compared, and the table of all trainings."""
    rows = [row for points, _ in data.families().values() for row in points]
    if not rows:
        return
    book.heading("Predicted and measured peaks", anchor=f"{prefix}peaks")
    compared = checked(data)
    if compared:
        book.figure(f"{prefix}peaks", "peaks", partial(draw, data, compared))
    else:
        book.note(
            "No prediction can be compared with a measured peak: nothing counts device memory "
            "here, or the memory model predicts nothing."
        )
    fold = words.count(len(rows), "training cell") if len(rows) > FOLD_ABOVE else ""
    book.table(f"{prefix}memory", "memory", table(rows), folded=fold)


def draw(data: Data, compared: list[tuple[Row, float]], narrow: bool) -> Any:
    """Predicted over measured against the measured peak; what lies outside the band is named.

    A dot's shape tells its device, or of one device alone its model.
    """
    width, left, foot, high = style.width_in(narrow), 0.5, 0.42, 2.3
    rows = [row for row, _ in compared]
    places = style.devices(rows, data.device_name, 3.6)
    shapes = {
        name: mark
        for name, mark in zip(dict.fromkeys(row["module"] for row in rows), "oDs^v", strict=False)
    }
    entries = [
        *style.backends(rows, 3.6),
        *(
            places
            or [
                (
                    style.sample(mark, color=style.MUTED, markersize=3.6, markerfacecolor="none"),
                    name,
                )
                for name, mark in shapes.items()
            ]
        ),
        (style.swatch(style.shade("grey", 12)), f"within {words.whole_percent(WITHIN)}"),
    ]
    head = style.legend_height(entries, width) + 0.1
    figure = style.canvas(width, head + high + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.1, high)
    sizes = [measured / MIB for row, _ in compared if (measured := peak(row))]
    low, top = min(sizes) / 1.5, max(sizes) * 1.5
    ratios = [ratio for _, ratio in compared]
    ax.set_xscale("log")
    ax.set_xlim(low, top)
    ax.set_ylim(min(0.7, min(ratios) * 0.93), max(1.3, max(ratios) * 1.07))
    ax.axhspan(1 - WITHIN, 1 + WITHIN, color=style.shade("grey", 12), linewidth=0)
    ax.axhline(1, color=style.MUTED, linewidth=0.6)
    for (row, ratio), size in zip(compared, sizes, strict=True):
        shape = style.device_mark(row["device"]) if places else shapes.get(row["module"], "o")
        dot = ax.plot([size], [ratio], shape, markersize=3.6, color=style.colour(row))
        marks.tag(
            dot,
            row,
            f"{hover.training(row)}: predicted {words.mebibytes(predicted(row) or 0)}, "
            f"measured {words.mebibytes(size * MIB)}, ratio "
            f"{words.significant(ratio)}",
        )
    for name, apart in _missed_models(compared):
        x, y = (sum(axis) / len(apart) for axis in zip(*apart, strict=True))
        right = x > (low * top) ** 0.5
        edge = min(x for x, _ in apart) if right else max(x for x, _ in apart)
        model_label = f"{name}: {words.count(len(apart), 'cell')}"
        ax.annotate(
            model_label,
            (edge, y),
            (-6 if right else 6, 0),
            textcoords="offset points",
            va="center",
            ha="right" if right else "left",
            size=style.SMALL_PT,
            color=style.MUTED,
        )
    style.log_ticks(ax.xaxis, low, top)
    style.plain_ticks(ax.yaxis, 6)
    ax.grid(axis="y")
    ax.set_xlabel("measured peak / MiB", size=style.SMALL_PT)
    ax.set_ylabel("predicted / measured", size=style.SMALL_PT)
    return figure


def _missed_models(
    compared: list[tuple[Row, float]],
) -> list[tuple[str, list[tuple[float, float]]]]:
    """(model, [(measured MiB, ratio)]) of cells outside the band; above and below it apart."""
    groups: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for row, ratio in missed(compared):
        groups.setdefault((model(row), ratio > 1), []).append(((peak(row) or 0) / MIB, ratio))
    return [(name, places) for (name, _), places in groups.items()]


def table(rows: list[Row]) -> Table:
    """Prediction, peak, their ratio and the verdict; beside them the process as a whole."""
    result = Table(
        [
            *NAMES,
            Column(
                "predicted",
                "MiB",
                True,
                "before it ran; what stays on the device of an offloaded one",
            ),
            Column(
                "device peak", "MiB", True, "the most memory that was ever in use on the device"
            ),
            Column("predicted / measured", "", True),
            Column("Verdict"),
            Column("RSS at start", "MiB", True, "resident after imports, before the model"),
            Column("RSS peak", "MiB", True, "largest of about ten samples a second"),
            Column("RSS growth", "MiB", True, "the peak without what the imports had taken"),
        ]
    )
    counted = {
        f"{row['backend']}: {row['device_peak_means']}"
        for row in rows
        if peak(row) and row.get("device_peak_means")
    }
    result.notes = [f"Device peak, {means_text}." for means_text in sorted(counted)]
    for row in rows:
        ratio = predicted_over_measured(row)
        start, most = (
            words.number(row[n]) for n in ("rss_at_start_bytes", "rss_peak_sampled_bytes")
        )
        means = row.get("device_peak_means")
        why = f"no peak: {means}" if means else "nothing counts device memory in this backend"
        apart = CHECK_ONLY if has_no_speed(row) else "one of the two is missing"
        result.add(
            *names(row),
            quantity(predicted(row), "nothing was predicted for it as it ran", MIB),
            quantity(peak(row), why, MIB),
            quantity(ratio, apart),
            _verdict(ratio, apart),
            quantity(start, NO_PROBE, MIB),
            quantity(most, NO_PROBE, MIB),
            quantity(most - start if start and most else None, NO_PROBE, MIB),
            of=row,
        )
    return result


def _verdict(ratio: float | None, why_none: str) -> Value:
    if ratio is None:
        return missing(why_none)
    if is_within(ratio):
        return Value(f"within {words.whole_percent(WITHIN)}", sort=abs(ratio - 1))
    return Value(f"missed, {_difference(ratio)}", sort=abs(ratio - 1), mark="bad")
