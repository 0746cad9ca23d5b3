"""The paper's tables and figures, rebuilt across the devices of every host that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from siliconprof import words
from siliconprof.render import paper_blas, paper_figure3, paper_table4
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Table, Value, missing, told

INDEX = "paper-index"
NO_NUMBER = missing("not published as numbers: a picture")
NOT_MADE = "nothing to draw: no such cell was measured"


class Entry(NamedTuple):
    """One place where a table or figure of the paper is rebuilt."""

    name: str  # in the paper
    what: str
    anchor: str  # where it is rebuilt, or how the names of the figures there begin
    called: str

    @property
    def published(self) -> Value:
        """Where the printed values are: those of its tables alone were printed as numbers."""
        kind, _, number = self.name.partition(" ")
        return Value("table", link=f"#table-published-{number}") if kind == "Table" else NO_NUMBER


WHAT_WHERE = "which device trains what in which scenario"
ENTRIES = (
    Entry("Figure 1", "the stack from model to hardware", "figure-stack", "drawing"),
    Entry("Figure 2", "the three scenarios of memory", "figure-scenarios", "drawing"),
    Entry("Table 1", "the devices", "table-published-1", "table"),
    Entry("Table 2", "the workloads and their memory", "table-models", "table"),
    Entry("Table 3", WHAT_WHERE, "table-scenarios", "table"),
    Entry("Figure 3", "forward and backward time", "paper-figure-3", "figure and table"),
    Entry("Table 4", "one pass in MLX, MPS and CUDA", "paper-table-4", "table"),
    Entry("Figure 4", "memory and step time near capacity", "near-capacity", "figure"),
    Entry("section 4.3", "page faults in each step", "faults", "table"),
    Entry("Table 5", "energy of an iteration", "table-published-5", "table"),
    Entry("Table 6", "kernel launch", "table-kernel-launch", "table"),
    Entry("Figure 5", "matrix-matrix product", "matmul-", "figure"),
    Entry("Figure 6", "matrix-vector product", "matvec-", "figure"),
    Entry("Figure 7", "vector-Jacobian product", "vjp-", "figure"),
)


def add(data: Data, book: Book) -> None:
    """The section.

    Args:
        data: of every host and reference bundle, since the paper compares devices.
    """
    book.table(INDEX, INDEX, index())
    paper_figure3.add(data, book)
    paper_table4.add(data, book)
    paper_blas.add(data, book)


def index() -> Table:
    """Where each table and figure of the paper is."""
    columns = (
        told("In the paper", lambda entry: Value(entry.name, sort=float(ENTRIES.index(entry)))),
        told("Rebuilt here", lambda entry: Value(entry.called, link=f"#{entry.anchor}")),
        told("What it shows", attrgetter("what")),
        told("Published values", attrgetter("published")),
    )
    return Table.of(ENTRIES, columns, about=lambda entry: None)


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
