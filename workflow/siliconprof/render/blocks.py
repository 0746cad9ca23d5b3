"""What both pages are made of, in the order in which it stands there, and its form as a file.

`siliconprof.render.draw` writes the file, `siliconprof.render.page` fills in the captions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from siliconprof.errors import UserError
from siliconprof.render.tables import Column, Table, Value

FILE = "page.json"
STUDY = "study.html"  # beside the report
SEEN = "seen"


class Caption(NamedTuple):
    """A text of `report/captions.yaml`, and the values that it may name."""

    kind: str
    key: str
    values: Mapping[str, Any]


Text = Caption | str


@dataclass
class Finding:
    """One sentence made of one row."""

    title: str
    sentence: str
    anchor: str  # where on the page the evidence is


@dataclass
class Block:
    """One thing in a section: a figure, a table, a note, a heading or facts."""

    kind: str
    text: Text = ""
    anchor: str = ""
    number: int = 0
    svg: str = ""  # with CAPTION where its description goes
    table: Table | None = None
    rows: list[list[Value]] = field(default_factory=list)
    footnotes: list[tuple[str, str]] = field(default_factory=list)
    folded: str = ""  # the summary line under which a long table is folded away
    items: list[Any] = field(default_factory=list)
    more: list[Any] = field(default_factory=list)
    of: list[str] = field(default_factory=list)  # of each row the numbers of its cells


@dataclass
class Section:
    """A part of the page with a line in the table of contents."""

    anchor: str
    title: Text
    intro: Text
    blocks: list[Block] = field(default_factory=list)

    def files(self) -> Iterator[Block]:
        """The figures and tables that are files."""
        return (block for block in self.blocks if block.kind in ("figure", "table"))


@dataclass
class Page:
    """Everything that the two pages say: the report, and the study that has all of it."""

    facts: dict[str, str]  # title, host_line, when, counts, closing
    sections: list[Section]  # of the study
    facets: dict[str, list[Any]]  # see `siliconprof.render.marks.Facets.listed`, and `compared`
    colours: str  # CSS of both themes
    css: str = ""  # of the drawings
    # Of the report; its blocks of kind SEEN stand for blocks of the study, by their anchors.
    report: list[Section] = field(default_factory=list)

    def to_json(self) -> str:
        """One line; fields that have their default are absent."""
        return json.dumps(self, default=_plain, ensure_ascii=False)


def _plain(item: Any) -> dict[str, Any]:
    """A dataclass of the page as JSON can take it."""
    if not is_dataclass(item):
        raise TypeError(f"{type(item).__name__} cannot stand on a page")
    return {
        own.name: value
        for own in fields(item)
        if (value := getattr(item, own.name)) not in (own.default, [])
    }


def read(path: Path) -> Page:
    """The page of a file.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        sections, report = (
            [_section(one) for one in whole.pop(name, [])] for name in ("sections", "report")
        )
        drawn = {block.anchor: block for one in sections for block in one.blocks if block.anchor}
        for section in report:
            shown = (
                drawn.get(block.anchor) if block.kind == SEEN else block for block in section.blocks
            )
            section.blocks = [block for block in shown if block]  # one may not have been drawn
        _number(report)
        return Page(sections=sections, report=report, **whole)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged ({error}); delete {path.parent} and run again") from None


def _number(report: Sequence[Section]) -> None:
    """Count the report's figures and tables from 1, whatever their numbers in the study are."""
    counted: Counter[str] = Counter()
    for section in report:
        for index, block in enumerate(section.blocks):
            if block.number:
                counted[block.kind] += 1
                section.blocks[index] = replace(block, number=counted[block.kind])


def _section(found: dict[str, Any]) -> Section:
    title, intro = (_text(found.get(name, "")) for name in ("title", "intro"))
    return Section(found["anchor"], title, intro, [_block(one) for one in found.get("blocks", [])])


def _block(found: dict[str, Any]) -> Block:
    items = found.get("items", [])
    if found["kind"] == "findings":
        items = [Finding(**one) for one in items]
    rows = [[Value(**one) for one in row] for row in found.get("rows", [])]
    table = found.get("table")
    if table is not None:
        table["columns"] = [Column(**one) for one in table["columns"]]
        table = Table(**table)
    text = _text(found.get("text", ""))
    return Block(**found | {"items": items, "text": text, "rows": rows, "table": table})


def _text(found: Any) -> Text:
    return Caption(*found) if isinstance(found, list) else found
