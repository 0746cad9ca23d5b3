"""Scenarios: which one each training asked for, which the memory model derived, which was run.

Near capacity: memory and the time of each step on one clock, the paper's Figure 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.render import chart, hover, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.tables import Table, Value, count, missing, number, told
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, family_order, label, model, order

MODEL_ONLY = "model only"
MIB = 2.0**20
MOST_STEPS = 600
KINDS = {"warm-up": "warm-up", "split": "split step", "unsplit": "unsplit step"}
INKS = {"warm-up": style.FAINT, "split": style.MUTED}  # unsplit steps have their backend's
THIN: dict[str, Any] = {"linewidth": 0.8}
LEVELS = (  # column, what it is called, how its line looks
    ("capacity_bytes", "capacity", {"color": style.INK, **THIN}),
    ("predicted_memory_bytes", "predicted", {"color": style.MUTED, "dashes": (3, 2), **THIN}),
)
NOT_RUN = ("unsupported", "skipped")


def add(data: Data, book: Book) -> None:
    """One table of the cells in which anything but `fits` was asked for, derived or run."""
    cells = sorted((cell for cell in data.cells if cell["trainer"]), key=order)
    if not cells:
        book.note("No training cell is part of these results, so no scenario was derived.")
        return
    remarkable = [cell for cell in cells if _remarkable(cell)]
    plain = [cell for cell in cells if not _remarkable(cell)]
    predicted = [cell for cell in plain if cell["scenario_derived"]]
    if remarkable:
        book.table("scenarios", "scenarios", table(data, remarkable))
    others = "other " if remarkable else ""
    if predicted:
        shares = [share for cell in predicted if (share := _share(cell)) is not None]
        most = f", the largest to {words.percent(max(shares))} of its capacity" if shares else ""
        book.note(
            f"{words.count(len(predicted), f'{others}training cell')} left the scenario to the "
            f"memory model: predicted to fit{most}."
        )
    if n_unknown := len(plain) - len(predicted):
        book.note(
            f"For {words.count(n_unknown, f'{others}training cell')} no scenario was derived: "
            f"{NONE.reason}."
        )


def _remarkable(cell: Row) -> bool:
    return (
        cell["scenario"] != "auto"
        or cell["scenario_derived"] not in ("fits", None)
        or cell.get("scenario_applied") not in ("fits", None)
        or cell["status"] == "skipped"
    )


def _share(cell: Row) -> float | None:
    """The prediction as a share of the capacity."""
    predicted = words.number(cell["predicted_memory_bytes"])
    capacity = words.number(cell.get("capacity_bytes"))
    return predicted / capacity if predicted and capacity else None


def table(data: Data, cells: Sequence[Row]) -> Table:
    """Asked for, derived, applied; the prediction against the capacity; how the limit was kept."""
    points = {key(point): point for point in data.training()}
    sources = sorted({str(cell["capacity_source"]) for cell in cells if cell["capacity_source"]})
    return Table.of(
        [cell | {"batch_size": points.get(key(cell), cell).get("batch_size")} for cell in cells],
        COLUMNS,
        notes=[f"Capacities are {words.listing(sources)}."] if sources else [],
        css=lambda cell: "" if cell["status"] == "ok" else "failed",
    )


def _applied(cell: Row) -> str | Value:
    ran = cell["status"] not in NOT_RUN
    return (cell.get("scenario_applied") if ran else None) or missing("was not run")


def _outcome(cell: Row) -> Value:
    status = cell["status"]
    if status == "ok":
        return Value("measured", sort="ok")
    why = cell["reason"] or "no reason given"
    return Value(status, status, reason=why, mark=f"status-{status}")


def _share_text(cell: Row) -> str:
    share = _share(cell)
    return "" if share is None else words.percent(share)


def limit(cell: Row) -> Value:
    """How a cell was kept to its capacity, `model only` where nothing did."""
    if cell.get("limit_enforced") is None:
        return missing("nothing asked for a limit, or the cell was not measured")
    if cell["limit_enforced"]:
        return Value("enforced", "enforced", reason=f"limit enforced: {cell['limit_how']}")
    why = unenforced(cell)
    return Value(MODEL_ONLY, MODEL_ONLY, reason=f"{MODEL_ONLY}: {why}" if why else "")


def unenforced(cell: Row) -> str:
    """Why nothing keeps a cell to its capacity; empty when no reason is recorded."""
    reason = cell.get("limit_reason") or cell.get("limit_how") or ""
    return "" if reason == MODEL_ONLY else str(reason)


NO_MODEL, NO_CAPACITY = "no memory model", "the device's memory is unknown"
NONE = missing("no memory model, or no capacity is known")
NO_LIMIT = "no limit, so no peak to confirm"
PREDICTED = "by the memory model, without offloading; below its share of the capacity"
OFFLOADED, NOT = "predicted, offloaded", "not offloaded"
STAYS = (
    "what stays on the device of an offloaded training: what its confirmed peak is compared with"
)
MAY_USE = "what the cell may use"
OF: dict[str, Any] = {"title": lambda cell: cell.get("capacity_source") or ""}
SHARE: dict[str, Any] = {"under": _share_text, "below": "share of capacity"}
COLUMNS = (
    *NAMES,
    told("Asked for", "scenario"),
    told("Derived", lambda cell: cell["scenario_derived"] or NONE, "by the memory model"),
    told("Applied", _applied, "what was run"),
    told("Limit", limit),
    told("Outcome", _outcome),
    count("batch", "batch_size", "was not run", "samples a step"),
    number("predicted", "MiB", "predicted_memory_bytes", NO_MODEL, PREDICTED, **SHARE),
    number(OFFLOADED, "MiB", "predicted_offloaded_bytes", NOT, STAYS, folds=True),
    number("capacity", "MiB", "capacity_bytes", NO_CAPACITY, MAY_USE, **OF),
    number("confirmed peak", "MiB", "confirmed_peak_bytes", NO_LIMIT, "held under the limit"),
)


# -- near capacity -------------------------------------------------------------------------------


class Run(NamedTuple):
    """What is drawn of a cell."""

    seconds: np.ndarray
    held_bytes: np.ndarray
    quantity: str  # what `held_bytes` is
    course: pd.DataFrame


def add_near_capacity(data: Data, book: Book) -> None:
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
    course = data.traces.course(point)
    if course is None or course["step_s"].notna().sum() < 2:
        return None
    start = words.number(point["rss_at_start_bytes"]) or 0.0
    for column, offset, quantity in (
        ("device_memory_bytes", 0.0, "device memory as the framework counts it"),
        ("rss_bytes", start, "the process's resident memory above that after its imports"),
    ):
        seconds, held = data.traces.sampled_values(point, column)
        if len(held) > 1:
            return Run(seconds, held - offset, quantity, course)
    return None


def draw(point: Row, run: Run) -> Any:
    """Above the memory with its limit and its prediction, below the time of each step."""
    ink, whose = style.shade(point["backend"]), hover.training(point)
    held = run.held_bytes / MIB
    text = f"{whose}: {run.quantity}, at most {hover.spanned(held.max(), None, None, 'MiB')}"
    memory = [chart.line(run.seconds.tolist(), held.tolist(), point, text, color=ink)]
    for column, name, look in LEVELS:
        if value := words.number(point.get(column)):
            text = f"{whose}: {name} {words.mebibytes(value)}"
            memory.append(chart.across(value / MIB, point, text, **look))
    steps, legend = [], []
    for kind, name in KINDS.items():
        part = run.course[run.course["kind"] == kind]
        if part.empty:
            continue
        part = part[part["step_s"].notna()]
        times = (part["step_s"] * 1e3).tolist()
        xs, ys = strokes.thin(part["started_s"].tolist(), times, MOST_STEPS)
        text = f"{whose}: {name}" + (f": {hover.of_several(times, 'ms')}" if times else "")
        steps.append(chart.dots(xs, ys, point, text, 2.2, color=INKS.get(kind, ink)))
        sample = style.sample("o", color=INKS.get(kind, ink), markersize=2.6)
        legend.append((sample, name))
    legend += [(style.sample(None, "-", **look), name) for _, name, look in LEVELS]
    settled = run.course[~run.course["kind"].isin(("compile", "warm-up"))]["step_s"]
    slow_ms = run.course["step_s"].max() * 1e3
    top_ms = settled.max() * 1e3
    if slow_ms > 1.5 * top_ms:
        steps.append(chart.corner(f"warm-up ≤ {words.duration(slow_ms / 1e3)}"))
        top_ms *= 1.2
    else:
        top_ms = slow_ms
    x = Scale("time since the cell began / s", zero=True, most=6)
    step_times = Scale("ms", ends=(0, top_ms * 1.08), most=4)
    panels = [
        Panel(memory, x, Scale("MiB", zero=True, most=4), title="Memory", high=1.25),
        Panel(steps, x, step_times, title="Time of each step", high=1.25),
    ]
    return Chart(panels, legend, same_x=True).figure()
