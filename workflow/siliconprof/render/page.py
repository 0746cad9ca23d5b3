"""Tables in, one page and its figures out.

    python -m siliconprof.render.page --matrix results/matrix.json --tables results/tables \
        --published config/published --registry config/devices.yaml --template report \
        --figures results/figures --output results/report.html

The page is one file that opens without a network; its words and looks lie in `report/`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, stage
from siliconprof.pipeline import ending
from siliconprof.render.crew import most_workers, rare_collections
from siliconprof.store import left_out, temporary, validation
from siliconprof.store.records import HERE


def build(data: Any, book: Any, command: str, output: Path, again: str = "") -> dict[str, Any]:
    """Write every section and return what the template needs beside them.

    Args:
        output: where the page will lie, from which its links lead.
        again: the command that makes it all again; empty where no config file is named.
    """
    from siliconprof import words
    from siliconprof.render import (
        advice,
        capacity,
        ceilings,
        choices,
        claims,
        classic,
        clocks,
        closing,
        cost,
        declared,
        energy,
        faults,
        glance,
        launch,
        lora,
        losses,
        matmul,
        memory,
        mfu,
        models,
        money,
        operations,
        others,
        paper,
        peaks,
        published,
        quality,
        roofline,
        scenario_drawing,
        scenarios,
        setting,
        stack,
        steps,
        study,
        summary,
        training,
        uncertainty,
        why,
    )

    own = data.only(HERE)

    def here(add: Callable[..., None], beside: bool = False) -> None:
        """Draw what is about this host, on request beside everyone."""

        def draw(some: Any, into: Any) -> None:
            add(some.only(HERE), into, **({"everyone": some} if beside else {}))

        book.part(draw, data)

    book.common["intervals"] = uncertainty.origin_text(own.points)
    book.section("summary", host=setting.host_line(data))
    here(summary.add_findings)
    closing_texts = [""]
    book.part(lambda some, _: closing_texts.append(closing.text(some)), data)
    here(glance.add)
    here(summary.add_absent)
    book.section("setting")
    book.part(stack.add, data)
    book.part(lambda some, into: setting.add(some, into, some.only(HERE)), data)
    book.section("training")
    here(training.add)
    here(choices.add)
    here(lora.add)
    here(steps.add)
    here(losses.add)
    book.section("paper")
    book.part(paper.add, data)
    book.section("grid")
    here(study.add, beside=True)
    book.section("classic")
    here(classic.add, beside=True)
    book.section("memory")
    here(scenario_drawing.add)
    here(scenarios.add)
    here(capacity.add)
    here(peaks.add)
    here(memory.add)
    here(faults.add)
    book.part(models.add, data)
    book.section("energy")
    here(energy.add)
    here(clocks.add)
    book.section("money")
    book.part(money.add, data)
    book.section("why")
    here(why.add, beside=True)
    book.section("ceilings")
    here(ceilings.add)
    here(roofline.add)
    here(mfu.add)
    book.section("matmul")
    here(matmul.add)
    book.section("operations")
    here(operations.add)
    book.section("launch")
    here(launch.add)
    if declared.anything(own):
        book.section("declared")
        here(declared.add)
    book.section("published")
    book.part(published.add, data)
    book.section("claims")
    book.part(claims.add, data)
    book.section("others")
    for add in others.parts(data):
        book.part(add, data)
    book.section("advice")
    book.part(advice.add, data)
    book.section("cost")
    here(cost.add)
    book.section("quality")
    book.part(
        lambda some, into: quality.add(
            some, into, some.only(HERE), command, output, again or quality.AGAIN
        ),
        data,
    )
    paper.settle(book)
    measured = sum(cell["status"] == "ok" for cell in own.cells)
    return {
        "title": data.matrix["experiment"].get("report", {}).get("title") or "siliconprof",
        "host_line": setting.host_line(data),
        "when": setting.when(own.cells),
        "counts": f"{measured} of {words.count(len(own.cells), 'cell')} measured",
        "closing": closing_texts[-1],
    }


def read_template(folder: Path) -> tuple[Any, dict[str, str], Any]:
    """(the compiled template, its inlined files by name, the captions).

    Raises:
        UserError: a file is missing or broken.
    """
    import jinja2

    captions = validation.load_yaml(folder / "captions.yaml")
    if not isinstance(captions, dict):
        raise UserError(f"{folder / 'captions.yaml'}: expected a map of texts")
    inlined = {}
    for name in ("style.css", "page.js"):
        try:
            inlined[name] = (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read ({error.strerror})") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        return environment.get_template("page.html.j2"), inlined, captions
    except jinja2.TemplateNotFound:
        raise UserError(f"{folder / 'page.html.j2'}: no such file") from None
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"{folder / 'page.html.j2'}: line {error.lineno}: {error}") from None


def render(arguments: argparse.Namespace) -> None:
    """Read everything, draw everything, write the page."""
    import jinja2

    template, inlined, captions = read_template(arguments.template)
    from siliconprof.render import data as data_
    from siliconprof.render import style
    from siliconprof.render.book import Book

    data, unread = left_out.worked(
        "page",
        arguments.tables,
        lambda: data_.load(
            arguments.matrix,
            arguments.tables,
            arguments.published,
            arguments.registry,
            arguments.noise_floors,
        ),
    )
    style.apply()
    # This host's first, so that they keep their markers whatever else is imported.
    first = sorted(data.cells, key=lambda cell: cell["source"] != HERE)
    style.know_devices(cell["device"] for cell in first)
    # The page and its figures are made beside the old ones, and replace them once they are whole.
    staged = temporary.beside(arguments.print or arguments.figures)
    try:
        temporary.remove(staged)
        staged.mkdir(parents=True)
        book = Book(
            captions,
            arguments.template / "captions.yaml",
            arguments.figures,
            arguments.output.parent,
            most_workers(arguments.jobs),
            staged,
            arguments.print is not None,
        )
        facts = build(
            data,
            book,
            " ".join(["python -m siliconprof.render.page", *options(arguments)]),
            arguments.output,
            arguments.again,
        )
        book.finish()
        if arguments.print is not None:
            _replace(arguments.print, staged)
            return
        dark = style.css_variables(1)
        css = (
            f":root{{{style.css_variables(0)}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
            "@media screen and (prefers-color-scheme:dark)"
            f"{{:root:not([data-theme=light]){{{dark}}}}}{inlined['style.css']}"
            f"{book.styles.css()}"
        )
        missing = [*left_out.of_tables(arguments.tables), *unread, *book.left_out]
        text = template.render(
            **facts,
            left_out=missing,
            sections=book.sections,
            facets=book.facets.listed(data.name_of_device),
            css=css,
            script=inlined["page.js"],
        )
        with temporary.opened(arguments.output, sealed=True) as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            _replace(arguments.figures, staged)
        for line in missing:
            print(line, file=sys.stderr)
        summary_file = arguments.output.with_name(ending.SUMMARY.name)
        temporary.write(summary_file, facts["closing"].encode("utf-8"))
        left_out.write(arguments.output.with_name(left_out.FILE), missing)
    except jinja2.UndefinedError as error:
        raise UserError(f"{arguments.template / 'page.html.j2'}: {error}") from None
    except OSError as error:
        where = error.filename or arguments.output
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        temporary.remove(staged)


def _replace(figures: Path, staged: Path) -> None:
    """Put the files of a folder in the place of those of another, at no moment without either."""
    figures.mkdir(parents=True, exist_ok=True)
    new = {path.name for path in staged.iterdir()}
    for name in sorted(new):
        os.replace(staged / name, figures / name)
    for path in figures.iterdir():
        if path.name not in new and not path.name.startswith("."):  # Snakemake's own
            temporary.remove(path)


def options(arguments: argparse.Namespace) -> list[str]:
    """The command line as words, for the page's provenance."""
    return [
        f"--{name.replace('_', '-')} {' '.join(path.as_posix() for path in paths)}"
        for name, value in vars(arguments).items()
        if name
        not in ("jobs", "again", "print")  # the first changes nothing, the second stands beside it
        if (paths := value if isinstance(value, list) else [value])
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="siliconprof.render.page", description=__doc__)
    for name, what in (
        ("matrix", "the expansion, results/matrix.json"),
        ("tables", "folder of aggregate's tables"),
        ("published", "folder of published tables"),
        ("registry", "the device registry"),
        ("template", "folder of template, style sheet and captions"),
        ("figures", "folder for figures and tables as files"),
        ("output", "the page"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    parser.add_argument("--noise-floors", type=Path, nargs="*", default=[], help="of any hosts")
    parser.add_argument("--again", default="", help="the command that makes it all again")
    parser.add_argument(
        "--print",
        type=Path,
        help="write every figure to this folder as SVG, PNG and PDF, and no page",
    )
    parser.add_argument(
        "--jobs", type=int, help="processes that draw figures; default: all that can"
    )
    with rare_collections():
        render(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
