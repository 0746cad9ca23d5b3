"""Measurements of other hosts and of reference bundles: shown apart, every row with its badge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from siliconprof import words
from siliconprof.render import beside, chart, hover, losses, setting, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.book import parts as parts_of
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.compare import Step, step_column
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import (
    BACKEND,
    HOST,
    Column,
    Table,
    Value,
    count,
    missing,
    number,
    told,
)
from siliconprof.render.variants import (
    Family,
    Row,
    as_slug,
    family,
    label,
    order,
    precision,
    variant,
    work_apart,
)

Add = Callable[[Data, Book], None]
ROWS_PER_FIGURE = 40


def parts(data: Data, add: Add) -> Iterator[Add]:
    """What draws each host, then comparisons of equal work across hosts.

    Args:
        add: the sections of a host.
    """
    hosts = data.hosts()
    for source, host in hosts:
        yield partial(_host, source, host, add)
    if hosts:
        yield compare
    else:
        yield _nobody


def _nobody(data: Data, book: Book) -> None:
    book.note(
        "No record of another host and no reference bundle lies beside these results. "
        "“siliconprof import” brings records of another computer here."
    )


def _host(source: str, host: str, add: Add, data: Data, book: Book) -> None:
    part = data.only(source, host)
    if not part.cells:
        return
    badge = words.SOURCE_BADGES[source]
    with book.of_host(badge, host):
        book.heading(host, badge)
        intervals = f"95 %, {uncertainty.origin_text(part.points)}"
        book.facts([*_facts(part), ("Intervals", intervals)])
        book.table(
            "cells",
            "cells-elsewhere",
            setting.cells_table(part.cells),
            folded=f"{words.count(len(part.cells), 'cell')}: {setting.statuses(part.cells)}",
            host=host,
        )
        add(part, book)


def _facts(part: Data) -> list[tuple[str, str]]:
    """Facts about a host from its records, as its host file is not here."""

    def all_of(name: str) -> str:
        return words.listing(sorted({str(c[name]) for c in part.cells if c[name] is not None}))

    versions = {
        f"{cell['backend']} {cell['framework_version']}"
        for cell in part.cells
        if cell["framework_version"]
    }
    devices = dict.fromkeys(f"{part.device_name(c)} ({c['device']})" for c in part.cells)
    return [
        ("System", all_of("system")),
        ("Devices", words.listing(devices)),
        ("Frameworks", words.listing(sorted(versions))),
        ("BLAS", all_of("blas")),
        ("Measured", setting.when(part.cells)),
        ("Code", setting.commits(part.cells)),
    ]


def compare(data: Data, book: Book) -> None:
    """Equal training work on several hosts."""
    book.common["intervals"] = uncertainty.origin_text(data.points)
    book.heading("Equal work on several hosts", anchor="across-hosts")
    points = [point for point in data.with_speed() if not family(point).near_capacity]
    steps = list(filter(None, map(Step.of, points)))
    groups = {
        same: sorted(group, key=lambda step: step.middle)
        for same, group in grouped(steps, _work).items()
        if _several_hosts(step.row for step in group)
    }
    if not groups:
        book.note("No training workload of equal size was measured on several hosts.")
        return
    for (kind, apart), steps in groups.items():
        slug, title = kind.slug + as_slug(apart), kind.label + apart
        name = f"across-{slug}-{kind.n_parameters}"
        for part_name, part in parts_of(name, steps, ROWS_PER_FIGURE):
            book.figure(part_name, "across-hosts", partial(draw, data, part), family=title)
        book.table(name, "across-hosts", table(data, steps), family=title)
    pairs = [
        (point, group[0])
        for group in losses.loss_groups(data)
        if _several_hosts(group)
        for point in sorted(group[1:], key=order)
    ]
    if pairs:
        book.table("losses-across-hosts", "losses-across", losses_table(data, pairs))
    else:
        book.note(
            "Losses are not compared across hosts: no two hosts trained on data of equal "
            "checksum with equal seed and size."
        )


def _work(step: Step) -> tuple[Family, str]:
    return family(step.row), work_apart(step.row)


def _several_hosts(rows: Iterable[Row]) -> bool:
    return len({(row["source"], row["host"]) for row in rows}) > 1


def draw(data: Data, steps: Sequence[Step]) -> Any:
    """A mark for each cell on a log axis, its interval beside it."""
    rows = [step.row for step in steps]
    shown: list[Mark] = []
    for y, step in enumerate(steps):
        row, marker = step.row, style.device_mark(step.row["device"])
        time = hover.seconds(step.middle, step.low, step.high)
        text = f"{_label(row)}: unsplit step {time}"
        shown.append(chart.line([step.low, step.high], [y, y], row))
        shown.append(chart.dot(step.middle, y, row, text, marker))
        end = words.duration(step.middle)
        shown.append(chart.beside(step.high, y, end, row, color=style.INK))
    printed = beside.passes(data, rows)
    shown += [chart.published(one.seconds, y, one.text) for y, one in enumerate(printed, len(rows))]
    x = Scale("unsplit step / ms", log=10, unit=1e-3)
    legend = [
        *style.backends(rows, 3.4),
        *style.devices(rows, data.device_name, 3.4),
        *([chart.HATCHED] if printed else []),
    ]
    labels = [*(_label(row) for row in rows), *(one.label for one in printed)]
    panel = Panel(shown, x, labels=labels, label_rows=[*rows, *(None for _ in printed)])
    return Chart([panel], legend).figure()


def _label(row: Row) -> str:
    badge = words.SOURCE_BADGES.get(row["source"])
    where = f"{row['host']}/{row['device']}" + (f" [{badge}]" if badge else "")
    return f"{where} · {label(row)}"


def table(data: Data, steps: Sequence[Step]) -> Table:
    """Step times of equal work, fastest first."""

    def device(row: Row) -> Value:
        return Value(data.device_name(row), sort=row["device"], title=row["device"])

    def times(row: Row) -> float:
        return row["unsplit_step_median_s"] / steps[0].middle

    columns = (
        HOST,
        told("Device", device),
        BACKEND,
        told("Trainer", "trainer"),
        told("Precision", precision),
        told("Variant", lambda row: ", ".join(variant(row)), folds=True),
        step_column("unsplit step", lambda row: row, help="median, 95 % interval"),
        number("tokens", "1/s", "tokens_per_s", ""),
        number("of the fastest", "×", times, ""),
    )
    return Table.of([step.row for step in steps], columns)


def losses_table(data: Data, pairs: Sequence[tuple[Row, Row]]) -> Table:
    """Largest relative difference from the baseline of each group; equal checksums only."""
    rows = []
    for point, baseline in pairs:
        difference = losses.relative_differences(data, point, baseline)
        if len(difference):
            why = losses.divergence(data.traces.series(point, "loss"))
            more = {
                "against": f"{baseline['host']}: {label(baseline)}",
                "difference": difference,
                "why": why or "the baseline has diverged",
                "about": (point, baseline),
            }
            rows.append(point | more)
    return Table.of(rows, LOSSES, lambda row: row["about"])


def _difference(row: Row, of: Callable[[Any], Any]) -> Value:
    """A relative difference, or why there is none."""
    value = float(of(row["difference"]))
    if words.number(value) is None:
        return missing(row["why"])
    return Value(words.scientific(value), value)


LOSSES = (
    told("Workload", lambda row: family(row).name),
    told("Checksum", lambda row: row["data_sha256"][:12]),
    HOST,
    told("Cell", label),
    told("Held against", "against"),
    Column("first step", "", True, value=partial(_difference, of=itemgetter(0))),
    Column("largest", "", True, value=partial(_difference, of=lambda values: values.max())),
    count("steps", lambda row: len(row["difference"]), ""),
)
