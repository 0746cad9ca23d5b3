"""Memory: what the model predicts against the peak that was measured, cell by cell.

And the exact parameter counts of all models, with both formulas for what training them takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.equal_work import compiles
from siliconprof.analyse.published_values import model_and_size
from siliconprof.memory import memory_model
from siliconprof.render import chart, hover, style
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, count, missing, number, published, told
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, has_no_speed, label, model

WITHIN = 0.15  # of the measured peak: what the memory model promises, for tiny and larger models
NOT_PROMISED = ("nano",)
MIB = 2.0**20
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
        f"{words.mebibytes(measured)} ({words.change(ratio - 1)})."
    )


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
    book.table(f"{prefix}memory", "memory", table(rows), counted="training cell")


def draw(data: Data, compared: list[tuple[Row, float]], narrow: bool) -> Any:
    """Predicted over measured against the measured peak; what lies outside the band is named.

    A dot's shape tells its device, or of one device alone its model.
    """
    rows = [row for row, _ in compared]
    places = style.devices(rows, data.device_name, 3.6)
    shapes = dict(zip(dict.fromkeys(row["module"] for row in rows), "oDs^v", strict=False))
    hollow = {"color": style.MUTED, "markersize": 3.6, "markerfacecolor": "none"}
    models = [(style.sample(mark, **hollow), name) for name, mark in shapes.items()]
    shown: list[Mark] = [chart.band(1 - WITHIN, 1 + WITHIN), chart.across(1)]
    for row, ratio in compared:
        foretold, measured = predicted(row) or 0, peak(row) or 0
        shape = style.device_mark(row["device"]) if places else shapes.get(row["module"], "o")
        text = (
            f"{hover.training(row)}: predicted {words.mebibytes(foretold)}, measured "
            f"{words.mebibytes(measured)}, ratio {words.significant(ratio)}"
        )
        shown.append(chart.dot(measured / MIB, ratio, row, text, shape, 3.6))
    sizes = [(peak(row) or 0) / MIB for row in rows]
    middle = (min(sizes) * max(sizes)) ** 0.5
    for (name, _), pairs in grouped(missed(compared), lambda p: (model(p[0]), p[1] > 1)).items():
        apart = [((peak(row) or 0) / MIB, ratio) for row, ratio in pairs]
        x, y = (sum(axis) / len(apart) for axis in zip(*apart, strict=True))
        right = x > middle
        edge = (min if right else max)(x for x, _ in apart)
        text = f"{name}: {words.count(len(apart), 'cell')}"
        side = "right" if right else "left"
        shown.append(chart.note(edge, y, text, shift=(-6 if right else 6, 0), ha=side))
    panel = Panel(
        shown,
        Scale("measured peak / MiB", log=10),
        Scale("predicted / measured", reach=(0.7, 1.3), most=6),
        high=2.3,
    )
    within = (style.swatch(style.shade("grey", 12)), f"within {words.whole_percent(WITHIN)}")
    return Chart([panel], [*style.backends(rows, 3.6), *(places or models), within]).figure(narrow)


def table(rows: list[Row]) -> Table:
    """Prediction, peak, their ratio and the verdict; beside them the process as a whole."""
    counted = {
        f"{row['backend']}: {row['device_peak_means']}"
        for row in rows
        if peak(row) and row.get("device_peak_means")
    }
    return Table.of(rows, COLUMNS, notes=[f"Device peak, {means}." for means in sorted(counted)])


def _why_no_peak(row: Row) -> str:
    means = row.get("device_peak_means")
    return f"no peak: {means}" if means else "nothing counts device memory in this backend"


def _why_apart(row: Row) -> str:
    return CHECK_ONLY if has_no_speed(row) else "one of the two is missing"


def _growth(row: Row) -> float | None:
    start, most = (words.number(row[f"rss_{at}_bytes"]) for at in ("at_start", "peak_sampled"))
    return most - start if start and most else None


def _verdict(row: Row) -> Value:
    ratio = predicted_over_measured(row)
    if ratio is None:
        return missing(_why_apart(row))
    if is_within(ratio):
        return Value(f"within {words.whole_percent(WITHIN)}", sort=abs(ratio - 1))
    return Value(f"missed, {words.change(ratio - 1)}", sort=abs(ratio - 1), mark="bad")


FORETOLD = "before it ran; what stays on the device of an offloaded one"
AT_START = "resident after imports, before the model"
SAMPLED = "largest of about ten samples a second"
COUNTED = "the most memory that was ever in use on the device"
COLUMNS = (
    *NAMES,
    number("predicted", "MiB", predicted, "nothing was predicted for it as it ran", FORETOLD),
    number("device peak", "MiB", peak, _why_no_peak, COUNTED),
    number("predicted / measured", "", predicted_over_measured, _why_apart),
    told("Verdict", _verdict),
    number("RSS at start", "MiB", "rss_at_start_bytes", NO_PROBE, AT_START),
    number("RSS peak", "MiB", "rss_peak_sampled_bytes", NO_PROBE, SAMPLED),
    number("RSS growth", "MiB", _growth, NO_PROBE, "the peak without what the imports had taken"),
)


# -- models --------------------------------------------------------------------------------------


def add_models(data: Data, book: Book) -> None:
    """Every size of every model, whether it was trained here or not."""
    if data.models:
        book.heading("Models", anchor="models")
        book.table("models", "models", models_table(data), vocab=memory_model.VOCAB_SIZE)


def models_table(data: Data) -> Table:
    """Computed from the configurations; what the paper printed stands apart."""
    printed_rows = {
        model_and_size(row["workload_as_printed"]): row
        for row in data.published["table2_workloads"]
    }

    def printed(row: Row) -> Value:
        line = printed_rows.get((row["model"], row["size"]))
        if line is None:
            return missing("not in Table 2")
        return published(line["theoretical_memory_gib"], line["source"])

    columns = (*MODELS, Column("printed in Table 2", "“GiB”", True, value=printed))
    return Table.of(data.models, columns, about=lambda row: None)


SIXTEEN_BYTES = "fp32 weights, gradients, two moments of AdamW"
BYTES = memory_model.BYTES_PER_PARAMETER
FORMULA = "10⁶ parameters × 16 / 1024, computed"
MODELS = (
    told("Model", "model"),
    told("Size", lambda row: Value(row["size"], sort=words.number(row["n_parameters"]))),
    count("parameters", "n_parameters", "unknown", "exact, from the configuration"),
    count("trained with LoRA", "lora_trainable", "has no adapters here", "rank 8"),
    number(
        "16 bytes each",
        "GiB",
        lambda row: BYTES * row["n_parameters"],
        "unknown",
        SIXTEEN_BYTES,
        digits=4,
    ),
    number("the paper's formula", "“GiB”", "paper_gib", "unknown", FORMULA, digits=4),
)
