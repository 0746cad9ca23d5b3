"""Are these numbers true? What every cell checked of its clock, its waiting and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from siliconprof.analyse import cell_columns
from siliconprof.render import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, text
from siliconprof.render.variants import Row

HEADS = {
    "clock": Column("Clock", help="how fine it is and what reading it costs"),
    "sleep": Column("Known sleep", help="a sleep of 20 ms, as it was measured"),
    "twice_the_work": Column("Twice the work", help="how many times as long it takes"),
    "synchronisation": Column(
        "Waited for", help="least share of the time until a result could be read that was timed"
    ),
    "precision": Column("Precision", help="largest error of a product against float64"),
    "results": Column("Results", help="largest error of a result against float64"),
    "drift": Column("Drift", help="second half of the repeats against the first, at most"),
}


def add(own: Data, book: Book) -> None:
    """One row per device, backend and precision; a note where no cell has made a check."""
    checked_cells = [cell for cell in own.cells if cell.get("clock_check")]
    book.heading("Are these numbers true?", anchor="truth")
    if checked_cells:
        book.table("truth", "truth", table(own, checked_cells))
    else:
        book.note("No cell of this host has checked its clock and its arithmetic.")


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
    result = Table([*columns, *HEADS.values()])
    for (host, _, _, precision), members in groups.items():
        first = members[0]
        result.add(
            text(host),
            text(data.device_name(first)),
            text(words.backend_name(first)),
            text(precision),
            Value(str(len(members)), sort=len(members)),
            *(outcome(name, members) for name in cell_columns.NAMES),
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


def figures(name: str, cells: Sequence[Row]) -> str:
    """What the check measured in these cells."""

    def values(column: str) -> list[float]:
        numbers = (words.number(cell[column]) for cell in cells)
        return sorted(number for number in numbers if number is not None)

    if name == "clock":
        fine, cost = values("clock_resolution_s"), values("clock_reading_cost_s")
        return f"{1e9 * fine[-1]:.0f}{words.THIN}ns, read in {1e9 * cost[-1]:.0f}{words.THIN}ns"
    if name == "sleep":
        return span([f"{1e3 * s:.1f}" for s in values("sleep_measured_s")]) + f"{words.THIN}ms"
    if name == "twice_the_work":
        ratios = {"product": values("twice_product_ratio"), "sum": values("twice_sum_ratio")}
        return ", ".join(
            f"{what} {span([f'{r:.2f}' for r in measured])}"
            for what, measured in ratios.items()
            if measured
        )
    if name == "synchronisation":
        return words.whole_percent(values("waited_share")[0])
    if name == "drift":
        changes = [ratio - 1 for ratio in values("worst_drift_ratio")]
        n_repeated = sum(values("attempts_given_up"))
        largest = max(changes, key=abs, default=None)
        drift = [] if largest is None else [f"{100 * largest:+.0f}{words.THIN}%".replace("-", "−")]
        return ", ".join(drift + ([f"{n_repeated:.0f} measured again"] if n_repeated else []))
    errors = values("product_error" if name == "precision" else "worst_result_error")
    return words.scientific(errors[-1]) if errors else ""


def span(numbers: Sequence[str]) -> str:
    """`1.97–2.03`, or the one number that all are."""
    return numbers[0] if numbers[0] == numbers[-1] else f"{numbers[0]}–{numbers[-1]}"
