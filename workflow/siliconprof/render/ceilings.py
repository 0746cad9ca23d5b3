"""What each device does at most by its own measurement, and whether any throughput claims more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from siliconprof import words
from siliconprof.analyse.ceilings import ONE_PROCESS
from siliconprof.analyse.throughputs import FLAG_OF_VERDICT, NOT_COMPARED, place
from siliconprof.render import bandwidth
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.variants import Row

GIGA = 1e9
OF_FORMAT = ("matmul", "memory_bandwidth", "cache_bandwidth")
TRANSFERS = {
    "host_to_device_pinned": "to device, pinned",
    "host_to_device": "to device",
    "device_to_host_pinned": "to host, pinned",
    "device_to_host": "to host",
}
LAUNCHES = {
    "launch_and_wait": "launch and wait",
    "amortised": "amortised launch",
    "enqueue": "enqueue only",
}
NANO, MICRO = 1e-9, 1e-6


def add(data: Data, book: Book, prefix: str = "") -> None:
    """The ceilings, the bandwidth curves, and what was found above a ceiling."""
    if not data.ceilings:
        book.note("No ceilings: no cell is part of these results.")
        return
    book.table(f"{prefix}ceilings", "ceilings", ceilings_table(data))
    bandwidth.add(data, book, prefix)
    book.table(f"{prefix}costs", "costs", costs_table(data))
    _checks(data, book, prefix)


def _lines(data: Data, names: Iterable[str]) -> list[Row]:
    wanted = set(names)
    return [line for line in data.ceilings if line["quantity"] in wanted]


def ceilings_table(data: Data) -> Table:
    """One line for each device, backend and number format."""
    table = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("fastest product", "GFLOP/s", True, "median; its shape below", "shape"),
            Column("burst mean", "GFLOP/s", True, "of the same shape"),
            Column(
                "of data sheet",
                "%",
                True,
                "the median over the peak, which stands below",
                "GFLOP/s",
            ),
            Column(
                "memory", "GB/s", True, "far beyond the last-level cache; kernel below", "kernel"
            ),
            Column(
                "of data sheet", "%", True, "memory over its bandwidth, which stands below", "GB/s"
            ),
            Column(
                "cache", "GB/s", True, "best working set that fits the last-level cache", "kernel"
            ),
            Column(
                "± product",
                "%",
                True,
                "by how much processes differ, one standard deviation",
                folds=True,
            ),
            Column(
                "± memory",
                "%",
                True,
                "by how much processes differ, one standard deviation",
                folds=True,
            ),
        ]
    )
    groups: dict[tuple, dict[str, Row]] = {}
    for line in _lines(data, OF_FORMAT):
        groups.setdefault((*place(line), line["precision"]), {})[line["quantity"]] = line
    for lines in groups.values():
        product, memory, cache = (lines[name] for name in OF_FORMAT)
        table.add(
            product["device"],
            words.backend_name(product),
            product["precision"],
            _figure(product),
            quantity(product["burst_value"], product["reason"] or "no burst was timed", GIGA),
            _share(product),
            _figure(memory),
            _share(memory),
            _figure(cache),
            _error(product),
            _error(memory),
            of=_behind(data, lines.values()),
        )
    return table


def _behind(data: Data, lines: Iterable[Row]) -> list[Row]:
    """The cells that lines of ceilings are from; where nothing was measured, all of their place."""
    several = list(lines)
    records = {line["record"] for line in several}
    where = {place(line) for line in several}
    cells = [cell for cell in data.cells if cell["record"] in records]
    return cells or [cell for cell in data.cells if place(cell) in where]


def _figure(line: Row | None, scale: float = GIGA, beside: Row | None = None) -> Value:
    """A ceiling with the point that it is from.

    Args:
        beside: a line whose reason stands in where there is no line of this kind.
    """
    if line is None:
        return missing(str((beside or {}).get("reason") or "not measured"))
    value = quantity(line["value"], str(line["reason"]), scale)
    if value.reason:
        return value
    n = words.number(line["n"])
    counted = f", n = {n:.0f}" if n else ""
    return Value(
        value.text, value.sort, line["how"], f"{line['workload']}{counted}: {line['record']}"
    )


def _share(line: Row) -> Value:
    """The share of the data sheet's figure, which stands below."""
    sheet = words.number(line["datasheet_value"])
    if sheet is None:
        return missing(str(line["datasheet_reason"]))
    share = quantity(line["share"], str(line["reason"]), 0.01)
    note = f" ({line['datasheet_note']})" if line["datasheet_note"] else ""
    return replace(
        share, below=words.significant(sheet / GIGA, 4), title=f"{line['datasheet_source']}{note}"
    )


def _error(line: Row) -> Value:
    """By how much one process differs from another, with what that rests on."""
    basis = line["error_basis"] or ONE_PROCESS
    return quantity(line["error"], basis, 0.01, 2, title=basis)


def costs_table(data: Data) -> Table:
    """Transfers, page faults and launches: one line for each device and backend."""
    table = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            *(
                Column(name, "GB/s", True, "largest throughput; the transfer's size below", "which")
                for name in TRANSFERS.values()
            ),
            Column(
                "page fault",
                "ns",
                True,
                "first touch of a page, over a later one; how many below",
                "which",
            ),
            *(
                Column(name, "µs", True, "what was launched stands below", "which")
                for name in LAUNCHES.values()
            ),
        ]
    )
    groups: dict[tuple, dict[str, Row]] = {}
    for line in _lines(data, [*TRANSFERS, "page_fault", *LAUNCHES]):
        best = groups.setdefault(place(line), {})
        before = best.get(line["quantity"])
        if before is None or (line["value"] or math.inf) < (before["value"] or math.inf):
            best[line["quantity"]] = line  # of several launchers the quickest
    for lines in groups.values():
        first = lines["page_fault"]
        table.add(
            first["device"],
            words.backend_name(first),
            *(_transfer(lines[name]) for name in TRANSFERS),
            _figure(first, NANO),
            *(_figure(lines.get(name), MICRO, lines["launch_and_wait"]) for name in LAUNCHES),
            of=_behind(data, lines.values()),
        )
    return table


def _transfer(line: Row) -> Value:
    """A transfer's throughput; below it the size alone, for the column says the rest."""
    value = _figure(line)
    return replace(value, below=value.below.split(", ")[-1])


def _checks(data: Data, book: Book, prefix: str) -> None:
    """How many throughputs were held against a ceiling, and those that lie above one."""
    above = [check for check in data.checks if check["verdict"] in FLAG_OF_VERDICT]
    compared = [check for check in data.checks if check["verdict"] != NOT_COMPARED]
    with_sheet = sum(check["of_datasheet"] is not None for check in compared)
    summary = (
        f"{words.count(len(compared), 'throughput')} of {len(data.checks)} could be held against a "
        f"ceiling, {with_sheet or 'none'} of them against a data sheet as well; "
        f"{len(above) or 'none'} {'lie' if len(above) > 1 else 'lies'} above. All are in "
        f"{data.results.as_posix()}/tables/checks.csv."
    )
    book.note(summary if data.checks else "No throughput was measured, so none was checked.")
    if above:
        book.table(f"{prefix}above", "above", above_table(above))


def above_table(checks: Sequence[Row]) -> Table:
    """Throughputs that the hardware does not have."""
    table = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Workload"),
            Column("Precision"),
            Column("Point"),
            Column("Throughput", "", True),
            Column("Unit"),
            Column("of data sheet", "%", True),
            Column("of own ceiling", "%", True),
            Column("Verdict"),
        ]
    )
    for check in checks:
        table.add(
            check["device"],
            words.backend_name(check),
            check["workload"],
            check["precision"],
            check["how"] + (", in a burst" if check["quantity"].startswith("burst") else ""),
            quantity(check["value"], "", GIGA, title=check["record"]),
            f"G{check['unit']}",
            quantity(check["of_datasheet"], "no data sheet gives this figure", 0.01),
            quantity(check["of_ceiling"], "no ceiling of ours", 0.01),
            Value(check["verdict"], sort=check["verdict"], mark="bad", title=check["reason"]),
            of=check,
        )
    return table
