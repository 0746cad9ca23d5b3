"""Kernel launch: four different numbers, and the published ones in a panel of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import hover, marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.variants import Row

US = 1e-6
MS = 1e-3
KINDS = (  # series, what it is called, marker
    ("cold", "cold: the first launch of a process", "D"),
    ("launch_and_wait", "launch and wait", "o"),
    ("amortised", "amortised over a burst", "s"),
    ("enqueue", "enqueue only", "<"),
)
RATIOS = (  # (over, under): how far the four numbers are apart
    ("launch_and_wait", "amortised"),
    ("amortised", "enqueue"),
    ("cold", "launch_and_wait"),
)
BEFORE = (  # what a fresh process does before its cold launch: series, column, help
    ("import", "import", "of the framework, its files in the system's cache"),
    ("context", "context", "opening the device, with the first arrays on it"),
    ("other_kernel", "another kernel", "a product, with what its library sets up"),
    ("compile_and_load", "compile and load", "of the empty kernel; compilers keep caches on disk"),
)
PUBLISHED_PT2 = 49.0  # area of a published mark: its hatch needs more room than a dot has
PUBLISHED_KINDS = (("cold_launch_ms", "cold", "D"), ("followup_launch_ms", "follow-up", "o"))


def add(data: Data, book: Book, prefix: str = "", with_published: bool = True) -> None:
    """One figure, two tables."""
    points = data.of_module("kernel_launch")
    printed = data.published["table6_kernel_launch"] if with_published else []
    if not points:
        book.note(data.why_none("kernel_launch", "kernel launch"))
        return
    book.figure(
        f"{prefix}kernel-launch",
        "launch" if printed else "launch-only",
        partial(draw, data, points, printed),
    )
    book.table(f"{prefix}kernel-launch", "launch", table(data, points))
    book.table(f"{prefix}cold-launch", "launch-cold", cold_table(data, points))


def label(data: Data, point: Row, devices: int) -> str:
    """`torch-cpu · dispatch`, with the device where there are several."""
    where = f"{data.device_name(point)} · " if devices > 1 else ""
    return f"{where}{words.backend_name(point)} · {point['launch']}"


def draw(data: Data, points: Sequence[Row], printed: Sequence[Row], narrow: bool) -> Any:
    """Measured rows above, published rows below and hatched; one log axis for both."""
    devices = len({point["device"] for point in points})
    labels = [label(data, point, devices) for point in points]
    names = [
        data.registry["devices"].get(r["device"], {}).get("name", r["device"]) for r in printed
    ]
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
    values = [v for p in points for kind, _, _ in KINDS for v in _ends(data, p, kind) if v] + [
        float(r[column]) * MS for r in printed for column, _, _ in PUBLISHED_KINDS
    ]
    low, high = min(values) / 1.6 / US, max(values) * 1.6 / US
    style.write(
        figure,
        0,
        head + 0.12,
        "Measured here" if printed else "Measured",
        weight="bold",
        va="center",
    )
    ax = style.axes(figure, left, head + title, width - left - 0.1, len(points) * step)
    _frame(ax, labels, low, high)
    marks.tag_labels(ax.yaxis, points)
    for y, (point, name) in enumerate(zip(points, labels, strict=True)):
        _point(ax, y, point, data, name)
    if printed:
        top = head + title + len(points) * step + foot
        style.write(
            figure,
            0,
            top + 0.12,
            "Published, not measured here",
            weight="bold",
            va="center",
            color=style.MUTED,
        )
        ax = style.axes(figure, left, top + title, width - left - 0.1, len(printed) * step)
        _frame(ax, names, low, high, muted=True)
        for y, row in enumerate(printed):
            for column, name, marker in PUBLISHED_KINDS:
                x = float(row[column]) * MS / US
                hatched = ax.scatter(
                    [x], [y], PUBLISHED_PT2, marker=marker, **style.published("grey")
                )
                marks.tag(
                    hatched,
                    None,
                    f"{names[y]}: {name} launch {row[column]} ms, published, not measured here",
                )
                if y == 0:
                    ax.text(
                        x,
                        -0.5,
                        name,
                        ha="center",
                        va="bottom",
                        size=style.SMALL_PT,
                        color=style.MUTED,
                    )
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


def _ends(data: Data, point: Row, kind: str) -> tuple[float | None, float | None]:
    """Where a number's line begins and ends, in seconds.

    The 95 % interval of the median; of cold launches the lowest and the highest process.
    """
    if kind == "cold":
        times = data.traces.series(point, "cold_s")
        return (min(times), max(times)) if times else (None, None)
    return words.number(point[f"{kind}_low_s"]), words.number(point[f"{kind}_high_s"])


def _point(ax: Any, y: int, point: Row, data: Data, name: str) -> None:
    """All numbers of one launcher, each with its line where it has one."""
    ink = style.shade(point["backend"])
    for kind, called, marker in KINDS:
        middle = words.number(point[f"{kind}_median_s"])
        low, high = _ends(data, point, kind)
        if middle is None or low is None or high is None:
            continue
        what = hover.RANGE if kind == "cold" else hover.interval_name(point, kind)
        text = hover.seconds(middle, low, high, what)
        marks.tag(ax.plot([low / US, high / US], [y, y], color=ink, linewidth=0.9), point)
        marks.tag(
            ax.plot([middle / US], [y], marker, color=ink, markersize=3.4),
            point,
            f"{name}: {called.split(':')[0]} {text}",
        )


def table(data: Data, points: Sequence[Row]) -> Table:
    """The four numbers in µs, and how far they are apart."""
    result = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Launched"),
            Column("What it is", folds=True),
            Column("cold", "µs", True, "median of fresh processes; below, lowest and highest"),
            Column("launch and wait", "µs", True, "median, 95 % interval"),
            Column("amortised", "µs", True, "burst with one wait at its end, per launch"),
            Column("enqueue", "µs", True, "handing over, per launch of a burst"),
            *(
                Column(f"{_short(over)} / {_short(under)}", "", True, "ratio of the medians")
                for over, under in RATIOS
            ),
            Column("burst", "launches", True, "over which the launch is amortised"),
        ]
    )
    for point in points:
        result.add(
            point["device"],
            words.backend_name(point),
            point["launch"],
            point["note"],
            _cold(data, point),
            *(
                ranged(point, kind, US, "not recorded", "low", "high", 3)
                for kind in ("launch_and_wait", "amortised", "enqueue")
            ),
            *(
                quantity(_ratio(point, over, under), "one of the two is missing")
                for over, under in RATIOS
            ),
            integer(point["burst"], "not recorded"),
            of=point,
        )
        if point["enqueue_means"]:
            note = f"Enqueue, {point['backend']}, in bursts of {point['enqueue_burst']:.0f}: "
            note += f"{point['enqueue_means']}."
            if note not in result.notes:
                result.notes.append(note)
    return result


def cold_table(data: Data, points: Sequence[Row]) -> Table:
    """What a fresh process spends up to its first launch: medians of the processes."""
    result = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Launched"),
            Column("processes", "", True, "that reached their one cold launch"),
            *(Column(name, "ms", True, help) for _, name, help in BEFORE),
            Column("cold", "µs", True, "with its wait; below, lowest and highest"),
            Column("spread", "%", True, "inter-quartile range of the cold launches over median"),
        ]
    )
    for point in points:
        n = words.number(point["cold_n"])
        iqr = n and n > 1 and (point["cold_q75_s"] - point["cold_q25_s"]) / point["cold_median_s"]
        result.add(
            point["device"],
            words.backend_name(point),
            point["launch"],
            Value(f"{n:.0f}", sort=n, reason=point["cold_failures"] or "")
            if n
            else missing(point["cold_reason"] or "not recorded"),
            *(
                quantity(point[f"{series}_median_s"], _why(point, series), MS)
                for series, *_ in BEFORE
            ),
            _cold(data, point),
            quantity(iqr * 100, "", digits=2) if iqr else missing("fewer than two processes"),
            of=point,
        )
        if point["cold_means"]:
            note = f"Cold, {point['backend']}: {point['cold_means']}."
            if note not in result.notes:
                result.notes.append(note)
    return result


def _short(kind: str) -> str:
    return "wait" if kind == "launch_and_wait" else kind


def _ratio(point: Row, over: str, under: str) -> float | None:
    above, below = (words.number(point[f"{kind}_median_s"]) for kind in (over, under))
    return above / below if above is not None and below else None


def _why(point: Row, series: str) -> str:
    """Why a time before the cold launch is missing."""
    reason = point["compile_and_load_reason"] if series == "compile_and_load" else None
    return reason or point["cold_failures"] or "not recorded"


def _cold(data: Data, point: Row) -> Value:
    """The cold launch: median of the processes, with the lowest and the highest."""
    value = quantity(point["cold_median_s"], point["cold_reason"] or "not recorded", US)
    low, high = _ends(data, point, "cold")
    if low is None or high is None:
        return value
    below = "–".join(words.significant(end / US) for end in (low, high))
    return Value(value.text, value.sort, below, title=f"n = {point['cold_n']:.0f}")
