"""Table 6 of the paper: kernel launch, by four numbers of which the paper prints two."""

import pandas as pd

from siliconprof.analyse.frames import CELL, Frames
from siliconprof.render.axes import DISTURBED_MEANS
from siliconprof.render.exhibit import Exhibit, Num, Text

KINDS = {
    "cold_ms": ("Cold", "median of the first launches of fresh processes"),
    "launch_and_wait_ms": ("Launch and wait", "one launch and a wait for its end"),
    "amortised_ms": ("Amortised", "a burst with one wait at its end, per launch"),
    "enqueue_ms": ("Enqueue", "dispatch alone, per launch of a burst"),
}
REMARK = f", {DISTURBED_MEANS}"
UNKNOWN = "the paper prints one follow-up launch, and not which of these it is"


def rows(frames: Frames) -> pd.DataFrame:
    """Each launch of each backend, then what the paper prints."""
    measured = frames.points[frames.points["module"] == "kernel_launch"]
    columns = [f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high", "_n")]
    names = ["device_label", "whose", "backend_label", "launch", "note"]
    frame = frames.published("table6_kernel_launch")
    printed = pd.DataFrame(
        {
            "device_label": frame["device_label"],
            "whose": "",
            "cold_ms": frame["cold_launch_ms"].astype(float),
            "followup_ms": frame["followup_launch_ms"].astype(float),
            "published": True,
            "source_text": frame["source"],
            "why_not": UNKNOWN,
        }
    )
    why, note = measured["cold_reason"], measured["note"]
    is_disturbed = measured["point_disturbed"].notna()
    measured = measured.assign(note=note.mask(is_disturbed, note + REMARK))
    measured = measured[[*CELL, *names, *columns]]
    return pd.concat([measured.assign(cold_ms_why=why, followup_ms_why=UNKNOWN), printed])


EXHIBIT = Exhibit(
    id="paper-table-6",
    rows=rows,
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("backend_label", "Backend"),
        Text("launch", "Launched", below="note"),
        *(Num(kind, title, "µs", 1e-3, help=what) for kind, (title, what) in KINDS.items()),
        Num("followup_ms", "Follow-up, as printed", "µs", 1e-3),
    ),
    needs="It needs a cell of module kernel_launch.",
    shows=("kernel_launch",),
)
