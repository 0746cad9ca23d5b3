"""Are these numbers true? What every cell checked of its clock, its waiting and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.analyse import cell_columns
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, text
from siliconprof.render.variants import Row

HEADS = {
    "clock": Column("Clock", help="how fine it is and what reading it costs"),
    "sleep": Column(
        "Known sleep", help="a sleep of 20 ms as it was measured, and over what a second clock says"
    ),
    "twice_the_work": Column("Twice the work", help="how many times as long it takes"),
    "synchronisation": Column(
        "Waited for", help="least share of the time until a result could be read that was timed"
    ),
    "marks": Column("Phases' clock", help="the backend's marks over the host's clock"),
    "precision": Column("Precision", help="largest error of a product against float64"),
    "drift": Column("Drift", help="second half of the repeats against the first, at most"),
}
RESULTS = Column("Results", help="largest error against float64; a wrong one ends its cell")


def add(own: Data, book: Book) -> None:
    """One row per device, backend and precision; a note where no cell has made a check."""
    checked_cells = [cell for cell in own.cells if cell.get("clock_check")]
    book.heading("Are these numbers true?", anchor="truth")
    if checked_cells:
        book.table("truth", "truth", table(own, checked_cells))
    else:
        book.note("No cell of this host has checked its clock and its arithmetic.")


def failed(cell: Row) -> bool:
    """Whether any of a cell's own checks failed."""
    return any(cell.get(f"{name}_check") == "failed" for name in cell_columns.NAMES)


def table(data: Data, cells: Sequence[Row]) -> Table:
    """What the cells of each device, backend and precision found, in the page's order."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for cell in cells:
        place = tuple(cell[axis] for axis in ("host", "device", "backend", "precision"))
        groups.setdefault(place, []).append(cell)
    columns = [
        Column("Host", folds=True),
        Column("Device", folds=True),
        Column("Backend"),
        Column("Precision"),
        Column("Cells", "", True),
    ]
    result = Table([*columns, *HEADS.values(), RESULTS])
    for (host, _, _, precision), members in groups.items():
        first = members[0]
        result.add(
            text(host),
            text(data.device_name(first)),
            text(words.backend_name(first)),
            text(precision),
            Value(str(len(members)), sort=len(members)),
            *(outcome(name, members) for name in cell_columns.NAMES),
            results(members),
            of=members,
        )
    return result


def outcome(name: str, cells: Sequence[Row]) -> Value:
    """`ok` with the figures below it, how many failed, or why it was not checked."""
    checked = [cell for cell in cells if cell[f"{name}_check"] in ("ok", "failed")]
    failed = [cell for cell in checked if cell[f"{name}_check"] == "failed"]
    if not checked:
        reasons = {cell[f"{name}_check_reason"] for cell in cells} - {None}
        return missing("; ".join(sorted(reasons)) or "the cell failed before")
    below, title = figures(name, checked), f"checked in {len(checked)} of {len(cells)}"
    if failed:
        verdict = f"{len(failed)} of {len(checked)} failed"
        return Value(verdict, sort=len(failed), below=below, title=title, mark="bad")
    return Value("ok", sort=0, below=below, title=title)


def results(cells: Sequence[Row]) -> Value:
    """How far results were from float64 at most."""
    errors = numbers(cells, "worst_result_error")
    if not errors:
        return missing("no point has a result that a float64 reference was computed for")
    return Value(words.scientific(errors[-1]), sort=errors[-1])


def numbers(cells: Sequence[Row], column: str) -> list[float]:
    """A column's figures, the least first."""
    read = (words.number(cell[column]) for cell in cells)
    return sorted(number for number in read if number is not None)


def figures(name: str, cells: Sequence[Row]) -> str:
    """What the check measured in these cells."""
    values = partial(numbers, cells)
    if name == "clock":
        fine, cost = values("clock_resolution_s"), values("clock_reading_cost_s")
        texts = [
            f"{words.whole(1e9 * series[-1])}{words.THIN}ns" for series in (fine, cost) if series
        ]
        return ", read in ".join(texts) if fine else ""
    if name == "sleep":
        slept = [f"{1e3 * s:.1f}" for s in values("sleep_measured_s")]
        by_second = [f"{ratio:.3f}" for ratio in values("sleep_ratio")]
        ratio = f", {span(by_second)}" if by_second else ""
        return f"{span(slept)}{words.THIN}ms{ratio}" if slept else ""
    if name == "twice_the_work":
        ratios = {"product": values("twice_product_ratio"), "sum": values("twice_sum_ratio")}
        return ", ".join(
            f"{what} {span([f'{r:.2f}' for r in measured])}"
            for what, measured in ratios.items()
            if measured
        )
    if name == "synchronisation":
        return "".join(map(words.whole_percent, values("waited_share")[:1]))
    if name == "marks":
        ratios_shown = [f"{ratio:.3g}" for ratio in values("marks_ratio")]
        return span(ratios_shown) if ratios_shown else ""
    if name == "drift":
        changes = [ratio - 1 for ratio in values("worst_drift_ratio")]
        n_repeated = sum(values("attempts_given_up"))
        largest = max(changes, key=abs, default=None)
        drift = [] if largest is None else [f"{100 * largest:+.0f}{words.THIN}%".replace("-", "−")]
        return ", ".join(drift + ([f"{n_repeated:.0f} measured again"] if n_repeated else []))
    errors = values("product_error")
    return words.scientific(errors[-1]) if errors else ""


def span(texts: Sequence[str]) -> str:
    """`1.97–2.03`, or the one number that all are."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]}–{texts[-1]}"
