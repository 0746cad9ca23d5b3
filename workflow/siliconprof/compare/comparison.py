"""Two result sets compared: which ratio every point has, with what error, and what follows."""

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
    figures_a: Sequence[float]  # one a process
    figures_b: Sequence[float]
    ratio: float | None  # B over A
    low: float | None
    high: float | None
    p_value: float | None  # after Holm
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
        floors: of either side's host, for this point.
    """
    if any(value <= 0 for _, value in [*a, *b]):
        return None, "a figure is 0: too short for the clock"
    sides = [[math.log(value) for _, value in side] for side in (a, b)]
    counts = f"{len(a)} and {len(b)} processes"
    if one_machine:
        pairs = inference.neighbours(a, b)
        if len(pairs) >= LEAST_PROCESSES:
            found = inference.location([math.log(two / one) for one, two in pairs])
            basis = f"{len(pairs)} pairs of processes measured in turn"
            return replace(found, basis=basis), basis
        if floors[0] is None:
            return None, f"{counts}, {_lacking(a, b)}"
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
    """A ratio on one host by what its A/A runs show.

    However many processes a side has, it is taken to be as uncertain as one of them: those of one
    session share what the host was like meanwhile.
    """
    deviation, basis = floor
    means = [math.fsum(logs) / len(logs) for logs in sides]
    basis = f"{counts}; {basis}"
    error = math.sqrt(2) * deviation.error
    return inference.Estimate(means[1] - means[0], error, deviation.df, basis), basis


def _lacking(a: Figures, b: Figures) -> str:
    """What would make a verdict of figures of one host."""
    remedy = "`siliconprof replicate --against`, or `siliconprof noise-floor` for this host"
    if min(len(a), len(b)) >= LEAST_PROCESSES:
        return f"but one side after the other, so the host's drift is in the ratio: {remedy}"
    return f"and a verdict needs {LEAST_PROCESSES} a side, measured in turn: {remedy}"


def _plain_ratio(a: Figures, b: Figures) -> float | None:
    """The ratio of geometric means, where it has no error."""
    if any(value <= 0 for _, value in [*a, *b]):
        return None
    means = [math.fsum(math.log(value) for _, value in side) / len(side) for side in (a, b)]
    return math.exp(means[1] - means[0])


def _veto(a: Measured, b: Measured) -> str | None:
    """Why no verdict may be given on any point of two cells."""
    methods = [side.newest["method_version"] for side in (a, b)]
    if methods[0] != methods[1]:
        return f"numbers of method {methods[0]} and {methods[1]} are made in different ways"
    if {data["sha256"] for data in a.processes} & {data["sha256"] for data in b.processes}:
        return "the very same record on both sides"
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
        """For a program."""
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
        memory: whether the memory's peak is compared as well.

    Raises:
        UserError: they have nothing in common.
    """
    pairs, unmatched = matching.cells(a, b)
    open_rows: list[Row] = []
    estimates: list[inference.Estimate | None] = []
    for left, right in pairs:
        veto, notes = _veto(left, right), matching.notes(left, right)
        found, lacking = matching.points(left, right, memory)
        unmatched += lacking
        for point, metric, ours, theirs in found:
            known = [
                floor.deviation(side.cell, point, metric)
                if floor and other_methods.is_todays(side.newest)
                else None
                for side in (left, right)
                for floor in [floors.get(side.cell["host"])]
            ]
            result, why = estimate(ours, theirs, left.machine == right.machine, known)
            if veto:
                result, why = None, veto
            low, high = result.interval() if result else (None, None)
            estimates.append(result)
            open_rows.append(
                Row(
                    left.path,
                    right.path,
                    point,
                    metric,
                    [value for _, value in ours],
                    [value for _, value in theirs],
                    result.ratio if result else _plain_ratio(ours, theirs),
                    low,
                    high,
                    None,
                    AMBIGUOUS,
                    why,
                    notes,
                )
            )
    if not open_rows and not any(entry.broken for entry in unmatched):
        lines = [f"  {entry.side}: {entry.path}: {entry.reason}" for entry in unmatched[:10]]
        raise UserError("\n".join([f"{a.source} and {b.source} have no point in common", *lines]))
    return Comparison(a, b, threshold, _judged(open_rows, estimates, threshold), unmatched)


def _judged(
    rows: Sequence[Row], estimates: Sequence[inference.Estimate | None], threshold: float
) -> list[Row]:
    """The rows with their verdicts, each in view of how many there are."""
    known = [found for found in estimates if found is not None]
    adjusted = iter(inference.holm([found.p_value() for found in known]))
    judged = []
    for row, found in zip(rows, estimates, strict=True):
        if found is None:
            judged.append(row)
            continue
        p_value = next(adjusted)
        verdict, why = inference.verdict(found, p_value, len(known), threshold)
        judged.append(replace(row, p_value=p_value, verdict=verdict, reason=why))
    return judged
