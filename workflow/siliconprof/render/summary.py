"""Findings: sentences made from the data, each with its uncertainty, none without its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED, NOISY
from siliconprof.render import memory, ratios, study_findings, uncertainty, why, wide_deep
from siliconprof.render.book import Book
from siliconprof.render.compare import (
    Comparison,
    Finding,
    Line,
    Step,
    compared,
    headline,
    manner,
    pairs,
    ratio_words,
    steps,
    told,
)
from siliconprof.render.data import Data, grouped
from siliconprof.render.losses import divergence, loss_groups, relative_differences
from siliconprof.render.operations import PRODUCTS, median_rate
from siliconprof.render.variants import (
    CIRCUMSTANCES,
    WORK,
    Family,
    Row,
    family,
    flagged,
    label,
    model,
    precision,
)

HEADLINES = 5  # what a reader takes in at once
NOISE = "Noise"
NOISE_FLAGS = (NOISY, DISTURBED)
SPREADS = ("unsplit_step", "step", "launch_and_wait")  # whichever a point has first
MOST_NAMED = 6


def add_findings(data: Data, book: Book) -> None:
    """The findings, the first of them as headlines."""
    items = findings(data)
    book.findings(items, HEADLINES)
    if not items:
        book.note(
            "There is nothing to compare: no two measured cells of this host answer a "
            "question together."
        )


def add_absent(data: Data, book: Book) -> None:
    """What was not measured, and why."""
    absent = not_measured(data)
    if absent:
        book.listing(absent, "Not measured, and why:")


def findings(data: Data) -> list[Finding]:
    """All findings of this host that its data support, the most important first.

    Which is faster, what less precision buys, how much of the hardware is used, whether all compute
    the same, and how far to trust it: these come first, then the gaps, and one for each study.
    The page shows `HEADLINES` of them and folds the rest.
    """
    makers: Sequence[Callable[[Data], Finding | None]] = (
        backends,
        precisions,
        hardware,
        losses,
        noise,
        why.finding,
        ratios.finding,
        study_findings.grid,
        study_findings.wide_and_deep,
        trainers,
        memory.finding,
        products,
    )
    results = [finding for finding in (make(data) for make in makers) if finding]
    return results if any(finding.title != NOISE for finding in results) else []


def _where(data: Data, step: Step, kind: Family) -> str:
    devices = {point["device"] for point in data.points}
    place = f"{step.row['device']}, " if len(devices) > 1 else ""
    return f"{kind.name} ({place}{manner(step.row)})"


def backends(data: Data) -> Finding | None:
    """Which device, and which software path on one device, is faster at the same work."""
    families = steps(data).items()
    compared_ = [
        _comparison(fast, slow, f"{kind.name} ({manner(fast.row)})", _device_and_backend)
        for kind, family_steps in families
        for fast, slow in _best_of_devices(family_steps)
    ]
    title = "Devices and backends" if compared_ else "Backends"
    compared_ += [
        _comparison(fast, slow, _where(data, fast, kind), _software)
        for kind, family_steps in families
        for fast, slow in pairs(family_steps, "backend")
    ]
    groups = grouped(compared_, lambda comparison: tuple(sorted(comparison.names)))
    return headline(title, [("", group) for group in groups.values()], "training")


def _comparison(
    one: Step, other: Step, where: str, name: Callable[[Step], str], shared: str = ""
) -> Comparison:
    """Two step times in words.

    Args:
        shared: what both share; told by `where` as `gpt2-nano (plain, fp32)` if empty.
    """
    fast, slow = sorted((one, other), key=lambda step: step.middle)
    if fast.overlaps(slow):
        text = (
            f"no difference beyond noise between {name(fast)} and {name(slow)}, "
            f"{words.duration(fast.middle)} and {words.duration(slow.middle)}"
        )
    else:
        text = (
            f"{name(fast)} is {ratio_words(slow, fast)} faster than {name(slow)}, "
            f"{words.duration(fast.middle)} against {words.duration(slow.middle)} a step"
        )
    names = (name(one).replace(" (manual)", ""), name(other).replace(" (manual)", ""))
    shared = shared or where.replace(" (", ", ").removesuffix(")")
    line = compared(f"{where}: {text}", fast, slow)
    return Comparison(one, other, names, shared, line)


def _device_and_backend(step: Step) -> str:
    return f"{step.row['device']} ({_software(step)})"


def _software(step: Step) -> str:
    """The backend; where mixed precision is written out by hand there, that too."""
    manual = precision(step.row).removeprefix(step.row["precision"])
    return words.backend_name(step.row) + manual


def _best_of_devices(family_steps: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """(fastest device's best step, another device's best step) at equal work, done alike."""
    alike = [x for x in (*WORK, *CIRCUMSTANCES) if x not in ("device", "backend", "threads")]
    for group in grouped(family_steps, lambda step: tuple(map(step.row.get, alike))).values():
        group.sort(key=lambda step: step.middle)
        fastest, *others = (own[0] for own in grouped(group, lambda s: s.row["device"]).values())
        yield from ((fastest, other) for other in others)


def precisions(data: Data) -> Finding | None:
    """What mixed precision changes, per backend."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for kind, family_steps in steps(data).items():
        for full, mixed in pairs(family_steps, "precision", "fp32"):
            name = mixed.row["precision"]
            if name.startswith("amp-"):
                fixed = manner(mixed.row, "precision")
                where = f"{kind.name} on {words.backend_name(mixed.row)} ({fixed})"
                shared = f"{kind.name}, {fixed}"
                one = _comparison(full, mixed, where, lambda step: step.row["precision"], shared)
                groups.setdefault((_software(mixed), name), []).append(one)
    with_prefix = [(f"On {backend}, ", group) for (backend, _), group in groups.items()]
    return headline("Mixed precision", with_prefix, "training")


def trainers(data: Data) -> Finding | None:
    """What the Trainer costs over the bare loop, in ms a step."""
    lines = []
    for kind, family_steps in steps(data).items():
        for plain, other in pairs(family_steps, "trainer", "plain"):
            where = (
                f"{kind.name} on {words.backend_name(plain.row)}, {manner(plain.row, 'trainer')}"
            )
            name = other.row["trainer"]
            extra = (other.middle - plain.middle) * 1e3
            low, high = (other.low - plain.high) * 1e3, (other.high - plain.low) * 1e3
            span = f"{_signed(extra)} ms [{_signed(low)}, {_signed(high)}]"
            if plain.overlaps(other):
                text = f"no difference beyond noise between {name} and plain ({span} a step)"
            else:
                text = (
                    f"{name} changes a step of {words.duration(plain.middle)} by {span} over "
                    "the plain loop"
                )
            lines.append(compared(f"{where}: {text}", plain, other))
    return told("Trainer", lines, "training")


def _signed(value: float) -> str:
    text = words.significant(value)
    return text if value <= 0 else f"+{text}"


def products(data: Data) -> Finding | None:
    """The fastest matrix product of each backend and precision."""
    timed = [p for p in data.of_module("matmul") if median_rate(PRODUCTS, p).low is not None]
    timed.sort(key=lambda point: -point["flop_per_s"])
    best = grouped(timed, lambda p: (p["device"], words.backend_name(p), p["precision"]))
    lines = []
    for (device, backend, precision_), (point, *_) in best.items():
        middle, low, high = median_rate(PRODUCTS, point)
        assert middle and low and high
        caution = words.caution(point)
        lines.append(
            Line(
                f"{backend} on {device}, {precision_}: {words.scaled(middle, 'FLOP/s')} "
                f"[{words.scaled(low, 'FLOP/s')}, {words.scaled(high, 'FLOP/s')}] at "
                f"{words.shape(point)}{f' ({caution})' if caution else ''}."
            )
        )
    return told("Fastest matrix product", lines, "matmul")


def losses(data: Data) -> Finding | None:
    """Whether frameworks compute the same training, step by step."""
    diverged = _diverged(data)
    rows, worst_fp32, both = [*diverged], 0.0, False
    for group in loss_groups(data):
        baseline = group[0]
        for other in group[1:]:
            difference = relative_differences(data, other, baseline)
            if not len(difference) or not np.isfinite(difference).all():
                continue
            at = int(difference.argmax())
            text = (
                f"{words.scientific(float(difference[0]))} at the first step, at most "
                f"{words.scientific(float(difference[at]))} (step {at + 1} of {len(difference)})"
                if difference[at]
                else f"equal at all of {words.count(len(difference), 'step')}"
            )
            rows.append(f"{family(other).name}: {label(other)} against {label(baseline)}: {text}.")
            if other["precision"] == baseline["precision"] == "fp32":
                both = True
                worst_fp32 = max(worst_fp32, float(difference[at]))
    if not rows:
        return None
    if both:
        text = f"differ by at most {words.scientific(worst_fp32)} of their value at any step"
        sentence = (
            f"From equal data, seed and weights, fp32 losses of {_frameworks(data)} "
            f"{text if worst_fp32 else 'are equal at every step that both have taken'}."
        )
        first = f"{words.count(len(diverged), 'training')} diverged. " if diverged else ""
        return Finding("Losses", first + sentence, rows, "training")
    if len(diverged) > 1:
        sentence = f"{len(diverged)} trainings diverged: losses became NaN or infinite."
        return Finding("Losses", sentence, rows, "training")
    return told("Losses", [Line(row) for row in rows], "training")


def _diverged(data: Data) -> list[str]:
    """A sentence for each training that diverged, timed step by step or whole."""
    courses = [
        (f"{family(point).name}: {label(point)}", data.traces.series(point, "loss"))
        for point in data.training()
    ] + [
        (wide_deep.name(point), data.traces.curve_values(point, "loss").tolist())
        for point in wide_deep.trainings(data)
    ]
    return [f"{name} {text}." for name, values in courses if (text := divergence(values))]


def _frameworks(data: Data) -> str:
    pairs_ = {
        f"{words.backend_name(p)} ({p['trainer']})"
        for group in loss_groups(data)
        if len(group) > 1
        for p in group
        if p["precision"] == "fp32"
    }
    return words.listing(sorted(pairs_))


def not_measured(data: Data) -> list[str]:
    """What could not be measured, and why: cells, devices, backends."""
    lines = []
    absent = (cell for cell in data.cells if cell["status"] != "ok")
    reasons = grouped(absent, lambda c: (c["status"], c["reason"] or "no reason given"))
    for (status, reason), cells in reasons.items():
        names = list(dict.fromkeys(f"{c['workload']}/{c['backend']}" for c in cells))
        shown = words.listing(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"
        lines.append(f"{words.count(len(cells), 'cell')} {status}: {reason} ({shown}).")
    for name, state in sorted(data.host["backends"].items()):
        if state["reason"]:
            mend = f" To mend: {state['mend']}." if state["mend"] else ""
            lines.append(f"Backend {name}: {state['reason']}.{mend}")
    for missing in data.matrix.not_measured:
        entry = data.registry["devices"].get(missing["device"])
        name = entry["name"] if entry else missing["device"]
        lines.append(f"Device {name}: {missing['reason']}.")
    return lines


# -- two findings that are no comparisons ------------------------------------------------------------


class Efficiency(NamedTuple):
    """One training: shares between 0 and 1, None where the reference rate is unknown."""

    row: Row
    of_sheet: float | None  # of the data sheet's peak (MFU)
    of_product: float | None  # of the best measured product
    low: float  # ends of the 95 % interval over the middle, for both alike
    high: float


def efficiencies(data: Data, rows: Sequence[Row]) -> list[Efficiency]:
    """The efficiency of each training that has a rate to be compared with."""
    results = []
    for row in rows:
        rate, step = words.number(row["flop_per_s"]), Step.of(row)
        references = data.peak_flop_per_s(row), data.best_product(row)
        if rate and any(references):
            sheet, product = (rate / of if of else None for of in references)
            ends = (step.middle / step.high, step.middle / step.low) if step else (1.0, 1.0)
            results.append(Efficiency(row, sheet, product, *ends))
    return results


def hardware(data: Data) -> Finding | None:
    """The share that trainings reach of the device's measured or data sheet's throughput.

    The best training of each device and backend, in fp32 where any is: where a backend multiplies
    slowly in a format, even a slow training reaches a large share.
    """
    compared = efficiencies(data, data.with_speed())
    sound = [one for one in compared if not flagged(one.row, DISTURBED)] or compared
    own = sorted(
        (one for one in sound if one.of_product is not None), key=lambda one: -(one.of_product or 0)
    )
    sheet = sorted(
        (one for one in sound if one.of_sheet is not None), key=lambda one: -(one.of_sheet or 0)
    )
    sentences = []
    if own:
        sentences.append(
            f"{_best(own, False)} of the fastest matrix product measured on the device, by any backend "
            "in the same number format or in fp32"
        )
    if sheet:
        sentences.append(f"{_best(sheet, True)} of the data sheet's peak (MFU)")
    elif own:
        sentences.append("No data sheet's peak is known, so there is no MFU")
    if not sentences:
        return None
    rows = [f"{_share_text(one, False)} of the product." for one in own]
    rows += [f"{_share_text(one, True)} of the data sheet's peak (MFU)." for one in sheet]
    return Finding("How close to the hardware", f"{'. '.join(sentences)}.", rows, "training")


def _best(compared: Sequence[Efficiency], sheet: bool) -> str:
    """`The best fp32 trainings reach 35 % [33, 36] (…) on torch-cpu and 6.7 % […] (…) on mlx`."""
    plain = [one for one in compared if one.row["precision"] == "fp32"]
    best: dict[tuple[str, str], Efficiency] = {}
    for one in plain or compared:
        best.setdefault((one.row["device"], one.row["backend"]), one)
    several = len({device for device, _ in best}) > 1
    shares = [
        f"{_share_text(one, sheet)} on {f'{device}, ' if several else ''}{words.backend_name(one.row)}"
        for (device, _), one in list(best.items())[:MOST_NAMED]
    ]
    many = f"{'fp32 ' * bool(plain)}training{'s' * (len(shares) > 1)}"
    return f"The best {many} reach{'es' * (len(shares) == 1)} {words.listing(shares)}"


def _share_text(one: Efficiency, sheet: bool) -> str:
    """`35 % [34, 36] (whisper-nano, torch-cpu · plain · fp32)`."""
    share = (one.of_sheet if sheet else one.of_product) or 0.0
    low, high = (words.significant(100 * share * end, 2) for end in (one.low, one.high))
    return f"{words.percent(share)} [{low}, {high}] ({model(one.row)}, {label(one.row)})"


def noise(data: Data) -> Finding | None:
    """How far repeats scatter, how many cells are flagged for it, and what intervals rest on."""
    spreads = {id(point): spread for point in data.points if (spread := _spread(point)) is not None}
    if not spreads:
        return None
    widest = max((p for p in data.points if id(p) in spreads), key=lambda p: spreads[id(p)])
    measured = [cell for cell in data.cells if cell["status"] == "ok"]
    groups = {code: [c for c in measured if flagged(c, code)] for code in NOISE_FLAGS}
    counts = [f"{len(cells) or 'none'} {code}" for code, cells in groups.items()]
    sentence = (
        f"The middle half of a point's repeats spreads over {words.percent(median(spreads.values()))} "
        f"of their median (the median of {words.count(len(spreads), 'point')}) and at most over "
        f"{words.percent(spreads[id(widest)])} ({_name(widest)}). Flagged of "
        f"{words.count(len(measured), 'measured cell')}: {' and '.join(counts)}. "
        f"95 % intervals are {uncertainty.origin_text(data.points)}"
    )
    rows = [
        f"Flagged {code}: {words.listing(map(_name, cells), MOST_NAMED)}: {words.FLAG_WORDS[code]}"
        for code, cells in groups.items()
        if cells
    ]
    return Finding(NOISE, f"{sentence}.", rows, "flags")


def _spread(point: Row) -> float | None:
    """Inter-quartile range over the median of what a point's number is made of."""
    for stem in SPREADS:
        middle, low, high = (
            words.number(point.get(f"{stem}_{part}_s")) for part in ("median", "q25", "q75")
        )
        if middle and low is not None and high is not None:
            return (high - low) / middle
    return None


def _name(row: Row) -> str:
    return f"{row['workload']}/{row['backend']}/{row['precision']}"
