"""Training: where a step's time goes, by backend, trainer and precision, and the raw step times.

Over iterations they show what a median hides, such as drift and outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, strokes, style, tables, uncertainty, variants
from siliconprof.render.book import Book, told_parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.compare import NO_STEP, Step
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import BACKEND, DEVICE, Column, Table, Value, median, number, told
from siliconprof.render.variants import NO_SPEED, Family, Row, has_no_speed, label, model, variant

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
    """Bars and both tables of every family; curves are another module's."""
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
        book.table("training-times", "training-times", times_table(families))
        book.table("training-rates", "training-rates", rates_table(data, families))


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
COST_OF_CLOCK = "how much reading the clock at every edge costs"
NO_FREE = "no free-running step was timed"
FREE = "a step in runs with one wait at the end, losses too"
COST_OF_WAIT = "how much waiting after every step costs"
NO_FORWARD = "this trainer offers no forward pass alone"
FORWARD = "a forward pass alone, which checks the phase"
ALONE = "it over forward, and graph where one is built"
NO_RATIO = "one of the two is missing"
TIMES = (
    *NAMES,
    *(median(phase, "ms", phase, partial(_why_no_phase, phase), QUARTILES) for phase in PHASES),
    median("split step", "ms", "step", NO_SPLIT, SPLIT),
    median("unsplit step", "ms", "unsplit_step", NO_STEP, UNSPLIT),
    Column("unsplit, 95 %", "ms", help=INTERVAL, value=_interval),
    uncertainty.COLUMN,
    tables.count("n", "unsplit_step_n", NO_STEP, "unsplit steps timed"),
    number("split / unsplit", "", "split_over_unsplit", NO_RATIO, COST_OF_CLOCK, digits=4),
    median("free-running", "ms", "free_running_step", NO_FREE, FREE),
    number("unsplit / free", "", "unsplit_over_free_running", NO_RATIO, COST_OF_WAIT, digits=4),
    median("forward only", "ms", "forward_only", NO_FORWARD, FORWARD),
    number("alone over inside", "", "forward_only_over_forward", NO_RATIO, ALONE),
)


def times_table(families: Families) -> Table:
    """Medians with their middle half, in ms."""

    def not_measured(row: Row) -> str | None:
        return None if row["status"] == "ok" else f"{row['status']}: {row['reason']}"

    return Table.of(
        [row for both in families.values() for rows in both for row in rows],
        TIMES,
        why_none=not_measured,
        css=lambda row: "failed" if not_measured(row) else "",
    )


NO_AUDIO = "the input is not audio, or its length not recorded"
AUDIO = "seconds of audio in one second of training"
ACHIEVED = "operations of the model's formula per second"
NO_FORMULA = "no formula for its operations"
MFU = "achieved over the data sheet's peak for this precision"
NO_PEAK = "peak unknown: the registry has no sourced figure for this device and precision"
OF_PRODUCT = (
    "achieved over the device's fastest measured product, by any backend, in its format or in fp32"
)
NO_PRODUCT = "no product in its number format was measured on its device"


def rates_table(data: Data, families: Families) -> Table:
    """Throughput and efficiency; every efficiency names its reference."""
    columns = (
        *NAMES,
        number("samples", "1/s", "samples_per_s", "no step was timed"),
        number("tokens", "1/s", "tokens_per_s", "the input is not text", folds=True),
        number("audio", "s/s", _audio_per_s, NO_AUDIO, AUDIO, folds=True),
        number("achieved", "GFLOP/s", "flop_per_s", NO_FORMULA, ACHIEVED),
        _share("MFU", MFU, data.peak_flop_per_s, NO_PEAK),
        _share("of best matmul", OF_PRODUCT, data.best_product, NO_PRODUCT),
    )
    rows = [row for points, _ in families.values() for row in points]
    return Table.of(rows, columns, why_none=lambda row: NO_SPEED if has_no_speed(row) else None)


def _share(head: str, help: str, reference: Callable[[Row], float | None], reason: str) -> Column:
    """A column of the rate over that of a reference, which the pointer names."""

    def ratio(row: Row) -> float | None:
        rate, of = words.number(row["flop_per_s"]), reference(row)
        return rate / of if rate is not None and of else None

    return number(
        head,
        "%",
        ratio,
        lambda row: "no rate" if words.number(row["flop_per_s"]) is None else reason,
        help,
        title=lambda row: f"of {words.scaled(reference(row) or 0.0, 'FLOP/s')}",
    )


def _audio_per_s(row: Row) -> float | None:
    """Seconds of audio per second; None where the input is not audio."""
    audio, samples = row.get("audio_s_per_step"), row["samples_per_step"]
    rate = words.number(row["samples_per_s"])
    return audio / samples * rate if audio and samples and rate else None


MOST_POINTS = 500  # of one series in one panel
PANELS_PER_FIGURE = 12
MS = 1e-3
WARM_UP = "warmup_step_s"
SERIES = {  # what its steps are called, and their colour; that of the backend where there is none
    WARM_UP: ("warm-up steps", style.FAINT),
    "step_s": ("split steps", style.MUTED),
    "unsplit_step_s": ("unsplit steps", ""),
}
THINNED = f" Of more than {MOST_POINTS} points the smallest and largest of each stretch are drawn."


def add_steps(data: Data, book: Book) -> None:
    """Small multiples of raw step times for every training family, one panel a cell."""
    for kind, (points, _) in data.families().items():
        stem = f"steps-{kind.slug}"
        for name, part, chunk in told_parts(stem, points, PANELS_PER_FIGURE):
            longest = max(len(data.traces.series(point, "unsplit_step_s")) for point in chunk)
            book.figure(
                name,
                "step-times",
                partial(draw_steps, data, chunk),
                family=kind.label + part,
                thinned=THINNED if longest > MOST_POINTS else "",
            )


def draw_steps(data: Data, points: Sequence[Row]) -> Any:
    """One panel a cell: warm-up left of zero, then split and unsplit steps."""
    ink = style.shade(points[0]["backend"])
    legend = [
        (style.sample("o", color=style.FAINT, markersize=2.4), "warm-up"),
        (style.sample("o", color=style.MUTED, markersize=2.4), "split step"),
        (style.sample("o", color=ink, markersize=2.4), "unsplit step, in its backend's colour"),
        (style.sample(None, "-", color=style.INK, linewidth=0.8), "median of unsplit steps"),
    ]
    several = len(set(map(device_of, points))) > 1
    panels = [_panel(data, point, f"{data.place(point)}\n" if several else "") for point in points]
    columns = 3 if len(points) in (1, 2, 3, 5, 6, 9) else 4
    return Chart(panels, legend, columns=columns).figure()


def _panel(data: Data, point: Row, device: str) -> Panel:
    """A cell's steps, as high as those after the warm-up; how long that took, in words."""
    shown = []
    raw = {name: data.traces.series(point, name) for name in SERIES}
    for name, values in raw.items():
        if values:
            called, ink = SERIES[name]
            first = -len(values) if name == WARM_UP else 0
            xs, ys = strokes.thin(range(first, first + len(values)), values, MOST_POINTS)
            counted = f"{len(values)} {called}, {hover.of_several(values, 'ms', MS)}"
            text = f"{hover.training(point)}: {counted}"
            color = ink or style.shade(point["backend"])
            shown.append(chart.dots(xs, ys, point, text, color=color))
    middle = point["unsplit_step_median_s"]
    if middle is not None:
        text = f"{hover.training(point)}: unsplit step {hover.median(point, 'unsplit_step')}"
        shown.append(chart.across(middle, point, text, color=style.INK, linewidth=0.8))
    slow = max(raw[WARM_UP], default=0.0)
    top = max(chain(raw["step_s"], raw["unsplit_step_s"]), default=0.0) * 1.12 or 1.0
    if slow > top:  # the first step may take a hundred times as long: say so
        shown.append(chart.corner(f"warm-up ≤ {words.duration(slow)}", point))
        top *= 1.16
    return Panel(
        shown,
        Scale("iteration", most=3),
        Scale("ms", ends=(0, top), most=4, unit=MS),
        title=device + label(point, True),
        of=point,
        high=0.95,
    )
