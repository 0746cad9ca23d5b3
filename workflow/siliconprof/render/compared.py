"""What the page compares by itself when two devices, backends, precisions or trainers are picked.

Every training's step and speed once, and what each explained gap consists of; the page's script
makes the pairs.
"""

from __future__ import annotations

from typing import Any

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, NO_GAP, PHASE
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.render import marks, why_gaps
from siliconprof.render.compare import Step, steps
from siliconprof.render.data import Data
from siliconprof.render.variants import CIRCUMSTANCES, WORK, Family, flagged, variant

# What the two sides of a pair may differ in; the script holds it equal but for what is picked.
PICKED = ("host", "device", "backend", "trainer", "precision", "threads")
EQUAL = tuple(name for name in dict.fromkeys((*WORK, *CIRCUMSTANCES)) if name not in PICKED)
DIGITS = 9  # of a number, so that three of them are rounded as in the tables


def listed(data: Data, facets: marks.Facets) -> dict[str, list[Any]]:
    """Trainings and gaps as the page's script takes them.

    Args:
        facets: numbers the cells of trainings as those of marks and rows.

    Returns:
        `trainings`: of each its cell's number (`of`), a number that is equal for equal work
        (`work`), names, the step in s as median and ends of its interval, and both speeds in 1/s.
        `gaps`: indices of the slower and the faster training, and what the slower one takes longer
        for, in s: parts of the step, or phases where operators were not timed.
    """
    works: dict[tuple, int] = {}
    places: dict[int, int] = {}  # id of a point -> index of its training
    trainings: list[dict[str, Any]] = []
    for family, timed in steps(data).items():
        for step in timed:
            places[id(step.row)] = len(trainings)
            work = works.setdefault(tuple(map(step.row.get, EQUAL)), len(works))
            trainings.append(_training(step, family, work, facets))
    gaps = [
        {
            "of": [places[id(row)] for row in gap.of],
            "phases": not gap.timed,
            "parts": [
                [why_gaps.NAMES.get(line["part"], line["part"]), _short(line["seconds"])]
                for line in ([*gap.parts(CAUSE), gap.left] if gap.timed else gap.parts(PHASE))
                if line["seconds"]
            ],
        }
        for gap in why_gaps.read(data)
        if gap.verdict != NO_GAP and all(id(row) in places for row in gap.of)
    ]
    return {"trainings": trainings, "gaps": gaps}


def _training(step: Step, family: Family, work: int, facets: marks.Facets) -> dict[str, Any]:
    row = step.row
    name, _, size = family.label.partition(": ")
    rates = [words.number(row.get(name)) for name in ("samples_per_s", "tokens_per_s")]
    return {
        "of": int(facets.of(marks.cells(row))),
        "work": work,
        "name": name,
        "size": ", ".join(filter(None, [size, *variant(row)])),
        "host": row["host"],
        "threads": row.get("threads"),
        "step": [_short(end) for end in (step.middle, step.low, step.high)],
        "rates": [_short(rate) if rate else None for rate in rates],
        "disturbed": flagged(row, DISTURBED),
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
