"""The report: how fast each model trains here, against what, why, and what to do, on a few screens.

Every number is of the study, the other page, which has all figures and tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, NO_GAP
from siliconprof.hosts import remedies
from siliconprof.render import peaks, setting, summary, truth, uncertainty, why_gaps
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, steps
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, told
from siliconprof.render.variants import Family, Row, flagged, label, variant, work_apart
from siliconprof.store.records import HERE

MOST_TRAININGS = 8  # the largest models
FINDINGS = 3
MOST_REMEDIES = 4
DISTURBED = "contended"
AGAIN = f"siliconprof remeasure --flagged {DISTURBED}"


class Answer(NamedTuple):
    """How fast one model trains: the fastest way, the fastest of each other, and why."""

    family: Family
    best: Step
    others: Sequence[Step]  # the fastest first
    gap: why_gaps.Gap | None  # to another device or backend

    @property
    def disturbed(self) -> bool:
        """Whether another process used the processor while the fastest way was measured."""
        return flagged(self.best.row, DISTURBED)


def way(row: Row) -> str:
    """`torch-cpu · plain · fp32`; beside a device where it has a name of its own."""
    return label(row)


def answers(data: Data) -> list[Answer]:
    """One for each model, the largest first; what was disturbed only where nothing else is known."""
    gaps = why_gaps.read(data)
    found = []
    for family, trained in steps(data).items():
        whole = [s for s in trained if not work_apart(s.row) and not variant(s.row)] or trained
        fastest: dict[tuple, Step] = {}
        ranked = sorted(whole, key=lambda step: (flagged(step.row, DISTURBED), step.middle))
        for step in ranked:
            row = step.row
            place = (row["device"], row["backend"], row["trainer"], row["precision"])
            fastest.setdefault(place, step)
        best, *others = fastest.values()
        others.sort(key=lambda step: step.middle)
        found.append(Answer(family, best, others, _gap(gaps, family, best)))
    return found


def _gap(gaps: Sequence[why_gaps.Gap], family: Family, best: Step) -> why_gaps.Gap | None:
    """The gap from the fastest way to another device or backend, all else alike."""
    for gap in gaps:
        path = gap.apart & {"device", "backend"}
        if gap.family == family and gap.fast is best.row and path == gap.apart:
            return None if gap.verdict == NO_GAP else gap
    return None


def _ways(answer: Answer) -> Value:
    """`2.10 × faster than mlx · plain · fp32; …`, the nearest first."""
    texts = []
    for other in answer.others:
        ratio = words.significant(other.middle / answer.best.middle)
        even = answer.best.overlaps(other) or other.middle <= answer.best.middle
        doubt = " (disturbed)" if flagged(other.row, DISTURBED) else ""
        texts.append(
            f"no faster beyond noise than {way(other.row)}{doubt}"
            if even
            else f"{ratio} × faster than {way(other.row)}{doubt}"
        )
    if not texts:
        return missing("nothing to compare with")
    return Value(texts[0], mark="prose", more="; ".join(texts[1:]))


def _cause(answer: Answer) -> Value:
    """The largest estimated cause of the gap to another device or backend, with its share."""
    if answer.gap is None:
        return missing("no other device or backend did the same work beyond noise")
    causes = [line for line in answer.gap.parts(CAUSE) if (line["share"] or 0.0) >= 0.02]
    unexplained = words.whole_percent(answer.gap.left["share"] or 0.0)
    if not causes:
        return Value(f"{unexplained} unexplained", below="by no known cause", mark="prose")
    most = max(causes, key=lambda line: line["share"])
    name = f"{why_gaps.NAMES[most['part']]}: {why_gaps.share(most)} of the difference"
    return Value(name, below=f"{unexplained} unexplained", mark="prose")


def _fastest(answer: Answer) -> Value:
    badge = "disturbed" if answer.disturbed else ""
    return Value(way(answer.best.row), sort=way(answer.best.row), badge=badge)


def _rate(answer: Answer) -> Value:
    rates = (("samples_per_s", "samples/s"), ("tokens_per_s", "tokens/s"))
    known = [
        f"{words.significant(rate)} {unit}"
        for name, unit in rates
        if (rate := words.number(answer.best.row.get(name)))
    ]
    if not known:
        return missing("no step was timed")
    sort = words.number(answer.best.row.get("samples_per_s"))
    return Value(known[0], sort, ", ".join(known[1:]))


def _model(answer: Answer) -> Value:
    name, _, size = answer.family.label.partition(": ")
    return Value(name, sort=name, below=size)


COLUMNS = (
    Column("Model", below="size", value=_model),
    told("Device", lambda answer: answer.best.row["device"], folds=True),
    Column("speed", "", True, "of the fastest way", "tokens/s", value=_rate),
    Column("a step", "ms", True, "median, 95 % interval", value=lambda one: one.best.value()),
    Column("Fastest way", value=_fastest),
    Column("How much faster", value=_ways),
    Column("Mostly because of", below="unexplained", value=_cause),
)


def begin(data: Data, book: Book) -> None:
    """The answer; the rest of the report follows when the study is drawn, see `end`."""
    for sentence in disturbed(data):
        book.banner(sentence)
    found = answers(data)
    if found:
        rows = found[:MOST_TRAININGS]
        table = Table.of(rows, COLUMNS, about=lambda one: one.best.row)
        if more := len(found) - len(rows):
            table.notes.append(f"{words.count(more, 'smaller model')}: in the study.")
        book.table("answer", "answer", table)
    else:
        book.note("No training of this host was measured, so there is no answer.")
    what_to_do = list(_remedies(data))
    if what_to_do:
        book.listing(what_to_do[:MOST_REMEDIES], "What to do:", more=what_to_do[MOST_REMEDIES:])


def disturbed(data: Data) -> Iterator[str]:
    """What other processes disturbed, and the command that measures it again."""
    measured = [cell for cell in data.cells if cell["status"] == "ok"]
    cells = [cell for cell in measured if flagged(cell, DISTURBED)]
    if cells:
        names = list(dict.fromkeys(f"{c['workload']}/{c['backend']}" for c in cells))
        shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        yield (
            f"Other processes used the processor while {len(cells)} of "
            f"{words.count(len(measured), 'cell')} were measured ({shown}): those times may be too "
            f"long. To measure them again: {AGAIN}"
        )


def _remedies(data: Data) -> Iterator[str]:
    for one in remedies.of(data.host):
        if one["mend"]:
            yield f"{one['about']}: {one['why']}. To mend: {one['mend']}."


def end(data: Data, book: Book, again: str) -> None:
    """The other sections: figures of the study, and what to trust."""
    own = data.only(HERE)
    found = answers(own)
    _seen(book, "devices", "figure-glance", *_named(book, "figure-others-")[:1])
    with_gap = [answer for answer in found if answer.gap]
    for answer in with_gap[:1]:
        gap = answer.gap
        assert gap
        if _seen(book, "reason", f"figure-why-{answer.family.slug}"):
            book.note(f"{answer.family.name}: {why_gaps.sentence(gap)}")
    _seen(book, "speed", *_named(book, "figure-training-")[-1:])
    _seen(book, "limits", "table-ceilings", *_named(book, "figure-roofline")[:1])
    book.section("use")
    memory = peaks.finding(own)
    book.facts(
        [
            ("Memory", memory.sentence if memory else "no prediction was compared with a peak"),
            ("Energy", _energy(own)),
        ]
    )
    book.section("trust")
    flags = {
        code: sum(flagged(cell, code) for cell in own.cells)
        for code in dict.fromkeys(code for cell in own.cells for code, _ in words.flags(cell))
    }
    most = sorted(flags.items(), key=lambda item: -item[1])
    book.facts(
        [
            ("Intervals", f"95 %, {uncertainty.origin_text(own.points)}"),
            ("Checks", _checks(own)),
            ("Flags", ", ".join(f"{words.count(n, 'cell')} {code}" for code, n in most) or "none"),
        ]
    )
    book.findings(summary.findings(own)[:FINDINGS], FINDINGS)
    book.section("again")
    book.facts(
        [
            ("Command", again),
            ("Code", setting.commits(own.cells)),
            ("Measured", setting.when(own.cells)),
            ("Cells", setting.statuses(own.cells)),
        ]
    )


def _seen(book: Book, key: str, *names: str) -> bool:
    """A section of figures and tables of the study; none where the study has none of them."""
    section = book.section(key)
    if not [name for name in names if book.see(name)]:
        book.sections.remove(section)
        return False
    return True


def _named(book: Book, start: str) -> list[str]:
    """The figures of the study whose names begin so; of a model each, the largest stands last."""
    blocks = [block for part in book.study for block in part.blocks]
    return [b.anchor for b in blocks if b.kind == "figure" and b.anchor.startswith(start)]


def _energy(data: Data) -> str:
    """The least energy of a step that was read, or why none was."""
    read = [row for row in data.energy if words.number(row.get("energy_per_step_j"))]
    if read:
        least = min(read, key=lambda row: row["energy_per_step_j"])
        joules = words.significant(least["energy_per_step_j"])
        return f"from {joules} J a step ({least['workload']}, of the {least['scope']})"
    reasons = dict.fromkeys(str(row["reason"]) for row in data.energy if row.get("reason"))
    return f"not measured: {'; '.join(list(reasons)[:1]) or 'no training read any'}"


def _checks(data: Data) -> str:
    """How many cells passed the checks of their clock, work and precision."""
    measured = [cell for cell in data.cells if cell["status"] == "ok"]
    failed = [cell for cell in measured if truth.failed(cell)]
    passed = len(measured) - len(failed)
    names = words.listing([f"{c['workload']}/{c['backend']}" for c in failed[:3]])
    more = f"; failed: {names}" if failed else ""
    return f"{passed} of {words.count(len(measured), 'cell')} passed all of their own checks{more}"
