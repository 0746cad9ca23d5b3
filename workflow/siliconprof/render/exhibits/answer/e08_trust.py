"""Can I trust it: what was measured on each device and backend, what not, and what its cells checked.

Checks are of the clock, the waiting and the arithmetic; how much repeats drift is in cells.csv.
"""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import CELL, DEVICE, Frames, records
from siliconprof.render.axes import text
from siliconprof.render.exhibit import Exhibit, Num, Text

GROUP = [*DEVICE, "backend"]
MOST_LETTERS = 100  # of a reason; the table of all cells has the whole
DRIFT = "drift_check"  # of how repeats scatter, not of what is true


def rows(frames: Frames) -> pd.DataFrame:
    checks = frames.cells.filter(regex="_check$").drop(columns=DRIFT, errors="ignore")
    processes = frames.points.groupby(CELL)["processes"].max()
    cells = frames.cells.join(processes, on=CELL)
    cells = cells.assign(
        ok=cells["status"].eq("ok"),
        passed=(checks == "ok").sum(axis=1),
        checked=checks.isin(["ok", "failed"]).sum(axis=1),
        between=cells["processes"] > 1,
        status=cells["status"].map(words.STATUS_WORDS),
        reason=[words.shortened(text(reason), MOST_LETTERS) for reason in cells["reason"]],
    )
    first = {name: (name, "first") for name in ("device_label", "whose", "backend_label", "order")}
    sums = {name: (name, "sum") for name in ("ok", "passed", "checked", "disturbed", "between")}
    most = ("worst_result_error", "max")
    frame = cells.groupby(GROUP).agg(**first, **sums, n=("ok", "size"), error=most)
    names = {column: str(column).removesuffix("_check").replace("_", " ") for column in checks}
    failed = cells.melt(GROUP, list(checks), "check", "outcome").replace({"check": names})
    between = [f"between processes in {k} of {n}" for k, n in frame[["between", "ok"]].to_numpy()]
    frame = frame.assign(
        planned=frame["n"].map(lambda n: f"of {words.count(n, 'cell')}"),
        made=frame["checked"].map("of {}".format),
        failed=_listed(failed[failed["outcome"] == "failed"], ["check"], "{check}: {n}"),
        lost=_listed(cells[~cells["ok"]], ["status", "reason"], "{n} {status}: {reason}"),
        largest_error=[
            words.scientific(error) if error == error else "" for error in frame["error"]
        ],
        intervals=pd.Series(between, frame.index).where(frame["between"] > 0, "within one process"),
    )
    frame = frame.sort_values("order").reset_index()
    return pd.concat([frame, _absent(frames)], ignore_index=True)


def _listed(cells: pd.DataFrame, by: list[str], form: str) -> pd.Series:
    """How many cells of each group have what, in words."""
    counts = cells.groupby([*GROUP, *by], sort=False).size().rename("n").reset_index()
    counts["text"] = [form.format(**row) for row in records(counts)]
    return counts.groupby(GROUP)["text"].agg("; ".join)


def _absent(frames: Frames) -> pd.DataFrame:
    """Backends of this host that do not work, and devices that the experiment names and none has."""
    host, names = frames.matrix.host, frames.sheets.registry["devices"]
    rows_ = [
        {"device_label": f"none on {host['label']}", "backend_label": name, "lost": state["reason"]}
        for name, state in host["backends"].items()
        if state["reason"]
    ]
    rows_ += [
        {"device_label": names.get(id_, {}).get("name", id_), "lost": one["reason"]}
        for one in frames.matrix.not_measured
        for id_ in [one["device"]]
    ]
    return pd.DataFrame(rows_).assign(why_not="not measured")


EXHIBIT = Exhibit(
    id="checks",
    rows=rows,
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("backend_label", "Backend"),
        Num("ok", "Measured", "cells", integer=True, below="planned"),
        Num("passed", "Checks passed", integer=True, below="made"),
        Text("failed", "Checks failed", prose=True, folds=True),
        Text("largest_error", "Largest error", help="of a result against float64"),
        Num("disturbed", "Disturbed", "cells", integer=True),
        Text("intervals", "95 % intervals"),
        Text("lost", "Not measured", prose=True),
    ),
    needs="The experiment has no cell.",
)
