"""Compares two result sets: the ratio of every point, its error, and its verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from siliconprof.analyse import other_methods
from siliconprof.compare import matching
from siliconprof.compare.matching import Figures, Unmatched
from siliconprof.compare.result_sets import Measured, ResultSet
from siliconprof.errors import UserError
from siliconprof.stats import inference
from siliconprof.stats.inference import AMBIGUOUS, FASTER, LEAST_PROCESSES, SAME, SLOWER
from siliconprof.store.noise_floors import Floor

NOTHING_SLOWER, SOMETHING_SLOWER, NOTHING_DECIDED = 0, 1, 3


@dataclass(frozen=True)
class Row:
    """One point of one cell in one metric."""

    cell_a: str
    cell_b: str
    point: str  # parameters as canonical JSON
    metric: str
    figures_a: Sequence[float]  # one per process
    figures_b: Sequence[float]
    ratio: float | None  # B over A
    low: float | None
    high: float | None
    p_value: float | None  # adjusted by Holm's method
    verdict: str
    reason: str
    notes: Sequence[str]


# -- one point ---------------------------------------------------------------------------------


def estimate(
    a: Figures,
    b: Figures,
    one_machine: bool,
    floors: Sequence[tuple[inference.Estimate, str] | None],
) -> tuple[inference.Estimate | None, str]:
    """(the ratio b / a with its error, or None; the ratio's basis, or why there is none).

    Args:
        floors: the noise floor of each side's host for this point, with its basis.
    """
    if any(value <= 0 for _, value in [*a, *b]):
        return None, "a figure is 0: too short for the clock"
    sides = [[math.log(value) for _, value in side] for side in (a, b)]
    counts = f"{len(a)} and {len(b)} processes"
    if one_machine:
        pairs = inference.neighbours(a, b)
        if len(pairs) >= LEAST_PROCESSES:
            location = inference.location([math.log(two / one) for one, two in pairs])
            basis = f"{len(pairs)} pairs of processes measured in turn"
            return replace(location, basis=basis), basis
        if floors[0] is None:
            return None, f"{counts}, {_remedy(a, b)}"
        return _by_floor(sides, floors[0], counts)
    means = []
    bases = []
    for name, logs, floor in zip("AB", sides, floors, strict=True):
        if len(logs) >= LEAST_PROCESSES:
            means.append(inference.location(logs))
            bases.append(f"{len(logs)} processes of {name}")
        elif floor is not None:
            means.append(replace(floor[0], log=math.fsum(logs) / len(logs)))
            bases.append(f"{name}: {floor[1]}")
        else:
            return None, (
                f"{counts}: {name} needs at least {LEAST_PROCESSES}, or its host's noise floor "
                "(`siliconprof noise-floor` there)"
            )
    basis = "; ".join(bases)
    return inference.difference(means[0], means[1], basis), basis


def _by_floor(
    sides: Sequence[Sequence[float]], floor: tuple[inference.Estimate, str], counts: str
) -> tuple[inference.Estimate, str]:
    """A ratio on one host, with the error that its A/A runs show.

    A side of any number of processes has the error of one process, since the processes of one
    session share the state of the host.
    """
    deviation, basis = floor
    means = [math.fsum(logs) / len(logs) for logs in sides]
    basis = f"{counts}; {basis}"
    error = math.sqrt(2) * deviation.error
    return inference.Estimate(means[1] - means[0], error, deviation.df, basis), basis


def _remedy(a: Figures, b: Figures) -> str:
    """How to get a verdict on figures of one host."""
    remedy = "`siliconprof replicate --against`, or `siliconprof noise-floor` for this host"
    if min(len(a), len(b)) >= LEAST_PROCESSES:
        return f"but one side after the other, so the ratio includes the host's drift: {remedy}"
    return f"and a verdict needs {LEAST_PROCESSES} a side, measured in turn: {remedy}"


def _plain_ratio(a: Figures, b: Figures) -> float | None:
    """The ratio of geometric means, where it has no error."""
    if any(value <= 0 for _, value in [*a, *b]):
        return None
    means = [math.fsum(math.log(value) for _, value in side) / len(side) for side in (a, b)]
    return math.exp(means[1] - means[0])


def _no_verdict_reason(a: Measured, b: Measured) -> str | None:
    """Why no point of two cells may have a verdict; None where they may."""
    methods = [side.newest["method_version"] for side in (a, b)]
    if methods[0] != methods[1]:
        return f"methods {methods[0]} and {methods[1]} measure in different ways"
    if {data["sha256"] for data in a.processes} & {data["sha256"] for data in b.processes}:
        return "the same record is on both sides"
    return None


# -- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Two result sets compared."""

    a: ResultSet
    b: ResultSet
    threshold: float
    rows: Sequence[Row]
    unmatched: Sequence[Unmatched]

    @property
    def counts(self) -> dict[str, int]:
        """Points by verdict."""
        verdicts = [row.verdict for row in self.rows]
        return {word: verdicts.count(word) for word in (SLOWER, FASTER, SAME, AMBIGUOUS)}

    @property
    def exit_status(self) -> int:
        """See `siliconprof.compare.compare`."""
        if self.counts[SLOWER] or any(entry.broken for entry in self.unmatched):
            return SOMETHING_SLOWER
        return NOTHING_DECIDED if self.counts[AMBIGUOUS] == len(self.rows) else NOTHING_SLOWER

    def document(self) -> dict[str, Any]:
        """The comparison as a JSON document."""
        return {
            "a": self.a.describe(),
            "b": self.b.describe(),
            "threshold": self.threshold,
            "confidence": inference.CONFIDENCE,
            "family_error": inference.FAMILY_ERROR,
            "points": [asdict(row) | {"point": json.loads(row.point)} for row in self.rows],
            "unmatched": [asdict(entry) for entry in self.unmatched],
            "left_out": [*self.a.left_out, *self.b.left_out],
            "counts": self.counts,
            "exit_status": self.exit_status,
        }


def compare(
    a: ResultSet, b: ResultSet, threshold: float, floors: Mapping[str, Floor], memory: bool = False
) -> Comparison:
    """Compare two result sets.

    Args:
        floors: host -> its noise floor.
        threshold: the smallest change that counts, as a share of 1.
        memory: whether the peak of memory is compared too.

    Raises:
        UserError: they have nothing in common.
    """
    pairs, unmatched = matching.cells(a, b)
    rows: list[Row] = []
    estimates: list[inference.Estimate | None] = []
    for left, right in pairs:
        veto, notes = _no_verdict_reason(left, right), matching.notes(left, right)
        shared_points, missing = matching.points(left, right, memory)
        unmatched += missing
        for point, metric, figures_a, figures_b in shared_points:
            noise = [
                floor.deviation(side.cell, point, metric)
                if floor and other_methods.is_todays(side.newest)
                else None
                for side in (left, right)
                for floor in [floors.get(side.cell["host"])]
            ]
            result, reason = estimate(figures_a, figures_b, left.machine == right.machine, noise)
            if veto:
                result, reason = None, veto
            low, high = result.interval() if result else (None, None)
            estimates.append(result)
            rows.append(
                Row(
                    left.path,
                    right.path,
                    point,
                    metric,
                    [value for _, value in figures_a],
                    [value for _, value in figures_b],
                    result.ratio if result else _plain_ratio(figures_a, figures_b),
                    low,
                    high,
                    None,
                    AMBIGUOUS,
                    reason,
                    notes,
                )
            )
    if not rows and not any(entry.broken for entry in unmatched):
        lines = [f"  {entry.side}: {entry.path}: {entry.reason}" for entry in unmatched[:10]]
        raise UserError("\n".join([f"{a.source} and {b.source} have no point in common", *lines]))
    return Comparison(a, b, threshold, _with_verdicts(rows, estimates, threshold), unmatched)


def _with_verdicts(
    rows: Sequence[Row], estimates: Sequence[inference.Estimate | None], threshold: float
) -> list[Row]:
    """The rows with their verdicts, whose p-values are adjusted for the number of rows."""
    with_error = [estimate for estimate in estimates if estimate is not None]
    adjusted = iter(inference.holm([estimate.p_value() for estimate in with_error]))
    judged = []
    for row, estimate in zip(rows, estimates, strict=True):
        if estimate is None:
            judged.append(row)
            continue
        p_value = next(adjusted)
        verdict, why = inference.verdict(estimate, p_value, len(with_error), threshold)
        judged.append(replace(row, p_value=p_value, verdict=verdict, reason=why))
    return judged
