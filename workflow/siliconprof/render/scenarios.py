"""Scenarios: which one each training asked for, which the memory model derived, which was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Table, Value, count, missing, number, told
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, order

MODEL_ONLY = "model only"
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
