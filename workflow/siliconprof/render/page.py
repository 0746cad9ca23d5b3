"""Tables in, one page and its figures out.

    python -m siliconprof.render.page --matrix results/matrix.json --tables results/tables \
        --published config/published --registry config/devices.yaml --template report \
        --figures results/figures --output results/report.html

The page is one file that opens without a network; its words and looks lie in `report/`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, stage
from siliconprof.render.crew import most_workers, rare_collections
from siliconprof.store import temporary, validation
from siliconprof.store.records import HERE


def build(data: Any, book: Any, command: str, output: Path) -> dict[str, Any]:
    """Write every section and return what the template needs beside them.

    Args:
        output: where the page will lie, from which its links lead.
    """
    from siliconprof.render import (
        advice,
        capacity,
        ceilings,
        claims,
        classic,
        clocks,
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
        words,
    )

    own = data.only(HERE)
    book.common["intervals"] = uncertainty.origin_text(own.points)
    book.section("summary", host=setting.host_line(data))
    findings = summary.findings(own)
    book.findings(findings, summary.HEADLINES)
    if not findings:
        book.note(
            "There is nothing to compare: no two measured cells of this host answer a "
            "question together."
        )
    glance.add(own, book)
    absent = summary.not_measured(own)
    if absent:
        book.listing(absent, "Not measured, and why:")
    book.section("setting")
    stack.add(data, book)
    setting.add(data, book, own)
    book.section("training")
    training.add(own, book)
    lora.add(own, book)
    steps.add(own, book)
    losses.add(own, book)
    book.section("paper")
    paper.add(data, book)
    book.section("grid")
    study.add(own, book, everyone=data)
    book.section("classic")
    classic.add(own, book, everyone=data)
    book.section("memory")
    scenario_drawing.add(own, book)
    scenarios.add(own, book)
    capacity.add(own, book)
    peaks.add(own, book)
    memory.add(own, book)
    faults.add(own, book)
    models.add(data, book)
    book.section("energy")
    energy.add(own, book)
    clocks.add(own, book)
    book.section("money")
    money.add(data, book)
    book.section("why")
    why.add(own, book, everyone=data)
    book.section("ceilings")
    ceilings.add(own, book)
    roofline.add(own, book)
    mfu.add(own, book)
    book.section("matmul")
    matmul.add(own, book)
    book.section("operations")
    operations.add(own, book)
    book.section("launch")
    launch.add(own, book)
    if declared.anything(own):
        book.section("declared")
        declared.add(own, book)
    book.section("published")
    published.add(data, book)
    book.section("claims")
    claims.add(data, book)
    book.section("others")
    others.add(data, book)
    book.section("advice")
    advice.add(data, book)
    book.section("cost")
    cost.add(own, book)
    book.section("quality")
    quality.add(data, book, own, command, output)
    paper.settle(book)
    measured = sum(cell["status"] == "ok" for cell in own.cells)
    return {
        "title": data.matrix["experiment"].get("report", {}).get("title") or "siliconprof",
        "host_line": setting.host_line(data),
        "when": setting.when(own.cells),
        "counts": f"{measured} of {words.count(len(own.cells), 'cell')} measured",
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

    data = data_.load(
        arguments.matrix,
        arguments.tables,
        arguments.published,
        arguments.registry,
        arguments.noise_floors,
    )
    style.apply()
    # This host's first, so that they keep their markers whatever else is imported.
    first = sorted(data.cells, key=lambda cell: cell["source"] != HERE)
    style.know_devices(cell["device"] for cell in first)
    try:
        arguments.figures.mkdir(parents=True, exist_ok=True)
        book = Book(
            captions,
            arguments.template / "captions.yaml",
            arguments.figures,
            arguments.output.parent,
            most_workers(arguments.jobs),
        )
        facts = build(
            data,
            book,
            " ".join(["python -m siliconprof.render.page", *options(arguments)]),
            arguments.output,
        )
        book.finish()
        dark = style.css_variables(1)
        css = (
            f":root{{{style.css_variables(0)}}}@media screen{{:root[data-theme=dark]{{{dark}}}}}"
            "@media screen and (prefers-color-scheme:dark)"
            f"{{:root:not([data-theme=light]){{{dark}}}}}{inlined['style.css']}"
            f"{book.styles.css()}"
        )
        text = template.render(
            **facts,
            sections=book.sections,
            facets=book.facets.listed(data.name_of_device),
            css=css,
            script=inlined["page.js"],
        )
        temporary.write(arguments.output, text.encode("utf-8"), sealed=True)
    except jinja2.UndefinedError as error:
        raise UserError(f"{arguments.template / 'page.html.j2'}: {error}") from None
    except OSError as error:
        where = error.filename or arguments.output
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None


def options(arguments: argparse.Namespace) -> list[str]:
    """The command line as words, for the page's provenance."""
    return [
        f"--{name.replace('_', '-')} {' '.join(path.as_posix() for path in paths)}"
        for name, value in vars(arguments).items()
        if name != "jobs"  # which changes nothing that is written
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
    parser.add_argument("--jobs", type=int, default=1, help="processes that draw figures")
    with rare_collections():
        render(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
