"""The measured roofline of a device: what memory and products allow, and where every point lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.render import chart, marks, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.operations import GIGA
from siliconprof.render.roofline_points import (
    TRAINING,
    Dot,
    above,
    points,
    remark,
)
from siliconprof.render.variants import backend_place

TERA = 1e12
FORMATS = ("fp32", "tf32", "fp16", "bf16")
KINDS = (  # module, what it is called, marker
    ("matmul", "matrix product", "o"),
    ("vjp", "gradients of one (vjp)", "D"),
    ("matvec", "matrix-vector product", "s"),
    (TRAINING, "training step, intensity at most", "^"),
)
MARKER_OF = {name: marker for name, _, marker in KINDS}
BESIDE_MATVEC = 0.7  # FLOP per byte
MOST_DOTS = 160  # of a panel; above it a cell is one mark
MOST_NAMED = 5
PALE = 25  # of a marker's face: hollow is what other processes disturbed
SHEET: dict[str, Any] = {"color": style.shade("other"), "linewidth": 1.0, "dashes": (3, 1.5)}
HATCHED = style.published() | {"linewidth": 0, "edgecolor": style.shade("other", 60)}


def add(data: Data, book: Book) -> None:
    """A figure for each device and one table."""
    dots = list(points(data))
    if not dots:
        book.note(
            "No roofline: no matrix product, matrix-vector product or vjp was measured on any "
            "device or backend, nor a training whose bytes are known."
        )
        return
    for device_dots in grouped(dots, lambda dot: device_of(dot.row)).values():
        name = data.slug_of(device_dots[0].row)
        book.figure(
            f"roofline-{name}",
            "roofline",
            partial(draw, device_dots),
            device=data.place(device_dots[0].row),
            above=_above_text(device_dots),
            lacking=_lacking_text(device_dots),
        )


def _above_text(dots: Sequence[Dot]) -> str:
    dots_above, with_roof = above(dots), [dot for dot in dots if dot.roof]
    if not with_roof:
        return " There is no roof to compare them with: no product was measured."
    if not dots_above:
        return f" Of {words.count(len(with_roof), 'point')} none lies above its roof."
    names = "; ".join(
        f"{dot.name}, {words.backend_name(dot.row)} {dot.row['precision']}, "
        f"{words.significant(dot.share or 0)} times"
        for dot in dots_above[:MOST_NAMED]
    )
    more = f"; and {len(dots_above) - MOST_NAMED} more" if len(dots_above) > MOST_NAMED else ""
    lie = "lies" if len(dots_above) == 1 else "lie"
    n = words.count(len(with_roof), "point")
    return f" Of {n} {len(dots_above)} {lie} above the roof: {names}{more}."


def _lacking_text(dots: Sequence[Dot]) -> str:
    """What of the roof is missing on this device."""
    limits, sheet = dots[0].limits, dots[0].sheet
    reasons = []
    if limits.memory is None:
        reasons.append("no memory bandwidth was measured, so products alone are the roof")
    if not any(dot.sheet.product for dot in dots) and sheet.memory is None:
        reasons.append("no figure of a data sheet is in the registry")
    return f" For this device {words.listing(reasons)}." if reasons else ""


# -- figure ------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """Ends of both axes, the same in every panel, and what rates are over."""

    left: float
    right: float
    bottom: float
    top: float
    scale: float
    unit: str

    @classmethod
    def of(cls, dots: Sequence[Dot]) -> Frame:
        """With room for every dot and every ridge."""
        rates = [dot.flop_per_s for dot in dots]
        limits = [limits for dot in dots for limits in (dot.limits, dot.sheet) if limits.product]
        ridges = [one.product / one.memory for one in limits if one.product and one.memory]
        intensities = [*(dot.intensity for dot in dots), *ridges]
        top = max(*rates, *(one.product or 0 for one in limits), 0)
        scale, unit = (TERA, "TFLOP/s") if max(rates) > 10 * TERA else (GIGA, "GFLOP/s")
        left, right = min(intensities) / 2.5, max(intensities) * 3
        return cls(left, right, min(rates) / 2 / scale, top * 2.6 / scale, scale, unit)

    def roof(
        self, product: float | None, bandwidth: float | None
    ) -> tuple[list[float], list[float]]:
        """A roof: the slope up to the ridge or the frame, then the products; either may lack."""
        xs: list[float] = []
        if bandwidth:
            ridge = min((product or self.top * self.scale) / bandwidth, self.right)
            xs = [max(self.left, self.bottom * self.scale / bandwidth), ridge]
        ys = [x * (bandwidth or 0) / self.scale for x in xs]
        if product:
            xs = [*xs, self.right] if xs else [self.left, self.right]
            ys = [*ys, product / self.scale] if ys else [product / self.scale] * 2
        return xs, ys


def draw(dots: Sequence[Dot]) -> Any:
    """A panel for each number format, all with the same axes: operations a second over a byte's."""
    frame = Frame.of(dots)
    by_format = grouped(dots, lambda dot: PEAK_OF_PRECISION[dot.row["precision"]])
    panels = [
        Panel(
            [*_sheet(group, frame), *_ceilings(group, frame), *_dots(group, frame.scale)],
            Scale("arithmetic intensity / FLOP per byte", log=10, ends=frame[:2]),
            Scale(frame.unit, log=10, ends=frame[2:4]),
            title=name,
            high=2.35,
            grid="both",
            legend=[
                (_ceiling_sample(style.shade(backend)), text)
                for backend, text in _products(group).items()
            ],
        )
        for name in FORMATS
        if (group := by_format.get(name))
    ]
    kinds = {dot.kind for dot in dots}
    look = {"color": style.MUTED, "markersize": 3.2}
    legend = [
        *style.backends([dot.row for dot in dots], 3.2),
        *((style.sample(marker, **look), name) for kind, name, marker in KINDS if kind in kinds),
    ]
    if any(dot.cached for dot in dots):
        pale = style.sample("o", **look, markerfacecolor=style.shade("grey", PALE))
        legend.append((pale, "pale: fits the last-level cache"))
    legend.append((_ceiling_sample(style.MUTED), "measured ceiling"))
    if any(dot.sheet.product or dot.sheet.memory for dot in dots):
        legend.append((_sheet_sample, "data sheet"))
    return Chart(panels, legend, 2, same_y=True, side_in=0.16).figure()


def _ceiling_sample(ink: str) -> Any:
    return style.sample(None, "-", color=ink, linewidth=1.2)


def _sheet_sample(x: float, y: float) -> list[Artist]:
    box = Rectangle((x, y - 0.045), 0.15, 0.09, **HATCHED)
    return [box, Line2D([x, x + 0.15], [y + 0.045] * 2, **SHEET)]


def _products(dots: Sequence[Dot]) -> dict[str, str]:
    """The fastest product of each backend in words."""
    return {
        dot.row["backend"]: f"{words.backend_name(dot.row)} {words.scaled(product, 'FLOP/s')}"
        f"{remark(dot.limits.cautions[0])}"
        for dot in dots
        if (product := dot.limits.product)
    }


def _sheet(dots: Sequence[Dot], frame: Frame) -> Iterator[Mark]:
    """What the data sheet says, dashed, with a hatched edge above: nothing can lie there."""
    sheet, rows = dots[0].sheet, [dot.row for dot in dots]
    if not (sheet.product or sheet.memory):
        return
    xs, ys = frame.roof(sheet.product, sheet.memory)
    both = ((sheet.product, "FLOP/s"), (sheet.memory, "byte/s"))
    figures = words.listing([words.scaled(value, unit) for value, unit in both if value])
    text = f"Data sheet, published: {figures}"
    yield chart.line(xs, ys, rows, text, **SHEET)
    edge = [y * 1.3 for y in ys]
    yield Mark(lambda ax: ax.fill_between(xs, ys, edge, **HATCHED), rows, text)


def _ceilings(dots: Sequence[Dot], frame: Frame) -> Iterator[Mark]:
    """Memory and cache of the device, and the fastest product of each backend."""
    limits, rows = dots[0].limits, [dot.row for dot in dots]
    ordered = sorted(dots, key=lambda dot: backend_place(dot.row["backend"]))
    firsts = grouped(ordered, lambda dot: dot.row["backend"])
    measured = {name: own[0].limits.product for name, own in firsts.items()}
    fastest = max(filter(None, measured.values()), default=None)
    bandwidths = {"memory": limits.memory, "cache": limits.cache}
    for (kind, bandwidth), caution in zip(bandwidths.items(), limits.cautions[1:], strict=True):
        start, end = frame.roof(fastest, bandwidth)[0][:2] if bandwidth else (0.0, 0.0)
        if bandwidth and start < end:
            rate = f"{words.scaled(bandwidth, 'byte/s')}{remark(caution)}"
            steepness, under = bandwidth / frame.scale, kind == "memory"
            ys = [start * steepness, end * steepness]
            look = {"color": style.MUTED, "linewidth": 1.4 if under else 0.8}
            yield chart.line(
                [start, end], ys, rows, f"Measured bandwidth of {kind}: {rate}", **look
            )
            # Right of the matrix-vector products, which lie at half an operation a byte in fp32.
            right = under and start < BESIDE_MATVEC < end / 6
            name = f"{kind} {rate.replace('byte', 'B')}"
            at = BESIDE_MATVEC if right else start * 1.15
            yield Mark(partial(_along, name, at, steepness, under))
    steepest = max(filter(None, bandwidths.values()), default=None)
    for name, value in measured.items():
        if not value:
            continue
        first, height = firsts[name][0], value / frame.scale
        left = max(value / steepest, frame.left) if steepest else frame.left
        text = (
            f"Fastest product measured, {words.backend_name(first.row)} "
            f"{PEAK_OF_PRECISION[first.row['precision']]}: {words.scaled(value, 'FLOP/s')}"
            f"{remark(first.limits.cautions[0])}"
        )
        own = [dot.row for dot in firsts[name]]
        look = {"color": style.shade(name), "linewidth": 1.4}
        yield chart.line([left, frame.right], [height, height], own, text, **look)


def _along(text: str, at: float, steepness: float, under: bool, ax: Any) -> Any:
    """Words along a slope; above that of the memory there may be the data sheet's line."""
    return ax.text(
        at,
        at * steepness * (0.93 if under else 1.05),
        text,
        size=style.SMALL_PT,
        color=style.MUTED,
        va="top" if under else "bottom",
        # The line's angle in data, y = bandwidth × x; these axes turn it into the eye's.
        rotation=math.degrees(math.atan(steepness)),
        rotation_mode="anchor",
        transform_rotates_text=True,
    )


def _dots(dots: Sequence[Dot], scale: float) -> Iterator[Mark]:
    """A mark for each point, or each cell and kind where there are too many."""

    def cell(item: tuple[int, Dot]) -> Any:
        index, dot = item
        return (*marks.cells(dot.row), dot.kind, dot.cached) if len(dots) > MOST_DOTS else index

    for items in grouped(enumerate(dots), cell).values():
        group = [dot for _, dot in items]
        first, backend = group[0], group[0].row["backend"]
        hue = style.shade(backend)
        xs, ys = [dot.intensity for dot in group], [dot.flop_per_s / scale for dot in group]
        look = {"color": hue, "markersize": 3.2, "markeredgewidth": 0.8, "linewidth": 0}
        look |= {"markerfacecolor": style.shade(backend, PALE) if first.cached else hue}
        look |= {"marker": MARKER_OF[first.kind]}
        yield chart.line(xs, ys, [dot.row for dot in group], _hover_text(group), **look)


def _hover_text(group: Sequence[Dot]) -> str:
    if len(group) == 1:
        return group[0].hover_text
    best = max(group, key=lambda dot: dot.share or 0)
    return (
        f"{len(group)} points of {group[0].row['workload']}; the nearest to the roof: "
        f"{best.hover_text}"
    )
