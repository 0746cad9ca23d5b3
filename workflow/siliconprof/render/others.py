"""Measurements of other hosts and of reference bundles: shown apart, every row with its badge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import (
    ceilings,
    choices,
    classic,
    clocks,
    declared,
    energy,
    hover,
    launch,
    lora,
    marks,
    operations,
    other_methods,
    peaks,
    setting,
    study,
    style,
    training,
    uncertainty,
)
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing
from siliconprof.render.variants import (
    Family,
    Row,
    as_slug,
    family,
    has_no_speed,
    label,
    order,
    precision,
    variant,
    work_apart,
)
from siliconprof.store import documents
from siliconprof.store.records import IMPORTED

ROWS_PER_FIGURE = 40


def parts(data: Data) -> Iterator[Callable[[Data, Book], None]]:
    """What draws each host, then comparisons of equal work across hosts, then other methods."""
    hosts = data.hosts()
    for source, host in hosts:
        yield partial(_host, source, host)
    if hosts:
        yield _across
    elif not data.other_methods:
        yield _nobody
    yield other_methods.add


def _nobody(data: Data, book: Book) -> None:
    book.note(
        "No record of another host and no reference bundle lies beside these results. "
        "“siliconprof import” brings records of another computer here."
    )


def _across(data: Data, book: Book) -> None:
    book.common["intervals"] = uncertainty.origin_text(data.points)
    compare(data, book)


def _host(source: str, host: str, data: Data, book: Book) -> None:
    part = data.only(source, host)
    if part.cells:
        badge = words.SOURCE_BADGES[source]
        prefix = f"{badge.replace(' ', '-')}-{host}-"
        book.heading(host, badge)
        book.origin = f"{badge}: {host}"
        book.common["intervals"] = uncertainty.origin_text(part.points)
        book.facts(_facts(part))
        book.table(
            f"{prefix}cells",
            "cells-elsewhere",
            setting.cells_table(part.cells),
            folded=f"{words.count(len(part.cells), 'cell')}: {setting.statuses(part.cells)}",
            host=host,
        )
        if part.training():
            training.add(part, book, prefix)
            choices.add(part, book, prefix)
            lora.add(part, book, prefix)
            peaks.add(part, book, prefix)
            energy.add(part, book, prefix)
            clocks.add(part, book, prefix)
        if study.present(part):
            study.add_elsewhere(part, book, prefix)
        if classic.present(part):
            classic.add(part, book, prefix)
        if part.ceilings and any(line["value"] is not None for line in part.ceilings):
            ceilings.add(part, book, prefix)
        if part.of_module("matmul"):
            operations.add_products(part, book, prefix)
        if part.of_module("matvec") or part.of_module("vjp"):
            operations.add(part, book, prefix)
        if part.of_module("kernel_launch"):
            launch.add(part, book, prefix, with_published=False)
        declared.add(part, book, prefix)
    book.origin = ""


def _facts(part: Data) -> list[tuple[str, str]]:
    """Facts about a host from its records, as its host file is not here."""

    def all_of(name: str) -> str:
        return words.listing(sorted({str(c[name]) for c in part.cells if c[name] is not None}))

    versions = sorted(
        {
            f"{cell['backend']} {cell['framework_version']}"
            for cell in part.cells
            if cell["framework_version"]
        }
    )
    return [
        ("System", all_of("system")),
        (
            "Devices",
            words.listing(
                dict.fromkeys(f"{part.device_name(c)} ({c['device']})" for c in part.cells)
            ),
        ),
        ("Frameworks", words.listing(versions)),
        ("BLAS", all_of("blas")),
        ("Measured", setting.when(part.cells)),
        ("Code", setting.commits(part.cells)),
        ("Signed by", _signed_by(part)),
    ]


def _signed_by(part: Data) -> str:
    """Who signed the host's records, by the note of their import; empty where nobody did."""
    if part.cells[0]["source"] != IMPORTED:
        return ""
    try:
        note = documents.read(part.results / "imported" / f"{part.cells[0]['host']}.json")
        words_of = {
            "good": str(note["signed_by"]),
            "in part": f"{note['signed_by']}, but not all records",
            "not checked": "signed, but not checked",
        }
        return words_of.get(note.get("signature"), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""  # shared by a file system, or imported before signatures were


def compare(data: Data, book: Book) -> None:
    """Equal training work on several hosts; made by the same method only."""
    groups: dict[tuple[Family, str, Any], list[Step]] = {}
    for point in data.training():
        step = Step.of(point)
        if step and not has_no_speed(point) and not family(point).near_capacity:
            same = (family(point), work_apart(point), point["method_version"])
            groups.setdefault(same, []).append(step)
    shared = {
        same: sorted(steps, key=lambda step: step.middle)
        for same, steps in groups.items()
        if len({(s.row["source"], s.row["host"]) for s in steps}) > 1
    }
    book.heading("Equal work on several hosts", anchor="across-hosts")
    if not shared:
        book.note(
            "No training workload of equal size was measured by the same method on several hosts."
        )
        return
    for (kind, apart, version), steps in shared.items():
        slug = kind.slug + as_slug(apart)
        for start in range(0, len(steps), ROWS_PER_FIGURE):
            part = steps[start : start + ROWS_PER_FIGURE]
            name = f"across-{slug}-{kind.n_parameters}-method{int(version)}"
            book.figure(
                f"{name}-{start // ROWS_PER_FIGURE + 1}" if start else name,
                "across-hosts",
                partial(draw, data, part),
                family=kind.label + apart,
            )
        book.table(name, "across-hosts", table(data, steps), family=kind.label + apart)
    from siliconprof.render import losses as loss_curves

    mixed = [
        group
        for group in loss_curves.loss_groups(data)
        if len({(p["source"], p["host"]) for p in group}) > 1
    ]
    if mixed:
        book.table("losses-across-hosts", "losses-across", losses(data, mixed))
    else:
        book.note(
            "Losses are not compared across hosts: no two hosts trained on data of equal "
            "checksum with equal seed and size."
        )


def _label(step: Step) -> str:
    row = step.row
    badge = words.SOURCE_BADGES.get(row["source"])
    where = f"{row['host']}/{row['device']}" + (f" [{badge}]" if badge else "")
    return f"{where} · {label(row)}"


def draw(data: Data, steps: Sequence[Step], narrow: bool) -> Any:
    """A mark for each cell on a log axis, its interval beside it; labels above on a phone."""
    width = style.width_in(narrow)
    labels = [_label(step) for step in steps]
    left = 0.1 if narrow else min(max(map(style.text_in, labels)) + 0.1, width * 0.6)
    pitch, foot = 0.34 if narrow else 0.19, 0.42
    rows = [step.row for step in steps]
    entries = [*style.backends(rows, 3.4), *style.devices(rows, data.device_name, 3.4)]
    head = style.legend_height(entries, width) + 0.09
    figure = style.canvas(width, head + len(steps) * pitch + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.15, len(steps) * pitch)
    ax.set_xscale("log")
    low = min(step.low for step in steps) / 1.4
    high = max(step.high for step in steps) * 1.9
    ax.set_xlim(low, high)
    ax.set_ylim(len(steps) - 0.5, -0.5)
    for y, (step, name) in enumerate(zip(steps, labels, strict=True)):
        ink = style.colour(step.row)
        at = y + (0.2 if narrow else 0)
        shape = style.device_mark(step.row["device"])
        dot = ax.plot([step.middle], [at], shape, color=ink, markersize=3.4)
        step_text = hover.seconds(step.middle, step.low, step.high)
        marks.tag(dot, step.row, f"{name}: unsplit step {step_text}")
        marks.tag(
            [
                ax.plot([step.low, step.high], [at, at], color=ink, linewidth=0.9),
                ax.annotate(
                    words.duration(step.middle),
                    (step.high, at),
                    (5, 0),
                    va="center",
                    textcoords="offset points",
                    size=style.SMALL_PT,
                ),
            ],
            step.row,
        )
        if narrow:
            marks.tag(
                ax.text(
                    0,
                    y - 0.18,
                    words.shortened(name, 62),
                    va="center",
                    size=style.SMALL_PT - 0.5,
                    transform=ax.get_yaxis_transform(),
                ),
                step.row,
            )
    ax.set_yticks([] if narrow else range(len(steps)), [] if narrow else labels)
    marks.tag_labels(ax.yaxis, [] if narrow else rows)
    ax.tick_params(axis="y", length=0, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    style.log_ticks(ax.xaxis, low, high)
    ax.xaxis.set_major_formatter(
        style.FuncFormatter(lambda value, _: words.significant(value * 1e3, 1))
    )
    ax.set_xlabel("unsplit step / ms", size=style.SMALL_PT)
    return figure


def table(data: Data, steps: Sequence[Step]) -> Table:
    """Step times of equal work, fastest first."""
    result = Table(
        [
            Column("Host"),
            Column("Device"),
            Column("Backend"),
            Column("Trainer"),
            Column("Precision"),
            Column("Variant", folds=True),
            Column("unsplit step", "ms", True, "median, 95 % interval"),
            Column("tokens", "1/s", True),
            Column("of the fastest", "×", True),
        ]
    )
    fastest = steps[0].middle
    for step in steps:
        row = step.row
        rate = words.number(row["tokens_per_s"])
        ends = "–".join(words.significant(end * 1e3) for end in (step.low, step.high))
        result.add(
            Value(row["host"], sort=row["host"], badge=words.SOURCE_BADGES.get(row["source"], "")),
            Value(data.device_name(row), sort=row["device"], title=row["device"]),
            words.backend_name(row),
            row["trainer"],
            precision(row),
            ", ".join(variant(row)),
            Value(words.significant(step.middle * 1e3), step.middle * 1e3, ends),
            Value(words.significant(rate), rate) if rate else None,
            Value(words.significant(step.middle / fastest), step.middle / fastest),
            of=row,
        )
    return result


def losses(data: Data, groups: Sequence[Sequence[Row]]) -> Table:
    """Largest relative difference from the baseline of each group; equal checksums only."""
    from siliconprof.render.losses import divergence, relative_differences

    result = Table(
        [
            Column("Workload"),
            Column("Checksum"),
            Column("Host"),
            Column("Cell"),
            Column("Held against"),
            Column("first step", "", True),
            Column("largest", "", True),
            Column("steps", "", True),
        ]
    )
    for group in groups:
        baseline = group[0]
        for point in sorted(group[1:], key=order):
            difference = relative_differences(data, point, baseline)
            if not len(difference):
                continue
            why = divergence(data.traces.series(point, "loss")) or "the baseline has diverged"
            result.add(
                family(point).name,
                point["data_sha256"][:12],
                Value(point["host"], badge=words.SOURCE_BADGES.get(point["source"], "")),
                label(point),
                f"{baseline['host']}: {label(baseline)}",
                _difference(float(difference[0]), why),
                _difference(float(difference.max()), why),
                Value(str(len(difference)), float(len(difference))),
                of=(point, baseline),
            )
    return result


def _difference(value: float, why: str) -> Value:
    """A relative difference, or why there is none."""
    if words.number(value) is None:
        return missing(why)
    return Value(words.scientific(value), value)
