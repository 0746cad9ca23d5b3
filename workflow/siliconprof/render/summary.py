"""Findings: sentences made from the data, each with its uncertainty, none without its data.

Every interval here is made from the 95 % intervals of two series of one process each. Another
process may differ by more, which one process per cell cannot show; the page says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from siliconprof.render import words
from siliconprof.render.data import Data, Family, Row, family
from siliconprof.render.losses import loss_groups, relative_differences
from siliconprof.render.matmul import interval

FEW = 6  # below this there is no 95 % interval; the range stands in


@dataclass
class Finding:
    """One headline, and the single comparisons behind it."""

    title: str
    sentence: str
    rows: list[str] = field(default_factory=list)
    anchor: str = ""  # where on the page the evidence is


@dataclass
class Step:
    """The step time of a cell: median and interval in seconds."""

    row: Row
    middle: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, row: Row) -> Step | None:
        """The unsplit step of a measured cell, None when it has none."""
        numbers = [words.number(row[f"unsplit_step_{part}"])
                   for part in ("median_s", "low_s", "high_s", "n")]  # fmt: skip
        if any(value is None or value <= 0 for value in numbers):
            return None
        middle, low, high, n = (float(value) for value in numbers if value is not None)
        return cls(row, middle, low, high, int(n))

    def overlaps(self, other: Step) -> bool:
        """Whether no difference is certain."""
        return self.low <= other.high and other.low <= self.high


def findings(data: Data) -> list[Finding]:
    """All findings of this host that its data support, the most asked for first."""
    makers: Sequence[Callable[[Data], Finding | None]] = (
        backends, precisions, trainers, products, losses,
    )  # fmt: skip
    return [finding for finding in (make(data) for make in makers) if finding]


def steps(data: Data) -> dict[Family, list[Step]]:
    """Family -> its measured step times, only such as were made by one method."""
    found: dict[Family, list[Step]] = {}
    for point in data.training():
        step = Step.of(point)
        if step:
            found.setdefault(family(point), []).append(step)
    return dict(sorted(found.items(), key=lambda item: -(item[0].n_parameters or 0)))


def same_but(axis: str, a: Row, b: Row) -> bool:
    """Whether two cells of a family differ in one axis (and in the workload's name) only."""
    axes = ("host", "device", "backend", "trainer", "scenario", "precision", "threads",
            "seed", "tokens_sha256", "method_version")  # fmt: skip
    return a[axis] != b[axis] and all(a[x] == b[x] for x in axes if x != axis)


def pairs(steps_: Sequence[Step], axis: str, first: str | None = None) -> Iterator[tuple]:
    """Pairs that differ in one axis only; the first has the value `first`, or is the faster."""
    for i, a in enumerate(steps_):
        for b in steps_[i + 1 :]:
            if not same_but(axis, a.row, b.row):
                continue
            if first is None:
                yield (a, b) if a.middle <= b.middle else (b, a)
            elif a.row[axis] == first:
                yield a, b
            elif b.row[axis] == first:
                yield b, a


def ratio_words(slow: Step, fast: Step) -> str:
    """`2.41 × [2.35, 2.48]` of medians, with the interval that both series allow."""
    ratio, low, high = slow.middle / fast.middle, slow.low / fast.high, slow.high / fast.low
    return f"{words.significant(ratio)} × [{words.significant(low)}, {words.significant(high)}]"


def remarks(*compared: Step) -> str:
    """What limits a comparison: few repeats, or flags."""
    said = []
    least = min(step.n for step in compared)
    if least <= FEW:
        said.append(f"only {least} steps")
    caution = words.caution(*(step.row for step in compared))
    return f" ({'; '.join(filter(None, [*said, caution]))})" if said or caution else ""


@dataclass
class Line:
    """One comparison in words; a doubtful one never becomes a headline before a sound one."""

    text: str
    doubtful: bool = False


def told(title: str, lines: Sequence[Line], anchor: str) -> Finding | None:
    """A finding whose headline is the first sound line, the others behind it."""
    if not lines:
        return None
    first = next((line for line in lines if not line.doubtful), lines[0])
    return Finding(title, first.text, [line.text for line in lines if line is not first], anchor)


def compared(text: str, *steps_: Step) -> Line:
    """A line with what limits it."""
    doubtful = any("contended" in (step.row["flags"] or "") for step in steps_)
    return Line(f"{text}{remarks(*steps_)}.", doubtful)


def _where(data: Data, step: Step, kind: Family) -> str:
    devices = {point["device"] for point in data.points}
    place = f"{step.row['device']}, " if len(devices) > 1 else ""
    return f"{kind.name} ({place}{step.row['trainer']}, {step.row['precision']})"


def backends(data: Data) -> Finding | None:
    """Which device, and which software path on one device, is faster at the same work."""
    lines = []
    for kind, found in steps(data).items():
        lines += [
            _against(fast, slow, f"{kind.name} ({fast.row['trainer']}, {fast.row['precision']})",
                     _device_and_backend)
            for fast, slow in _best_of_devices(found)
        ]  # fmt: skip
    title = "Devices and backends" if lines else "Backends"
    for kind, found in steps(data).items():
        lines += [
            _against(fast, slow, _where(data, fast, kind), lambda step: step.row["backend"])
            for fast, slow in pairs(found, "backend")
        ]
    return told(title, lines, "training")


def _device_and_backend(step: Step) -> str:
    return f"{step.row['device']} ({step.row['backend']})"


def _best_of_devices(found: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """(fastest device's best step, another device's best step) by trainer and precision."""
    groups: dict[tuple, dict[str, Step]] = {}
    for step in found:
        row = step.row
        key = (row["trainer"], row["precision"], row["scenario"], row["method_version"])
        best = groups.setdefault(key, {})
        if row["device"] not in best or step.middle < best[row["device"]].middle:
            best[row["device"]] = step
    for best in groups.values():
        fastest, *others = sorted(best.values(), key=lambda step: step.middle)
        yield from ((fastest, other) for other in others)


def _against(fast: Step, slow: Step, where: str, name: Callable[[Step], str]) -> Line:
    """Two step times in words."""
    if fast.overlaps(slow):
        said = (
            f"no difference beyond noise between {name(fast)} and {name(slow)}, "
            f"{words.duration(fast.middle)} and {words.duration(slow.middle)}"
        )
    else:
        said = (
            f"{name(slow)} takes {ratio_words(slow, fast)} as long as {name(fast)}, "
            f"{words.duration(slow.middle)} against {words.duration(fast.middle)} a step"
        )
    return compared(f"{where}: {said}", fast, slow)


def precisions(data: Data) -> Finding | None:
    """What mixed precision changes, per backend."""
    lines = []
    for kind, found in steps(data).items():
        for full, mixed in pairs(found, "precision", "fp32"):
            name = mixed.row["precision"]
            if not name.startswith("amp-"):
                continue
            where = f"{kind.name} on {mixed.row['backend']} ({mixed.row['trainer']})"
            if full.overlaps(mixed):
                said = f"no difference beyond noise between {name} and fp32"
            elif mixed.middle < full.middle:
                said = f"{name} is faster, fp32 takes {ratio_words(full, mixed)} as long"
            else:
                said = f"{name} is slower, it takes {ratio_words(mixed, full)} as long as fp32"
            lines.append(compared(f"{where}: {said}", full, mixed))
    return told("Mixed precision", lines, "training")


def trainers(data: Data) -> Finding | None:
    """What the Trainer costs over the bare loop, in ms a step."""
    lines = []
    for kind, found in steps(data).items():
        for plain, other in pairs(found, "trainer", "plain"):
            where = f"{kind.name} on {plain.row['backend']}, {plain.row['precision']}"
            name = other.row["trainer"]
            extra = (other.middle - plain.middle) * 1e3
            low, high = (other.low - plain.high) * 1e3, (other.high - plain.low) * 1e3
            span = f"{_signed(extra)} ms [{_signed(low)}, {_signed(high)}]"
            if plain.overlaps(other):
                said = f"no difference beyond noise between {name} and plain ({span} a step)"
            else:
                said = (f"{name} changes a step of {words.duration(plain.middle)} by {span} over "
                        "the plain loop")  # fmt: skip
            lines.append(compared(f"{where}: {said}", plain, other))
    return told("Trainer", lines, "training")


def _signed(value: float) -> str:
    text = words.significant(value)
    return text if value <= 0 else f"+{text}"


def products(data: Data) -> Finding | None:
    """The fastest matrix product of each backend and precision."""
    best: dict[tuple, Row] = {}
    for point in data.of_module("matmul"):
        if interval(point)[1] is None:
            continue
        key = (point["device"], point["backend"], point["precision"])
        if key not in best or point["flop_per_s"] > best[key]["flop_per_s"]:
            best[key] = point
    lines = []
    for (device, backend, precision), point in sorted(
        best.items(), key=lambda item: -item[1]["flop_per_s"]
    ):
        middle, low, high = interval(point)
        assert middle and low and high
        caution = words.caution(point)
        lines.append(Line(
            f"{backend} on {device}, {precision}: {words.scaled(middle, 'FLOP/s')} "
            f"[{words.scaled(low, 'FLOP/s')}, {words.scaled(high, 'FLOP/s')}] at "
            f"{words.shape(point)}{f' ({caution})' if caution else ''}."
        ))  # fmt: skip
    return told("Fastest matrix product", lines, "matmul")


def losses(data: Data) -> Finding | None:
    """Whether frameworks compute the same training, step by step."""
    rows, worst_fp32 = [], 0.0
    for group in loss_groups(data):
        baseline = group[0]
        for other in group[1:]:
            difference = relative_differences(data, other, baseline)
            if not len(difference) or not np.isfinite(difference).all():
                continue
            at = int(difference.argmax())
            name = family(other).name
            rows.append(
                f"{name}: {other['backend']} {other['trainer']} {other['precision']} against "
                f"{baseline['backend']} {baseline['trainer']} {baseline['precision']}: "
                f"{words.scientific(float(difference[0]))} at the first step, at most "
                f"{words.scientific(float(difference[at]))} (step {at + 1} of {len(difference)})."
            )
            if other["precision"] == baseline["precision"] == "fp32":
                worst_fp32 = max(worst_fp32, float(difference[at]))
    if not rows:
        return None
    both = [r for r in rows if " fp32 against" in r and " fp32:" in r]
    if both:
        said = f"differ by at most {words.scientific(worst_fp32)} of their value at any step"
        sentence = (
            f"From equal data, seed and weights, fp32 losses of {_frameworks(data)} "
            f"{said if worst_fp32 else 'are equal at every step that both have taken'}."
        )
        return Finding("Losses", sentence, rows, "training")
    return told("Losses", [Line(row) for row in rows], "training")


def _frameworks(data: Data) -> str:
    pairs_ = {
        f"{p['backend']} ({p['trainer']})"
        for group in loss_groups(data) if len(group) > 1
        for p in group if p["precision"] == "fp32"
    }  # fmt: skip
    return words.listing(sorted(pairs_))


def not_measured(data: Data) -> list[str]:
    """What could not be measured, and why: cells, devices, backends."""
    said = []
    reasons: dict[tuple[str, str], list[Row]] = {}
    for cell in data.cells:
        if cell["status"] != "ok":
            reasons.setdefault((cell["status"], cell["reason"] or "no reason given"), []).append(
                cell
            )
    for (status, reason), cells in reasons.items():
        names = list(dict.fromkeys(f"{c['workload']}/{c['backend']}" for c in cells))
        shown = words.listing(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"
        said.append(f"{words.count(len(cells), 'cell')} {status}: {reason} ({shown}).")
    for name, state in sorted(data.host["backends"].items()):
        if not state["available"]:
            mend = f" To mend: {state['mend']}." if state["mend"] else ""
            said.append(f"Backend {name}: {state['reason']}.{mend}")
    for missing in data.matrix["not_measured"]:
        entry = data.registry["devices"].get(missing["device"])
        name = entry["name"] if entry else missing["device"]
        said.append(f"Device {name}: {missing['reason']}.")
    return said
