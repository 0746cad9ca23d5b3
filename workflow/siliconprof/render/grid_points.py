"""Points of the transformer grid: which belong together, what varies in them, what each is called.

A grid is one workload; within it every device, backend and precision is a place, whose points
are compared with each other and with what the same place was expected to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import words
from siliconprof.render import style
from siliconprof.render.data import Data, grouped
from siliconprof.render.traces import point_key
from siliconprof.render.variants import PRECISION_ORDER, Row, point_status

MODULE = "transformer_grid"
MS = 1e-3
MODEL = ("n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len")  # what a batch is of
AXES = ("n_layer", "n_embd", "head_dim", "d_ff", "seq_len", "batch_size")  # what colours a figure
NO_FORMULA = "no formula for its operations"
UNTIMED = "not measured: the status says why"

MOST_NAMED = 3  # devices in a caption

Place = tuple[str, str, str, str, str]  # source, host, device, backend, precision


@dataclass(frozen=True)
class Grid:
    """The points of one workload, measured or not."""

    workload: str
    points: list[Row]

    @property
    def timed(self) -> list[Row]:
        """The points that have a time."""
        return [point for point in self.points if seconds(point) is not None]

    def places(self) -> dict[Place, list[Row]]:
        """Device, backend and precision -> its timed points, in the page's order."""
        return by_place(self.timed)

    def varying(self) -> list[str]:
        """The parameters that take more than one value."""
        return [name for name in AXES if len(values(self.timed, name)) > 1]


def grids(data: Data) -> list[Grid]:
    """Every grid, its points with what they were expected to take beside them."""
    expected = {point_key(row): row for row in data.expected}
    joined = [expected.get(point_key(point), {}) | point for point in data.of_module(MODULE)]
    groups = grouped(joined, lambda point: point["workload"])
    return [Grid(workload, named(data, points)) for workload, points in groups.items()]


def seconds(point: Row) -> float | None:
    """The median time of one training iteration by our own clock, None where there is none."""
    if point_status(point) != "ok":
        return None
    return words.number(point.get("unsplit_step_median_s")) or words.number(
        point.get("step_median_s")
    )


def place(row: Row) -> Place:
    """What is compared within a grid: whose device and backend, in which precision."""
    return (row["source"], row["host"], row["device"], row["backend"], row["precision"])


def by_place(points: Iterable[Row]) -> dict[Place, list[Row]]:
    """Place -> its points: devices and backends as they first come, fp32 before what rounds."""
    places = grouped(points, place)
    if not places:
        return {}
    devices, backends = (list(dict.fromkeys(each)) for each in list(zip(*places, strict=True))[2:4])

    def order(name: Place) -> tuple:
        _, _, device, backend, precision = name
        known = (*PRECISION_ORDER, precision)
        return devices.index(device), backends.index(backend), known.index(precision)

    return {name: places[name] for name in sorted(places, key=order)}


def named(data: Data, points: Sequence[Row]) -> list[Row]:
    """The points, each with the name of its place: `torch-cpu · fp32`, and whose device of several.

    See `place_name`.
    """
    several = len({place(point)[:3] for point in points}) > 1

    def name(point: Row) -> str:
        device = f"{data.place(point)} · " if several else ""
        return f"{device}{words.backend_name(point)} · {point['precision']}"

    return [point | {"place_name": name(point)} for point in points]


def place_name(row: Row) -> str:
    """What the place of a row is called among those that it stands beside; see `named`."""
    return str(row.get("place_name") or f"{words.backend_name(row)} · {row['precision']}")


def devices_said(data: Data, points: Iterable[Row]) -> str:
    """The devices of points by name, or how many they are."""
    names = list(dict.fromkeys(map(data.place, points)))
    return words.listing(names) if len(names) <= MOST_NAMED else words.count(len(names), "device")


def values(points: Iterable[Row], name: str) -> list[float]:
    """The values that a parameter takes, in order."""
    return sorted(set(words.numbers(points, name)))


def shape(row: Row) -> str:
    """`4 × 256, 8 heads of 32, d_ff 1024, 128 tokens`."""
    settings = {name: words.number(row.get(name)) for name in MODEL}
    parts = []
    if settings["n_layer"] and settings["n_embd"]:
        parts.append(f"{settings['n_layer']:g} × {settings['n_embd']:g}")
    if settings["n_head"] and settings["head_dim"]:
        parts.append(f"{words.count(int(settings['n_head']), 'head')} of {settings['head_dim']:g}")
    if settings["d_ff"]:
        parts.append(f"d_ff {settings['d_ff']:g}")
    if settings["seq_len"]:
        parts.append(f"{settings['seq_len']:g} tokens")
    return ", ".join(parts) or "shape not recorded"


# -- drawing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Ordered values of one parameter and their colours; more values than colours share one."""

    name: str
    ordered: Sequence[float]

    def colour(self, value: Any) -> str:
        """The colour of a value; grey where it is not known."""
        number = words.number(value)
        if number is None or number not in self.ordered:
            return style.MUTED
        return style.ramp(list(self.ordered).index(number), len(self.ordered))

    def entries(self, say: Callable[[Any], str] = "{:g}".format) -> list[style.Entry]:
        """Legend entries: a colour with the value, or the first and last of those that share it."""
        shared = grouped(self.ordered, self.colour)
        return [
            (
                style.sample("o", color=ink, markersize=2.8),
                say(values[0]) if len(values) == 1 else f"{say(values[0])}–{say(values[-1])}",
            )
            for ink, values in shared.items()
        ]

    def groups(self, points: Iterable[Row]) -> dict[str, list[Row]]:
        """Colour -> the points that have it."""
        return grouped(points, lambda point: self.colour(point.get(self.name)))
