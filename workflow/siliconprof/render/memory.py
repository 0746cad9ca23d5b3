"""Memory of trainings: predicted against measured peaks, memory and page faults over time.

And the exact parameter counts of all models, with both formulas for what training them takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.analyse.equal_work import compiles
from siliconprof.analyse.published_values import model_and_size
from siliconprof.analyse.throughputs import device_of
from siliconprof.memory import memory_model
from siliconprof.render import chart, hover, style
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, count, missing, number, published, told
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, has_no_speed, label

WITHIN = 0.15  # of the measured peak: what the memory model promises, for tiny and larger models
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
    """How far the predictions are from the measured peaks, in the median."""
    ratios = [ratio for _, ratio in checked(data)]
    if not ratios:
        return None
    off = words.whole_percent(float(np.median([abs(ratio - 1) for ratio in ratios])))
    return Finding(
        "Predicted memory",
        f"Peak memory is predicted with a typical error of {off} "
        f"({words.count(len(ratios), 'check')}).",
        "peaks",
    )


def add(data: Data, book: Book) -> None:
    """The table of all trainings."""
    rows = [row for points, _ in data.families().values() for row in points]
    if rows:
        book.heading("Predicted and measured peaks", anchor="peaks")
        book.table("memory", "memory", table(rows), counted="training cell")


def table(rows: list[Row]) -> Table:
    """Prediction, peak, their ratio and the verdict; beside them the process as a whole."""
    counted = {
        f"{row['backend']}: {row['device_peak_means']}"
        for row in rows
        if peak(row) and row.get("device_peak_means")
    }
    return Table.of(rows, PEAKS, notes=[f"Device peak, {means}." for means in sorted(counted)])


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
PEAKS = (
    *NAMES,
    number("predicted", "MiB", predicted, "nothing was predicted for it as it ran", FORETOLD),
    number("device peak", "MiB", peak, _why_no_peak, COUNTED),
    number("predicted / measured", "", predicted_over_measured, _why_apart),
    told("Verdict", _verdict),
    number("RSS at start", "MiB", "rss_at_start_bytes", NO_PROBE, AT_START),
    number("RSS peak", "MiB", "rss_peak_sampled_bytes", NO_PROBE, SAMPLED),
    number("RSS growth", "MiB", _growth, NO_PROBE, "the peak without what the imports had taken"),
)


# -- over time --------------------------------------------------------------------------------

HIGH_IN, RUG_IN = 1.35, 0.05  # height of a panel, and of one cell's line of training steps
MOST_TICKS = 160  # of one cell's line; more than that are one dark stripe


class Quantity(NamedTuple):
    """Something that is sampled.

    Args:
        counts_on: whether it is shown from its first sample on.
    """

    column: str
    title: str
    unit: str
    scale: float
    counts_on: bool = False


DEVICE_MEMORY = Quantity("device_memory_bytes", "Device memory", "MiB", MIB)
QUANTITIES = (
    Quantity("rss_bytes", "Resident memory", "MiB", MIB),
    DEVICE_MEMORY,
    Quantity("minor_faults", "Minor page faults since the start", "thousands", 1e3, True),
    Quantity("major_faults", "Major page faults since the start", "", 1.0, True),
    Quantity("swap_in_bytes", "Swapped in, whole host", "MiB", MIB, True),
    Quantity("swap_out_bytes", "Swapped out, whole host", "MiB", MIB, True),
)


def add_over_time(data: Data, book: Book) -> None:
    """Resident and device memory and page faults of every training family, device by device."""
    for kind, (points, _) in data.families().items():
        for every in grouped(points, device_of).values():
            device = data.slug_of(every[0])
            rows = [row for row in every if not row.get("probes_off")]
            if not rows:
                continue
            if not any(_lines(data, rows, quantity) for quantity in QUANTITIES):
                book.note(
                    f"{kind.name} on {device}: memory and page faults over time are not shown, the "
                    "probes left no samples."
                )
                continue
            uncounted = [row for row in rows if not _lines(data, [row], DEVICE_MEMORY)]
            silent = words.listing(sorted(set(map(words.backend_name, uncounted))))
            book.figure(
                f"memory-{kind.slug}-{device}",
                "memory",
                partial(draw_memory, data, rows),
                family=kind.label,
                device=data.place(rows[0]),
                silent=f" No device memory is drawn for {silent}: no counter." if silent else "",
            )


def _lines(
    data: Data, rows: Sequence[Row], quantity: Quantity
) -> list[tuple[Row, np.ndarray, np.ndarray]]:
    """(row, seconds, values) of each cell that has samples of a quantity."""
    lines = []
    for row in rows:
        seconds, values = data.traces.sampled_values(row, quantity.column)
        if len(values) > 1:
            start = values[0] if quantity.counts_on else 0.0
            lines.append((row, seconds, (values - start) / quantity.scale))
    return lines


def draw_memory(data: Data, rows: Sequence[Row]) -> Any:
    """One panel a quantity that was sampled; a quantity that stayed 0 is left to the caption."""
    panels = []
    for quantity in QUANTITIES:
        lines = _lines(data, rows, quantity)
        most = max((values.max() for _, _, values in lines), default=0.0)
        if most > 0:
            shown = [_line(quantity, *line) for line in lines]
            end_s = max(seconds[-1] for _, seconds, _ in lines) or 1.0
            row_height = most * RUG_IN / HIGH_IN
            rug = _steps(data, rows, row_height, end_s)
            lowest = [-(len(rows) + 1) * row_height] if rug else []
            panels.append(
                Panel(
                    [*shown, *rug],
                    Scale("time since the cell began / s", ends=(0, end_s)),
                    Scale(quantity.unit, zero=True, reach=lowest, ticks=chart.from_zero),
                    title=quantity.title,
                    high=HIGH_IN + (RUG_IN * len(rows) if rug else 0.0),
                )
            )
    legend = style.lines(rows, [label(row) for row in rows])
    return Chart(panels, legend, columns=3 if len(panels) == 3 else 2).figure()


def _line(quantity: Quantity, row: Row, seconds: np.ndarray, values: np.ndarray) -> Mark:
    most = f"{words.significant(float(values.max()))} {quantity.unit}".strip()
    text = f"{hover.training(row)}: {quantity.title.lower()}, at most {most}"
    look = {"dashes": style.dashes(row), "linewidth": 1.1}
    return chart.line(seconds.tolist(), values.tolist(), row, text, **look)


def _steps(data: Data, rows: Sequence[Row], row_height: float, end_s: float) -> list[Mark]:
    """Below 0 a line a cell: a dot where each training step began, small while it warmed up."""
    shown = []
    for index, row in enumerate(rows):
        course = data.traces.course(row)
        if course is None:
            continue
        for warm, size in ((True, 0.8), (False, 1.6)):
            began = course[(course["kind"] == "warm-up") == warm]["started_s"]
            chosen = began[began <= end_s].tolist()
            chosen = chosen[:: -(-len(chosen) // MOST_TICKS) or 1]
            if chosen:
                heights = [-(index + 1) * row_height] * len(chosen)
                shown.append(chart.dots(chosen, heights, row, size=size))
    return shown


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


def _sixteen_bytes(row: Row) -> float:
    return memory_model.BYTES_PER_PARAMETER * row["n_parameters"]


SIXTEEN_BYTES = "fp32 weights, gradients, two moments of AdamW"
FORMULA = "10⁶ parameters × 16 / 1024, computed"
MODELS = (
    told("Model", "model"),
    told("Size", lambda row: Value(row["size"], sort=words.number(row["n_parameters"]))),
    count("parameters", "n_parameters", "unknown", "exact, from the configuration"),
    count("trained with LoRA", "lora_trainable", "has no adapters here", "rank 8"),
    number("16 bytes each", "GiB", _sixteen_bytes, "unknown", SIXTEEN_BYTES, digits=4),
    number("the paper's formula", "“GiB”", "paper_gib", "unknown", FORMULA, digits=4),
)
