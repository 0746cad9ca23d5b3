"""Training over time: raw step times, losses on top of each other, memory and page faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siliconprof.render import style, words
from siliconprof.render.book import Book
from siliconprof.render.data import PRECISION_ORDER, Data, Family, Row
from siliconprof.render.training import label

MOST_POINTS = 500  # of one series in one panel
PANELS_PER_FIGURE = 12
MIB = 2.0**20


def add(data: Data, book: Book, prefix: str = "") -> None:
    """All three figure families of every training family."""
    for kind, (points, _) in data.families().items():
        if points:
            add_steps(data, book, kind, points, prefix)
    add_losses(data, book, prefix)
    for kind, (points, _) in data.families().items():
        if points:
            add_memory(data, book, kind, points, prefix)


# -- step times --------------------------------------------------------------------------------


def add_steps(data: Data, book: Book, kind: Family, points: list[Row], prefix: str) -> None:
    """Small multiples of raw step times, one panel a cell."""
    parts = [points[i : i + PANELS_PER_FIGURE] for i in range(0, len(points), PANELS_PER_FIGURE)]
    for index, part in enumerate(parts):
        longest = max(len(data.traces.series(point, "unsplit_step_s")) for point in part)
        book.figure(
            f"{prefix}steps-{kind.slug}" + (f"-{index + 1}" if index else ""),
            "step-times",
            lambda narrow, part=part: draw_steps(data, part, narrow),
            family=kind.label + (f" (part {index + 1} of {len(parts)})" if len(parts) > 1 else ""),
            thinned=f" Of more than {MOST_POINTS} points the smallest and largest of each stretch "
            "are drawn." if longest > MOST_POINTS else "",
        )  # fmt: skip


def draw_steps(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """One panel a cell: warm-up left of zero, then split and unsplit steps."""
    columns = 2 if narrow else min(4, max(2, len(points)))
    width = style.width_in(narrow)
    rows = -(-len(points) // columns)
    devices = {point["device"] for point in points}
    title = 0.34 if not narrow or len(devices) > 1 else 0.44
    left, foot, high, head = 0.42, 0.36, 0.95, 0.24 if not narrow else 0.42
    pitch = width / columns
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(
        figure,
        [
            (style.sample("o", color=style.RULE, markersize=2.4), "warm-up"),
            (style.sample("o", color=style.MUTED, markersize=2.4), "split step"),
            (style.sample("o", color=style.shade("torch-cpu"), markersize=2.4),
             "unsplit step, in its backend's colour"),
            (style.sample(None, "-", color=style.INK, linewidth=0.8), "median of unsplit steps"),
        ],
        0.0,
    )  # fmt: skip
    for index, point in enumerate(points):
        row, column = divmod(index, columns)
        top = head + row * (title + high + foot)
        x = column * pitch
        lines = [label(point)] if not narrow else label(point).split(" · ", 1)
        if len(devices) > 1:
            lines = [data.device_name(point), *lines[:1]]
        style.write(figure, x, top + title - 0.06, "\n".join(lines), va="bottom",
                    size=style.SMALL_PT)  # fmt: skip
        ax = style.axes(figure, x + left, top + title, pitch - left - 0.1, high)
        _panel(ax, data, point)
        if row == rows - 1 or index + columns >= len(points):
            ax.set_xlabel("iteration", size=style.SMALL_PT)
        if column == 0:
            ax.set_ylabel("ms", size=style.SMALL_PT)
    return figure


def _panel(ax: Any, data: Data, point: Row) -> None:
    highest = 0.0
    for name, ink in (("warmup_step_s", style.RULE), ("step_s", style.MUTED),
                      ("unsplit_step_s", style.shade(point["backend"]))):  # fmt: skip
        values = data.traces.series(point, name)
        if not values:
            continue
        first = -len(values) if name == "warmup_step_s" else 0
        xs, ys = style.thin(range(first, first + len(values)), values, MOST_POINTS)
        style.dots(ax, xs, ys, color=ink)
        if name != "warmup_step_s":
            highest = max(highest, max(values))
    middle = point["unsplit_step_median_s"]
    if middle is not None:
        ax.axhline(middle, color=style.INK, linewidth=0.8)
    slow = data.traces.series(point, "warmup_step_s")
    top = highest * 1.12 or 1.0
    if slow and max(slow) > top:  # the first step may take a hundred times as long: say so
        beyond = max(slow)
        ax.text(0.02, 0.98, f"warm-up up to {words.duration(beyond)}", size=style.SMALL_PT - 0.5,
                color=style.MUTED, va="top", transform=ax.transAxes)  # fmt: skip
        top = highest * 1.3 or 1.0
    ax.set_ylim(0, top)
    ax.set_clip_on(True)
    style.plain_ticks(ax.yaxis, 4, 1e-3)
    style.plain_ticks(ax.xaxis, 3)
    ax.grid(axis="y")


# -- losses ------------------------------------------------------------------------------------


def loss_groups(data: Data) -> list[list[Row]]:
    """Training points that must give equal losses: same tokens, seed and amount of work."""
    groups: dict[tuple, list[Row]] = {}
    for point in data.training():
        if point["tokens_sha256"] is None or not point["training_steps"]:
            continue
        same = ("tokens_sha256", "seed", "module", "n_parameters", "samples_per_step",
                "tokens_per_step", "method_version")  # fmt: skip
        groups.setdefault(tuple(point[name] for name in same), []).append(point)
    return [sorted(group, key=_baseline_first) for group in groups.values()]


def _baseline_first(point: Row) -> tuple:
    """Plain torch in fp32 is what the others are held against."""
    known = point["precision"] in PRECISION_ORDER
    return (
        PRECISION_ORDER.index(point["precision"]) if known else len(PRECISION_ORDER),
        not point["backend"].startswith("torch"),
        point["trainer"] != "plain",
        point["source"] != "this host",
        point["host"],
        point["device"],
        point["backend"],
    )


def relative_differences(data: Data, point: Row, baseline: Row) -> np.ndarray:
    """|loss / baseline - 1| at each step that both have taken."""
    ours = np.array(data.traces.series(point, "loss"), dtype=float)
    theirs = np.array(data.traces.series(baseline, "loss"), dtype=float)
    n = min(len(ours), len(theirs))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.abs(ours[:n] / theirs[:n] - 1)


def add_losses(data: Data, book: Book, prefix: str) -> None:
    """Losses by step, and how far each is from the baseline."""
    from siliconprof.render.data import family

    for group in loss_groups(data):
        kind = family(group[0])
        sha = group[0]["tokens_sha256"][:12]
        if len(group) > 1:
            book.figure(
                f"{prefix}loss-{kind.slug}-{sha}",
                "losses",
                lambda narrow, group=group: draw_losses(data, group, narrow),
                family=kind.label, baseline=label(group[0]), sha=sha, dataset=group[0]["dataset"],
            )  # fmt: skip


def draw_losses(data: Data, group: Sequence[Row], narrow: bool) -> Any:
    """Left (above): the losses, nearly one line; right (below): relative differences."""
    width = style.width_in(narrow)
    baseline, others = group[0], group[1:]
    series = [relative_differences(data, point, baseline) for point in others]
    left, foot, head, gap = 0.46, 0.4, 0.28, 0.56
    labels = [_loss_label(point, group) for point in others]
    right = max(map(style.text_in, labels), default=0.0) * style.SMALL_PT / style.TEXT_PT + 0.3
    high = max(1.7, 0.125 * len(others))
    first = width - left - 0.1 if narrow else (width - left - gap - right) * 0.42
    second = width - left - right if narrow else (width - left - gap - right) * 0.58
    figure = style.canvas(width, (head + high + foot) * (2 if narrow else 1))
    style.write(figure, 0, 0.14, "Loss", weight="bold", va="center")
    ax = style.axes(figure, left, head, first, high)
    for index, point in enumerate(group):
        values = data.traces.series(point, "loss")
        ax.plot(values, color=style.colour(point), linewidth=1 + 0.5 * (len(group) - index - 1),
                dashes=_dashes(point), solid_capstyle="round")  # fmt: skip
    ax.set_xlabel("training step", size=style.SMALL_PT)
    ax.set_ylabel("cross-entropy / nat", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 4)
    style.plain_ticks(ax.yaxis, 5)
    ax.grid(axis="y")
    top, x = (head + high + foot, left) if narrow else (0.0, left + first + gap)
    style.write(figure, 0 if narrow else x - 0.4, top + 0.14, "Relative difference", weight="bold",
                va="center")  # fmt: skip
    ax = style.axes(figure, x, top + head, second, high)
    _differences(ax, others, labels, series, high, second)
    return figure


def _loss_label(point: Row, group: Sequence[Row]) -> str:
    hosts = {(p["source"], p["host"], p["device"]) for p in group}
    where = f"{point['host']}/{point['device']} · " if len(hosts) > 1 else ""
    badge = words.SOURCE_BADGES.get(point["source"])
    return where + label(point) + (f" [{badge}]" if badge else "")


def _dashes(point: Row) -> tuple[float, ...]:
    """Solid for the plain loop, dashed for the Trainer."""
    return (1, 0) if point["trainer"] == "plain" else (3, 1.2)


def _differences(
    ax: Any, others: Sequence[Row], labels: Sequence[str], series: Sequence[np.ndarray],
    high: float, wide: float,
) -> None:  # fmt: skip
    """Lines on a log axis; steps of exact equality cannot be drawn and are named."""
    shown = [np.where(values > 0, values, np.nan) for values in series]
    finite = [values[np.isfinite(values)] for values in shown]
    positive = np.concatenate([values for values in finite if len(values)] or [np.array([])])
    if len(positive):
        low, top = 10 ** np.floor(np.log10(positive.min())), positive.max() * 2
    else:
        low, top = 1e-9, 1e-6
        ax.text(0.5, 0.5, "all losses are equal", transform=ax.transAxes, ha="center",
                size=style.SMALL_PT, color=style.MUTED)  # fmt: skip
    ax.set_yscale("log")
    ax.set_ylim(low, top)
    longest = max((len(values) for values in series), default=1)
    ax.set_xlim(0, max(longest - 1, 1))
    for point, values in zip(others, shown, strict=True):
        ax.plot(values, color=style.colour(point), linewidth=1.0, dashes=_dashes(point))
    ends = [
        (len(values) - 1, float(found[-1]) if len(found) else low)
        for values, found in zip(series, finite, strict=True)
    ]
    end_labels(ax, ends, labels, others, high, wide, log=True)
    ax.set_xlabel("training step", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 4)
    style.log_ticks(ax.yaxis, low, top)
    ax.yaxis.set_major_formatter(
        style.FuncFormatter(lambda v, _: words.scientific(v).replace("1.0 × ", ""))
    )
    ax.grid(axis="y")


def end_labels(
    ax: Any, ends: Sequence[tuple[float, float]], labels: Sequence[str], rows: Sequence[Row],
    high: float, wide: float, log: bool = False,
) -> None:  # fmt: skip
    """Names beside the ends of lines, moved apart, with a thin line from each end to its name.

    Args:
        ends: x, y of each line's end, in data units.
        high, wide: size of the axes in inches.
    """
    x_low, x_high = ax.get_xlim()
    y_low, y_high = ax.get_ylim()

    def place(y: float) -> float:
        """A value's height as a share of the axes."""
        if log:
            return float(np.log(y / y_low) / np.log(y_high / y_low))
        return (y - y_low) / (y_high - y_low)

    gap = (style.SMALL_PT + 1.2) / style.POINTS_PER_IN / high
    places = style.spread([place(y) for _, y in ends], gap, gap / 2, 1 - gap / 2)
    for (x, y), at, name, row in zip(ends, places, labels, rows, strict=True):
        share = (x - x_low) / (x_high - x_low)
        ax.plot([share, 1 + 0.16 / wide], [place(y), at], color=style.MUTED, linewidth=0.35,
                transform=ax.transAxes, clip_on=False)  # fmt: skip
        ax.plot([1 + 0.18 / wide, 1 + 0.25 / wide], [at, at], color=style.colour(row),
                linewidth=1.6, transform=ax.transAxes, clip_on=False)  # fmt: skip
        ax.text(1 + 0.28 / wide, at, name, size=style.SMALL_PT, va="center",
                transform=ax.transAxes)  # fmt: skip


# -- memory and page faults --------------------------------------------------------------------

PANELS = (
    ("rss_bytes", "Resident memory", "MiB", MIB, False),
    ("device_memory_bytes", "Device memory", "MiB", MIB, False),
    ("minor_faults", "Minor page faults since the start", "thousands", 1e3, True),
    ("major_faults", "Major page faults since the start", "", 1.0, True),
)  # column, title, unit, scale, counted from the first sample


def add_memory(data: Data, book: Book, kind: Family, points: list[Row], prefix: str) -> None:
    """Resident and device memory and page faults of one family, device by device."""
    for device in dict.fromkeys(point["device"] for point in points):
        rows = [point for point in points if point["device"] == device]
        if not any(_lines(data, rows, column, scale, since)
                   for column, _, _, scale, since in PANELS):  # fmt: skip
            book.note(
                f"{kind.name} on {device}: memory and page faults over time are not shown, the "
                "probes left no samples."
            )
            continue
        silent = sorted({
            row["backend"] for row in rows
            if not _lines(data, [row], "device_memory_bytes", MIB, False)
        })  # fmt: skip
        book.figure(
            f"{prefix}memory-{kind.slug}-{device}",
            "memory",
            lambda narrow, rows=rows: draw_memory(data, rows, narrow),
            family=kind.label, device=data.device_name(rows[0]),
            silent=f" No device memory is drawn for {words.listing(silent)}: no counter."
            if silent else "",
        )  # fmt: skip


def _lines(
    data: Data, rows: Sequence[Row], column: str, scale: float, since: bool
) -> list[tuple[Row, np.ndarray, np.ndarray]]:
    """(row, seconds, values) of each cell that has samples in a column."""
    found = []
    for row in rows:
        frame = data.traces.sampled(row)
        if frame is None or column not in frame or frame[column].notna().sum() < 2:
            continue
        kept = frame[frame[column].notna()]
        values = kept[column].to_numpy(dtype=float)
        found.append((row, kept["t_s"].to_numpy(dtype=float),
                      (values - values[0] if since else values) / scale))  # fmt: skip
    return found


def draw_memory(data: Data, rows: Sequence[Row], narrow: bool) -> Any:
    """One panel a quantity that was sampled; a quantity that stayed 0 is left to the caption."""
    panels = []
    for column, title, unit, scale, since in PANELS:
        lines = _lines(data, rows, column, scale, since)
        if lines and any(values.max() > 0 for _, _, values in lines):
            panels.append((title, unit, lines, since))
    columns = 1 if narrow else min(2, len(panels))
    width = style.width_in(narrow)
    left, head, foot = 0.46, 0.3, 0.36
    right = max(style.text_in(label(row), style.SMALL_PT) for row in rows) + 0.34
    pitch = width / columns
    high = max(1.35, 0.115 * len(rows))
    count = -(-len(panels) // columns)
    figure = style.canvas(width, count * (head + high + foot))
    for index, (title, unit, lines, since) in enumerate(panels):
        row, column_index = divmod(index, columns)
        x, top = column_index * pitch, row * (head + high + foot)
        style.write(figure, x, top + 0.14, title, weight="bold", va="center")
        wide = pitch - left - right
        ax = style.axes(figure, x + left, top + head, wide, high)
        for cell, seconds, values in lines:
            ax.plot(seconds, values, color=style.colour(cell), dashes=_dashes(cell))
        peak = max(values.max() for _, _, values in lines)
        ax.set_ylim(0, peak * 1.06 or 1)
        ax.set_xlim(0, max(seconds[-1] for _, seconds, _ in lines) or 1)
        ends = [(float(seconds[-1]), float(values[-1])) for _, seconds, values in lines]
        end_labels(ax, ends, [label(cell) for cell, _, _ in lines],
                   [cell for cell, _, _ in lines], high, wide)  # fmt: skip
        ax.set_ylabel(unit, size=style.SMALL_PT)
        ax.set_xlabel("time since the cell began / s", size=style.SMALL_PT)
        style.plain_ticks(ax.xaxis, 4)
        style.plain_ticks(ax.yaxis, 5)
        ax.grid(axis="y")
    return figure
