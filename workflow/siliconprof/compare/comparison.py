"""Compares two result sets: the ratio of every point, its error, and its verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.analyse.throughputs import NOISE_ASSUMED
from siliconprof.compare import matching
from siliconprof.compare.matching import Unmatched
from siliconprof.compare.result_sets import Figures, Measured, ResultSet
from siliconprof.errors import UserError
from siliconprof.stats import inference
from siliconprof.stats.inference import AMBIGUOUS, FASTER, LEAST_PROCESSES, SAME, SLOWER
from siliconprof.store.noise_floors import Floor

NOTHING_SLOWER, SOMETHING_SLOWER, NOTHING_DECIDED = 0, 1, 3
PROBABLY_SLOWER, PROBABLY_FASTER = f"probably {SLOWER}", f"probably {FASTER}"
DECIDED = (SLOWER, FASTER, SAME)
VERDICTS = (*DECIDED, PROBABLY_SLOWER, PROBABLY_FASTER, AMBIGUOUS)
ASSUMED = f"the {NOISE_ASSUMED:.0%} by which processes are assumed to differ"


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

    @property
    def text(self) -> str:
        """`probably slower, 1.32 ×, single runs`: the verdict, and by how much."""
        text = worded(self.verdict, self.ratio)
        if self.verdict in (*DECIDED, AMBIGUOUS):
            return text
        single = len(self.figures_a) == len(self.figures_b) == 1
        return f"{text}, {'single runs' if single else 'few processes'}"


def worded(verdict: str, ratio: float | None) -> str:
    """`probably slower, 1.32 ×`."""
    if not ratio or verdict in (SAME, AMBIGUOUS):
        return verdict
    return f"{verdict}, {max(ratio, 1 / ratio):.3g} ×"


# -- one point ---------------------------------------------------------------------------------


def estimate(
    a: Figures,
    b: Figures,
    one_machine: bool,
    floors: Sequence[tuple[inference.Estimate, str] | None],
) -> tuple[inference.Estimate | None, str]:
    """(the ratio b / a with its error, or None; the ratio's basis, or why there is none).

    A side that has the error of its host's A/A runs has that of one process, however many it is:
    the processes of one session share the state of the host.

    Args:
        floors: the noise floor of each side's host for this point, with its basis.
    """
    if any(value <= 0 for _, value in [*a, *b]):
        return None, "a figure is 0: too short for the clock"
    counts = f"{len(a)} and {len(b)} processes"
    pairs = inference.neighbours(a, b) if one_machine else []
    if len(pairs) >= LEAST_PROCESSES:
        location = inference.location([math.log(two / one) for one, two in pairs])
        basis = f"{len(pairs)} pairs of processes measured in turn"
        return replace(location, basis=basis), basis
    means, bases = [], []
    for name, side, floor in zip("AB", (a, b), floors, strict=True):
        logs = [math.log(value) for _, value in side]
        if len(logs) >= LEAST_PROCESSES and not one_machine:
            means.append(inference.location(logs))
            bases.append(f"{len(logs)} processes of {name}")
        elif floor is not None:
            means.append(replace(floor[0], log=math.fsum(logs) / len(logs)))
            bases.append(floor[1] if one_machine else f"{name}: {floor[1]}")
        elif one_machine:
            return None, f"{counts}, {_remedy(a, b)}"
        else:
            return None, (
                f"{counts}: {name} needs at least {LEAST_PROCESSES}, or its host's noise floor "
                "(`siliconprof noise-floor` there)"
            )
    basis = "; ".join(dict.fromkeys(bases))
    ratio = inference.difference(means[0], means[1], basis)
    if one_machine:  # both errors are of the same processes
        basis = f"{counts}; {basis}"
        ratio = replace(ratio, df=min(mean.df for mean in means), basis=basis)
    return ratio, basis


def _remedy(a: Figures, b: Figures) -> str:
    """How to get a verdict on figures of one host."""
    remedy = "`siliconprof replicate --against`, or `siliconprof noise-floor` for this host"
    if min(len(a), len(b)) >= LEAST_PROCESSES:
        return f"but one side after the other, so the ratio includes the host's drift: {remedy}"
    return f"and a verdict needs {LEAST_PROCESSES} a side, measured in turn: {remedy}"


def without_error(ratio: float | None, reason: str, disturbed: bool) -> tuple[str, str]:
    """(verdict, why) of a ratio without an error: at most a probable one.

    Args:
        reason: why it has no error.
        disturbed: whether other processes used the processor while a side was measured.
    """
    if ratio is None:
        return AMBIGUOUS, reason
    if disturbed:
        return AMBIGUOUS, f"other processes disturbed it; {reason}"
    if 1 / (1 + NOISE_ASSUMED) <= ratio <= 1 + NOISE_ASSUMED:
        return AMBIGUOUS, f"within {ASSUMED}; {reason}"
    return (PROBABLY_SLOWER if ratio > 1 else PROBABLY_FASTER), f"beyond {ASSUMED}; {reason}"


def _no_verdict_reason(a: Measured, b: Measured) -> str | None:
    """Why no point of two cells may have a verdict; None where they may."""
    if {data.sha256 for data in a.processes} & {data.sha256 for data in b.processes}:
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
        return {word: verdicts.count(word) for word in VERDICTS}

    @property
    def exit_status(self) -> int:
        """See `siliconprof.compare.compare`."""
        if self.counts[SLOWER] or any(entry.broken for entry in self.unmatched):
            return SOMETHING_SLOWER
        decided = any(self.counts[word] for word in DECIDED)
        return NOTHING_SLOWER if decided else NOTHING_DECIDED

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
    a: ResultSet,
    b: ResultSet,
    threshold: float,
    floors: Sequence[Mapping[str, Floor]],
    memory: bool = False,
    across_devices: bool = False,
) -> Comparison:
    """Compare two result sets.

    Args:
        floors: host -> its noise floor, as the folders of A and of B have them. Another machine of
            the same label has its own folder's.
        threshold: the smallest change that counts, as a share of 1.
        memory: whether the peak of memory is compared too.
        across_devices: whether cells of different devices are compared, see `matching.across`.

    Raises:
        UserError: they have nothing in common.
    """
    pairs, unmatched = (matching.across if across_devices else matching.cells)(a, b)
    rows: list[Row] = []
    estimates: list[inference.Estimate | None] = []
    for left, right in pairs:
        veto, notes = _no_verdict_reason(left, right), matching.notes(left, right)
        disturbed = any(side.flags(DISTURBED) for side in (left, right))
        namesakes = left.cell.host == right.cell.host and left.machine != right.machine
        floors_of_sides = floors if namesakes else [{**floors[1], **floors[0]}] * 2
        shared_points, missing = matching.points(left, right, memory)
        unmatched += missing
        for names, metric, figures_a, figures_b in shared_points:
            noise = [
                floor.deviation(vars(side.cell), name, metric) if floor else None
                for side, name, of_side in zip((left, right), names, floors_of_sides, strict=True)
                for floor in [of_side.get(side.cell.host)]
            ]
            values_a, values_b = ([value for _, value in side] for side in (figures_a, figures_b))
            mean_a, mean_b = map(inference.geometric_mean, (values_a, values_b))
            ratio, low, high = mean_b / mean_a if mean_a and mean_b else None, None, None
            result, reason = estimate(figures_a, figures_b, left.machine == right.machine, noise)
            verdict = AMBIGUOUS
            if veto:
                result, reason = None, veto
            elif result:
                ratio, (low, high) = result.ratio, result.interval()
            elif metric.endswith("_s"):
                verdict, reason = without_error(ratio, reason, disturbed)
            estimates.append(result)
            rows.append(
                Row(
                    *(left.path, right.path, names[0], metric),
                    values_a,
                    values_b,
                    *(ratio, low, high, None),
                    verdict,
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
