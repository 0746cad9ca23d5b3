"""What was drawn in, two pages and their figures out, with the words and looks of `report/`.

    python -m siliconprof.render.page --drawn results/drawn --template report \
        --figures results/figures --output results/report.html

The report answers on a few screens; the study, beside it, has every figure and table. Each is one file that
opens without a network.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, stage
from siliconprof.pipeline import ending, provenance
from siliconprof.plugins import CHECKOUT
from siliconprof.render import blocks
from siliconprof.render.blocks import Caption, Section, Text
from siliconprof.render.tables import CAPTION
from siliconprof.store import temporary, validation

SCRIPTS = ("page.js", "save.js", "compared.js")  # one after the other on both pages


@dataclass(frozen=True)
class Template:
    """The files of a page's words and looks."""

    page: Any  # compiled by jinja2
    style: str
    script: str
    captions: Captions


@dataclass(frozen=True)
class Captions:
    """The texts of a file."""

    source: Path
    texts: dict[str, Any]

    def words(self, text: Text) -> str:
        """A text with its values filled in.

        Raises:
            UserError: no such text, or it names a value that is missing.
        """
        if not isinstance(text, Caption):
            return text
        entry = (self.texts.get(text.kind) or {}).get(text.key)
        name = f"{text.kind}.{text.key}"
        if not isinstance(entry, str):
            raise UserError(f"{self.source}: no text {name}")
        try:
            return " ".join(entry.split()).format(**text.values)
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(f"{self.source}: {name}: bad placeholder: {error}") from None

    def fill_in(self, sections: Sequence[Section]) -> None:
        """Put words in the place of captions, and describe the drawings."""
        from markupsafe import Markup, escape

        for section in sections:
            section.title, section.intro = self.words(section.title), self.words(section.intro)
            for block in section.blocks:
                block.text = self.words(block.text)
                if block.kind == "box":
                    block.text = str(block.text).replace(CAPTION, str(section.title))
                described = str(escape(str(block.text).split(". ")[0]))
                block.svg = Markup(block.svg.replace(CAPTION, described))


def read_template(folder: Path) -> Template:
    """The template, its inlined files and its captions.

    Raises:
        UserError: a file is missing or broken.
    """
    import jinja2

    captions = validation.load_yaml(folder / "captions.yaml")
    if not isinstance(captions, dict):
        raise UserError(f"{folder / 'captions.yaml'}: expected a map of texts")
    inlined = {}
    for name in ("style.css", *SCRIPTS):
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
        page = environment.get_template("page.html.j2")
    except jinja2.TemplateNotFound:
        raise UserError(f"{folder / 'page.html.j2'}: no such file") from None
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"{folder / 'page.html.j2'}: line {error.lineno}: {error}") from None
    texts = Captions(folder / "captions.yaml", captions)
    script = "\n".join(inlined[name] for name in SCRIPTS)
    return Template(page, inlined["style.css"], script, texts)


def write(arguments: argparse.Namespace) -> None:
    """Write the page and its files beside the old ones, which they replace once they are whole."""
    import jinja2

    template = read_template(arguments.template)
    page = blocks.read(arguments.drawn / blocks.FILE)
    both = [*page.sections, *page.report]
    template.captions.fill_in(both)
    boxes = [block for section in both for block in section.blocks if block.kind == "box"]
    errors = "".join(f"{line}\n" for line in dict.fromkeys(str(block.text) for block in boxes))
    staged = temporary.beside(arguments.figures)
    try:
        temporary.remove(staged)
        staged.mkdir(parents=True)
        for path in arguments.drawn.glob("[!.]*"):  # a dot: Snakemake's own
            if path.name != blocks.FILE:
                shutil.copyfile(path, staged / path.name)
        write_captions(page, staged)
        study = arguments.output.with_name(blocks.STUDY)
        texts = {
            path: template.page.render(
                **page.facts,
                sections=sections,
                facets=page.facets,
                css=f"{page.colours}{template.style}{page.css}",
                script=template.script,
                is_study=sections is page.sections,
                other=other.name,
                here=anchors(sections),
            )
            for path, other, sections in (
                (study, arguments.output, page.sections),
                (arguments.output, study, page.report),
            )
        }
        temporary.write(study, texts[study])
        with temporary.opened(arguments.output) as stream:
            stream.write(texts[arguments.output].encode("utf-8"))
            stream.flush()
            temporary.replace_files(arguments.figures, staged)
        sys.stderr.write(errors)
        summary_file = arguments.output.with_name(ending.SUMMARY)
        temporary.write(summary_file, page.facts["closing"])
        temporary.write(arguments.output.with_name(ending.ERRORS), errors)
    except jinja2.UndefinedError as error:
        raise UserError(f"{arguments.template / 'page.html.j2'}: {error}") from None
    except OSError as error:
        where = error.filename or arguments.output
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        temporary.remove(staged)


def anchors(sections: Sequence[Section]) -> set[str]:
    """The places of a page that a link may lead to; all others are on the other page."""
    of_blocks = (block.anchor for section in sections for block in section.blocks)
    return {*(section.anchor for section in sections), *of_blocks}


def write_captions(page: blocks.Page, folder: Path) -> None:
    """Write the captions into the index of Snakemake's own report."""
    index = {}
    # What both pages show is listed in the study's sections.
    of_report = ((0, section) for section in page.report)
    for number, section in (*of_report, *enumerate(page.sections, start=1)):
        for block in section.files():
            name = block.anchor.removeprefix("figure-")
            index[name] = {
                "kind": block.kind,
                "number": block.number,
                "section_number": number,
                "section": section.title,
                "caption": block.text,
            }
    text = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
    (folder / provenance.INDEX).write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="siliconprof.render.page", description=__doc__)
    for name, what in (
        ("drawn", "folder of what was drawn"),
        ("figures", "folder for figures and tables as files"),
        ("output", "the report; the study lies beside it"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    parser.add_argument(
        "--template",
        type=Path,
        default=CHECKOUT / "report",
        help="folder of template, style sheet and captions; default: the checkout's",
    )
    write(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
