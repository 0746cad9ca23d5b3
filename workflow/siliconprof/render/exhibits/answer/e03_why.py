"""Why: the gaps that the first table names the causes of, then the most telling others, at most four.

By phase and by cause; the table of all gaps has the intervals.
"""

import pandas as pd

from siliconprof import words
from siliconprof.analyse import answer
from siliconprof.analyse.attribution import CAUSE, GAP, LEFT, PHASE, PHASES, REST
from siliconprof.analyse.frames import CELL, Frames
from siliconprof.analyse.operator_rows import PARTS
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import Exhibit

MOST_PAIRS = 4
BAR_OF = {PHASE: "by phase", CAUSE: "by cause", LEFT: "by cause"}
NAMES = {part: words.PART_WORDS.get(part, part) for part in (*PHASES, REST, *PARTS, LEFT)}


def rows(frames: Frames) -> pd.DataFrame:
    gaps = frames.gaps
    pairs = gaps[gaps["kind"].eq(GAP) & ~gaps["is_noise"]]
    answers = answer.fastest(frames)["cause_pair"].dropna()
    pairs = pairs.assign(
        is_other=~pairs["pair"].isin(answers),
        place=pairs.groupby("work_label").cumcount().mask(pairs["pair"].isin(answers), 0),
        title=pairs["work_label"].str.replace(":.*", "", regex=True)
        + (": " + pairs["slow_name"] + " against " + pairs["fast_name"]),
        gap=1e3 * pairs["seconds"],
        gap_low=1e3 * pairs["low_s"],
        gap_high=1e3 * pairs["high_s"],
    )
    by = ["is_other", "place", "family_order"]
    pairs = pairs.sort_values(by, ascending=[True, True, False], kind="stable").head(MOST_PAIRS)
    parts = gaps[gaps["pair"].isin(pairs["pair"]) & gaps["kind"].isin(BAR_OF)]
    # Of a step whose operators were not timed nothing is explained, which is no part of its gap.
    timed = parts.loc[parts["kind"] == CAUSE, "pair"]
    parts = parts[parts["kind"].eq(PHASE) | parts["pair"].isin(timed)]
    parts = parts.assign(bar=parts["kind"].map(BAR_OF), ms=1e3 * parts["seconds"])
    bars = parts.pivot_table("ms", ["pair", "bar"], "part", "first").reset_index()
    named = ["pair", "title", "gap", "gap_low", "gap_high", "disturbed", *CELL]
    return pairs[named].merge(bars.sort_values("bar", ascending=False), on="pair")


EXHIBIT = Exhibit(
    id="why",
    rows=rows,
    figure=StackedBars(
        panel="title",
        row="bar",
        parts=NAMES,
        x="ms a step that the slower setup takes longer",
        by_backend=(*PHASES, REST),
        dot=("gap", "the whole gap"),
    ),
    needs="It needs two trainings of equal work on different backends, devices or precisions.",
)
