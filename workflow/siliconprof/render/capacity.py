"""Near capacity: memory and the time of each step on one clock, the paper's Figure 4."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.scenarios import unenforced
from siliconprof.render.variants import Row, family_order, label, model

MIB = 2.0**20
MOST_STEPS = 600
KINDS = (
    ("warm-up", "warm-up"),
    ("split", "split step"),
    ("unsplit", "unsplit step"),
)


class Run(NamedTuple):
    """What is drawn of a cell."""

    memory: pd.DataFrame  # t_s, held_bytes
    quantity: str  # what `held_bytes` is
    course: pd.DataFrame


def add(data: Data, book: Book) -> None:
    """One figure for each device and backend whose limit was enforced; a sentence for the rest."""
    points = [
        point
        for point in sorted(data.training(), key=family_order)
        if "near-capacity" in (point.get("scenario_applied"), point["scenario"])
    ]
    drawn: set[tuple[str, str]] = set()
    reasons = []
    for point in points:
        place = (point["device"], point["backend"])
        name = f"{model(point)}, {label(point)}"
        if not point.get("limit_enforced"):
            why = unenforced(point) or "nothing enforces the limit"
            reasons.append(f"{name}: the capacity is a number for the memory model only ({why}).")
            continue
        run = _run(data, point)
        if run is None:
            reasons.append(f"{name}: the probes left no samples, or the steps no times.")
            continue
        if place in drawn:
            reasons.append(f"{name}: left out, one cell of this device and backend is shown.")
            continue
        drawn.add(place)
        book.figure(
            f"near-capacity-{point['device']}-{point['backend']}",
            "near-capacity",
            partial(draw, point, run),
            cell=name,
            device=data.device_name(point),
            quantity=run.quantity,
            how=point.get("limit_how") or "its means is not recorded",
        )
    if reasons:
        book.listing(reasons, "No figure of memory and step times near capacity:")


def _run(data: Data, point: Row) -> Run | None:
    """Memory over time, of the device where it is counted, else of the process; and the steps."""
    frame, course = data.traces.sampled(point), data.traces.course(point)
    if frame is None or course is None or course["step_s"].notna().sum() < 2:
        return None
    if "device_memory_bytes" in frame and frame["device_memory_bytes"].notna().sum() > 1:
        held = frame["device_memory_bytes"].astype(float)
        quantity = "device memory as the framework counts it"
    elif "rss_bytes" in frame and frame["rss_bytes"].notna().sum() > 1:
        start = words.number(point["rss_at_start_bytes"]) or 0.0
        held = frame["rss_bytes"].astype(float) - start
        quantity = "the process's resident memory above that after its imports"
    else:
        return None
    memory = pd.DataFrame({"t_s": frame["t_s"], "held_bytes": held}).dropna()
    return Run(memory, quantity, course)


def draw(point: Row, run: Run, narrow: bool) -> Any:
    """Above the memory with its limit and its prediction, below the time of each step."""
    width, left, title, foot = style.width_in(narrow), 0.5, 0.28, 0.4
    inks = {
        "warm-up": style.FAINT,
        "split": style.MUTED,
        "unsplit": style.shade(point["backend"]),
    }
    kinds = [(kind, name) for kind, name in KINDS if (run.course["kind"] == kind).any()]
    entries = [
        *((style.sample("o", color=inks[kind], markersize=2.6), name) for kind, name in kinds),
        (style.sample(None, "-", color=style.INK, linewidth=0.8), "capacity"),
        (style.sample(None, "-", color=style.MUTED, linewidth=0.8, dashes=(3, 2)), "predicted"),
    ]
    head = style.legend_height(entries, width)
    heights = (1.25, 1.25)
    figure = style.canvas(width, head + 2 * title + sum(heights) + 0.1 + foot)
    style.legend(figure, entries, 0.0)
    end_s = max(float(run.memory["t_s"].max()), float(run.course["started_s"].max()))
    style.write(figure, 0, head + 0.16, "Memory", weight="bold", va="center")
    ax = style.axes(figure, left, head + title, width - left - 0.1, heights[0])
    values = run.memory["held_bytes"].to_numpy() / MIB
    whose = hover.training(point)
    marks.tag(
        ax.plot(run.memory["t_s"], values, color=style.shade(point["backend"])),
        point,
        f"{whose}: {run.quantity}, at most {hover.spanned(values.max(), None, None, 'MiB')}",
    )
    lines = [
        (words.number(point.get(f"{name}_bytes")), called, ink, dash)
        for name, called, ink, dash in (
            ("capacity", "capacity", style.INK, (1, 0)),
            ("predicted_memory", "predicted", style.MUTED, (3, 2)),
        )
    ]
    for value, called, ink, dash in lines:
        if value:
            marks.tag(
                ax.axhline(value / MIB, color=ink, linewidth=0.8, dashes=dash),
                point,
                f"{whose}: {called} {words.mebibytes(value)}",
            )
    top = max([values.max(), *(line[0] / MIB for line in lines if line[0])])
    ax.set_ylim(0, top * 1.08)
    ax.set_ylabel("MiB", size=style.SMALL_PT)
    ax.tick_params(labelbottom=False)
    below = style.axes(
        figure, left, head + 2 * title + heights[0] + 0.1, width - left - 0.1, heights[1]
    )
    style.write(
        figure,
        0,
        head + title + heights[0] + 0.1 + 0.16,
        "Time of each step",
        weight="bold",
        va="center",
    )
    shown = run.course[run.course["step_s"].notna()]
    settled = shown[~shown["kind"].isin(("compile", "warm-up"))]["step_s"]
    high = float((settled if len(settled) else shown["step_s"]).max()) * 1e3
    slow = float(shown["step_s"].max()) * 1e3
    for kind, name in kinds:
        part = shown[shown["kind"] == kind]
        times = (part["step_s"] * 1e3).tolist()
        xs, ys = strokes.thin(part["started_s"].tolist(), times, MOST_STEPS)
        text = f": {hover.of_several(times, 'ms')}" if times else ""
        marks.tag(
            strokes.dots(below, xs, ys, size=2.2, color=inks[kind]), point, f"{whose}: {name}{text}"
        )
    if slow > high * 1.5:
        below.text(
            1,
            1,
            f"warm-up up to {words.duration(slow / 1e3)}",
            ha="right",
            va="top",
            size=style.SMALL_PT,
            color=style.MUTED,
            transform=below.transAxes,
        )
        high *= 1.2
    else:
        high = slow
    below.set_ylim(0, high * 1.08)
    below.set_ylabel("ms", size=style.SMALL_PT)
    below.set_xlabel("time since the cell began / s", size=style.SMALL_PT)
    for axis in (ax, below):
        axis.set_xlim(0, end_s * 1.01)
        style.plain_ticks(axis.xaxis, 6)
        style.plain_ticks(axis.yaxis, 4)
        axis.grid(axis="y")
    return figure
