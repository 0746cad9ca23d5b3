"""The gap of every pair of trainings of equal work: what each part of a step explains of it."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, GAP, LEFT
from siliconprof.analyse.equal_work import NO_GAP
from siliconprof.analyse.frames import Frames
from siliconprof.analyse.operator_rows import PARTS
from siliconprof.render.exhibit import Column, Exhibit, Num, Text


def rows(frames: Frames) -> pd.DataFrame:
    gaps = frames.gaps
    pairs = gaps[gaps["kind"] == GAP].set_index("pair")
    left = gaps[gaps["kind"] == LEFT].set_index("pair")
    n = frames.points["whole_step_ms_n"]
    frame = pairs.assign(
        gap_n=pd.concat([pairs["fast"].map(n), pairs["slow"].map(n)], axis=1).min(axis=1),
        remark=pairs["disturbed"].map({True: "disturbed", False: ""}),
        ratio=pairs["slow_s"] / pairs["fast_s"],
        explained=(1 - left["share"]).mask(pairs["is_noise"]),
        explained_why=left["reason"].mask(pairs["is_noise"], NO_GAP),
        why_not=left["reason"].fillna("neither side has any"),
    )
    parts = gaps[gaps["kind"].isin([GAP, CAUSE, LEFT])]
    for end, name in (("", "seconds"), ("_low", "low_s"), ("_high", "high_s")):
        wide = 1e3 * parts.pivot(index="pair", columns="part", values=name)
        frame = frame.join(wide.add_suffix(end))
    return frame.reset_index()


def table(frame: pd.DataFrame) -> list[Column]:
    """A column for each part that any pair has."""
    return [
        Text("work_label", "Training", folds=True, prose=True),
        Text("slow_name", "Slower", below="rule", badge="remark", prose=True),
        Text("fast_name", "Faster", prose=True),
        Num(GAP, "Gap", "ms a step"),
        Num("ratio", "Ratio", "slower / faster"),
        Num("explained", "Explained", "of the gap", percent=True),
        Num(LEFT, "Unexplained", "ms", help="gap − sum of its parts; negative: over-explained"),
        *(
            Num(part, words.PART_WORDS.get(part, part).capitalize(), "ms")
            for part in PARTS
            if part in frame
        ),
    ]


EXHIBIT = Exhibit(
    id="gaps",
    rows=rows,
    table=table,
    folded="All gaps",
    needs="It needs two trainings of equal work on different backends, devices or precisions.",
)
