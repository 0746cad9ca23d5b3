"""Scenarios: which one each training asked for, which the memory model derived, which was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Row, order

MIB = 2.0**20
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
    if remarkable:
        book.table("scenarios", "scenarios", table(data, remarkable))
    if plain:
        shares = [share for cell in plain if (share := _share(cell)) is not None]
        most = f", the largest to {words.percent(max(shares))} of its capacity" if shares else ""
        others = "other " if remarkable else ""
        book.note(
            f"{words.count(len(plain), f'{others}training cell')} left the scenario to the "
            f"memory model: predicted to fit{most}."
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
    result = Table(
        [
            *NAMES,
            Column("Asked for"),
            Column("Derived", help="by the memory model"),
            Column("Applied", help="what was run"),
            Column("Limit"),
            Column("Outcome"),
            Column("batch", "", True, "samples a step"),
            Column(
                "predicted",
                "MiB",
                True,
                "by the memory model, without offloading; below its share of the capacity",
                "share of capacity",
            ),
            Column(
                "predicted, offloaded",
                "MiB",
                True,
                "what stays on the device of an offloaded "
                "training: what its confirmed peak is compared with",
                folds=True,
            ),
            Column("capacity", "MiB", True, "what the cell may use"),
            Column("confirmed peak", "MiB", True, "held under the limit"),
        ]
    )
    points = {key(point): point for point in data.training()}
    sources = {str(cell["capacity_source"]) for cell in cells if cell.get("capacity_source")}
    result.notes = [f"Capacities are {words.listing(sorted(sources))}."] if sources else []
    for cell in cells:
        point = points.get(key(cell))
        batch = (point or cell).get("batch_size")
        ok, ran = cell["status"] == "ok", cell["status"] not in NOT_RUN
        result.add(
            *names(cell),
            cell["scenario"],
            cell["scenario_derived"] or missing("no memory model, or no capacity is known"),
            (cell.get("scenario_applied") if ran else None) or missing("was not run"),
            limit(cell),
            Value("measured", sort="ok")
            if ok
            else Value(
                cell["status"],
                cell["status"],
                reason=cell["reason"] or "no reason given",
                mark=f"status-{cell['status']}",
            ),
            integer(batch, "was not run"),
            _predicted(cell),
            quantity(cell.get("predicted_offloaded_bytes"), "not offloaded", MIB),
            quantity(
                cell.get("capacity_bytes"),
                "the device's memory is unknown",
                MIB,
                title=cell.get("capacity_source") or "",
            ),
            quantity(cell.get("confirmed_peak_bytes"), "no limit, so no peak to confirm", MIB),
            css="" if ok else "failed",
            of=cell,
        )
    return result


def _predicted(cell: Row) -> Value:
    value = quantity(cell["predicted_memory_bytes"], "no memory model", MIB)
    share = _share(cell)
    return value if share is None else replace(value, below=words.percent(share))


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
