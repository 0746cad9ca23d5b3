"""Which cells a mark of a chart or a row of a table shows, so that one filter acts on all of them.

A drawn artist carries its cells and its hover text in its group id,
which matplotlib writes into the SVG; the page turns it into an attribute and a title.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

FACETS = ("device", "backend", "workload", "precision")
AXES = (*FACETS, "trainer")  # of the page's filter; a workload has one trainer
Cell = tuple[str, ...]  # a value for each facet
_PREFIX = "of:"
# Letters that mean something in XML, to `unquote`, or to what makes a drawing small.
_QUOTED = {ord(letter): f"%{ord(letter):02X}" for letter in "%\"'&<>#():/\n\r\t"}
_ID = re.compile(rf' id="{_PREFIX}([^"]*)"(/?)>')


def cells(rows: Any) -> tuple[Cell, ...]:
    """The cells of one row or of several, each once, in their order; none for None."""
    if rows is None:
        return ()
    several = [rows] if isinstance(rows, Mapping) else rows
    return tuple(dict.fromkeys(tuple(str(row[name]) for name in FACETS) for row in several))


def tag(artists: Any, rows: Any, hover_text: str = "") -> None:
    """Mark artists as showing the cells of these rows.

    Args:
        artists: an artist, or any nesting of lists and containers of them.
        rows: a row or several, each with a device, backend, workload and precision.
        hover_text: shown when the pointer rests on it: what it is, its value and unit.
    """
    text = _PREFIX + json.dumps([cells(rows), hover_text], ensure_ascii=False).translate(_QUOTED)
    for artist in flat(artists):
        artist.set_gid(text)


def tag_labels(axis: Any, rows_of_each: Iterable[Any]) -> None:
    """Mark the tick labels of an axis, so that they are dimmed with what they stand beside."""
    for text, rows in zip(axis.get_ticklabels(), rows_of_each, strict=True):
        tag(text, rows)


def flat(artists: Any) -> Iterable[Any]:
    """The artists of any nesting of lists and containers."""
    if hasattr(artists, "set_gid"):
        return [artists]
    return [artist for group in artists if group is not None for artist in flat(group)]


class Facets:
    """Every cell of which the page shows anything, numbered in the order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Cell, int] = {}

    def of(self, shown: Iterable[Cell]) -> str:
        """The attribute's value for some cells: their numbers, separated by spaces."""
        numbers = [self._numbers.setdefault(cell, len(self._numbers)) for cell in shown]
        return " ".join(map(str, sorted(set(numbers))))

    def listed(
        self, device_name: Callable[[str], str] = str, trainer: Callable[[str], str] = str
    ) -> dict[str, list[Any]]:
        """What the page's filter needs.

        Args:
            device_name: what people call a device.
            trainer: what drives a workload.

        Returns:
            For each of `AXES` its values as [value, name]; under `cells` one list of indices into
            them for each number that stands in an attribute.
        """
        cells = [(*cell, trainer(cell[FACETS.index("workload")])) for cell in self._numbers]
        values = [sorted(set(of_axis)) for of_axis in zip(*cells, strict=True)] or [[]] * len(AXES)
        facets: dict[str, list[Any]] = {
            axis: [[value, device_name(value) if axis == "device" else value] for value in of_axis]
            for axis, of_axis in zip(AXES, values, strict=True)
        }
        facets["cells"] = [
            [of_axis.index(value) for of_axis, value in zip(values, cell, strict=True)]
            for cell in cells
        ]
        return facets


def is_mark(tag: str) -> bool:
    """Whether a tag of an SVG opens a mark."""
    return tag.startswith(f'<g id="{_PREFIX}')


def resolve(svg: str, facets: Facets | None) -> str:
    """An SVG whose marks name their cells in `data-of` and have their hover text as a title.

    Args:
        facets: numbers the cells; None leaves them out, as in a file that stands alone.
    """

    def attribute(match: re.Match[str]) -> str:
        if match[2]:  # nothing was drawn, such as an empty label
            return "/>"
        shown, hover_text = json.loads(unquote(match[1]))
        numbers = facets.of(tuple(map(tuple, shown))) if facets else ""
        of = f' data-of="{numbers}"' if numbers else ""
        return f"{of}>" + (f"<title>{html.escape(hover_text)}</title>" if hover_text else "")

    return _ID.sub(attribute, svg)
