"""Published claims with their figures in words, for both tables of them."""

from __future__ import annotations

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.claims.figures import shown
from siliconprof.render.exhibit import Column, Text

UNITS = {" times": " ×", " percent": " %"}
CLAIM: tuple[Column, ...] = (
    Text("quoted", "Claim", below="source", prose=True),
    Text("printed", "Published", badge="mark"),
    Text("agrees_if", "Agrees if", below="note", prose=True),
)


def claims(frames: Frames) -> pd.DataFrame:
    """All claims, in the order of the sources."""
    frame = frames.results.frame("claims").astype(object)  # also where a column has no text
    unit, printed_unit = (" " + frame[name] for name in ("unit", "published_unit"))
    unit, printed_unit = (series.replace(UNITS).fillna("") for series in (unit, printed_unit))
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
