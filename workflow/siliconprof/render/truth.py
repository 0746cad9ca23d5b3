"""Are these numbers true? What every cell checked of its clock, its waiting and its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Table, Value, count, missing, told
from siliconprof.render.variants import Row

PLACE = ("host", "device", "backend", "precision")
HELP = {  # check -> head of its column, and what it checks
    "clock": ("Clock", "how fine it is and what reading it costs"),
    "sleep": (
        "Known sleep",
        "a sleep of 20 ms as it was measured, and over what a second clock says",
    ),
    "twice_the_work": ("Twice the work", "how many times as long it takes"),
    "synchronisation": (
        "Waited for",
        "least share of the time until a result could be read that was timed",
    ),
    "marks": ("Phases' clock", "the backend's marks over the host's clock"),
    "precision": ("Precision", "largest error of a product against float64"),
    "drift": ("Drift", "second half of the repeats against the first, at most"),
}
RESULTS = "largest error against float64; a wrong one ends its cell"


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
    groups = grouped(cells, lambda cell: tuple(cell[axis] for axis in PLACE))
    columns = (
        told("Host", lambda members: members[0]["host"], folds=True),
        told("Device", lambda members: data.device_name(members[0]), folds=True),
        told("Backend", lambda members: words.backend_name(members[0])),
        told("Precision", lambda members: members[0]["precision"]),
        count("Cells", len, ""),
        *(told(head, partial(outcome, name), help) for name, (head, help) in HELP.items()),
        told("Results", results, RESULTS),
    )
    return Table.of(groups.values(), columns)


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
    return sorted(words.numbers(cells, column))


def figures(name: str, cells: Sequence[Row]) -> str:
    """What the check measured in these cells."""
    values = partial(numbers, cells)
    if name == "clock":
        fine, cost = values("clock_resolution_s"), values("clock_reading_cost_s")
        texts = [f"{words.whole(1e9 * ns[-1])}{words.THIN}ns" for ns in (fine, cost) if ns]
        return ", read in ".join(texts) if fine else ""
    if name == "sleep":
        slept, ratio = (
            span(values("sleep_measured_s"), ".1f", 1e3),
            span(values("sleep_ratio"), ".3f"),
        )
        return ", ".join(filter(None, [f"{slept}{words.THIN}ms", ratio])) if slept else ""
    if name == "twice_the_work":
        spans = {what: span(values(f"twice_{what}_ratio"), ".2f") for what in ("product", "sum")}
        return ", ".join(f"{what} {ratio}" for what, ratio in spans.items() if ratio)
    if name == "synchronisation":
        return "".join(map(words.whole_percent, values("waited_share")[:1]))
    if name == "marks":
        return span(values("marks_ratio"), ".3g")
    if name == "drift":
        changes = [ratio - 1 for ratio in values("worst_drift_ratio")]
        n_repeated = sum(values("attempts_given_up"))
        largest = max(changes, key=abs, default=None)
        drift = [] if largest is None else [f"{100 * largest:+.0f}{words.THIN}%".replace("-", "−")]
        return ", ".join(drift + ([f"{n_repeated:.0f} measured again"] if n_repeated else []))
    errors = values("product_error")
    return words.scientific(errors[-1]) if errors else ""


def span(values: Sequence[float], form: str, times: float = 1.0) -> str:
    """`1.97–2.03`, or the one number that all are; empty without any."""
    ends = dict.fromkeys(format(times * value, form) for value in (*values[:1], *values[-1:]))
    return "–".join(ends)
