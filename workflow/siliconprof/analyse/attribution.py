"""Why one training takes longer than another of equal work: by phase, and by part of the step.

`attribution.csv`: for each pair of trainings that did the same work a line for the gap in seconds
per step, one for each phase (they sum to the gap exactly), one for each cause, and one for what no
cause explains, which may be negative. The causes are the parts of the step, with 95 % intervals, and
the last line has what they leave of either side's step. Where the operators of a step were not timed,
the gap has phases and no causes, and the last line says so. Which pairs: see `pairs`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse import step_parts
from siliconprof.analyse.equal_work import (
    DISTURBED,
    by_phases,
    compiles,
    flagged,
    has_no_speed,
    work,
)
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.analyse.throughputs import device_of, estimate, interval_text, place
from siliconprof.store import table_files
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import KEY, Row, by, grouped, point_key

SIDES = ("fast", "slow")
GAP, PHASE, CAUSE, LEFT = "gap", "phase", "cause", "unexplained"  # kinds of line
PHASES = ("forward", "backward", "optimizer")  # and the rest
REST = "rest"
FASTEST, FASTEST_OF_ALL = "against the fastest plain fp32 cell", "against the fastest cell"
FASTEST_IN_FP32 = "against the fastest fp32 cell"
ALIKE, ELSEWHERE = "same workload and precision", "fastest of two hosts"
NO_GAP, EXPLAINED, PERHAPS = "no gap beyond noise", "explained mostly", "perhaps explained"
UNEXPLAINED, OVER = "unexplained mostly", "over-explained"
NOT_TIMED = "not taken apart"
MOSTLY = 0.5  # of the gap
CLOSED_WITHIN = 0.1  # of a step, that its operators and the framework leave of it
NOT_TOLD = "none that can be told from its operators and the framework"
BESIDES = ("data", "trace", "other")  # timed parts of a step that are in the rest


class Pair(NamedTuple):
    """Two trainings of equal work."""

    fast: Row
    slow: Row
    rule: str

    @property
    def names(self) -> frozenset:
        """Which two cells, in whatever order."""
        return frozenset((point_key(self.fast), point_key(self.slow)))


def pairs(points: Iterable[Row]) -> Iterator[Pair]:
    """The pairs that matter, each once, of trainings that did the same work.

    Of one host: its fastest cell of the plain loop in fp32 (else of any trainer in fp32, else of
    all) against each other one; its fastest of all against other devices and backends in that one's
    precision; every two backends of one device, and the fastest backend of every
    device against that of the fastest device, under one workload, scenario and precision. Of two
    hosts: the fastest plain fp32 cell of this one against that of each other. A check of a
    mechanism has no speed and is in no pair; nor is a compiled training, whose step has no phases.
    """
    seen = set()
    for pair in _all_pairs(points):
        if pair.names not in seen:
            seen.add(pair.names)
            yield pair


def has_parts(point: Row) -> bool:
    """Whether a point is of a training whose step can be taken apart; see `pairs`."""
    timed = by_phases(point) and point["unsplit_step_median_s"]
    return bool(timed and not compiles(point) and not has_no_speed(point))


def _all_pairs(points: Iterable[Row]) -> Iterator[Pair]:
    for group in grouped(filter(has_parts, points), work).values():
        hosts = grouped(group, by(("source", "host")))
        baselines = {where: _baseline(rows) for where, rows in hosts.items()}
        for where, rows in hosts.items():
            baseline = baselines[where]
            yield from (ordered(baseline, p, _rule(baseline)) for p in rows if p is not baseline)
            yield from _alike(rows)
            yield from _fastest(rows)
        here = [baseline for where, baseline in baselines.items() if where[0] == HERE]
        others = [baseline for where, baseline in baselines.items() if where[0] != HERE]
        yield from (ordered(a, b, ELSEWHERE) for a in here for b in others)


def _baseline(rows: Sequence[Row]) -> Row:
    """The cell that the others of its host are compared with."""
    fp32 = [row for row in rows if row["precision"] == "fp32"]
    plain = [row for row in fp32 if row["trainer"] == "plain"]
    return min(plain or fp32 or rows, key=_step_s)


def _rule(baseline: Row) -> str:
    """Which baseline the other cells of its host are compared with, in words."""
    if baseline["precision"] != "fp32":
        return FASTEST_OF_ALL
    return FASTEST if baseline["trainer"] == "plain" else FASTEST_IN_FP32


def _alike(rows: Sequence[Row]) -> Iterator[Pair]:
    """Devices and backends under one workload, scenario and precision of a host."""
    for group in grouped(rows, by(("workload", "scenario", "precision"))).values():
        devices = grouped(group, device_of)
        for of_device in devices.values():
            yield from (ordered(a, b, ALIKE) for a, b in combinations(of_device, 2))
        best = sorted((min(of_device, key=_step_s) for of_device in devices.values()), key=_step_s)
        yield from (ordered(best[0], other, ALIKE) for other in best[1:])


def _fastest(rows: Sequence[Row]) -> Iterator[Pair]:
    """A host's fastest undisturbed cell against other devices and backends in its precision."""
    fastest = min(rows, key=lambda row: (flagged(row, DISTURBED), _step_s(row)))
    for row in rows:
        alike = all(row[axis] == fastest[axis] for axis in ("scenario", "precision"))
        if alike and place(row) != place(fastest):
            yield ordered(fastest, row, FASTEST_OF_ALL)


def _step_s(row: Row) -> float:
    return float(row["unsplit_step_median_s"])


def ordered(a: Row, b: Row, rule: str) -> Pair:
    """A pair, whichever of the two is faster."""
    return Pair(a, b, rule) if _step_s(a) <= _step_s(b) else Pair(b, a, rule)


# -- lines -----------------------------------------------------------------------------------------


Parts = Mapping[tuple, Mapping[str, Row]]  # see `step_parts.by_point`


class Amount(NamedTuple):
    """Seconds of a step, or of a gap, with their 95 % interval."""

    seconds: float
    low: float
    high: float
    how: str = ""  # what it rests on


def difference(fast: Amount, slow: Amount) -> Amount:
    """What a part of the step takes longer: both sides' intervals in quadrature."""
    seconds = slow.seconds - fast.seconds
    return Amount(
        seconds,
        seconds - math.hypot(slow.seconds - slow.low, fast.high - fast.seconds),
        seconds + math.hypot(slow.high - slow.seconds, fast.seconds - fast.low),
    )


def rows_of(index: int, pair: Pair, parts: Parts) -> Iterator[Row]:
    """The lines of one pair."""
    gap = _gap(pair)
    lines = [_line(GAP, GAP, gap, (_step_s(pair.fast), _step_s(pair.slow)), (gap.how, ""))]
    lines += _phases(pair, gap.seconds)
    costs = by_operators(pair, parts)
    if costs:
        lines += _causes(pair, gap, costs)
        verdict = _verdict(pair, costs, gap.seconds, lines[-1]["seconds"])
    else:
        lines.append(_line(LEFT, LEFT, None, reason=_untimed(pair, parts)))
        verdict = NOT_TIMED
    lines[-1]["verdict"] = lines[0]["verdict"] = verdict if gap.low > 0 else NO_GAP
    for line in lines:
        named = {
            f"{side}_{axis}": row[axis]
            for side, row in zip(SIDES, (pair.fast, pair.slow), strict=True)
            for axis in (*KEY, "point")
        }
        known = line["seconds"] is not None and gap.seconds
        share = line["seconds"] / gap.seconds if known else None
        yield {"pair": index, "rule": pair.rule} | named | line | {"share": share}


def _causes(pair: Pair, gap: Amount, costs: Mapping[str, tuple[Amount, Amount]]) -> Iterator[Row]:
    """A line for each part of the step, and one for what they leave of the gap."""
    parts = {cause: difference(fast, slow) for cause, (fast, slow) in costs.items()}
    for cause, (fast, slow) in costs.items():
        sides, hows = (fast.seconds, slow.seconds), (fast.how, slow.how)
        yield _line(CAUSE, cause, parts[cause], sides, hows)
    seconds = gap.seconds - sum(part.seconds for part in parts.values())
    below = (gap.seconds - gap.low, *(part.high - part.seconds for part in parts.values()))
    above = (gap.high - gap.seconds, *(part.seconds - part.low for part in parts.values()))
    left = Amount(seconds, seconds - math.hypot(*below), seconds + math.hypot(*above))
    yield _line(LEFT, LEFT, left, _left_of_sides(pair, costs))


def _untimed(pair: Pair, parts: Parts) -> str:
    """Whose operators were not timed."""
    names = dict.fromkeys(
        "/".join(str(row[axis]) for axis in ("workload", "backend", "precision"))
        for row in (pair.fast, pair.slow)
        if point_key(row) not in parts
    )
    return f"the operators of {words.listing(names)} are not timed, so the gap is not taken apart"


def by_operators(pair: Pair, parts: Parts) -> dict[str, tuple[Amount, Amount]]:
    """Part of a step -> what either side spends on it; empty where operators were not timed in both."""
    fast, slow = (_costs_of_parts(row, parts) for row in (pair.fast, pair.slow))
    if not fast or not slow:
        return {}
    none = {
        part: Amount(0.0, 0.0, 0.0, NOT_TOLD if part in (BLOCKED, WAITING) else "")
        for part in PARTS
    }
    return {
        part: (fast.get(part, none[part]), slow.get(part, none[part]))
        for part in PARTS
        if part in fast or part in slow
    }


def _costs_of_parts(row: Row, parts: Parts) -> dict[str, Amount]:
    """Part of a side's step -> what it takes, its interval joined with that between processes.

    The latter is of whole steps: a part is taken to differ between processes in proportion.
    """
    known = estimate(row, "unsplit_step") if row["processes"] > 1 else None
    reach = known.interval()[1] / known.ratio - 1 if known else 0.0
    costs = {}
    for part, line in parts.get(point_key(row), {}).items():
        seconds = line["seconds"]
        between = reach * seconds
        low = seconds - math.hypot(seconds - line["low_s"], between)
        high = seconds + math.hypot(line["high_s"] - seconds, between)
        costs[part] = Amount(seconds, low, high, line["how"])
    return costs


def _left_of_sides(pair: Pair, costs: Mapping[str, tuple[Amount, Amount]]) -> tuple[float, float]:
    """What the parts leave of the faster side's step, and of the slower one's."""
    fast, slow = (sum(cost.seconds for cost in side) for side in zip(*costs.values(), strict=True))
    return _step_s(pair.fast) - fast, _step_s(pair.slow) - slow


def closes(pair: Pair, rest: tuple[Amount, Amount], left: tuple[float, float]) -> bool:
    """Whether the parts of either side add up to its step, `CLOSED_WITHIN` of it apart.

    Args:
        rest: the framework's part, which is what a phase lasts beyond its operators: where it is
            less than nothing, the operators took longer when they were watched than else.
        left: what the parts leave of either step.
    """
    return all(
        abs(seconds) + max(-cost.seconds, 0.0) <= CLOSED_WITHIN * _step_s(row)
        for row, seconds, cost in zip((pair.fast, pair.slow), left, rest, strict=True)
    )


def _line(
    kind: str,
    part: str,
    amount: Amount | float | None,
    sides_s: tuple[float | None, float | None] = (None, None),
    hows: tuple[str, str] = ("", ""),
    reason: str | None = None,
) -> Row:
    """A line of the table.

    Args:
        amount: of the gap, where it is known.
        sides_s: what the faster side and the slower one spend.
        hows: what either number rests on.
    """
    seconds, low, high = amount[:3] if isinstance(amount, Amount) else (amount, None, None)
    return {
        "kind": kind,
        "part": part,
        "seconds": seconds,
        "low_s": low,
        "high_s": high,
        "share": None,
        "fast_s": sides_s[0],
        "slow_s": sides_s[1],
        "fast_how": hows[0] or None,
        "slow_how": hows[1] or None,
        "reason": reason,
        "verdict": None,
    }


def _gap(pair: Pair) -> Amount:
    """The difference of both unsplit steps with what both 95 % intervals allow.

    The ends are the worst of both intervals, as in every ratio of the page: wider than a 95 %
    interval of the difference.
    """
    (fast_low, fast_high), (slow_low, slow_high) = (
        [row[f"unsplit_step_{end}_s"] for end in ("low", "high")] for row in (pair.fast, pair.slow)
    )
    seconds = _step_s(pair.slow) - _step_s(pair.fast)
    how = "; ".join(dict.fromkeys(map(interval_text, (pair.fast, pair.slow))))
    return Amount(seconds, slow_low - fast_high, slow_high - fast_low, how)


def _phases(pair: Pair, gap_s: float) -> Iterator[Row]:
    """The gap by phase; the rest is what is left, so that the phases sum to the gap exactly."""
    rest_s = gap_s
    for phase in PHASES:
        fast_s, slow_s = (row.get(f"{phase}_median_s") for row in (pair.fast, pair.slow))
        if fast_s is None or slow_s is None:
            why = "not timed apart on both sides; it is in the rest"
            yield _line(PHASE, phase, None, (fast_s, slow_s), reason=why)
            continue
        rest_s -= slow_s - fast_s
        yield _line(PHASE, phase, slow_s - fast_s, (fast_s, slow_s))
    parts = []
    for name in BESIDES:
        fast_s, slow_s = (row.get(f"{name}_median_s") or 0.0 for row in (pair.fast, pair.slow))
        if slow_s != fast_s:
            parts.append(f"{name} {1e3 * (slow_s - fast_s):+.3g} ms")
    how = f"of it {', '.join(parts)}, and what splitting a step changes" if parts else ""
    yield _line(PHASE, REST, rest_s, hows=(how, ""))


def _verdict(
    pair: Pair, costs: Mapping[str, tuple[Amount, Amount]], gap_s: float, left_s: float
) -> str:
    """How much of a gap beyond noise the parts explain, in two words.

    The framework's part explains nothing, as it is what the others leave: where it takes that, the gap
    is perhaps explained.

    Args:
        left_s: what all parts leave of the gap.
    """
    if abs(left_s) > MOSTLY * gap_s:
        return UNEXPLAINED if left_s > 0 else OVER
    fast, slow = rest = costs[FRAMEWORK]
    by_the_others = abs(left_s + slow.seconds - fast.seconds) <= MOSTLY * gap_s
    closed = closes(pair, rest, _left_of_sides(pair, costs))
    return EXPLAINED if closed and by_the_others else PERHAPS


def read(results: Results) -> tuple[list[Row], Parts]:
    """(points of cells that are ok, the parts of their steps)."""
    return table_files.rows(results.of_ok_cells()), step_parts.by_point(results.step_parts)


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: the table."""
    points, parts = read(results)
    rows = [
        line for index, pair in enumerate(pairs(points)) for line in rows_of(index, pair, parts)
    ]
    table_files.write(arguments.output_dir / "attribution.csv", rows)
