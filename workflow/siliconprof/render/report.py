"""The report: how fast each model trains here, against what, why, and what to do, on a few screens.

Every number is of the study, the other page, which has all figures and tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, NO_GAP
from siliconprof.analyse.equal_work import DISTURBED, NOISY
from siliconprof.analyse.throughputs import device_of
from siliconprof.hosts import remedies
from siliconprof.render import memory, setting, truth, uncertainty, why_gaps
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, steps
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, number
from siliconprof.render.variants import Family, Row, flagged, label, variant, work_apart
from siliconprof.store.records import HERE

MOST_ROWS = 12  # of the largest models
MOST_REMEDIES = 4
AGAIN = f"siliconprof remeasure --flagged {DISTURBED}"


class Answer(NamedTuple):
    """How fast one model trains on one device: the fastest way, each other way, and why."""

    family: Family
    best: Step
    others: Sequence[Step]  # of the same device, other backends first
    gap: why_gaps.Gap | None  # to another backend of the device
    ahead: Step | None  # of the device that is faster than all others; None for itself
    behind: Step | None  # of the next device, for the fastest one
    device: str
    usd: float | None  # what the device costs

    @property
    def disturbed(self) -> bool:
        """Whether another process used the processor while the fastest way was measured."""
        return flagged(self.best.row, DISTURBED)


def answers(data: Data) -> list[Answer]:
    """One for each model and device, large models and fast devices first.

    What other processes disturbed counts only where nothing else is known.
    """
    gaps = why_gaps.read(data)
    found = []
    for family, trained in steps(data).items():
        if family.near_capacity:  # every way found a batch of its own
            continue
        whole = [s for s in trained if not work_apart(s.row) and not variant(s.row)] or trained
        ranked = sorted(whole, key=lambda step: (flagged(step.row, DISTURBED), step.middle))
        ways: dict[tuple, dict[tuple, Step]] = {}  # device -> backend, trainer, precision -> step
        for step in ranked:
            row = step.row
            own = (row["backend"], row["trainer"], row["precision"])
            ways.setdefault(device_of(row), {}).setdefault(own, step)
        leaders = [next(iter(fastest.values())) for fastest in ways.values()]
        for fastest, after in zip(
            ways.values(), [*leaders[1:2], *[None] * len(ways)], strict=False
        ):
            best, *others = fastest.values()
            others.sort(key=lambda step: _distance(best.row, step))
            ahead = None if best is leaders[0] else leaders[0]
            gap, name = _gap(gaps, best, others), data.device_name(best.row)
            behind, usd = None if ahead else after, data.sheets.price_usd(best.row)
            found.append(Answer(family, best, others, gap, ahead, behind, name, usd))
    return found


def _distance(best: Row, other: Step) -> tuple[bool, int, float]:
    """Sort key: another backend first, whatever drives it; then what is most alike."""
    apart = sum(best[axis] != other.row[axis] for axis in ("trainer", "precision"))
    return best["backend"] == other.row["backend"], apart, other.middle


def _gap(gaps: Sequence[why_gaps.Gap], best: Step, others: Sequence[Step]) -> why_gaps.Gap | None:
    """The gap beyond noise from the fastest way to the most alike one of another backend."""
    for other in others:
        if other.row["backend"] != best.row["backend"]:
            pair = (gap for gap in gaps if gap.fast is best.row and gap.slow is other.row)
            return next((gap for gap in pair if gap.verdict != NO_GAP), None)
    return None


def _ways(answer: Answer) -> Value:
    """`2.10 × faster than mlx · plain · fp32`, and the other ways behind it.

    Of a device that is not the fastest, first how much faster that one is.
    """
    texts = []
    if answer.ahead:
        ratio = words.significant(answer.best.middle / answer.ahead.middle)
        texts.append(f"{answer.ahead.row['device']} is {ratio} × faster")
    for other in (*filter(None, [answer.behind]), *answer.others):
        name = label(other.row)
        if other is answer.behind:
            name = f"{other.row['device']}, {name}"
        ratio = words.significant(other.middle / answer.best.middle)
        even = answer.best.overlaps(other) or other.middle <= answer.best.middle
        doubt = " (disturbed)" if flagged(other.row, DISTURBED) else ""
        texts.append(
            f"no faster beyond noise than {name}{doubt}"
            if even
            else f"{ratio} × faster than {name}{doubt}"
        )
    if not texts:
        return missing("nothing to compare with")
    return Value(texts[0], mark="prose", more="; ".join(texts[1:]))


def _cause(answer: Answer) -> Value:
    """The largest cause of the gap to another backend, with its share."""
    if answer.gap is None:
        return missing(
            "no gap beyond noise was taken apart between the fastest way and the most alike one of "
            "another backend of the device"
        )
    if not answer.gap.timed:
        return missing(answer.gap.left["reason"])
    left = answer.gap.left["share"] or 0.0
    causes = [line for line in answer.gap.parts(CAUSE) if (line["share"] or 0.0) >= 0.02]
    unexplained = f"{words.whole_percent(max(left, 0.0))} unexplained"
    if left < 0:
        unexplained = f"all parts: {words.whole_percent(1 - left)}"
    if not causes:
        return Value(unexplained, below="by no known cause", mark="prose")
    most = max(causes, key=lambda line: line["share"])
    name = f"{why_gaps.NAMES[most['part']]}: {why_gaps.share(most)} of the difference"
    if answer.ahead or answer.behind:  # which is named first
        name += f" from {label(answer.gap.slow)}"
    return Value(name, below=unexplained, mark="prose")


def _fastest(answer: Answer) -> Value:
    badge = "noisy" if flagged(answer.best.row, NOISY) else ""
    badge = "disturbed" if answer.disturbed else badge
    name = label(answer.best.row)
    return Value(name, sort=name, badge=badge, mark="prose")


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


def _device(answer: Answer) -> Value:
    badge = words.SOURCE_BADGES.get(answer.best.row["source"], "")
    return Value(answer.device, sort=answer.device, badge=badge, mark="prose")


def _model(answer: Answer) -> Value:
    name, _, size = answer.family.label.partition(": ")
    return Value(name, sort=name, below=size, mark="prose")


def _per_usd(answer: Answer) -> float | None:
    """Samples per second for 1,000 USD."""
    rate = words.number(answer.best.row.get("samples_per_s"))
    return 1e3 * rate / answer.usd if rate and answer.usd else None


PER_USD = number("for 1,000 USD", "samples/s", _per_usd, "no source gives its price")
COLUMNS = (
    Column("Model", below="size", value=_model),
    Column("Device", folds=True, value=_device),
    Column("speed", "", True, "of the fastest way", "tokens/s", value=_rate),
    PER_USD,
    Column("a step", "ms", True, "median, 95 % interval", value=lambda one: one.best.value()),
    Column("Fastest way", value=_fastest),
    Column("How much faster", value=_ways),
    Column("Mostly because of", below="unexplained", value=_cause),
)


def begin(data: Data, book: Book) -> None:
    """The answer; the rest of the report follows when the study is drawn, see `end`."""
    own = data.only(HERE)
    for sentence in disturbed(own):
        book.banner(sentence)
    found = answers(data)
    if found:
        rows = found[:MOST_ROWS]
        priced = any(one.usd for one in rows)
        columns = [column for column in COLUMNS if priced or column is not PER_USD]
        table = Table.of(rows, columns, about=lambda one: one.best.row)
        if more := len(found) - len(rows):
            table.notes.append(f"{words.count(more, 'more row')} of smaller models: in the study.")
        book.table("answer", "answer", table)
    else:
        book.note("No training was measured, so there is no answer.")
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
    """What the host lacks for what was measured: nobody is told of a format that no cell has."""
    has_fp16 = any(cell["precision"].endswith("fp16") for cell in data.cells)
    for one in remedies.of(data.host):
        if one["mend"] and (has_fp16 or one["about"] != remedies.FP16):
            yield f"{one['about']}: {one['why']}. To mend: {one['mend']}."


def end(data: Data, book: Book, again: str) -> None:
    """The other sections: figures of the study, and what to trust."""
    own = data.only(HERE)
    found = answers(own)
    _seen(book, "devices", "figure-glance")
    with_gap = [answer for answer in found if answer.gap]
    for answer in with_gap[:1]:
        gap = answer.gap
        assert gap
        if _seen(book, "reason", f"figure-why-parts-{answer.family.slug}"):
            book.note(f"{answer.family.name}: {why_gaps.sentence(gap)}")
    largest = (_named(book, f"figure-{kind}-")[-1:] for kind in ("training", "operators"))
    _seen(book, "speed", *chain.from_iterable(largest))
    _seen(book, "limits", "table-ceilings", *_named(book, "figure-roofline")[:1])
    book.section("use")
    peaks = memory.finding(own)
    book.facts(
        [
            ("Memory", peaks.sentence if peaks else "no prediction was compared with a peak"),
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
    """In how many cells each check was made and found no failure, and which cells failed one."""
    sound: dict[int, list[str]] = {}  # number of cells that made a check -> names of such checks
    wrong = []
    for name, (head, _) in truth.HELP.items():
        checked = [cell for cell in data.cells if cell[f"{name}_check"] in ("ok", "failed")]
        failed = [cell for cell in checked if cell[f"{name}_check"] == "failed"]
        if not failed:
            sound.setdefault(len(checked), []).append(head)
            continue
        shown = [f"{cell['workload']}/{cell['backend']}" for cell in failed[:3]]
        others = ["others"] if len(failed) > len(shown) else []
        wrong.append(f"{head}: failed in {len(failed)} ({words.listing([*shown, *others])})")
    passed = (
        f"{words.listing(heads)}: "
        + (f"no failure in {words.count(n, 'cell')}" if n else "checked in no cell")
        for n, heads in sound.items()
    )
    return "; ".join([*passed, *wrong])
