"""The paper's tables and figures, rebuilt across the devices of every host that was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from siliconprof import words
from siliconprof.render import beside, paper_blas, paper_figure3, paper_table4
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.paper_figure3 import applied
from siliconprof.render.tables import Table, Value, missing, told
from siliconprof.render.traces import key
from siliconprof.render.variants import Row, has_no_speed

INDEX = "paper-index"
MOST_NAMED = 3
NO_NUMBER = missing("not published as numbers: a picture")
NOT_MADE = "nothing to draw: no such cell was measured"


class Entry(NamedTuple):
    """One place where a table or figure of the paper is rebuilt."""

    name: str  # in the paper
    what: str
    anchor: str  # where it is rebuilt, or how the names of the figures there begin
    called: str
    measured: Callable[[Data], Sequence[Row]] | str  # cells behind it, or why none are needed

    @property
    def published(self) -> Value:
        """Where the printed values are: those of its tables alone were printed as numbers."""
        kind, _, number = self.name.partition(" ")
        return Value("table", link=f"#table-published-{number}") if kind == "Table" else NO_NUMBER


def _training(scenario: str = "", trainer: str = "") -> Callable[[Data], list[Row]]:
    def rows(data: Data) -> list[Row]:
        return [
            point
            for point in data.training()
            if not has_no_speed(point)
            and scenario in ("", applied(point))
            and trainer in ("", point["trainer"])
        ]

    return rows


def _module(name: str) -> Callable[[Data], list[Row]]:
    return lambda data: data.of_module(name)


def _phases(data: Data) -> list[Row]:
    return [point for point in data.training() if paper_figure3.usable(point)]


def _energy(data: Data) -> list[Row]:
    """Trainings of which the GPU's energy alone was counted."""
    counted = beside.gpu_energy(data)
    return [point for point in data.training() if key(point) in counted]


def _every(data: Data) -> list[Row]:
    return [cell for cell in data.cells if cell["status"] == "ok"]


FORMULA = "computed from the models' configurations: nothing to measure"
BOTH = "figure and table"
WHAT_WHERE = "which device trains what in which scenario"
NEAR, PLAIN, BY_HF = _training("near-capacity"), _training("", "plain"), _training("", "hf")
ENTRIES = (
    Entry("Figure 1", "the stack from model to hardware", "figure-stack", "drawing", _every),
    Entry("Figure 2", "the three scenarios of memory", "figure-scenarios", "drawing", _training()),
    Entry("Table 1", "the devices", "table-published-1", "table", _every),
    Entry("Table 2", "the workloads and their memory", "table-models", "table", FORMULA),
    Entry("Table 3", WHAT_WHERE, "table-scenarios", "table", BY_HF),
    Entry("Figure 3", "forward and backward time", "paper-figure-3", BOTH, _phases),
    Entry("Table 4", "one pass in MLX, MPS and CUDA", "paper-table-4", "table", PLAIN),
    Entry("Figure 4", "memory and step time near capacity", "near-capacity", "figure", NEAR),
    Entry("section 4.3", "page faults in each step", "faults", "table", _training()),
    Entry("Table 5", "energy of an iteration", "table-published-5", "table", _energy),
    Entry("Table 6", "kernel launch", "figure-kernel-launch", "figure", _module("kernel_launch")),
    Entry("Figure 5", "matrix-matrix product", "matmul-", "figure", _module("matmul")),
    Entry("Figure 6", "matrix-vector product", "matvec-", "figure", _module("matvec")),
    Entry("Figure 7", "vector-Jacobian product", "vjp-", "figure", _module("vjp")),
)


def add(data: Data, book: Book) -> None:
    """The section.

    Args:
        data: of every host and reference bundle, since the paper compares devices.
    """
    book.table(INDEX, INDEX, index(data))
    paper_figure3.add(data, book)
    paper_table4.add(data, book)
    paper_blas.add(data, book)


def index(data: Data) -> Table:
    """Where each table and figure of the paper is, and whose measurements it shows."""
    paper_devices = {row["device"] for row in data.published["table1_devices"]}

    def devices(entry: Entry, of_the_paper: bool) -> Value:
        if isinstance(entry.measured, str):
            return missing(entry.measured)
        rows = entry.measured(data)
        return _devices(data, [r for r in rows if (r["device"] in paper_devices) == of_the_paper])

    columns = (
        told("In the paper", lambda entry: Value(entry.name, sort=float(ENTRIES.index(entry)))),
        told("Rebuilt here", lambda entry: Value(entry.called, link=f"#{entry.anchor}")),
        told("What it shows", attrgetter("what")),
        told("Published values", attrgetter("published")),
        told("Measured on the paper's devices", partial(devices, of_the_paper=True)),
        told("Measured on others", partial(devices, of_the_paper=False)),
    )
    return Table.of(ENTRIES, columns, about=lambda entry: None)


def _devices(data: Data, rows: Sequence[Row]) -> Value:
    """The devices of rows by name; “none” without any."""
    names = list(dict.fromkeys(data.place(row) for row in rows))
    if not names:
        return Value("none", sort="")
    if len(names) > MOST_NAMED:
        more = len(names) - MOST_NAMED + 1
        names = [*names[: MOST_NAMED - 1], words.count(more, "more", "more")]
    return Value(words.listing(names))


def settle(book: Book) -> None:
    """Point every line of the index at what the complete page has.

    Where a target has several parts, such as a figure of each device, the link leads to the first.
    """
    anchors = [section.anchor for section in book.sections]
    anchors += [block.anchor for section in book.sections for block in section.blocks]
    for section in book.sections:
        for block in section.blocks:
            if block.anchor == f"table-{INDEX}":
                block.rows = [[_settled(value, anchors) for value in row] for row in block.rows]


def _settled(value: Value, anchors: Sequence[str]) -> Value:
    anchor = value.link.removeprefix("#")
    if not anchor or anchor in anchors:
        return value
    first_part = next((name for name in anchors if name.startswith(f"figure-{anchor}")), None)
    if first_part:
        return replace(value, link=f"#{first_part}")
    return Value(words.DASH, title=NOT_MADE, mark="missing")
