"""The page while it is made: sections, and numbered figures and tables with their captions.

Words stand in `report/captions.yaml`; here they meet the numbers. Every figure and table is also
written as files of its own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from siliconprof.errors import UserError
from siliconprof.pipeline import provenance
from siliconprof.render import figures, marks, svg, words
from siliconprof.render.crew import Crew
from siliconprof.render.tables import Table, Value, markdown

# A page that draws everything of a thousand cells would be too large to open: beyond these, a
# figure is files alone, named below those that are drawn, and a table shows its first rows.
MOST_OF_A_KIND = 5  # in a section
MOST_IN_SECTION = 24
MOST_ROWS = 200
MOST_VALUES = 1800  # rows × columns; so a table of eighteen columns shows 100 rows
FOLD_ABOVE = 60  # rows


@dataclass
class Block:
    """One thing in a section: a figure, a table, a note, a heading, quotations or facts."""

    kind: str
    text: str = ""
    anchor: str = ""
    number: int = 0
    svg: Markup = Markup("")
    table: Table | None = None
    rows: list[list[Value]] = field(default_factory=list)
    footnotes: list[tuple[str, str]] = field(default_factory=list)
    badge: str = ""
    folded: str = ""  # the summary line under which a long table is folded away
    items: list[Any] = field(default_factory=list)
    more: list[Any] = field(default_factory=list)  # findings under a line that opens them
    of: list[str] = field(default_factory=list)  # of each row the numbers of its cells
    files: list[tuple[str, str]] = field(default_factory=list)  # what it is, where it lies


@dataclass
class Section:
    """A part of the page with a line in the table of contents."""

    anchor: str
    title: str
    intro: str
    blocks: list[Block] = field(default_factory=list)
    drawn: Counter[str] = field(default_factory=Counter)  # figures by the key of their caption

    def files(self) -> Iterator[Block]:
        """The figures and tables, those that are files alone among them."""
        for block in self.blocks:
            if block.kind in ("figure", "table"):
                yield block
            elif block.kind == "left-out":
                yield from block.items


class Book:
    """Collects sections in the order in which they are written."""

    def __init__(
        self,
        captions: Mapping[str, Any],
        source: Path,
        folder: Path,
        page_folder: Path,
        workers: int = 1,
    ) -> None:
        self.captions, self.source, self.folder = captions, source, folder
        self.link = quote(Path(os.path.relpath(folder, page_folder)).as_posix())
        self.facets = marks.Facets()
        self.styles = svg.Styles()
        self.crew = Crew(workers)
        self._drawing: list[tuple[Block, int]] = []  # figures, and which work draws each
        self.sections: list[Section] = []
        self.numbers = {"figure": 0, "table": 0}
        self.common: dict[str, Any] = {}  # values that any text may name
        self.origin = ""  # what marks figures and tables that are not this host's

    def words(self, kind: str, key: str, **values: Any) -> str:
        """A text of the captions with values filled in.

        Raises:
            UserError: no such text, or it names a value that is missing.
        """
        entry = (self.captions.get(kind) or {}).get(key)
        if not isinstance(entry, str):
            raise UserError(f"{self.source}: no text {kind}.{key}")
        try:
            return " ".join(entry.split()).format(**{**self.common, **values})
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(f"{self.source}: {kind}.{key}: bad placeholder: {error}") from None

    def section(self, key: str, **values: Any) -> Section:
        """Begin a section."""
        title = self.words("titles", key)
        self.sections.append(Section(key, title, self.words("intros", key, **values)))
        return self.sections[-1]

    def _add(self, block: Block) -> None:
        self.sections[-1].blocks.append(block)

    def _numbered(self, kind: str) -> int:
        self.numbers[kind] += 1
        return self.numbers[kind]

    def figure(self, name: str, key: str, draw: figures.Draw, **values: Any) -> None:
        """Draw and add a figure; `name` is that of its files."""
        caption = self.words("figures", key, **values)
        alt = caption.split(". ")[0]
        block = Block(
            "figure",
            caption,
            f"figure-{name}",
            self._numbered("figure"),
            badge=self.origin,
            files=self._files(name, SVG="svg", PNG="png", PDF="pdf"),
        )
        shown = self._has_room(key)
        if shown:
            self._add(block)
        else:
            self._leave_out(block)
        work = partial(figures.publish, name, draw, alt, self.folder, self.origin, on_page=shown)
        self._drawing.append((block, self.crew.do(work)))

    def _has_room(self, key: str) -> bool:
        """Whether one more figure of a kind has room in this section of the page."""
        here = self.sections[-1].drawn
        here[key] += 1
        return (
            here[key] <= MOST_OF_A_KIND
            and sum(min(number, MOST_OF_A_KIND) for number in here.values()) <= MOST_IN_SECTION
        )

    def _leave_out(self, block: Block) -> None:
        """Name a figure, with its files, below those that are shown."""
        blocks = self.sections[-1].blocks
        if not blocks or blocks[-1].kind != "left-out":
            self._add(Block("left-out"))
        here = blocks[-1]
        here.items.append(block)
        here.folded = (
            f"{words.count(len(here.items), 'more figure')} as {'a file' if len(here.items) == 1 else 'files'} alone: "
            f"the page draws at most {MOST_OF_A_KIND} of a kind and {MOST_IN_SECTION} in a section"
        )

    def finish(self) -> None:
        """Wait for the figures and put them in their places.

        Raises:
            UserError: a process that drew one ended without a word.
        """
        for block, work in self._drawing:
            drawn = self.crew.result(work)
            block.svg = figures.placed(drawn, block.number, self.facets, self.styles)
        self._drawing.clear()
        self._write_index()

    def _write_index(self) -> None:
        """Write the index by which `siliconprof.pipeline.provenance` finds figures and tables."""
        index = {
            block.anchor.removeprefix("figure-"): {
                "kind": "table" if block.table else "figure",
                "number": block.number,
                "section_number": number,
                "section": section.title,
                "caption": block.text,
                "origin": block.badge,
            }
            for number, section in enumerate(self.sections, start=1)
            for block in section.files()
        }
        text = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
        (self.folder / provenance.INDEX).write_text(text, encoding="utf-8")

    def _files(self, stem: str, **suffixes: str) -> list[tuple[str, str]]:
        """(format, where it lies seen from the page) of the files of one figure or table."""
        return [(kind, f"{self.link}/{quote(stem)}.{end}") for kind, end in suffixes.items()]

    def table(self, name: str, key: str, table: Table, folded: str = "", **values: Any) -> None:
        """Add a table; `folded` puts it under a line that opens it."""
        caption = self.words("tables", key, **values)
        marked = f"[{self.origin}] {caption}" if self.origin else caption
        stem = f"table-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("csv", table.to_csv()),
            ("md", f"{markdown(marked)}\n\n{table.to_markdown()}"),
            ("tex", table.to_latex(marked, stem)),
        ):
            (self.folder / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
        shown = table.on_page()
        shown = shown.first(min(MOST_ROWS, MOST_VALUES // len(shown.columns)))
        if len(shown.rows) > FOLD_ABOVE and not folded:
            folded = words.count(len(table.rows), "row")
        rows, footnotes = shown.footnoted()
        self._add(
            Block(
                "table",
                caption,
                stem,
                self._numbered("table"),
                table=shown,
                rows=rows,
                footnotes=footnotes,
                folded=folded,
                badge=self.origin,
                of=[self.facets.of(cells) for cells in shown.row_cells],
                files=self._files(stem, CSV="csv", Markdown="md", LaTeX="tex"),
            )
        )

    def heading(self, text: str, badge: str = "", anchor: str = "") -> None:
        """Add a heading within the section."""
        self._add(Block("heading", text, anchor, badge=badge or self.origin))

    def note(self, text: str) -> None:
        """Add a sentence, such as why a figure is absent."""
        self._add(Block("note", text))

    def facts(self, items: list[tuple[str, str]]) -> None:
        """Add a list of names and values."""
        self._add(Block("facts", items=[(name, value) for name, value in items if value]))

    def listing(self, items: list[str], text: str = "", more: Sequence[str] = ()) -> None:
        """Add a list of sentences under a line; those of `more` are folded away."""
        folded = f"{len(more)} more" if more else ""
        self._add(Block("list", text, items=items, more=list(more), folded=folded))

    def folded(self, summary: str, text: str) -> None:
        """Add preformatted text under a line that opens it."""
        self._add(Block("folded", text, folded=summary))

    def quotes(self, text: str, items: list[tuple[str, list[tuple[str, str, str]]]]) -> None:
        """Add quotations under a line.

        Args:
            items: whose words they are, and of each what it is, how it begins, how it goes on.
        """
        self._add(Block("quotes", text, items=items))

    def findings(self, items: list[Any], headlines: int) -> None:
        """Add the findings of the summary; those beyond so many are folded away."""
        more = items[headlines:]
        folded = words.count(len(more), "more finding")
        self._add(Block("findings", items=items[:headlines], more=more, folded=folded))
