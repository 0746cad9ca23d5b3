"""Published claims that nothing measured here decides, by source, with what is missing."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.claims.verdicts import NOT_TESTABLE
from siliconprof.render.exhibit import Exhibit, Text
from siliconprof.render.exhibits.trust._claims import CLAIM, claims

SOURCES = {  # how a source begins -> whose it is; all others are transcriptions of the paper
    "summary of Feng et al. 2025": "the paper's summary",
    "wide/deep report": "the wide/deep report",
    "Daniel 2023": "Daniel 2023",
}


def rows(frames: Frames) -> pd.DataFrame:
    frame = claims(frames)
    of = pd.Series("the paper, Feng et al. 2025", frame.index)
    for start, name in SOURCES.items():
        of = of.mask(frame["source"].str.startswith(start), name)
    return frame.assign(of=of)[frame["verdict"] == NOT_TESTABLE]


EXHIBIT = Exhibit(
    id="claims-others",
    rows=rows,
    table=(
        *CLAIM,
        Text("reason", "What is missing", prose=True),
        Text("consistency", "The source's own numbers", below="consistency_reason", prose=True),
    ),
    each="of",
    folded="Claims that nothing here decides",
    needs="Every claim is decided.",
)
