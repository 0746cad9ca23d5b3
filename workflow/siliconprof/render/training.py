"""Training: where a step's time goes, by backend, trainer and precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.render import hover, marks, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import (
    Column,
    Table,
    Value,
    integer,
    missing,
    quantity,
    ranged,
    told,
)
from siliconprof.render.variants import (
    NO_SPEED,
    Family,
    Row,
    family_order,
    has_no_speed,
    label,
    model,
    precision,
    variant,
)

MS = 1e-3
Name = Callable[[Row, bool], str]  # of a row; for a phone in lines
PHASES = ("data", "trace", "forward", "backward", "optimizer", "other")
# Steps of the backend's colour; neighbours in the stack must differ.
PHASE_STEP = {"data": 45, "trace": 12, "forward": 60, "backward": 100, "optimizer": 25, "other": 12}
HATCH = {"trace": "//////"}
ROWS_PER_FIGURE = 24
ROW_IN = 0.235
CHECK = "mechanism check"
OFFLOAD_NOTE = (
    f" “Offload” on a CPU is a {CHECK}, not a cost of offloading: there is nothing to offload to."
)
LINES = {  # through the dot of an unsplit step, by what is known of its error: width, words
    uncertainty.WITHIN: (0.9, f"its middle half (IQR), {uncertainty.WITHIN}"),
    uncertainty.BETWEEN: (1.5, f"its 95 % interval, {uncertainty.BETWEEN}"),
}
LABELLED_SHARE = 0.13  # a share this wide holds its number


def add(data: Data, book: Book, prefix: str = "") -> None:
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
        chunks = _chunks(points, failed)
        for index, chunk in enumerate(chunks):
            part = f" (part {index + 1} of {len(chunks)})" if len(chunks) > 1 else ""
            book.figure(
                f"{prefix}training-{kind.slug}" + (f"-{index + 1}" if index else ""),
                "training-phases",
                partial(draw, data, chunk),
                family=kind.label + part,
                offload=OFFLOAD_NOTE if any(map(has_no_speed, chunk)) else "",
            )
    if any(points for points, _ in families.values()):
        book.table(f"{prefix}training-times", "training-times", times_table(families))
        book.table(f"{prefix}training-rates", "training-rates", rates_table(data, families))


def _chunks(points: Sequence[Row], failed: Sequence[Row]) -> list[list[Row]]:
    """Rows device by device, cut so that no figure holds more than a page can show."""
    rows = sorted([*points, *failed], key=family_order)
    return [rows[i : i + ROWS_PER_FIGURE] for i in range(0, len(rows), ROWS_PER_FIGURE)]


# -- figure ------------------------------------------------------------------------------------


def draw(data: Data, rows: Sequence[Row], narrow: bool, name: Name = label) -> Any:
    """Stacked times on the left, their shares on the right (below, on a phone).

    Every device has axes of its own: on one scale a GPU's bars would vanish beside a CPU's.

    Args:
        name: what a row is called.
    """
    by_device: dict[str, list[Row]] = {}
    for row in rows:
        by_device.setdefault(row["device"], []).append(row)
    width = style.width_in(narrow)
    left = style.labels_in([name(row, narrow) for row in rows], narrow) + 0.08
    used = [phase for phase in PHASES if any(row.get(f"{phase}_median_s") for row in rows)]
    used = [p for p in used if p in ("forward", "backward", "optimizer") or _visible(rows, p)]
    origins = {uncertainty.origin(row) for row in rows}
    entries = [
        *((_phase_sample(phase), phase) for phase in used),
        (style.sample("o", color=style.INK, markersize=2.6), "unsplit step: median"),
        *(
            (style.sample(None, "-", color=style.INK, linewidth=thick), line)
            for origin, (thick, line) in LINES.items()
            if origin in origins
        ),
    ]
    head, foot, gap = style.legend_height(entries, width) + 0.03, 0.42, 0.2
    block = [len(group) * ROW_IN for group in by_device.values()]
    title = 0.24
    panels = 2 if narrow else 1
    height = head + panels * sum(title + size + foot for size in block)
    figure = style.canvas(width, height)
    style.legend(figure, entries, 0.0)
    top = head
    inner = width - left
    for group, size in zip(by_device.values(), block, strict=True):
        device = data.device_name(group[0])
        time_width = inner - 0.1 if narrow else inner * 0.56
        share_width = inner - 0.1 if narrow else inner * 0.44 - gap - 0.06
        style.write(figure, 0, top + 0.19, device, weight="bold", va="bottom")
        ax = style.axes(figure, left, top + title, time_width, size)
        _bars(ax, group, used, time_width, narrow, name)
        if narrow:
            top += title + size + foot
            style.write(figure, 0, top + 0.19, f"{device}: shares", weight="bold", va="bottom")
        share_left = left if narrow else left + time_width + gap
        ax = style.axes(figure, share_left, top + title, share_width, size)
        _shares(ax, group, used, narrow, name)
        top += title + size + foot
    return figure


def _visible(rows: Sequence[Row], phase: str) -> bool:
    """Whether a phase is anywhere wide enough to be seen."""
    return any(
        (row.get(f"{phase}_median_s") or 0) > 0.004 * (row.get("step_median_s") or 1)
        for row in rows
    )


def _phase_sample(phase: str) -> Any:
    return style.swatch(style.shade("grey", PHASE_STEP[phase]), HATCH.get(phase))


def _frame(ax: Any, rows: Sequence[Row], narrow: bool, name: Name | None) -> None:
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [name(row, narrow) for row in rows] if name else [])
    size = style.SMALL_PT if narrow else style.TEXT_PT
    ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    marks.tag_labels(ax.yaxis, rows)


def _bars(
    ax: Any, rows: Sequence[Row], phases: Sequence[str], width: float, narrow: bool, name: Name
) -> None:
    """Medians in ms, end to end; over them the unsplit step with its error."""
    _frame(ax, rows, narrow, name)
    longest = max(
        (row.get(column) or 0.0)
        for row in rows
        for column in ("unsplit_step_q75_s", "unsplit_step_median_s", "step_median_s")
    )
    longest = longest or 1.0
    reach = longest
    for y, row in enumerate(rows):
        if row.get("step_median_s") is None and row.get("unsplit_step_median_s") is None:
            _status_label(ax, y, row, width)
            continue
        start, training = 0.0, f"{model(row)}, {name(row, False)}"
        for phase in phases:
            hover_text = f"{training}: {phase} {hover.quartiles(row, phase)}"
            start = _segment(ax, y, row, phase, start, row.get(f"{phase}_median_s"), hover_text)
        middle = row["unsplit_step_median_s"]
        end = start
        if middle is not None:
            origin = str(uncertainty.origin(row))
            low, high = _ends(row)
            hover_text = f"{training}: unsplit step {hover.median(row, 'unsplit_step')}"
            marks.tag(
                ax.plot([low, high], [y, y], color=style.INK, linewidth=LINES[origin][0]), row
            )
            marks.tag(ax.plot([middle], [y], "o", color=style.INK, markersize=2.6), row, hover_text)
            end = max(start, high)
        total = words.duration(middle if middle is not None else row["step_median_s"])
        check = ("\n" if narrow else ", ") + CHECK if has_no_speed(row) else ""
        marks.tag(
            ax.text(
                end + longest * 0.025,
                y,
                total + check,
                va="center",
                size=style.SMALL_PT,
                color=style.MUTED if check else style.INK,
                linespacing=0.95,
            ),
            row,
        )
        longest_line = max((total + check).split("\n"), key=len)
        room = style.text_in(longest_line + " ", style.SMALL_PT) / width
        reach = max(reach, (end + longest * 0.025) / (1 - min(room, 0.7)))
    ax.set_xlim(0, reach)
    style.plain_ticks(ax.xaxis, 5, MS)
    ax.set_xlabel("time of one step / ms", size=style.SMALL_PT)


def _shares(ax: Any, rows: Sequence[Row], phases: Sequence[str], narrow: bool, name: Name) -> None:
    """The same phases as shares of their sum; beside the times only a phone needs the labels."""
    _frame(ax, rows, narrow, name if narrow else None)
    for y, row in enumerate(rows):
        total = sum(row.get(f"{phase}_median_s") or 0.0 for phase in PHASES)
        if not total:
            continue
        start, training = 0.0, f"{model(row)}, {name(row, False)}"
        for phase in phases:
            share = (row.get(f"{phase}_median_s") or 0.0) / total
            hover_text = f"{training}: {phase} {words.percent(share)} of the phases"
            before, start = start, _segment(ax, y, row, phase, start, share, hover_text)
            if share >= LABELLED_SHARE:
                dark = PHASE_STEP[phase] == 100
                marks.tag(
                    ax.text(
                        before + share / 2,
                        y,
                        f"{100 * share:.0f}",
                        ha="center",
                        va="center",
                        size=style.SMALL_PT,
                        color=style.PAPER if dark else style.INK,
                    ),
                    row,
                )
    ax.set_xlim(0, 1)
    style.plain_ticks(ax.xaxis, 4, 0.01)
    ax.set_xlabel("share of the step's phases / %", size=style.SMALL_PT)


def _ends(row: Row) -> tuple[float, float]:
    """Ends of the line through the dot: a process's error where known, else its own spread."""
    between = uncertainty.origin(row) == uncertainty.BETWEEN
    low, high = ("low", "high") if between else ("q25", "q75")
    return row[f"unsplit_step_{low}_s"], row[f"unsplit_step_{high}_s"]


def _segment(
    ax: Any, y: float, row: Row, phase: str, start: float, length: float | None, hover_text: str
) -> float:
    """Draw one phase of a bar and return where it ends."""
    if not length:
        return start
    marks.tag(
        ax.barh(
            y,
            length,
            left=start,
            height=0.62,
            linewidth=0.5,
            edgecolor=style.PAPER,
            facecolor=style.shade(row["backend"], PHASE_STEP[phase]),
            hatch=HATCH.get(phase),
        ).patches,
        row,
        hover_text,
    )
    return start + length


def _status_label(ax: Any, y: float, row: Row, width: float) -> None:
    """A cell without a time says why where its bar would be."""
    status_text = f"{row['status']}: {row['reason']}" if row.get("reason") else "no time measured"
    limit = int(width / style.text_in("x", style.SMALL_PT))
    marks.tag(
        ax.text(
            0,
            y,
            " " + words.shortened(status_text, limit),
            va="center",
            style="italic",
            size=style.SMALL_PT,
            color=style.MUTED,
        ),
        row,
        f"{hover.training(row)}: {status_text}",
    )


# -- tables ------------------------------------------------------------------------------------


def _workload(row: Row) -> Value:
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
    Column("Workload", below="variant", value=_workload),
    told("Device", "device", folds=True),
    told("Backend", words.backend_name),
    told("Precision", precision),
]


def names(row: Row) -> list[Value | str | None]:
    """What stands below `NAMES`."""
    return [column.value(row) for column in NAMES if column.value]


def times_table(families: dict[Family, tuple[list[Row], list[Row]]]) -> Table:
    """Medians with their middle half, in ms."""
    table = Table(
        [
            *NAMES,
            *(Column(phase, "ms", True, "median and quartiles of split steps") for phase in PHASES),
            Column("split step", "ms", True, "sum of the phases, step by step: median, quartiles"),
            Column("unsplit step", "ms", True, "steps without clock readings inside"),
            Column("unsplit, 95 %", "ms", help="interval of the median of the unsplit steps"),
            Column("95 % interval", help=uncertainty.HELP, folds=True),
            Column("n", "", True, "unsplit steps timed"),
            Column("split / unsplit", "", True, "how much reading the clock at every edge costs"),
            Column(
                "free-running", "ms", True, "a step in runs with one wait at the end, losses too"
            ),
            Column("unsplit / free", "", True, "how much waiting after every step costs"),
            Column("forward only", "ms", True, "a forward pass alone, which checks the phase"),
            Column("alone over inside", "", True, "it over forward, and graph where one is built"),
        ]
    )
    for points, failed in families.values():
        for row in points:
            n = words.number(row["unsplit_step_n"])
            table.add(
                *names(row),
                *(ranged(row, phase, MS, _why_no_phase(row, phase)) for phase in PHASES),
                ranged(row, "step", MS, "no split step was timed"),
                ranged(row, "unsplit_step", MS, "no unsplit step was timed"),
                _interval(row),
                uncertainty.value(row),
                integer(n, "no unsplit step was timed"),
                quantity(row["split_over_unsplit"], "one of the two is missing", digits=4),
                ranged(row, "free_running_step", MS, "no free-running step was timed"),
                quantity(row["unsplit_over_free_running"], "one of the two is missing", digits=4),
                ranged(row, "forward_only", MS, "this trainer offers no forward pass alone"),
                quantity(row["forward_only_over_forward"], "one of the two is missing", digits=3),
                of=row,
            )
        for cell in failed:
            why = f"{cell['status']}: {cell['reason']}"
            table.add(*names(cell), *[missing(why)] * (len(PHASES) + 10), css="failed", of=cell)
    return table


def _interval(row: Row) -> Value:
    step = Step.of(row)
    if step is None:
        return missing("no unsplit step was timed")
    return Value("–".join(words.significant(end / MS) for end in (step.low, step.high)), step.low)


def _why_no_phase(row: Row, phase: str) -> str:
    if phase == "trace":
        return "this framework builds its graph while it computes: no phase of its own"
    return f"this backend and trainer mark no {phase} phase"


def rates_table(data: Data, families: dict[Family, tuple[list[Row], list[Row]]]) -> Table:
    """Throughput and efficiency; every efficiency names its reference."""
    table = Table(
        [
            *NAMES,
            Column("samples", "1/s", True),
            Column("tokens", "1/s", True, folds=True),
            Column("audio", "s/s", True, "seconds of audio in one second of training", folds=True),
            Column("achieved", "GFLOP/s", True, "operations of the model's formula per second"),
            Column("MFU", "%", True, "achieved over the data sheet's peak for this precision"),
            Column(
                "of best matmul",
                "%",
                True,
                "achieved over this run's fastest measured "
                "product, same device, backend and number format",
            ),
        ]
    )
    best = best_products(data)
    for points, _ in families.values():
        for row in points:
            if has_no_speed(row):
                table.add(*names(row), *[missing(NO_SPEED)] * 6, of=row)
                continue
            rate = words.number(row["flop_per_s"])
            table.add(
                *names(row),
                quantity(row["samples_per_s"], "no step was timed"),
                quantity(row["tokens_per_s"], "the input is not text"),
                quantity(_audio_per_s(row), "the input is not audio, or its length not recorded"),
                quantity(rate, "no formula for its operations", 1e9),
                _share(
                    rate,
                    data.peak_flop_per_s(row),
                    "peak unknown: the registry has no "
                    "sourced figure for this device and precision",
                ),
                _share(
                    rate,
                    best.get(product_key(row)),
                    "no product of this device, backend and number format was measured in this run",
                ),
                of=row,
            )
    return table


def _audio_per_s(row: Row) -> float | None:
    """Seconds of audio per second; None where the input is not audio."""
    audio, samples = row.get("audio_s_per_step"), row["samples_per_step"]
    rate = words.number(row["samples_per_s"])
    return audio / samples * rate if audio and samples and rate else None


def best_products(data: Data) -> dict[tuple, float]:
    """(source, host, device, backend, number format) -> fastest measured product in FLOP/s."""
    best: dict[tuple, float] = {}
    for point in data.of_module("matmul"):
        rate = words.number(point["flop_per_s"])
        if rate:
            key = product_key(point)
            best[key] = max(best.get(key, 0.0), rate)
    return best


def product_key(row: Row) -> tuple:
    """Mixed precision multiplies in its 16-bit format, so it is compared with that."""
    place = (row["source"], row["host"], row["device"], row["backend"])
    return (*place, PEAK_OF_PRECISION[row["precision"]])


def _share(rate: float | None, of: float | None, reason: str) -> Value:
    if rate is None or not of:
        return missing(reason if rate is not None else "no rate")
    return quantity(rate / of, reason, 0.01, title=f"of {words.scaled(of, 'FLOP/s')}")
