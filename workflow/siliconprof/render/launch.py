"""Kernel launch: four different numbers, and the published ones in a panel of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof.render import style, words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.matmul import why_none
from siliconprof.render.tables import Column, Table, Value, ranged
from siliconprof.render.variants import Row

US = 1e-6
MS = 1e-3
KINDS = (  # series, what it is called, marker
    ("cold", "cold: the first launch", "D"),
    ("launch_and_wait", "launch and wait", "o"),
    ("amortised", "amortised over a burst", "s"),
    ("enqueue", "enqueue only", "<"),
)
PUBLISHED_KINDS = (("cold_launch_ms", "cold", "D"), ("followup_launch_ms", "follow-up", "o"))


def add(data: Data, book: Book, prefix: str = "", with_published: bool = True) -> None:
    """One figure, one table."""
    points = data.of_module("kernel_launch")
    printed = data.published["table6_kernel_launch"] if with_published else []
    if not points:
        book.note(why_none(data, "kernel_launch", "kernel launch"))
        return
    book.figure(
        f"{prefix}kernel-launch",
        "launch" if printed else "launch-only",
        partial(draw, data, points, printed),
    )
    book.table(f"{prefix}kernel-launch", "launch", table(points))


def label(data: Data, point: Row, devices: int) -> str:
    """`torch-cpu · dispatch`, with the device where there are several."""
    where = f"{data.device_name(point)} · " if devices > 1 else ""
    return f"{where}{point['backend']} · {point['launch']}"


def draw(data: Data, points: Sequence[Row], printed: Sequence[Row], narrow: bool) -> Any:
    """Measured rows above, published rows below in grey and hollow; one log axis for both."""
    devices = len({point["device"] for point in points})
    labels = [label(data, point, devices) for point in points]
    names = [data.registry["devices"].get(r["device"], {}).get("name", r["device"])
             for r in printed]  # fmt: skip
    width = style.width_in(narrow)
    left = min(max(map(style.text_in, [*labels, *names])) + 0.1, width * 0.5)
    step, title, foot, head = 0.22, 0.26, 0.42, 0.27 if not narrow else 0.44
    below = title + len(printed) * step + foot if printed else 0.0
    figure = style.canvas(width, head + title + len(points) * step + foot + below)
    style.legend(
        figure,
        [(style.sample(m, color=style.MUTED, markersize=3.4), name) for _, name, m in KINDS],
        0.0,
    )
    values = [
        v for p in points for kind, _, _ in KINDS
        for v in (p[f"{kind}_low_s"], p[f"{kind}_high_s"]) if v
    ] + [float(r[column]) * MS for r in printed for column, _, _ in PUBLISHED_KINDS]  # fmt: skip
    low, high = min(values) / 1.6 / US, max(values) * 1.6 / US
    style.write(figure, 0, head + 0.12, "Measured here" if printed else "Measured", weight="bold",
                va="center")  # fmt: skip
    ax = style.axes(figure, left, head + title, width - left - 0.1, len(points) * step)
    _frame(ax, labels, low, high)
    for y, point in enumerate(points):
        _point(ax, y, point)
    if printed:
        top = head + title + len(points) * step + foot
        style.write(figure, 0, top + 0.12, "Published, not measured here", weight="bold",
                    va="center", color=style.MUTED)  # fmt: skip
        ax = style.axes(figure, left, top + title, width - left - 0.1, len(printed) * step)
        _frame(ax, names, low, high, muted=True)
        for y, row in enumerate(printed):
            for column, name, marker in PUBLISHED_KINDS:
                x = float(row[column]) * MS / US
                ax.plot([x], [y], marker, color=style.MUTED, markerfacecolor="none",
                        markersize=3.4, markeredgewidth=0.8)  # fmt: skip
                if y == 0:
                    ax.text(x, -0.42, name, ha="center", va="bottom", size=style.SMALL_PT,
                            color=style.MUTED)  # fmt: skip
    return figure


def _frame(ax: Any, labels: Sequence[str], low: float, high: float, muted: bool = False) -> None:
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_yticks(range(len(labels)), list(labels))
    ink = style.MUTED if muted else style.INK
    ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=ink)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    style.log_ticks(ax.xaxis, low, high)
    ax.set_xlabel("time of one launch / µs", size=style.SMALL_PT)


def _point(ax: Any, y: int, point: Row) -> None:
    """All numbers of one launcher, each with its 95 % interval where it has one."""
    ink = style.shade(point["backend"])
    for kind, _, marker in KINDS:
        middle = words.number(point[f"{kind}_median_s"])
        if middle is None:
            continue
        low, high = point[f"{kind}_low_s"], point[f"{kind}_high_s"]
        ax.plot([low / US, high / US], [y, y], color=ink, linewidth=0.9)
        ax.plot([middle / US], [y], marker, color=ink, markersize=3.4)


def table(points: Sequence[Row]) -> Table:
    """Medians in µs with their 95 % interval; cold is one launch of one process."""
    result = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Launched"),
            Column("What it is"),
            Column("cold", "µs", True, "the first launch; a single value"),
            Column("launch and wait", "µs", True, "median, 95 % interval"),
            Column("amortised", "µs", True, "burst with one wait at its end, per launch"),
            Column("enqueue", "µs", True, "handing over, per launch of a burst"),
            Column("burst", "launches", True),
        ]
    )
    for point in points:
        burst = words.number(point["burst"])
        cold = ranged(point, "cold", US, "not recorded", "low", "high", 3)
        result.add(
            point["device"],
            point["backend"],
            point["launch"],
            point["note"],
            Value(cold.text, cold.sort, reason=cold.reason, mark=cold.mark, title="one launch"),
            *(ranged(point, kind, US, "not recorded", "low", "high", 3)
              for kind in ("launch_and_wait", "amortised", "enqueue")),
            Value(f"{burst:.0f}", sort=burst) if burst else None,
        )  # fmt: skip
    return result
