"""The wide/deep report's study: the grid, wide against deep, and the optimizer sweep."""

from __future__ import annotations

from siliconprof.render import grid, grid_points, optimizer_sweep, wide_deep
from siliconprof.render.book import Book
from siliconprof.render.data import Data


def add(data: Data, book: Book) -> None:
    """The study's exhibits."""
    modules = (grid_points.MODULE, optimizer_sweep.MODULE)
    if not any(c["module"] in modules or c["trainer"] == wide_deep.TRAINER for c in data.cells):
        book.note(
            "No transformer grid, no whole training and no optimizer sweep is part of the "
            "experiment; what the wide/deep report printed stands among the claims."
        )
        return
    grid.add(data, book)
    wide_deep.add(data, book)
    optimizer_sweep.add(data, book)
