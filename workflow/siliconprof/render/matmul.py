"""Matrix products: throughput by shape, backend and precision, two ways of timing side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.render import by_shape
from siliconprof.render.book import Book
from siliconprof.render.by_shape import PRODUCTS, Mark, Rate
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.variants import Row

MARKS = (
    Mark("adaptive median, 95 % interval", True, partial(by_shape.median_rate, PRODUCTS)),
    Mark("mean of a burst", False, partial(by_shape.burst_rate, PRODUCTS)),
)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure for each device and workload, one table; the shapes of trainings have their own."""
    points = data.of_module("matmul")
    if not points:
        book.note(data.why_none("matmul", "matrix product"))
        return
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        if not point["of"] and by_shape.is_timed(point, MARKS):
            groups.setdefault((point["device"], point["workload"]), []).append(point)
    for (device, workload), group in groups.items():
        for index, part in enumerate(by_shape.parts(group)):
            chosen = [point for point in group if by_shape.shape_key(point) in part]
            book.figure(
                f"{prefix}matmul-{workload}-{device}" + (f"-{index + 1}" if index else ""),
                "matmul",
                partial(by_shape.draw, data, chosen, part, PRODUCTS, MARKS, False),
                workload=workload,
                device=data.device_name(group[0]),
            )
    swept = [point for point in points if not point["of"]]
    if swept:
        book.table(f"{prefix}matmul", "matmul", by_shape.table(data, swept, PRODUCTS))
    real = [point for point in points if point["of"]]
    if real:
        book.table(f"{prefix}training-shapes", "training-shapes", shapes_table(data, real))


def interval(point: Row) -> Rate:
    """Median throughput in FLOP/s and the ends of its 95 % interval."""
    return by_shape.median_rate(PRODUCTS, point)


def shapes_table(data: Data, points: Sequence[Row]) -> Table:
    """The products of training steps: how often a step has each, how fast it is, and its part."""
    result = Table(
        [
            Column("Taken from"),
            Column("Shape"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("in a step", "times", True),
            Column("median", "ms", True, "of one product, synchronised"),
            Column("in a step", "ms", True, "median × times"),
            Column(
                "of the step",
                "%",
                True,
                "of the unsplit step that this run measured with the "
                "same device, backend and precision",
            ),
            Column("median", "GFLOP/s", True, "95 % interval below"),
            Column("of own ceiling", "%", True, "median over the fastest product measured here"),
            Column("of peak", "%", True, "median over the data sheet's peak"),
        ]
    )
    steps = _steps(data)
    for point in sorted(points, key=lambda p: (p["of"], by_shape.shape_key(p))):
        seconds, count = words.number(point["step_median_s"]), words.number(point["count"])
        together = seconds * count if seconds and count else None
        whole = steps.get((*_place(point), point["of"], point["precision"]))
        own, sheet = by_shape.shares(data, PRODUCTS, point)
        result.add(
            point["of"],
            Value(words.shape(point), sort=float(by_shape.shape_key(point)[0])),
            point["device"],
            words.backend_name(point),
            point["precision"],
            integer(count, "not counted"),
            quantity(seconds, by_shape.UNTIMED, 1e-3),
            quantity(together, by_shape.UNTIMED, 1e-3),
            quantity(together / whole, "", 0.01)
            if together and whole
            else missing("this training was not measured with this device, backend and precision"),
            by_shape.with_interval(interval(point)),
            own,
            sheet,
            of=point,
        )
    return result


def _place(row: Row) -> tuple:
    return (row["source"], row["host"], row["device"], row["backend"])


def _steps(data: Data) -> dict[tuple, float]:
    """(*place, workload, precision) -> seconds of the unsplit step of a training."""
    seconds = {}
    for point in data.training():
        step = Step.of(point)
        if step:
            seconds[(*_place(point), point["workload"], point["precision"])] = step.middle
    return seconds
