"""Seed 004's published ratios, each with its mark, and what was measured of the same devices."""

from __future__ import annotations

from itertools import permutations

from siliconprof.render import beside, ratios
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.ratios import (
    Case,
    Pair,
    Ratio,
    epoch,
    is_cpu,
    measured,
    network,
    side,
    side_name,
)
from siliconprof.render.tables import Column, Table, Value, missing, published
from siliconprof.render.variants import Row

ALIKE_ELSEWHERE = (
    "module",
    "n_parameters",
    "samples_per_step",
    "epoch_steps",
    "precision",
    "method_version",
)
NOT_BOTH = "not both devices were measured with the same network and batch size"
ONLY_PICTURES = "other values only in a picture, not published as numbers"


def of_published(data: Data, row: Row) -> list[Ratio]:
    """Measured ratios of a published pair, of whatever hosts: the same network and batch.

    Of several backends of a device its fastest counts. A published `cpu` is that of the other
    device's own computer.
    """
    groups: dict[tuple, dict[tuple, Step]] = {}
    for point in measured(data):
        whole = epoch(point)
        if whole is None or not _is_about(row, point):
            continue
        alike = (
            Case(network(point), int(point["batch_size"])),
            *(point.get(name) for name in ALIKE_ELSEWHERE),
        )
        fastest = groups.setdefault(alike, {})
        device = side(point)[:3]
        if device not in fastest or whole.middle < fastest[device].middle:
            fastest[device] = whole
    return [
        Ratio(alike[0], a, b)
        for alike, fastest in groups.items()
        for a, b in permutations(fastest.values(), 2)
        if _published_sides(row, a.row, b.row)
    ]


def _is_about(row: Row, point: Row) -> bool:
    """Whether a published row is about a point's network and batch size; it may be about all."""
    model, batch = row["model"] or "all", row["batch_size"]
    return (model.startswith("all") or network(point) == model.upper()) and (
        batch is None or int(batch) == int(point["batch_size"])
    )


def _published_sides(row: Row, a: Row, b: Row) -> bool:
    """Whether two points are of a published pair's devices, in its order."""
    if row["device_b"] == "cpu":
        fits = is_cpu(b) and (a["source"], a["host"]) == (b["source"], b["host"])
    else:
        fits = b["device"] == row["device_b"]
    return bool(fits and a["device"] == row["device_a"])


def table(data: Data) -> Table:
    """The seed's ratios, each with its mark, and what was measured of the same pair beside it."""
    result = Table(
        [
            Column("Devices a and b", below="device b"),
            Column("Network"),
            Column("batch size", "", True),
            Column("published: a over b", "×", True),
            Column("measured: a over b", folds=True),
            Column("Statement, source, how to read it"),
        ]
    )
    for row in data.published["seed004_speedups"]:
        if row["unit"] != "times" or not row["device_b"]:
            continue
        low, high = row["value_min"], row["value_max"]
        if low == high:
            text = low
        else:
            text = f"at least {low}" if high is None else f"up to {high}"
        notes = [part for part in (row["note"] or "").split("; ") if part and part != ONLY_PICTURES]
        result.add(
            _devices(data, row),
            row["model"] or "not named",
            published(row["batch_size"], row["source"]) if row["batch_size"] else None,
            published(text, row["source"]),
            _measured(data, row),
            Value(f"{row['statement']} ({'; '.join([row['source'], *notes])})", mark="note"),
        )
    result.notes = ["The seed's other values are in pictures and were not published as numbers."]
    return result


def _devices(data: Data, row: Row) -> Value:
    """The registry's names of a published pair; a CPU is that of the first device's computer."""

    def name(device: str) -> str:
        entry = data.registry["devices"].get(device)
        return str(entry["name"] if entry else device)

    other = "its own CPU" if row["device_b"] == "cpu" else name(row["device_b"])
    return Value(name(row["device_a"]), row["device_a"], f"against {other}")


def _measured(data: Data, row: Row) -> Value:
    """Ratios measured of a published pair; the range of several."""
    if row["model"] is None and row["batch_size"] is None and "TFLOPS" in (row["note"] or ""):
        return missing("a ratio of peak TFLOPS: no measurement answers it")
    measured_ratios = of_published(data, row)
    if not measured_ratios:
        return missing(NOT_BOTH)
    least = min(measured_ratios, key=lambda ratio: ratio.middle)
    most = max(measured_ratios, key=lambda ratio: ratio.middle)
    text = str(least) if least is most else f"{least} ({least.case}) to {most} ({most.case})"
    if row["model"] and "average" in row["model"]:
        whole = Pair(measured_ratios[0].a.row, measured_ratios[0].b.row, measured_ratios)
        text = f"{ratios.times(whole.geometric)} in the geometric mean, {text}"
    whose = dict.fromkeys(
        f"{side_name(ratio.a.row)} {beside.origin(ratio.a.row)} against {side_name(ratio.b.row)} "
        f"{beside.origin(ratio.b.row)}"
        for ratio in measured_ratios
    )
    hollow = ", extrapolated epochs" if any(ratio.extrapolated for ratio in measured_ratios) else ""
    return Value(f"{text}: {'; '.join(whose)}{hollow}", sort=least.middle, mark="measured")
