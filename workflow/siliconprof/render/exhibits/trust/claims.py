"""Published claims, flags and every cell."""

from __future__ import annotations

from typing import Any

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.frames import Frames, records
from siliconprof.claims.figures import shown
from siliconprof.claims.judge import CLAIM_VERDICTS, NOT_TESTABLE
from siliconprof.render.exhibit import PLACE_TEXTS, Column, Text, exhibit
from siliconprof.store import captions

UNIT_WORDS = {" times": " ×", " percent": " %"}
CLAIM: tuple[Column, ...] = (
    Text("quoted", "Claim", below="source", prose=True),
    Text("printed", "Published", badge="mark"),
    Text("agrees_if", "Agrees if", below="note", prose=True),
)


def in_words(frames: Frames) -> pd.DataFrame:
    """All claims, in the order of the sources."""
    frame = frames.results.frame("claims").astype(object)  # also where a column has no text
    unit, printed_unit = (" " + frame[name] for name in ("unit", "published_unit"))
    unit, printed_unit = (series.replace(UNIT_WORDS).fillna("") for series in (unit, printed_unit))
    bounded = frame["claimed_low"].notna() | frame["claimed_high"].notna()
    value, low, high = (
        frame[f"measured_{name}"].map(shown, "ignore").astype(object)
        for name in ("value", "low", "high")
    )
    return frame.assign(
        quoted="“" + frame["statement"] + "”",
        printed=frame["published_value"] + printed_unit,
        mark=frame["published_value"].notna().map({True: "P", False: ""}),
        agrees_if=frame["claimed"] + unit.where(bounded, ""),
        measured=frame["measured_word"].fillna(value + unit),
        ends=(low + " to " + high).where(low != high),
    )


@exhibit(
    "claims",
    table=(
        Text("verdict", "Verdict"),
        *CLAIM,
        Text("measured", "Measured", below="ends"),
        Text("reason", "Reason", below="measured_devices", prose=True),
    ),
)
def claims(frames: Frames) -> pd.DataFrame:
    """Published claims that these results decide, or leave open for a reason of their own."""
    frame = in_words(frames)
    frame = frame.assign(place=frame["verdict"].map(CLAIM_VERDICTS.index))
    return frame[frame["verdict"] != NOT_TESTABLE].sort_values("place", kind="stable")


SOURCES = {  # how a source begins -> whose it is; all others are transcriptions of the paper
    "summary of Feng et al. 2025": "the paper's summary",
    "wide/deep report": "the wide/deep report",
    "Daniel 2023": "Daniel 2023",
}


@exhibit(
    "claims-others",
    table=(
        *CLAIM,
        Text("reason", "What is missing", prose=True),
        Text("consistency", "The source's own numbers", below="consistency_reason", prose=True),
    ),
    each="of",
    folded="Claims that nothing here decides",
)
def claims_others(frames: Frames) -> pd.DataFrame:
    """Published claims that nothing measured here decides, by source, with what is missing."""
    frame = in_words(frames)
    of = pd.Series("the paper, Feng et al. 2025", frame.index)
    for start, name in SOURCES.items():
        of = of.mask(frame["source"].str.startswith(start), name)
    return frame.assign(of=of)[frame["verdict"] == NOT_TESTABLE]


NOTES = {"no_empty_kernel"}  # puts no number in doubt; the table of cells has it
NO_EXPLANATION = "This version has no explanation of it."


@exhibit(
    "flags",
    table=(
        Text("flag", "Flag", below="means", prose=True),
        *PLACE_TEXTS,
        Text("workload", "Workload"),
        Text("seen", "What was seen", prose=True),
    ),
    folded="All flags",
    shows=("clocks", "interference"),
)
def flags(frames: Frames) -> pd.DataFrame:
    """What was noticed while a cell was measured, and what each flag means.

    What the intervals already say is no flag: that repeats scatter, drift or change their level. Nor is
    what every cell has, which the page's head says once.
    """
    cells = frames.cells.dropna(subset=["flags"])
    found: list[Any] = [list(formatting.flags(row)) for row in records(cells)]
    frame = cells.assign(found=pd.Series(found, cells.index, object)).explode("found")
    frame = frame.dropna(subset=["found"])
    frame = frame.assign(flag=frame["found"].str[0], seen=frame["found"].str[1])
    elsewhere = formatting.STATISTICAL_FLAGS | frames.flags_of_all | NOTES
    frame = frame[~frame["flag"].isin(elsewhere)].sort_values(["flag", "order"], kind="stable")
    means = frame["flag"].map(captions.flag_words()).fillna(NO_EXPLANATION)
    return frame.assign(means=means.where(~frame["flag"].duplicated()))


@exhibit(
    "every-cell",
    table=(
        *PLACE_TEXTS,
        Text("workload", "Workload"),
        Text("status", "Status", below="means"),
        Text("remarks", "Reason, or flags", prose=True),
        Text("ran", "Scenario", help="asked for → run, or what the memory model derives"),
        Text("effective_precision", "Effective precision", help="by the error of a product"),
        Text("record_sha256", "SHA-256", code=True),
    ),
    folded="All cells",
)
def every_cell(frames: Frames) -> pd.DataFrame:
    """Every cell, measured or not, with its status, the reason and the hash of its record."""
    frame = frames.cells
    ran = frame["scenario_applied"].fillna(frame["scenario_derived"])
    codes = frame["flags"].fillna("").str.split(";")
    elsewhere = {""} | formatting.STATISTICAL_FLAGS | frames.flags_of_all
    flags = [", ".join(sorted(set(own) - elsewhere)) for own in codes]
    return frame.assign(
        means=frame["status"].map(formatting.STATUS_WORDS).mask(frame["status"] == "ok"),
        remarks=frame["reason"].fillna(pd.Series(flags, frame.index)),
        ran=(frame["scenario"] + " → " + ran).fillna(frame["scenario"]),
        css=(frame["status"] == "ok").map({True: "", False: "failed"}),
    )
