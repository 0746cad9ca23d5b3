"""Why one training takes longer than another of equal work, from what was measured beside them.

    python -m siliconprof.analyse.attribution --tables results/tables \
        --output-dir results/tables

`attribution.csv`: for each pair of trainings that did the same work a line for the gap in seconds
per step, one for each phase (they sum to the gap exactly), one for each cause, and one for what no
cause explains, which may be negative. Where the operators of both steps were timed, the causes are
the parts of the step, with 95 % intervals, and the last line has what they leave of either side's
step; elsewhere they are estimates, see `attribution_costs`. Which pairs: see `pairs`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from siliconprof.analyse import attribution_costs, step_parts
from siliconprof.analyse.attribution_costs import Cost
from siliconprof.analyse.attribution_inputs import Measured
from siliconprof.analyse.ceilings import Limits
from siliconprof.analyse.equal_work import by_phases, compiles, flagged, has_no_speed, work
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.analyse.record_rows import KEY
from siliconprof.analyse.throughputs import Noise, device_of, place
from siliconprof.errors import stage
from siliconprof.store import left_out, noise_floors, table_files
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row, point_key

SIDES = ("fast", "slow")
GAP, PHASE, CAUSE, LEFT = "gap", "phase", "cause", "unexplained"  # kinds of line
PHASES = ("forward", "backward", "optimizer")  # and the rest
REST = "rest"
FASTEST, FASTEST_OF_ALL = "against the fastest plain fp32 cell", "against the fastest cell"
ALIKE, ELSEWHERE = "same workload and precision", "fastest of two hosts"
NO_GAP, EXPLAINED, PERHAPS = "no gap beyond noise", "explained mostly", "perhaps explained"
UNEXPLAINED, OVER = "unexplained mostly", "over-explained"
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
    mechanism has no speed and is in no pair; nor is a compiled training, whose operators are not
    those that are counted.
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
    groups: dict[tuple, list[Row]] = {}
    for point in points:
        if has_parts(point):
            groups.setdefault(work(point), []).append(point)
    for group in groups.values():
        hosts: dict[tuple, list[Row]] = {}
        for point in group:
            hosts.setdefault((point["source"], point["host"]), []).append(point)
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
    plain = (baseline["trainer"], baseline["precision"]) == ("plain", "fp32")
    return FASTEST if plain else FASTEST_OF_ALL


def _alike(rows: Sequence[Row]) -> Iterator[Pair]:
    """Devices and backends under one workload, scenario and precision of a host."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["scenario"], row["precision"]), []).append(row)
    for group in groups.values():
        devices: dict[tuple, list[Row]] = {}
        for row in group:
            devices.setdefault(device_of(row), []).append(row)
        for of_device in devices.values():
            yield from (ordered(a, b, ALIKE) for a, b in combinations(of_device, 2))
        best = sorted((min(of_device, key=_step_s) for of_device in devices.values()), key=_step_s)
        yield from (ordered(best[0], other, ALIKE) for other in best[1:])


def _fastest(rows: Sequence[Row]) -> Iterator[Pair]:
    """A host's fastest undisturbed cell against other devices and backends in its precision."""
    fastest = min(rows, key=lambda row: (flagged(row, "contended"), _step_s(row)))
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


class Part(NamedTuple):
    """A part of a gap in seconds per step, with its range; None where nobody knows."""

    seconds: float | None
    low: float | None = None
    high: float | None = None

    def ends(self) -> tuple[float, float]:
        """The range, or the number twice."""
        assert self.seconds is not None
        low = self.seconds if self.low is None else self.low
        return low, self.seconds if self.high is None else self.high


def explained(fast: Cost, slow: Cost) -> Part:
    """What a cause explains: the difference of both sides' costs.

    Costs that rest on the same measurement are low together and high together, and equal ones
    differ by nothing; other costs are independent, and the range takes the worst of both.
    """
    if fast.seconds is None or slow.seconds is None:
        return Part(None)
    seconds = slow.seconds - fast.seconds
    if fast.rests_on is not None and fast.rests_on == slow.rests_on and seconds == 0.0:
        return Part(0.0)
    if fast.low is fast.high is slow.low is slow.high is None:
        return Part(seconds)
    (fast_low, fast_high), (slow_low, slow_high) = fast.ends(), slow.ends()
    ends = [slow_low - fast_high, slow_high - fast_low]
    if fast.rests_on is not None and fast.rests_on == slow.rests_on:
        ends = [slow_low - fast_low, slow_high - fast_high]
    return Part(seconds, min(*ends, seconds), max(*ends, seconds))


def difference(fast: Cost, slow: Cost) -> Part:
    """What a part of the step takes longer, with its 95 % interval: both sides' in quadrature."""
    assert fast.seconds is not None and slow.seconds is not None
    (fast_low, fast_high), (slow_low, slow_high) = fast.ends(), slow.ends()
    seconds = slow.seconds - fast.seconds
    return Part(
        seconds,
        seconds - math.hypot(slow.seconds - slow_low, fast_high - fast.seconds),
        seconds + math.hypot(slow_high - slow.seconds, fast.seconds - fast_low),
    )


def rows_of(index: int, pair: Pair, inputs: Measured) -> Iterator[Row]:
    """The lines of one pair."""
    gap, basis = _gap(pair, inputs.noise)
    assert gap.seconds is not None and gap.low is not None and gap.high is not None
    lines = [_line(GAP, GAP, gap, _step_s(pair.fast), _step_s(pair.slow), basis)]
    lines += _phases(pair, gap.seconds)
    explained_s, low, high, unmeasured = 0.0, 0.0, 0.0, []
    below, above = [gap.seconds - gap.low], [gap.high - gap.seconds]
    timed = by_operators(pair, inputs)
    costs = timed or attribution_costs.of_pair(pair.fast, pair.slow, inputs)
    for cause, (fast, slow) in costs.items():
        part = difference(fast, slow) if timed else explained(fast, slow)
        line = _line(CAUSE, cause, part, fast.seconds, slow.seconds, fast.how, slow.how)
        lines.append(line)
        if part.seconds is None:
            unmeasured.append(cause)
            line["reason"] = _reasons(pair, fast, slow)
            continue
        explained_s += part.seconds
        part_low, part_high = part.ends()
        low, high = low + part_low, high + part_high
        below.append(part_high - part.seconds)
        above.append(part.seconds - part_low)
    left_s = gap.seconds - explained_s
    unexplained = Part(left_s, gap.low - high, gap.high - low)
    if timed:
        unexplained = Part(left_s, left_s - math.hypot(*below), left_s + math.hypot(*above))
    left = _left_of_sides(pair, timed) if timed else None
    last_line = _line(LEFT, LEFT, unexplained, *(left or (None, None)))
    if unmeasured:
        last_line["reason"] = f"it includes what nobody measured: {', '.join(unmeasured)}"
    at_the_middle = Part(unexplained.seconds, gap.seconds - high, gap.seconds - low)
    found = verdict(gap, at_the_middle)
    if left and found != NO_GAP:
        rest = timed[FRAMEWORK]
        found = verdict_of_parts(gap, at_the_middle, difference(*rest), closes(pair, rest, left))
    last_line["verdict"] = lines[0]["verdict"] = found
    for line in [*lines, last_line]:
        named = {
            f"{side}_{axis}": row[axis]
            for side, row in zip(SIDES, (pair.fast, pair.slow), strict=True)
            for axis in (*KEY, "point")
        }
        share = (
            line["seconds"] / gap.seconds if line["seconds"] is not None and gap.seconds else None
        )
        yield {"pair": index, "rule": pair.rule} | named | line | {"share": share}


def by_operators(pair: Pair, inputs: Measured) -> dict[str, tuple[Cost, Cost]]:
    """Part of a step -> what either side spends on it; empty where operators were not timed in both."""
    fast, slow = (_costs_of_parts(row, inputs) for row in (pair.fast, pair.slow))
    if not fast or not slow:
        return {}
    none = {part: Cost(0.0, how=NOT_TOLD if part in (BLOCKED, WAITING) else "") for part in PARTS}
    return {
        part: (fast.get(part, none[part]), slow.get(part, none[part]))
        for part in PARTS
        if part in fast or part in slow
    }


def _costs_of_parts(row: Row, inputs: Measured) -> dict[str, Cost]:
    """Part of a side's step -> what it takes, its interval joined with the noise between processes.

    A noise floor is of whole steps: a part is taken to differ between processes in proportion.
    """
    reach = inputs.noise.reach(row, "unsplit_step")
    costs = {}
    for part, line in inputs.parts.get(point_key(row), {}).items():
        seconds = line["seconds"]
        between = reach * seconds
        low = seconds - math.hypot(seconds - line["low_s"], between)
        high = seconds + math.hypot(line["high_s"] - seconds, between)
        costs[part] = Cost(seconds, low, high, line["how"])
    return costs


def _left_of_sides(pair: Pair, costs: Mapping[str, tuple[Cost, Cost]]) -> tuple[float, float]:
    """What the parts leave of the faster side's step, and of the slower one's."""
    fast, slow = (
        sum(cost.seconds or 0.0 for cost in side) for side in zip(*costs.values(), strict=True)
    )
    return _step_s(pair.fast) - fast, _step_s(pair.slow) - slow


def closes(pair: Pair, rest: tuple[Cost, Cost], left: tuple[float, float]) -> bool:
    """Whether the parts of either side add up to its step, `CLOSED_WITHIN` of it apart.

    Args:
        rest: the framework's part, which is what a phase lasts beyond its operators: where it is
            less than nothing, the operators took longer when they were watched than else.
        left: what the parts leave of either step.
    """
    return all(
        abs(seconds) + max(-(cost.seconds or 0.0), 0.0) <= CLOSED_WITHIN * _step_s(row)
        for row, seconds, cost in zip((pair.fast, pair.slow), left, rest, strict=True)
    )


def _line(
    kind: str,
    part: str,
    value: Part,
    fast_s: float | None = None,
    slow_s: float | None = None,
    fast_how: str | None = None,
    slow_how: str | None = None,
) -> Row:
    return {
        "kind": kind,
        "part": part,
        "seconds": value.seconds,
        "low_s": value.low,
        "high_s": value.high,
        "share": None,
        "fast_s": fast_s,
        "slow_s": slow_s,
        "fast_how": fast_how or None,
        "slow_how": slow_how or None,
        "reason": None,
        "verdict": None,
    }


def _gap(pair: Pair, noise: Noise) -> tuple[Part, str]:
    """The difference of both unsplit steps with what both 95 % intervals allow, and their basis.

    The ends are the worst of both intervals, as in every ratio of the page: wider than a 95 %
    interval of the difference.
    """
    ends, bases = [], []
    for row in (pair.fast, pair.slow):
        middle = _step_s(row)
        low, high, basis = noise.interval(row, "unsplit_step") or (middle, middle, None)
        ends.append((low, high))
        bases.append(basis or "the interval within its own process")
    (fast_low, fast_high), (slow_low, slow_high) = ends
    seconds = _step_s(pair.slow) - _step_s(pair.fast)
    return Part(seconds, slow_low - fast_high, slow_high - fast_low), "; ".join(
        dict.fromkeys(bases)
    )


def _phases(pair: Pair, gap_s: float) -> Iterator[Row]:
    """The gap by phase; the rest is what is left, so that the phases sum to the gap exactly."""
    rest_s = gap_s
    for phase in PHASES:
        fast_s, slow_s = (row.get(f"{phase}_median_s") for row in (pair.fast, pair.slow))
        if fast_s is None or slow_s is None:
            line = _line(PHASE, phase, Part(None), fast_s, slow_s)
            yield line | {"reason": "not timed apart on both sides; it is in the rest"}
            continue
        rest_s -= slow_s - fast_s
        yield _line(PHASE, phase, Part(slow_s - fast_s), fast_s, slow_s)
    parts = []
    for name in BESIDES:
        fast_s, slow_s = (row.get(f"{name}_median_s") or 0.0 for row in (pair.fast, pair.slow))
        if slow_s != fast_s:
            parts.append(f"{name} {1e3 * (slow_s - fast_s):+.3g} ms")
    how = f"of it {', '.join(parts)}, and what splitting a step changes" if parts else None
    yield _line(PHASE, REST, Part(rest_s), fast_how=how)


def _reasons(pair: Pair, fast: Cost, slow: Cost) -> str:
    """Why a cause is empty, by side where they differ."""
    if fast.reason == slow.reason:
        return fast.reason
    sides = ((pair.fast, fast), (pair.slow, slow))
    return "; ".join(
        f"{row['backend']} on {row['device']}, {row['precision']}: {cost.reason}"
        for row, cost in sides
        if cost.reason
    )


def verdict(gap: Part, unexplained: Part) -> str:
    """How much of a gap the causes explain, in two words.

    A gap is explained, or over-explained, only where the whole range of the estimates says so.

    Args:
        unexplained: what the causes leave of the gap's middle, with their ranges.
    """
    assert gap.seconds is not None and gap.low is not None
    assert unexplained.seconds is not None and unexplained.high is not None
    if gap.low <= 0:
        return NO_GAP
    if unexplained.high < 0:
        return OVER
    if unexplained.seconds > MOSTLY * gap.seconds:
        return UNEXPLAINED
    return EXPLAINED if unexplained.high <= MOSTLY * gap.seconds else PERHAPS


def verdict_of_parts(gap: Part, unexplained: Part, rest: Part, closed: bool) -> str:
    """The same of a gap beyond noise whose causes are the parts of both steps, as they were timed.

    The framework's part explains nothing, as it is what the others leave: where it takes that, the gap
    is perhaps explained.

    Args:
        rest: the framework's part of the gap.
        closed: whether the parts of either side add up to its step, see `closes`.
    """
    assert gap.seconds is not None and unexplained.seconds is not None
    assert rest.seconds is not None
    if abs(unexplained.seconds) > MOSTLY * gap.seconds:
        return UNEXPLAINED if unexplained.seconds > 0 else OVER
    by_the_others = abs(unexplained.seconds + rest.seconds) <= MOSTLY * gap.seconds
    return EXPLAINED if closed and by_the_others else PERHAPS


def read(results: Results, floors: Iterable[Path]) -> tuple[list[Row], Measured]:
    """(points of cells that are ok, what was measured beside them).

    Args:
        floors: files of noise floors, of any hosts.
    """
    cells, lines, probes = map(results.rows, ("cells", "ceilings", "probes"))
    noise = Noise({floor.host: floor for floor in map(noise_floors.read, floors)})
    points = table_files.rows(results.of_ok_cells())
    limits, parts = Limits.of(lines, cells), step_parts.by_point(results.step_parts)
    return points, Measured.of(points, lines, probes, cells, limits, noise, parts)


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: the table."""
    points, inputs = read(results, arguments.noise_floors)
    rows = [
        line for index, pair in enumerate(pairs(points)) for line in rows_of(index, pair, inputs)
    ]
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    table_files.write(arguments.output_dir / "attribution.csv", rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(
        prog="siliconprof.analyse.attribution",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", type=Path, required=True, help="of aggregate and of ceilings")
    parser.add_argument("--noise-floors", type=Path, nargs="*", default=[], help="of any hosts")
    parser.add_argument("--output-dir", type=Path, required=True)
    left_out.guarded("attribution", write, parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
