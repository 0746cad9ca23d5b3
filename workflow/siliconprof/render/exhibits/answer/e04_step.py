"""Where a step's time goes: phases and operators of the largest model, in ms and as shares."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse import answer
from siliconprof.analyse.attribution import PHASES, REST
from siliconprof.analyse.frames import CELL, Frames
from siliconprof.analyse.operator_rows import PARTS
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import Exhibit

NAMES = {part: words.PART_WORDS.get(part, part) for part in (*PHASES, REST, *PARTS)}
BESIDES = ["data", "trace", "other"]  # timed parts of a step that are in the rest
ENDS = [f"{answer.STEP}{end}" for end in ("", "_low", "_high")]
SHOWN = [*CELL, "order", "setup", "place", "disturbed", *ENDS]


def rows(frames: Frames) -> pd.DataFrame:
    frame, parts = answer.timed(frames), frames.table("step_parts")
    frame = frame[frame["forward_ms"].notna() | frame["order"].isin(parts["order"])]
    frame = frame[frame["family_order"] == frame["family_order"].max()]
    frame = frame[frame["apart"] == frame["apart"].min()]  # the plain training, where there is one
    named = frame[SHOWN].assign(title=frame["work_label"] + ", " + frame["place"])
    phases = frame[[f"{name}_ms" for name in PHASES]].set_axis(PHASES, axis=1)
    phases[REST] = frame.reindex(columns=[f"{name}_ms" for name in BESIDES]).sum(axis=1)
    phases = named.join(phases.dropna(), how="inner").assign(kind="phases")
    operators = parts.assign(ms=1e3 * parts["seconds"])
    operators = operators.pivot_table("ms", "order", "part", "first").reset_index()
    both = pd.concat([phases, named.merge(operators, on="order").assign(kind="operators")])
    first = both.groupby("title")["order"].transform("min")
    return both.assign(first=first).sort_values("first", kind="stable")


EXHIBIT = Exhibit(
    id="step",
    rows=rows,
    figure=StackedBars(
        panel="title",
        group="kind",
        row="setup",
        parts=NAMES,
        x="ms a step",
        by_backend=(*PHASES, REST),
        dot=(answer.STEP, "whole step"),
        shares="% of the step",
    ),
    needs="It needs a training that was timed phase by phase.",
)
