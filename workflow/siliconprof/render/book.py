"""Both pages while they are drawn: sections, and numbered figures and tables.

Their words stand in `report/captions.yaml` and meet the numbers when the page is written. Every
figure and table is also written as files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from siliconprof import words
from siliconprof.errors import UserError, explained
from siliconprof.render import crew, figures, marks, svg
from siliconprof.render.blocks import SEEN, Block, Caption, Section
from siliconprof.render.tables import CAPTION, Table
from siliconprof.store.names import slug

MOST_ROWS = 200
MOST_VALUES = 1800  # rows × columns; so a table of eighteen columns shows 100 rows
PASSED_ON = (UserError, OSError, MemoryError)  # no section is to blame
FOLD_ABOVE, FOLD_COUNTED_ABOVE = 60, 16  # rows; those of which it is said what they are


def parts(name: str, items: Sequence[Any], most: int) -> Iterator[tuple[str, Sequence[Any]]]:
    """(name of a figure, what it shows) of so many items at most; all but the first are numbered."""
    for start in range(0, len(items), most):
        yield f"{name}-{start // most + 1}" if start else name, items[start : start + most]


def told_parts(
    name: str, items: Sequence[Any], most: int
) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """The same with ` (part 1 of 2)` between name and items; nothing where there is one part."""
    figures = list(parts(name, items, most))
    for index, (part_name, shown) in enumerate(figures, 1):
        yield part_name, f" (part {index} of {len(figures)})" if len(figures) > 1 else "", shown


class Book:
    """Collects sections in the order in which they are written.

    Args:
        folder: where figures and tables will lie as files; `staged` is where they are written.
        for_print: figures become files for print, and nothing else is made.
    """

    def __init__(
        self, folder: Path, workers: int = 1, staged: Path | None = None, for_print: bool = False
    ) -> None:
        self.folder = folder
        self.staged = staged or folder  # where files are written
        self.for_print = for_print
        self.facets = marks.Facets()
        self.compared: dict[str, list[Any]] = {}  # see `siliconprof.render.compared.listed`
        self.styles = svg.Styles()
        self.workers = workers
        # Figures, and what draws each.
        self._drawing: list[tuple[Block, Callable[[], str]]] = []
        self.study: list[Section] = []
        self.report: list[Section] = []
        self.sections = self.study  # those of the page that is added to
        self.numbers = {"figure": 0, "table": 0}
        self.common: dict[str, Any] = {}  # values that any text may name

    @contextmanager
    def on_report(self) -> Iterator[None]:
        """Add to the report, the first page, what would else be added to the study."""
        self.sections = self.report
        try:
            yield
        finally:
            self.sections = self.study

    def see(self, anchor: str) -> bool:
        """Show a figure or table of the study here too; whether there is one of that name."""
        found = any(block.anchor == anchor for part in self.study for block in part.blocks)
        if found:
            self._add(Block(SEEN, anchor=anchor))
        return found

    def part(self, add: Callable[[Any, Book], None], data: Any) -> None:
        """Add what is drawn of some data; what cannot be drawn becomes a box that says so.

        Args:
            add: of the data and a book.
            data: `siliconprof.render.data.Data`.

        Raises:
            PASSED_ON: a person mends it, or another run has more room.
        """
        section, n_drawing = self.sections[-1], len(self._drawing)
        n_sections, n_blocks = len(self.sections), len(section.blocks)
        numbers, common = dict(self.numbers), dict(self.common)
        try:
            add(data, self)
        except PASSED_ON:
            raise
        except Exception as error:
            del self.sections[n_sections:]
            del section.blocks[n_blocks:]
            del self._drawing[n_drawing:]
            self.numbers, self.common = numbers, common
            self._add(Block("box", f"{CAPTION}: {explained(error)}"))

    def words(self, kind: str, key: str, **values: Any) -> Caption:
        """A text of the captions, and the values that it may name."""
        return Caption(kind, key, {**self.common, **values})

    def section(self, key: str, **values: Any) -> Section:
        """Begin a section."""
        title, intro = (self.words(kind, key, **values) for kind in ("titles", "intros"))
        self.sections.append(Section(key, title, intro))
        return self.sections[-1]

    def _add(self, block: Block) -> None:
        self.sections[-1].blocks.append(block)

    def _numbered(self, kind: str) -> int:
        self.numbers[kind] += 1
        return self.numbers[kind]

    def figure(self, name: str, key: str, draw: figures.Draw, **values: Any) -> None:
        """Draw and add a figure; `name`, as a slug, is that of its files."""
        name = slug(name)
        block = Block(
            "figure",
            self.words("figures", key, **values),
            f"figure-{name}",
            self._numbered("figure"),
        )
        self._add(block)
        publish = figures.publish_for_print if self.for_print else figures.publish
        work = partial(publish, name, draw, self.staged)
        self._drawing.append((block, work))

    def finish(self) -> None:
        """Wait for the figures and put them in their places.

        Raises:
            UserError: a process that drew one ended without a word.
        """
        drawing, self._drawing = self._drawing, []
        with crew.handed_out([work for _, work in drawing], self.workers) as result:
            for index, (block, _) in enumerate(drawing):
                try:
                    drawn = result(index)
                except PASSED_ON:
                    raise
                except Exception as error:
                    name = block.anchor.removeprefix("figure-")
                    block.kind, block.anchor = "box", ""
                    block.text = f"{CAPTION}, figure {name}: {explained(error)}"
                    continue
                block.svg = figures.placed(drawn, block.number, self.facets, self.styles)

    def table(
        self,
        name: str,
        key: str,
        table: Table,
        folded: str = "",
        counted: str = "",
        above: int = FOLD_COUNTED_ABOVE,
        **values: Any,
    ) -> None:
        """Add a table.

        Args:
            folded: the line under which it is folded away.
            counted: what a row is; more than `above` are folded away under their number.
        """
        if counted and len(table.rows) > above:
            folded = words.count(len(table.rows), counted)
        stem = slug(f"table-{name}")
        self._write(f"{stem}.csv", table.to_csv())
        shown = table.on_page()
        shown = shown.first(min(MOST_ROWS, MOST_VALUES // len(shown.columns)))
        if len(shown.rows) > FOLD_ABOVE and not folded:
            folded = words.count(len(table.rows), "row")
        rows, footnotes = shown.footnoted()
        self._add(
            Block(
                "table",
                self.words("tables", key, **values),
                stem,
                self._numbered("table"),
                table=replace(shown, rows=[], row_cells=[]),
                rows=rows,
                footnotes=footnotes,
                folded=folded,
                of=[self.facets.of(cells) for cells in shown.row_cells],
            )
        )

    def _write(self, name: str, text: str) -> None:
        if self.for_print:
            return
        self.staged.mkdir(parents=True, exist_ok=True)
        (self.staged / name).write_text(text, encoding="utf-8")

    def heading(self, text: str, anchor: str = "") -> None:
        """Add a heading within the section."""
        self._add(Block("heading", text, anchor))

    def note(self, text: str) -> None:
        """Add a sentence, such as why a figure is absent."""
        self._add(Block("note", text))

    def banner(self, text: str) -> None:
        """Add a sentence that a reader must see before any number."""
        self._add(Block("banner", text))

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

    def findings(self, items: list[Any]) -> None:
        """Add the findings of the summary."""
        self._add(Block("findings", items=items))
