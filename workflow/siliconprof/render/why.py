"""Why one training takes longer than another of equal work: by phase, by cause, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, PHASE
from siliconprof.analyse.equal_work import compiles
from siliconprof.analyse.operator_rows import PARTS
from siliconprof.render import why_figure, why_gaps
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.compare import Line, told
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, number
from siliconprof.render.traces import point_key
from siliconprof.render.training import NAMES as NAMES_OF_TRAINING
from siliconprof.render.variants import Row, as_slug, has_no_speed
from siliconprof.render.why_gaps import MOST_SHOWN, MS, NAMES, Gap

FOLD_ABOVE = 8
NOT_LISTED = "not among the lines of attribution.csv"


def add(data: Data, book: Book, everyone: Data) -> None:
    """Sentences and a figure for each family, then tables of all pairs and what was not available.

    Args:
        data: of this host.
        everyone: other hosts' and reference results too.
    """
    gaps = why_gaps.read(data)
    if not gaps:
        book.note(
            "Nothing to explain: no two trainings of equal work were measured on this host. Two "
            "backends, devices, precisions or trainers of one training workload are needed."
        )
    for (kind, rank), family_gaps in why_gaps.by_family(gaps).items():
        shown = family_gaps[:MOST_SHOWN]
        lora = f", LoRA {rank}" if rank else ""
        book.figure(
            f"why-parts-{kind.slug}{as_slug(lora)}",
            "why-parts",
            partial(why_figure.draw, shown),
            family=f"{kind.label}{lora}",
            shown=f"the {len(shown)} most telling of {words.count(len(family_gaps), 'pair')}"
            if len(shown) < len(family_gaps)
            else words.count(len(family_gaps), "pair"),
        )
        sentences = [_cautioned(gap) for gap in shown]
        book.listing(sentences[:1], f"{kind.name}{lora}, in words:", more=sentences[1:])
    if gaps:
        _tables(book, gaps, "")
        _unpaired(data, book, gaps)
    used = [row for row in data.training() if row.get("cpu_per_step_s") is not None]
    if used:
        fold = words.count(len(used), "training") if len(used) > FOLD_ABOVE else ""
        book.table("time-use", "time-use", Table.of(used, TIME_USE), folded=fold)
    others = why_gaps.read(everyone, everyone=True)
    if others:
        _tables(book, others, "others-")


def _tables(book: Book, gaps: Sequence[Gap], prefix: str) -> None:
    """Causes and phases of all pairs."""
    shared = {"folded": words.count(len(gaps), "pair")} if prefix or len(gaps) > FOLD_ABOVE else {}
    if timed := [gap for gap in gaps if gap.timed]:
        key = "why-parts-others" if prefix else "why-parts"
        book.table(f"{prefix}why-parts", key, causes_table(timed), **shared)
    if untimed := len(gaps) - len(timed):
        book.note(
            f"{words.count(untimed, 'pair')} of {len(gaps)}: split by phase alone, as the operators of "
            "a side are not timed."
        )
    book.table(
        f"{prefix}why-phases",
        "why-phases",
        phases_table(gaps),
        folded=words.count(len(gaps), "pair"),
    )


def _unpaired(data: Data, book: Book, gaps: Sequence[Gap]) -> None:
    """Which trainings are in no pair, and why."""
    in_pairs = {point_key(row) for gap in gaps for row in gap.of}
    unpaired: dict[str, list[str]] = {}
    for point in data.training():
        if point_key(point) not in in_pairs:
            why = "no other training here did the same work a step"
            if has_no_speed(point):
                why = "a mechanism check has no speed"
            elif compiles(point):
                why = "a compiled step has no phases"
            unpaired.setdefault(why, []).append(f"{point['workload']}/{point['backend']}")
    if unpaired:
        book.listing(
            [f"{words.listing(dict.fromkeys(n))}: {why}." for why, n in unpaired.items()],
            "In no pair:",
        )


def _cautioned(gap: Gap) -> str:
    sentence = f"{why_gaps.sentence(gap)}{why_gaps.by_phase(gap)}"
    caution = words.caution(*gap.of)
    return f"{sentence} ({caution.capitalize()}.)" if caution else sentence


# -- tables ----------------------------------------------------------------------------------------

HEAD = (
    Column("Training"),
    Column("Slower", below="rule"),
    Column("Faster"),
    Column(
        "gap",
        "ms a step",
        True,
        "difference of the unsplit steps; below what both 95 % intervals allow",
    ),
    Column("ratio", "", True, "slower over faster"),
)


def _names(gap: Gap) -> list[Value]:
    line = gap.gap
    ends = "–".join(words.significant(line[end] / MS) for end in ("low_s", "high_s"))
    return [
        Value(gap.family.name, sort=gap.family.name),
        Value(
            gap.name(gap.slow), sort=gap.name(gap.slow), below=line["rule"], badge=_badge(gap.slow)
        ),
        Value(gap.name(gap.fast), sort=gap.name(gap.fast), badge=_badge(gap.fast)),
        Value(words.significant(line["seconds"] / MS), line["seconds"] / MS, ends),
        Value(words.significant(gap.ratio), gap.ratio),
    ]


def _badge(row: Row) -> str:
    return words.SOURCE_BADGES.get(row["source"], "")


def _part(line: Row | None) -> Value:
    """A part in ms, its range below, its methods for the pointer."""
    if line is None:
        return missing(NOT_LISTED)
    if line["seconds"] is None:
        return missing(line["reason"] or NOT_LISTED)
    low, high = line["low_s"], line["high_s"]
    below = ""
    if low is not None and high is not None and high - low > 1e-3 * abs(line["seconds"]):
        below = "–".join(words.significant(end / MS) for end in (low, high))
    how = dict.fromkeys(filter(None, (line["fast_how"], line["slow_how"])))
    return Value(
        words.significant(line["seconds"] / MS), line["seconds"] / MS, below, title=" – ".join(how)
    )


def causes_table(gaps: Sequence[Gap]) -> Table:
    """Every pair: the gap, what each part of the step explains, and what is left."""
    listed = {line["part"] for gap in gaps for line in gap.parts(CAUSE)}
    shown = [part for part in PARTS if part in listed]
    result = Table(
        [
            *HEAD,
            *(Column(NAMES[cause], "ms", True, "its range, if any, below") for cause in shown),
            Column("unexplained", "ms", True, "gap − sum of the causes; negative: over-explained"),
            Column("of the gap", "%", True, "what is unexplained"),
            Column("verdict"),
        ]
    )
    for gap in gaps:
        lines = {line["part"]: line for line in gap.parts(CAUSE)}
        left = gap.left
        result.add(
            *_names(gap),
            *(_part(lines.get(cause)) for cause in shown),
            _part(left),
            Value(f"{100 * left['share']:.0f}", 100 * left["share"])
            if left["share"] is not None
            else missing("there is no gap"),
            Value(gap.verdict, sort=gap.verdict, below=words.caution(*gap.of)),
            of=gap.of,
        )
    return result


def phases_table(gaps: Sequence[Gap]) -> Table:
    """Every pair: the gap by phase, which sums to it exactly."""
    names = ("forward", "backward", "optimizer", "rest")
    result = Table([*HEAD, *(Column(name, "ms", True) for name in names)])
    for gap in gaps:
        lines = {line["part"]: line for line in gap.parts(PHASE)}
        result.add(*_names(gap), *(_part(lines.get(name)) for name in names), of=gap.of)
    return result


# -- time by use ----------------------------------------------------------------------------------

UNTOLD = "the system does not count it"


def _use(head: str, name: str, help: str) -> Column:
    return number(head, "ms", f"{name}_per_step_s", UNTOLD, help)


TIME_USE = (
    *NAMES_OF_TRAINING,
    _use("step", "wall", "mean of the unsplit steps"),
    _use("on a core", "cpu", "the measuring thread"),
    _use("of it in the kernel", "system", "page faults and system calls; counted in ticks"),
    _use("waiting for a core", "waiting", "runnable, while others had the core"),
    _use("blocked", "blocked", "asleep, or waiting for the device, a disk, or other threads"),
    _use("all threads on cores", "all_threads_cpu", "of the whole process"),
)


# -- the finding -----------------------------------------------------------------------------------


def finding(data: Data) -> Finding | None:
    """What the gap between two backends or devices consists of."""
    lines = []
    for gap in why_gaps.read(data):
        if gap.apart & {"device", "backend"} and not gap.apart & {"trainer", "precision"}:
            caution = words.caution(*gap.of)
            sentence = f"{gap.family.name}: {why_gaps.sentence(gap)}"
            sentence += f" ({caution.capitalize()}.)" if caution else ""
            lines.append((gap.telling, Line(sentence, doubtful="contended" in caution)))
    ordered = [line for _, line in sorted(lines, key=lambda pair: pair[0])]
    return told("Why", ordered, "why")
