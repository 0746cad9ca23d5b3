"""Why one training takes longer than another of equal work: by phase, by cause, what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, LEFT, PHASE
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.analyse.operator_rows import FRAMEWORK, PARTS
from siliconprof.render import chart, style, why_gaps
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, number, spanned, told
from siliconprof.render.variants import Row, as_slug, flagged
from siliconprof.render.why_gaps import MOST_SHOWN, MS, NAMES, Gap, ends_text, milliseconds

FOLD_ABOVE = 8
NOT_LISTED = "not among the lines of attribution.csv"
PHASE_STEP = {"forward": 60, "backward": 100, "optimizer": 25, "rest": 12}
ROW_IN, TITLE_SHARE = 0.24, 0.85
LABELLED = 0.1  # of the longest bar: a part so wide holds its number
WHISKERED = 0.005  # of it: a part's interval is drawn where it is so wide
WHISKERS = (0.36, 0.44)  # below a bar's middle: those of neighbours apart from each other
DASHES = (2.5, 1.5)  # what is unexplained is an empty box


def add(data: Data, book: Book) -> None:
    """A figure for each family, then a table of all pairs."""
    gaps = why_gaps.read(data)
    if not gaps:
        book.note(
            "Nothing to explain: no two trainings of equal work were measured on any host. Two "
            "backends, devices, precisions or trainers of one training workload are needed."
        )
    for (kind, rank), family_gaps in why_gaps.by_family(gaps).items():
        shown = family_gaps[:MOST_SHOWN]
        lora = f", LoRA {rank}" if rank else ""
        book.figure(
            f"why-parts-{kind.slug}{as_slug(lora)}",
            "why-parts",
            partial(draw, shown),
            family=f"{kind.label}{lora}",
            shown=f"the {len(shown)} most telling of {words.count(len(family_gaps), 'pair')}"
            if len(shown) < len(family_gaps)
            else words.count(len(family_gaps), "pair"),
        )
    if gaps:
        _table(book, gaps)


def _table(book: Book, gaps: Sequence[Gap]) -> None:
    """Causes of all pairs."""
    folded = words.count(len(gaps), "pair") if len(gaps) > FOLD_ABOVE else ""
    if timed := [gap for gap in gaps if gap.timed]:
        book.table("why-parts", "why-parts", causes_table(timed), folded=folded)
    if untimed := len(gaps) - len(timed):
        book.note(
            f"{words.count(untimed, 'pair')} of {len(gaps)}: split by phase alone, as the operators of "
            "a side are not timed."
        )


# -- tables ----------------------------------------------------------------------------------------


def _side(row: str, below: Callable[[Gap], str], gap: Gap) -> Value:
    """What one side of a gap is called."""
    side = getattr(gap, row)
    return Value(gap.name(side), gap.name(side), below(gap), badge=words.whose(side))


def _size(gap: Gap) -> Value:
    line = gap.gap
    return spanned(line["seconds"], line["low_s"], line["high_s"], MS)


def _part(kind: str, part: str, gap: Gap) -> Value:
    """A part in ms, its range below, its methods for the pointer."""
    line = next((line for line in gap.parts(kind) if line["part"] == part), None)
    if line is None or line["seconds"] is None:
        return missing((line and line["reason"]) or NOT_LISTED)
    seconds: float = line["seconds"]
    low, high = line["low_s"], line["high_s"]
    if low is None or high is None or high - low <= 1e-3 * abs(seconds):
        low = high = None
    how = dict.fromkeys(filter(None, (line["fast_how"], line["slow_how"])))
    return spanned(seconds, low, high, MS, title=" – ".join(how))


def _unexplained(gap: Gap) -> Value:
    share = gap.left["share"]
    return missing("there is no gap") if share is None else Value(f"{100 * share:.0f}", 100 * share)


def _verdict(gap: Gap) -> Value:
    return Value(gap.verdict, gap.verdict, below=words.caution(*gap.of))


OF_STEPS = "difference of the unsplit steps; below what both 95 % intervals allow"
HEAD = (
    told("Training", lambda gap: gap.family.name),
    Column("Slower", below="rule", value=partial(_side, "slow", lambda gap: gap.gap["rule"])),
    Column("Faster", value=partial(_side, "fast", lambda gap: "")),
    Column("gap", "ms a step", True, OF_STEPS, value=_size),
    number("ratio", "", attrgetter("ratio"), "", "slower over faster"),
)


def causes_table(gaps: Sequence[Gap]) -> Table:
    """Every pair: the gap, what each part of the step explains, and what is left."""
    listed = {line["part"] for gap in gaps for line in gap.parts(CAUSE)}

    def part(head: str, kind: str, name: str, help: str) -> Column:
        return Column(head, "ms", True, help, value=partial(_part, kind, name))

    columns = (
        *HEAD,
        *(
            part(NAMES[cause], CAUSE, cause, "its range, if any, below")
            for cause in PARTS
            if cause in listed
        ),
        part("unexplained", LEFT, LEFT, "gap − sum of the causes; negative: over-explained"),
        Column("of the gap", "%", True, "what is unexplained", value=_unexplained),
        Column("verdict", value=_verdict),
    )
    return Table.of(gaps, columns, attrgetter("of"))


# -- the figure ------------------------------------------------------------------------------------


def draw(gaps: Sequence[Gap]) -> Any:
    """A panel for each pair, with a scale of its own: the gap, its phases and its causes.

    Where the operators of a step were not timed, there are no causes.
    """
    listed = [{line["part"] for line in gap.lines if line["seconds"]} for gap in gaps]
    phases = [phase for phase in PHASE_STEP if any(phase in parts for parts in listed)]
    causes = [cause for cause in PARTS if any(cause in parts for parts in listed)]
    coloured = [cause for cause in causes if cause != FRAMEWORK]
    inks = {cause: style.ramp(index, len(coloured)) for index, cause in enumerate(coloured)}
    inks |= {FRAMEWORK: style.MUTED} if FRAMEWORK in causes else {}
    legend = [
        (style.sample("|", "-", color=style.INK, markersize=6), "gap, by both 95 % intervals"),
        *((style.swatch(style.shade("grey", PHASE_STEP[phase])), phase) for phase in phases),
        *((style.swatch(ink), NAMES[cause]) for cause, ink in inks.items()),
    ]
    if causes:
        legend.append((style.sample(None, "-", color=style.MUTED, dashes=DASHES), NAMES[LEFT]))
        interval = style.sample(None, "-", color=style.MUTED, linewidth=1.0)
        legend.append((interval, "95 % interval of a part"))
    width = style.WIDTH_IN
    return Chart([_panel(gap, inks, width) for gap in gaps], legend).figure()


def _panel(gap: Gap, inks: Mapping[str, str], width: float) -> Panel:
    line, pair = gap.gap, f"{gap.name(gap.slow)} against {gap.name(gap.fast)}"
    text, ends = f"{pair}: {milliseconds(line['seconds'])}", (line["low_s"], line["high_s"])
    shown = [
        chart.upright(0, linewidth=0.5),
        chart.line(ends, [0, 0], gap.of, text, color=style.INK, linewidth=0.8),
        chart.dot(line["seconds"], 0, gap.of, text, "|", 8, color=style.INK),
    ]
    shades = {phase: style.shade(gap.slow["backend"], step) for phase, step in PHASE_STEP.items()}
    rows = [(PHASE, shades), *([(CAUSE, inks)] if gap.timed else [])]
    for y, (kind, colours) in enumerate(rows, 1):
        parts = {part["part"]: part for part in gap.parts(kind) if part["seconds"]}
        ordered = [(parts[name], ink) for name, ink in colours.items() if name in parts]
        if kind == CAUSE and gap.left["seconds"]:
            ordered.append((gap.left, ""))
        shown += _bar(gap, y, ordered, pair)
    size = f"{milliseconds(line['seconds'])} a step more, {gap.verdict}"
    in_lines = pair.replace(" against", "\nagainst")
    titles = [f"{pair}: {size}", f"{pair}:\n{size}", f"{in_lines}:\n{size}"]
    fitting = (t for t in titles if max(map(style.text_in, t.split("\n"))) <= TITLE_SHARE * width)
    return Panel(
        shown,
        Scale("of the gap / ms a step", zero=True, most=6, unit=MS),
        labels=("gap", "by phase", "by cause")[: len(rows) + 1],
        title=next(fitting, titles[-1]),
        of=gap.of,
        row_in=ROW_IN,
    )


def _bar(gap: Gap, y: int, parts: Sequence[tuple[Row, str]], pair: str) -> Iterator[Mark]:
    """Parts end to end: longer ones to the right of 0, shorter ones to the left.

    A part has its number where there is room, and its interval where that is wide; what is
    unexplained has all intervals, so none is drawn.
    """
    whole = gap.gap["seconds"]
    reach = max(gap.gap["high_s"], sum(abs(line["seconds"]) for line, _ in parts))
    hollow = all(flagged(row, DISTURBED) for row in gap.of)  # see `chart`
    ends = {True: 0.0, False: 0.0}
    for index, (line, ink) in enumerate(parts):
        seconds, spread = line["seconds"], (line["low_s"], line["high_s"])
        start = ends[seconds > 0]
        end = ends[seconds > 0] = start + seconds
        between = "" if None in spread else f"; {ends_text(line)} ms"
        share = words.whole_percent(seconds / whole if whole else 0.0)
        text = f"{pair}: {NAMES.get(line['part'], line['part'])} {milliseconds(seconds)} "
        text += f"({share} of the gap{between})"
        if not ink:
            box = [start, end, end, start, start], [y + side * 0.31 for side in (1, 1, -1, -1, 1)]
            yield chart.line(*box, gap.of, text, color=style.MUTED, linewidth=0.8, dashes=DASHES)
        else:
            look = {"facecolor": ink, "edgecolor": style.PAPER, "linewidth": 0.4}
            yield chart.bar(y, start, end, gap.of, text, 0.62, **look)
            if None not in spread and spread[1] - spread[0] > WHISKERED * reach:
                xs, below = [start + end for end in spread], y + WHISKERS[index % len(WHISKERS)]
                yield chart.line(xs, [below, below], gap.of, text, color=ink, linewidth=1.0)
        if abs(seconds) >= LABELLED * reach:
            colour = style.INK if hollow or not ink else style.readable(ink)
            number_text, middle = words.significant(seconds / MS), (start + end) / 2
            yield chart.note(middle, y, number_text, gap.of, (0, 0), ha="center", color=colour)
