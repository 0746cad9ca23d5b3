"""Both pages while they are drawn: sections, and numbered figures and tables.

Their words stand in `report/captions.yaml` and meet the numbers when the page is written. Every
figure and table is also written as files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from siliconprof import words
from siliconprof.render import crew, figures, marks, svg
from siliconprof.render.blocks import SEEN, Block, Caption, Section
from siliconprof.render.tables import CAPTION, Table
from siliconprof.store import left_out, table_files, temporary
from siliconprof.store.left_out import LeftOut
from siliconprof.store.names import slug

# A page that draws everything of a thousand cells would be too large to open: beyond these, a
# figure is files alone, named below those that are drawn, and a table shows its first rows.
MOST_OF_A_KIND = 5  # in a section
MOST_IN_SECTION = 24
MOST_ROWS = 200
MOST_VALUES = 1800  # rows × columns; so a table of eighteen columns shows 100 rows
FOLD_ABOVE, FOLD_COUNTED_ABOVE = 60, 16  # rows; those of which it is said what they are


@dataclass(frozen=True)
class Part:
    """What draws a part of a section, of which data, and what the book was like before."""

    add: Callable[[Any, Book], None]
    data: Any
    section: str
    common: dict[str, Any]


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
        # Figures, what draws each, and the part that it is of.
        self._drawing: list[tuple[Block, Callable[[], str], Part]] = []
        self._part = Part(lambda data, book: None, None, "", {})
        self.study: list[Section] = []
        self.report: list[Section] = []
        self.sections = self.study  # those of the page that is added to
        self.numbers = {"figure": 0, "table": 0}
        self.common: dict[str, Any] = {}  # values that any text may name
        # What marks figures and tables that are not this host's, and begins their names.
        self.origin = self.prefix = ""

    @contextmanager
    def on_report(self) -> Iterator[None]:
        """Add to the report, the first page, what would else be added to the study."""
        self.sections = self.report
        try:
            yield
        finally:
            self.sections = self.study

    @contextmanager
    def of_host(self, badge: str, host: str) -> Iterator[None]:
        """Mark what is added as another host's; no name of it is one of this host's."""
        self.origin, self.prefix = f"{badge}: {host}", f"{badge.replace(' ', '-')}-{host}-"
        try:
            yield
        finally:
            self.origin = self.prefix = ""

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
            Exception: one that is `left_out.passed_on`.
        """
        self._part = Part(add, data, self.sections[-1].anchor, dict(self.common))
        state = (len(self.sections), len(self.sections[-1].blocks), len(self._drawing))
        before = (dict(self.numbers), self.sections[-1].drawn.copy())
        try:
            add(data, self)
        except Exception as error:
            if left_out.passed_on(error):
                raise
            del self.sections[state[0] :]
            del self.sections[-1].blocks[state[1] :]
            del self._drawing[state[2] :]
            self.numbers, self.sections[-1].drawn = before
            self.common = dict(self._part.common)
            blamed = left_out.culprits(data.cells, partial(self._attempt, _Trial(self, self._part)))
            if blamed:
                add(data.without([table_files.key(cell) for cell, _ in blamed]), self)
            self.sections[-1].blocks += self._boxes(self._part, blamed, error)

    def _attempt(self, trial: _Trial, cells: Sequence[Mapping[str, Any]]) -> Exception | None:
        """The error of a part that is drawn of some cells alone, or None."""
        data, kept = trial.part_of.data, {table_files.key(cell) for cell in cells}
        every = {table_files.key(cell) for cell in data.cells}
        trial.begin()
        try:
            trial.part_of.add(data.without(every - kept), trial)
        except Exception as error:
            if left_out.passed_on(error):
                raise
            return error
        return None

    def _boxes(
        self,
        part: Part,
        blamed: Sequence[tuple[Mapping[str, Any], Exception]] | None,
        error: Exception,
        figure: str = "",
    ) -> list[Block]:
        """Boxes of what a part, or one of its figures, leaves out; a section's title is a caption."""
        name = f"{CAPTION}, figure {figure}" if figure else CAPTION
        lines = [LeftOut(name, cell["record"], left_out.explained(e)) for cell, e in blamed or ()]
        lines = lines or [LeftOut(name, "", left_out.explained(error))]
        return [Block("box", items=[line]) for line in lines]

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
        name = slug(self.prefix + name)
        block = Block(
            "figure",
            self.words("figures", key, **values),
            f"figure-{name}",
            self._numbered("figure"),
            badge=self.origin,
        )
        if self._has_room(key):
            self._add(block)
        else:
            self._leave_out(block)
            if not self.for_print:
                return
        work = self._work(name, draw, self.origin)
        self._drawing.append((block, work, self._part))

    def _work(self, name: str, draw: figures.Draw, origin: str) -> Callable[[], str]:
        """What draws a figure."""
        publish = figures.publish_for_print if self.for_print else figures.publish
        return partial(publish, name, draw, self.staged, origin)

    def _has_room(self, key: str) -> bool:
        """Whether one more figure of a kind has room in this section of the page."""
        here = self.sections[-1].drawn
        here[key] += 1
        return (
            here[key] <= MOST_OF_A_KIND
            and sum(min(number, MOST_OF_A_KIND) for number in here.values()) <= MOST_IN_SECTION
        )

    def _leave_out(self, block: Block) -> None:
        """Name a figure below those that are shown."""
        blocks = self.sections[-1].blocks
        if not blocks or blocks[-1].kind != "left-out":
            self._add(Block("left-out"))
        here = blocks[-1]
        here.items.append(block)
        here.folded = (
            f"{words.count(len(here.items), 'more figure')}, drawn by “make figures” alone: the page "
            f"shows at most {MOST_OF_A_KIND} of a kind and {MOST_IN_SECTION} in a section"
        )

    def finish(self) -> None:
        """Wait for the figures and put them in their places.

        Raises:
            UserError: a process that drew one ended without a word.
        """
        drawing, self._drawing = self._drawing, []
        with crew.handed_out([work for _, work, _ in drawing], self.workers) as result:
            for index, (block, _, part) in enumerate(drawing):
                try:
                    drawn = result(index)
                except Exception as error:
                    if left_out.passed_on(error):
                        raise
                    drawn = self._drawn_without(block, part, error)
                block.svg = figures.placed(drawn, block.number, self.facets, self.styles)

    def _drawn_without(self, block: Block, part: Part, error: Exception) -> str:
        """A figure that could not be drawn, without the records to blame, and a box below it."""
        name = block.anchor.removeprefix("figure-")
        trial = _Trial(self, part, name)
        blamed = left_out.culprits(part.data.cells, partial(self._attempt, trial))
        boxes = self._boxes(part, blamed, error, name)
        for section in self.sections:
            for index, other in enumerate(section.blocks):
                if other is block or block in other.items:
                    section.blocks[index + 1 : index + 1] = boxes
                    if not blamed or trial.caption is None:  # there is nothing left to draw
                        if other is block:
                            del section.blocks[index]
                        else:
                            other.items.remove(block)
                        return ""
                    break
        block.text = trial.caption or ""
        return self._work(name, trial.draw, block.badge)()

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
        stem = slug(f"table-{self.prefix}{name}")
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
                badge=self.origin,
                of=[self.facets.of(cells) for cells in shown.row_cells],
            )
        )

    def _write(self, name: str, text: str) -> None:
        if self.for_print:
            return
        self.staged.mkdir(parents=True, exist_ok=True)
        (self.staged / name).write_text(text, encoding="utf-8")

    def heading(self, text: str, badge: str = "", anchor: str = "") -> None:
        """Add a heading within the section."""
        anchor = anchor and self.prefix + anchor
        self._add(Block("heading", text, anchor, badge=badge or self.origin))

    def note(self, text: str) -> None:
        """Add a sentence, such as why a figure is absent."""
        self._add(Block("note", text))

    def why_none(self, text: str, heading: str = "", anchor: str = "") -> None:
        """Say why there is nothing to show, under its heading; of another host nothing is said."""
        if not self.origin:
            if heading:
                self.heading(heading, anchor=anchor)
            self.note(text)

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

    def findings(self, items: list[Any], headlines: int) -> None:
        """Add the findings of the summary; those beyond so many are folded away."""
        more = items[headlines:]
        folded = words.count(len(more), "more finding")
        self._add(Block("findings", items=items[:headlines], more=more, folded=folded))


class _Trial(Book):
    """A book for a part that is done again to see what fails: nothing of it is kept.

    Args:
        wanted: the one figure that is drawn; none where the part itself fails.
    """

    def __init__(self, book: Book, part: Part, wanted: str = "") -> None:
        super().__init__(book.folder)
        self.part_of, self.wanted = part, wanted

    def begin(self) -> None:
        """Be as the book was before the part."""
        self.common = dict(self.part_of.common)
        self.sections = [Section(self.part_of.section, "", "")]
        self.caption: Caption | None = None

    def figure(self, name: str, key: str, draw: figures.Draw, **values: Any) -> None:
        """Draw the wanted figure for nobody; note its caption."""
        name = slug(self.prefix + name)
        if name == self.wanted:
            self.caption, self.draw = self.words("figures", key, **values), draw
            with temporary.scratch() as folder:
                figures.publish(name, draw, folder, self.origin)

    def _write(self, name: str, text: str) -> None:
        """Nothing."""
