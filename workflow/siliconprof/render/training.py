"""Training: where a step's time goes, by backend, trainer and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, style, tables, uncertainty, variants
from siliconprof.render.book import Book, told_parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.compare import NO_STEP, Step
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import BACKEND, DEVICE, Column, Table, Value, median, number, told
from siliconprof.render.variants import NO_SPEED, Family, Row, has_no_speed, model, variant

MS = 1e-3
Name = Callable[[Row], str]
Families = dict[Family, tuple[list[Row], list[Row]]]  # measured points, and cells without any
PHASES = ("data", "trace", "forward", "backward", "optimizer", "other")
LEAST_SEEN = 0.004  # of a step
ROWS_PER_FIGURE = 24
STATUS_CHARACTERS = 58  # of a status in place of a bar
CHECK = "mechanism check"
OFFLOAD_NOTE = (
    f" “Offload” on a CPU is a {CHECK}, not a cost of offloading: there is nothing to offload to."
)
LINES = {  # through the dot of an unsplit step, by what is known of its error: width, words
    uncertainty.WITHIN: (0.9, f"its middle half (IQR), {uncertainty.WITHIN}"),
    uncertainty.BETWEEN: (1.5, f"its 95 % interval, {uncertainty.BETWEEN}"),
}
LABELLED_SHARE = 0.13  # a share this wide holds its number


class Parts(NamedTuple):
    """What the bars of a step are made of."""

    what: str
    steps: Mapping[str, int]  # name -> of the backend's colour; neighbours in the stack differ
    seconds: Callable[[Row, str], float | None]
    told: Callable[[Row, str], str]  # for the pointer
    always: Sequence[str] = ()  # in the legend, however short
    hatch: Mapping[str, str] = {}


OF_PHASES = Parts(
    "phases",
    dict(zip(PHASES, (45, 12, 60, 100, 25, 12), strict=True)),
    lambda row, phase: row.get(f"{phase}_median_s"),
    hover.quartiles,
    ("forward", "backward", "optimizer"),
    {"trace": "//////"},
)


def add(data: Data, book: Book) -> None:
    """Bars of every family, and their table."""
    families = data.families()
    if not families:
        book.note("No training cell is part of these results.")
        return
    for kind, (points, failed) in families.items():
        if not points:
            why = words.listing(sorted({f"{c['status']}: {c['reason']}" for c in failed}))
            book.note(f"{kind.name}: no figure, no cell of it was measured ({why}).")
            continue
        rows = sorted([*points, *failed], key=variants.family_order)
        stem = f"training-{kind.slug}"
        for name, part, chunk in told_parts(stem, rows, ROWS_PER_FIGURE):
            book.figure(
                name,
                "training-phases",
                partial(draw, data, chunk),
                family=kind.label + part,
                offload=OFFLOAD_NOTE if any(map(has_no_speed, chunk)) else "",
            )
    if any(points for points, _ in families.values()):
        book.table("training-times", "training-times", times_table(data, families))


# -- figure ------------------------------------------------------------------------------------


def draw(
    data: Data,
    rows: Sequence[Row],
    name: Name = variants.label,
    parts: Parts = OF_PHASES,
) -> Any:
    """Stacked times on the left, their shares on the right.

    Every device has axes of its own: on one scale a GPU's bars would vanish beside a CPU's.

    Args:
        name: what a row is called.
    """
    used = [part for part in parts.steps if _is_seen(rows, part, parts)]
    origins = {uncertainty.origin(row) for row in rows}
    legend = [
        *(
            (style.swatch(style.shade("grey", parts.steps[part]), parts.hatch.get(part)), part)
            for part in used
        ),
        (style.sample("o", color=style.INK, markersize=2.6), "unsplit step: median"),
        *(
            (style.sample(None, "-", color=style.INK, linewidth=thick), line)
            for origin, (thick, line) in LINES.items()
            if origin in origins
        ),
    ]
    panels = []
    for group in grouped(rows, device_of).values():
        device = data.place(group[0])
        times = Scale("time of one step / ms", zero=True, unit=MS)
        shares = Scale(f"share of the step's {parts.what} / %", ends=(0, 1), most=4, unit=0.01)
        for title, shown, scale in (
            (device, _times, times),
            ("shares", _shares, shares),
        ):
            bars = [
                mark for y, row in enumerate(group) for mark in shown(y, row, used, name, parts)
            ]
            names = [name(row) for row in group]
            panels.append(Panel(bars, scale, Scale(), names, group, title))
    return Chart(panels, legend, columns=2, same_y=True).figure()


def _is_seen(rows: Sequence[Row], part: str, parts: Parts) -> bool:
    """Whether a part is timed anywhere, and wide enough to be seen or one of those of all."""
    least = 0.0 if part in parts.always else LEAST_SEEN
    return any(
        (parts.seconds(row, part) or 0) > least * (row.get("step_median_s") or 1) for row in rows
    )


def _times(y: int, row: Row, used: Sequence[str], name: Name, parts: Parts) -> Iterator[Mark]:
    """Medians end to end; over them the unsplit step with its error; or why there is no time."""
    middle, split = row.get("unsplit_step_median_s"), row.get("step_median_s")
    if middle is None and split is None:
        status = f"{row['status']}: {row['reason']}" if row.get("reason") else "no time measured"
        short = words.shortened(status, STATUS_CHARACTERS)
        whole = f"{hover.training(row)}: {status}"
        yield chart.note(0, y, short, row, hover=whole, style="italic")
        return
    end, training = 0.0, f"{model(row)}, {name(row)}"
    for part in used:
        length = parts.seconds(row, part) or 0.0
        text = f"{training}: {part} {parts.told(row, part)}"
        yield from _segment(y, row, part, end, length, text, parts)
        end += max(length, 0.0)
    if middle is not None:
        # its error between processes where known, else the spread within its own
        origin = str(uncertainty.origin(row))
        ends = ("low", "high") if origin == uncertainty.BETWEEN else ("q25", "q75")
        low, high = (row[f"unsplit_step_{end}_s"] for end in ends)
        text = f"{training}: unsplit step {hover.median(row, 'unsplit_step')}"
        yield chart.line([low, high], [y, y], row, color=style.INK, linewidth=LINES[origin][0])
        yield chart.dot(middle, y, row, text, size=2.6, color=style.INK)
        end = max(end, high)
    total = words.duration((split or 0.0) if middle is None else middle)
    check = f", {CHECK}" if has_no_speed(row) else ""
    ink = style.MUTED if check else style.INK
    yield chart.beside(end, y, total + check, row, color=ink, linespacing=0.95)


def _shares(y: int, row: Row, used: Sequence[str], name: Name, parts: Parts) -> Iterator[Mark]:
    """The same parts as shares of their sum."""
    total = sum(max(parts.seconds(row, part) or 0.0, 0.0) for part in parts.steps)
    start = 0.0
    for part in used if total else ():
        share = max(parts.seconds(row, part) or 0.0, 0.0) / total
        text = f"{model(row)}, {name(row)}: {part} {words.percent(share)} of the {parts.what}"
        yield from _segment(y, row, part, start, share, text, parts)
        if share >= LABELLED_SHARE:
            fill = style.shade(row["backend"], parts.steps[part])
            ink = style.readable(style.PAPER if flagged(row, DISTURBED) else fill)
            middle, whole = start + share / 2, f"{100 * share:.0f}"
            yield chart.note(middle, y, whole, row, (0, 0), ha="center", color=ink)
        start += share


def _segment(
    y: int, row: Row, part: str, start: float, length: float, text: str, parts: Parts
) -> Iterator[Mark]:
    """One part of a bar; nothing where it has no length."""
    if length > 0:
        yield chart.bar(
            y,
            start,
            start + length,
            row,
            text,
            height=0.62,
            color=style.shade(row["backend"], parts.steps[part]),
            linewidth=0.5,
            edgecolor=style.PAPER,
            hatch=parts.hatch.get(part),
        )


# -- tables ------------------------------------------------------------------------------------


def workload_name(row: Row) -> Value:
    """The workload, with its variant below, and a badge where it is a mechanism check."""
    check = has_no_speed(row)
    return Value(
        row["workload"],
        row["workload"],
        ", ".join(variant(row)),
        badge=CHECK if check else "",
        title=NO_SPEED if check else "",
    )


NAMES = [  # what names the training cell of a row
    Column("Workload", below="variant", value=workload_name),
    DEVICE,
    BACKEND,
    told("Precision", variants.precision),
]


def _why_no_phase(phase: str, row: Row) -> str:
    if phase == "trace":
        return "this framework builds its graph while it computes: no phase of its own"
    return f"this backend and trainer mark no {phase} phase"


def _interval(row: Row) -> Value:
    step = Step.of(row)
    if step is None:
        return tables.missing(NO_STEP)
    return Value("–".join(words.significant(end / MS) for end in (step.low, step.high)), step.low)


QUARTILES = "median and quartiles of split steps"
NO_SPLIT = "no split step was timed"
SPLIT = "sum of the phases, step by step: median, quartiles"
UNSPLIT = "steps without clock readings inside"
INTERVAL = "interval of the median of the unsplit steps"
TIMES = (
    *NAMES,
    *(median(phase, "ms", phase, partial(_why_no_phase, phase), QUARTILES) for phase in PHASES),
    median("split step", "ms", "step", NO_SPLIT, SPLIT),
    median("unsplit step", "ms", "unsplit_step", NO_STEP, UNSPLIT),
    Column("unsplit, 95 %", "ms", help=INTERVAL, value=_interval),
    uncertainty.COLUMN,
)


MFU = "achieved over the data sheet's peak for this precision"
NO_PEAK = "peak unknown: the registry has no sourced figure for this device and precision"
OF_PRODUCT = (
    "achieved over the device's fastest measured product, by any backend, in its format or in fp32"
)
NO_PRODUCT = "no product in its number format was measured on its device"


def times_table(data: Data, families: Families) -> Table:
    """Medians with their middle half, in ms; every share names its reference."""

    def not_measured(row: Row) -> str | None:
        return None if row["status"] == "ok" else f"{row['status']}: {row['reason']}"

    columns = (
        *TIMES,
        _share("MFU", MFU, data.peak_flop_per_s, NO_PEAK),
        _share("of best matmul", OF_PRODUCT, data.best_product, NO_PRODUCT),
    )
    return Table.of(
        [row for both in families.values() for rows in both for row in rows],
        columns,
        why_none=not_measured,
        css=lambda row: "failed" if not_measured(row) else "",
    )


def _share(head: str, help: str, reference: Callable[[Row], float | None], reason: str) -> Column:
    """A column of the rate over that of a reference, which the pointer names."""

    def ratio(row: Row) -> float | None:
        rate, of = words.number(row.get("flop_per_s")), reference(row)
        return rate / of if rate is not None and of and not has_no_speed(row) else None

    def why(row: Row) -> str:
        return NO_SPEED if has_no_speed(row) else reason if row.get("flop_per_s") else "no rate"

    return number(
        head,
        "%",
        ratio,
        why,
        help,
        title=lambda row: f"of {words.scaled(reference(row) or 0.0, 'FLOP/s')}",
    )
