"""Tables in, drawings out: everything that both pages say, but for its captions and looks.

    python -m siliconprof.render.draw --matrix results/matrix.json --tables results/tables \
        --published config/published --registry config/devices.yaml --drawn results/drawn \
        --figures results/figures --page results/report.html

`siliconprof.render.page` makes the page of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.errors import UserError, stage
from siliconprof.render.crew import most_workers, rare_collections
from siliconprof.store import temporary
from siliconprof.store.records import HERE


def build(data: Any, book: Any, command: str) -> dict[str, Any]:
    """Write every section and return what the template needs beside them."""
    from siliconprof import words
    from siliconprof.render import (
        closing,
        compared,
        declared,
        glance,
        quality,
        report,
        setting,
        summary,
    )
    from siliconprof.render.sections import drawn, here
    from siliconprof.render.uncertainty import origin_text

    own, again = data.only(HERE), quality.again(data.matrix.experiment)
    book.common["intervals"] = origin_text(data.points)
    with book.on_report():
        book.section("answer")
        book.part(report.begin, data)
    book.section("summary", host=setting.host_line(data))
    book.part(here(summary.add_findings), data)
    closing_texts = [""]
    book.part(lambda some, _: closing_texts.append(closing.text(some)), data)
    book.part(glance.add, data)
    book.part(here(summary.add_absent), data)
    for key, add in drawn():
        if key == "declared" and not declared.anything(data):
            continue  # there is nothing to show in it
        if book.sections[-1].anchor != key:
            book.section(key)
        book.part(add, data)
    book.section("quality")
    book.part(lambda some, into: quality.add(some, into, command, again), data)
    book.part(here(quality.add_history), data)
    with book.on_report():
        book.part(lambda some, into: report.end(some, into, again), data)
    book.part(lambda some, _: book.compared.update(compared.listed(some, book.facets)), data)
    n = len(data.unreadable)
    unreadable = f", {words.count(n, 'record')} could not be read" if n else ""
    measured = sum(cell["status"] == "ok" for cell in own.cells)
    return {
        "title": data.matrix.report.get("title") or "siliconprof",
        "host_line": setting.host_line(data),
        "when": setting.when(own.cells),
        "counts": f"{measured} of {words.count(len(own.cells), 'cell')} measured{unreadable}",
        "closing": closing_texts[-1],
    }


def draw(arguments: argparse.Namespace, command: str) -> None:
    """Read everything, draw everything, write it down."""
    from siliconprof.render import blocks, style
    from siliconprof.render import data as data_
    from siliconprof.render.book import Book
    from siliconprof.store.results import Results

    data = data_.load(
        arguments.matrix,
        Results(arguments.tables),
        arguments.published,
        arguments.registry,
    )
    style.apply()
    # This host's first, so that they keep their markers whatever else is imported.
    first = sorted(data.cells, key=lambda cell: cell["source"] != HERE)
    style.know_devices(cell["device"] for cell in first)
    staged = temporary.beside(arguments.drawn)  # replaces the old ones once it is whole
    try:
        temporary.remove(staged)
        staged.mkdir(parents=True)
        book = Book(arguments.figures, most_workers(arguments.jobs), staged, arguments.print)
        facts = build(data, book, command)
        book.finish()
        if not arguments.print:
            dark = style.css_variables(1)
            css = (
                f":root{{{style.css_variables(0)}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
                "@media screen and (prefers-color-scheme:dark)"
                f"{{:root:not([data-theme=light]){{{dark}}}}}"
            )
            page = blocks.Page(
                facts,
                book.study,
                book.facets.listed(data.name_of_device, data.trainer_of) | book.compared,
                css,
                book.styles.css(),
                book.report,
            )
            (staged / blocks.FILE).write_text(page.to_json(), encoding="utf-8")
        temporary.replace_files(arguments.drawn, staged)
    except OSError as error:
        where = error.filename or arguments.drawn
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        temporary.remove(staged)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw everything."""
    parser = options.parser("siliconprof.render.draw", __doc__)
    for name in ("matrix", "tables", "published", "registry"):
        parser.add_argument(f"--{name}", type=Path, **options.OPTIONS[name])
    parser.add_argument("--drawn", type=Path, required=True, help="folder for what is drawn")
    parser.add_argument(
        "--figures", type=Path, help="where figures and tables will lie as files, for links to them"
    )
    parser.add_argument(
        "--print", action="store_true", help="every figure as SVG, PNG and PDF, and nothing else"
    )
    parser.add_argument(
        "--jobs", type=int, help="processes that draw figures; default: all that can"
    )
    words = sys.argv[1:] if argv is None else argv
    arguments = options.filled(parser.parse_args(argv))
    arguments.figures = arguments.figures or arguments.drawn.with_name("figures")
    with rare_collections():
        draw(arguments, " ".join(["python -m siliconprof.render.draw", *words]))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
