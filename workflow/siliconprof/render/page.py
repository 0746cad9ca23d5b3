"""The tables of a run into one page that opens without a network, and every figure and table as a file.

    python -m siliconprof.render.page --matrix results/matrix.json \
        --output results/report.html results/summary.txt results/figures

With `--print` every figure becomes SVG, PNG and PDF in the one folder of `--output`, and nothing else is
made. A page that leaves something out is written, and the command fails with what it leaves out.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context

from siliconprof import formatting, options
from siliconprof.analyse.answer import INTERVAL_ENDS, STEP
from siliconprof.analyse.attribution import CAUSE, PHASE, UNEXPLAINED_PART
from siliconprof.analyse.frames import PATH, Frames, group_numbers, records
from siliconprof.errors import UserError, explained
from siliconprof.render import exhibit, style, summary, svg, tables
from siliconprof.render.exhibit import Exhibit, fitting
from siliconprof.store import captions, names, temporary

PASSED_ON = (UserError, OSError, MemoryError)  # no exhibit is to blame


@dataclass
class Shown:
    """An exhibit as the page shows it."""

    id: str
    section: str
    title: str
    caption: str
    number: int
    svg: Markup = Markup("")
    tables: list[tuple[str, tables.Table]] = field(default_factory=list)  # with a name of its own
    folded: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    sentences: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""  # what it lacks
    error: str = ""


def shown(frames: Frames, report: ReportBuilder) -> Iterator[Shown]:
    """All exhibits drawn and written; what raises becomes a box, and the page goes on."""
    number = count(1)
    for section, module in exhibit.modules():
        try:
            values = exhibit.load(module)
        except Exception as error:
            yield _boxed(module.rpartition(".")[2], section, next(number), error)
        else:
            yield from (_shown(one, section, next(number), frames, report) for one in values)


def _boxed(name: str, section: str, number: int, error: Exception) -> Shown:
    """A box with the error in place of an exhibit, or of a module that does not load.

    Raises:
        Exception: no exhibit is to blame.
    """
    if isinstance(error, PASSED_ON):
        raise error
    return Shown(name, section, name, "", number, error=f"{name}: {explained(error)}")


def _shown(
    value: Exhibit, section: str, number: int, frames: Frames, report: ReportBuilder
) -> Shown:
    try:
        title, caption, needs = captions.caption_of("exhibits", value.id)
        one = Shown(value.id, section, title, caption, number)
        frame = value.rows(frames)
        if frame.empty:
            one.note = needs or "No data."
            return one
        _fill(one, value, frame, report)
        return one
    except Exception as error:
        return _boxed(value.id, section, number, error)


def _fill(one: Shown, value: Exhibit, frame: pd.DataFrame, report: ReportBuilder) -> None:
    if value.figure:
        part = fitting(value.figure, frame)
        drawing = value.figure.draw(part)
        if len(part) < len(frame):
            file = f"{report.links}/{value.id}.csv"
            one.caption += f" Drawn are {len(part)} of {len(frame)} rows; all are in {file}."
        if report.prints:
            svg.for_print(drawing, report.folder / value.id)
            return
        root, told = svg.drawn(drawing), f"{one.title}. {one.caption}"
        report.write(f"{value.id}.svg", svg.standalone(root))
        one.svg = Markup(svg.inline(drawing, root, value.id, told, report.cells))
        if not value.table:
            report.write(f"{value.id}.csv", tables.csv(frame, value.figure.columns(frame)))
    if value.facts:
        one.facts = list(zip(frame["name"], frame["value"], strict=True))
    if value.sentences:
        one.sentences = list(zip(frame["name"], frame["sentence"], strict=True))
    if value.table and not report.prints:
        parts = frame.groupby(value.each, sort=False) if value.each else [("", frame)]
        for name, rows in parts:
            columns = value.table(rows) if callable(value.table) else value.table
            file = f"{value.id}-{names.slug(str(name))}.csv" if name else f"{value.id}.csv"
            known = [column for c in columns for column in c.columns]
            report.write(file, tables.csv(rows, [*known, "why_not"]))
            place = f"{report.links}/{file}"
            one.tables.append((str(name), tables.html(rows, columns, report.cells, place)))
        one.folded = value.folded


@dataclass
class ReportBuilder:
    """What exhibits write into: the numbered cells, and a folder of files.

    Args:
        folder: where files are written; `links`: how the page calls the place where they will lie.
        prints: figures become files for print, and nothing else is made.
    """

    folder: Path
    links: str
    prints: bool = False
    cells: svg.Cells = field(default_factory=svg.Cells)

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content, encoding="utf-8")


def _html(frames: Frames, exhibits: Sequence[Shown], report: ReportBuilder) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(captions.REPORT),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cells = report.cells
    sections = [
        (
            name,
            *captions.caption_of("sections", name)[:2],
            [e for e in exhibits if e.section == name],
        )
        for name in exhibit.SECTIONS
    ]
    own = frames.cells[frames.cells["here"]]
    measured = int(own["status"].eq("ok").sum())
    unreadable = len(frames.results.frame("unreadable"))
    counts = f"{measured} of {formatting.count(len(own), 'cell')} measured"
    counts += f", {formatting.count(unreadable, 'record')} could not be read" if unreadable else ""
    names = frames.cells.drop_duplicates("device").set_index("device")["device_label"]
    trainers = frames.cells.dropna(subset="trainer").set_index("workload")["trainer"]
    facets = cells.listed(names.to_dict(), trainers.to_dict())
    return environment.get_template("page.html.j2").render(
        title=frames.matrix.experiment.get("report", {}).get("title") or "siliconprof",
        host_line=summary.host_line(frames.matrix.host),
        meta=" · ".join(filter(None, [counts, summary.when(own)])),
        banners=[*summary.emulated(frames), *summary.banners(frames)],
        sections=sections,
        answer=exhibit.ANSWER,
        facets=facets,
        compared=_compared(frames, cells),
        colours=style.css(),
    )


def _compared(frames: Frames, cells: svg.Cells) -> dict[str, Any]:
    """Every training and explained gap, of which the page's script makes the pairs that are picked.

    Returns:
        `trainings`: rows, those of equal work the fastest first, with `of`, the number of the cell, and
        `alike_but_device` …, numbers that are equal where all else is. `gaps`: of each `of`, places
        of the slower and the faster training; the milliseconds of its `parts`; `how` it was split.
    """
    by = ["family_order", "disturbed", STEP]
    steps = frames.steps.sort_values(by, ascending=[False, True, True], kind="stable")
    step = {f"{STEP}{end}": f"step_ms{end}" for end, *_ in INTERVAL_ENDS}
    names = ["work_label", "setup", "disturbed", *step, "samples_per_s", "tokens_per_s"]
    trainings = steps[names].rename(columns=step)
    trainings["of"] = [cells.of(row) for row in records(steps[[*svg.FACETS]])]
    for axis in ("device", "backend", "precision", "trainer"):
        differing = PATH if axis == "device" else [axis]
        trainings[f"alike_but_{axis}"] = group_numbers(steps, *differing)
    places = {label: place for place, label in enumerate(steps.index)}
    gaps = []
    known = frames.gaps[~frames.gaps["is_noise"] & frames.gaps["seconds"].fillna(0).ne(0)]
    lines = records(known[["slow", "fast", "kind", "part", "seconds", "disturbed"]])
    for (slow, fast), of_pair in groupby(lines, itemgetter("slow", "fast")):  # as they are sorted
        own = [*of_pair]
        is_timed = any(line["kind"] == CAUSE for line in own)
        why = "one of both was disturbed" if own[0]["disturbed"] else "operators were not timed"
        how = "part by part" if is_timed else f"by phase alone, as {why}"
        parts = [
            (formatting.PART_WORDS.get(line["part"], line["part"]), 1e3 * line["seconds"])
            for line in own
            if line["kind"] in ((CAUSE, UNEXPLAINED_PART) if is_timed else (PHASE,))
        ]
        gaps.append({"of": [places[slow], places[fast]], "parts": parts, "how": how})
    return {"trainings": json.loads(trainings.to_json(orient="records")), "gaps": gaps}


def main(
    *,
    matrix: options.Matrix,
    tables: options.Tables = (),
    published: options.Published = (options.PUBLISHED,),
    registry: options.Registry = options.REGISTRY_FILE,
    output: Annotated[
        Sequence[Path],
        "page, summary and the folder of figures and tables; default: report.html, summary.txt and "
        "figures beside the matrix",
    ] = (),
    print_: Annotated[bool, "every figure as SVG, PNG and PDF, and nothing else"] = False,
    most_exhibits: Annotated[int | None, "so many of the first; default: all"] = None,
) -> None:
    """Write the page and its files beside the old ones, which they replace once they are whole.

    Raises:
        UserError: what stopped it; or all is written, but for exhibits that could not be drawn.
    """
    import jinja2

    names = ("print",) if print_ else ("report.html", "summary.txt", "figures")
    *files, folder = output or map(matrix.with_name, names)
    if len(files) != len(names) - 1:
        raise UserError("--output: name a page, a summary and a folder; with --print a folder")
    staged = temporary.temporary_path(folder)
    try:
        known = options.tables_of(tables, matrix)
        frames = Frames.load(matrix, known, options.folder_of(published), registry)
        temporary.remove(staged)
        staged.mkdir(parents=True)
        report = ReportBuilder(staged, folder.as_posix(), print_)
        with rc_context(style.LOOK):
            exhibits = [*islice(shown(frames, report), most_exhibits)]
        if print_:
            temporary.remove(folder)
            staged.replace(folder)
            return
        text = _html(frames, exhibits, report)
        temporary.write(files[0], text)
        temporary.remove(folder)
        staged.replace(folder)
        temporary.write(files[1], summary.text(frames))
        if errors := [one.error for one in exhibits if one.error]:
            raise UserError(
                "\n".join([*errors, f"the page stands without {len(errors)} of its exhibits"])
            )
    except jinja2.TemplateError as error:
        raise UserError(f"{captions.REPORT / 'page.html.j2'}: {error}") from None
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        temporary.remove(staged)


if __name__ == "__main__":
    gc.disable()  # to look for cycles in matplotlib's many objects takes a tenth of the time
    options.run(main)
