"""Published claims that these results decide, or leave open for a reason of their own."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.claims.verdicts import NOT_TESTABLE, VERDICTS
from siliconprof.render.exhibit import Exhibit, Text
from siliconprof.render.exhibits.trust._claims import CLAIM, claims


def rows(frames: Frames) -> pd.DataFrame:
    frame = claims(frames)
    frame = frame.assign(place=frame["verdict"].map(VERDICTS.index))
    return frame[frame["verdict"] != NOT_TESTABLE].sort_values("place", kind="stable")


EXHIBIT = Exhibit(
    id="claims",
    rows=rows,
    table=(
        Text("verdict", "Verdict"),
        *CLAIM,
        Text("measured", "Measured", below="ends"),
        Text("reason", "Reason", below="measured_devices", prose=True),
    ),
    needs="No claim is decided; what each would need stands below.",
)
