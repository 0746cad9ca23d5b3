"""What the page compares by itself when two devices, backends, precisions or trainers are picked.

Every training's step and speed once, and what each explained gap consists of; the page's script
makes the pairs.
"""

from __future__ import annotations

from typing import Any

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, LEFT, PHASE
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import CIRCUMSTANCES, Frames, records
from siliconprof.render.svg import Cells

# What the two sides of a pair may differ in; the script holds it equal but for what is picked.
PICKED = ("host", "device", "backend", "trainer", "precision", "threads")
DIGITS = 9  # of a number, so that three of them are rounded as in the tables


def listed(frames: Frames, cells: Cells) -> dict[str, list[Any]]:
    """Trainings and gaps as the page's script takes them.

    Returns:
        `trainings`: of each its cell's number (`of`), a number that is equal for equal work
        (`work`), names, the step in s as median and ends of its interval, and both speeds in 1/s.
        `gaps`: indices of the slower and the faster training, and what the slower one takes longer
        for, in s: parts of the step, or phases where operators were not timed.
    """
    steps = frames.steps.sort_values("family_order", ascending=False, kind="stable")
    equal = [name for name in dict.fromkeys((*WORK, *CIRCUMSTANCES)) if name not in PICKED]
    works = steps.groupby(equal, dropna=False, sort=False).ngroup()
    places = {index: place for place, index in enumerate(steps.index)}
    trainings = [
        _training(row, int(work), cells) for row, work in zip(records(steps), works, strict=True)
    ]
    gaps = []
    for _, lines in frames.gaps[~frames.gaps["is_noise"]].groupby("pair", sort=False):
        sides = [lines[side].iloc[0] for side in ("slow", "fast")]
        is_timed = lines["kind"].eq(CAUSE).any()
        parts = lines[lines["kind"].isin([CAUSE, LEFT] if is_timed else [PHASE])]
        parts = parts[parts["seconds"].fillna(0) != 0]
        if all(side in places for side in sides):
            named = zip(parts["part"].replace(words.PART_WORDS), parts["seconds"], strict=True)
            gaps.append(
                {
                    "of": [places[side] for side in sides],
                    "phases": not is_timed,
                    "parts": [[name, _short(seconds)] for name, seconds in named],
                }
            )
    return {"trainings": trainings, "gaps": gaps}


def _training(row: dict[str, Any], work: int, cells: Cells) -> dict[str, Any]:
    name, _, size = row["work_label"].partition(": ")
    rates = [words.number(row.get(name)) for name in ("samples_per_s", "tokens_per_s")]
    return {
        "of": int(cells.of(row)),
        "work": work,
        "name": name,
        "size": ", ".join(filter(None, [size, row["variant"]])),
        "host": row["host"],
        "threads": words.number(row.get("threads")),
        "step": [_short(row[f"unsplit_step_ms{end}"] / 1e3) for end in ("", "_low", "_high")],
        "rates": [_short(rate) if rate else None for rate in rates],
        "disturbed": bool(row["disturbed"]),
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
