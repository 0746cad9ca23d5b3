"""Bandwidth, whatever has no exhibit of its own, and steps by date."""

import math
from typing import Any

import pandas as pd

from siliconprof import formatting, plugins
from siliconprof.analyse import answer, throughputs
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.analyse.frames import DEVICE, Frames
from siliconprof.declarations import Quantity
from siliconprof.formatting import GIGA, MIB
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import PLACE_TEXTS, Column, Num, Text, exhibit, load, modules
from siliconprof.workloads.base import KernelWorkload


@exhibit(
    "bandwidth",
    figure=Lines(
        panel="kernel",
        line="line",
        x="mib",
        y="rate",
        x_label="working set, MiB",
        y_label="GB/s",
        log_x=True,
        log_y=True,
        dashed="cold",
        markers=True,
        dashed_markers=True,
    ),
    shows=("bandwidth",),
)
def bandwidth(frames: Frames) -> pd.DataFrame:
    """Memory bandwidth over the working set, a panel for each kernel, beside the data sheets'."""
    frame = frames.points[frames.points["module"] == "bandwidth"]
    if frame.empty or frame["step_ms"].isna().all():
        return frame.iloc[:0]
    each = frame["bytes"] / (GIGA * 1e-3)
    frame = frame.assign(
        line=frame["place"] + " · " + frame["setup"] + " · " + frame["cache"],
        mib=frame["working_set_bytes"] / MIB,
        rate=each / frame["step_ms"],
        rate_low=each / frame["step_ms_high"],
        rate_high=each / frame["step_ms_low"],
        cold=frame["cache"] == "cold",
        kernel_order=frame["kernel"].map({"copy": 0, "triad": 1, "reduction": 2}).fillna(3),
    ).sort_values(["kernel_order", "order", "working_set_bytes"], kind="stable")
    ends = frame.groupby([*DEVICE, "place", "kernel"], sort=False)["mib"].agg(["min", "max"])
    printed = ends.melt(value_name="mib", ignore_index=False).reset_index()
    printed = throughputs.with_datasheet(printed, frames.sheets.bandwidth)
    printed = printed.dropna(subset=["datasheet_value"])
    printed = printed.assign(
        line="data sheet of " + printed["place"],
        rate=printed["datasheet_value"] / GIGA,
        published=True,
        hover=printed["datasheet_source"],
    )
    return pd.concat([frame, printed])


PROBE = "probe-"
TINY = 1e-3  # ratios below are shown in powers of ten
TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def table(frame: pd.DataFrame) -> list[Column]:
    """The parameters of its points, and every quantity that any row has."""
    of = frame["of"].iloc[0]
    declared = {} if of.startswith(PROBE) else _plugin(of).POINT
    names: list[Column] = [Text("workload", "Workload", folds=True), *PLACE_TEXTS]
    for name, one in declared.items():
        if name not in frame or frame[name].isna().all():
            continue
        if one.type in ("string", "boolean"):
            names.append(Text(name, _title(one.label)))
        else:
            names.append(Num(name, _title(one.label), one.unit, integer=one.type == "integer"))
    return [*names, *_quantities(of, frame)]


@exhibit("declared", table=table, each="of")
def declared(frames: Frames) -> pd.DataFrame:
    """Workloads and probes that no other exhibit shows, by what their plug-ins declare: a table of each."""
    shown = {name for _, module in modules() for one in load(module) for name in one.shows}
    points, probes = frames.points, frames.table("probes")
    points = points[points["trainer"].isna() & ~points["module"].isin(shown)]
    points = points.assign(
        of=points["module"], why_not=points["point_reason"], burst_mean_s_why=points["burst_reason"]
    )
    probes = probes[probes["probe"].isin(set(plugins.names("probes")) - shown)]
    probes = probes.assign(of=PROBE + probes["probe"], why_not=probes["means"])
    parts = [
        part
        for frame in (points, probes)
        for of, part in frame.groupby("of", sort=False)
        if _quantities(str(of), part)
    ]
    return pd.concat(parts) if parts else points.iloc[:0]


def _quantities(of: str, frame: pd.DataFrame) -> list[Num]:
    """A column for each quantity that any row has, in a unit that suits its typical value."""
    columns = []
    for name, one in _plugin(of).QUANTITIES.items():
        column = f"{name.removesuffix('_s')}_ms" if one.series else name
        to_si = 1e-3 if one.series else 1.0
        values = frame.get(column, pd.Series(dtype=float)).dropna()
        if len(values):
            unit, scale = _unit(one, to_si * float(values.median()))
            help_ = f"{one.better} is better" if one.better else ""
            columns.append(Num(column, _title(one.label), unit, scale / to_si, help=help_))
    return columns


def _plugin(of: str) -> Any:
    if of.startswith(PROBE):
        return plugins.load("probes", of.removeprefix(PROBE))
    return plugins.load("workloads", of) if of in plugins.names("workloads") else KernelWorkload


def _title(label: str) -> str:
    return label[:1].upper() + label[1:] if len(label) > 1 else label


def _unit(one: Quantity, typical: float) -> tuple[str, float]:
    """(unit, its size)."""
    if one.unit == "byte":
        return "MiB", 2.0**20
    if one.unit == "s":
        return formatting.suited(TIME_UNITS, typical)
    if one.unit == "" and 0 < typical < TINY:
        size = 10.0 ** math.floor(math.log10(typical))
        return formatting.scientific(size).partition("× ")[2], size
    if one.unit in ("", "1/s"):
        return one.unit, 1.0
    prefix, scale = formatting.suited(formatting.PREFIXES, typical)
    return f"{prefix}{one.unit.replace('byte', 'B')}", scale


@exhibit(
    "history",
    figure=Lines(
        panel="model",
        line="line",
        x="days",
        y="ms",
        x_label="days since the first record",
        y_label="step, ms",
        log_y=True,
        markers=True,
    ),
)
def history(frames: Frames) -> pd.DataFrame:
    """Steps of the answer's trainings by date of record, where a cell was measured more than once."""
    best = answer.fastest(frames)
    sides = pd.concat([best["point_index"], best["rival_index"]]).dropna().astype(int)
    history = frames.table("history")
    frame = history[history["order"].isin(frames.points.loc[sides, "order"])]
    if frame.empty:
        return frame
    started = pd.to_datetime(frame["started_at"], utc=True)
    commit = frame["git_commit"].fillna(frame["code_sha256"]).fillna("").str[:12]
    version = frame["backend"] + " " + frame["framework_version"].fillna("of unknown version")
    return frame.assign(
        line=frame["place"] + " · " + frame["setup"],
        days=(started - started.min()).dt.total_seconds() / 86_400,
        ms=1e3 * frame["step_s"],
        ms_low=1e3 * frame["step_low_s"],
        ms_high=1e3 * frame["step_high_s"],
        disturbed=frame["flags"].fillna("").str.split(";").map(lambda codes: DISTURBED in codes),
        hover=frame["started_at"].str[:16] + ", " + version + ", code " + commit,
    ).sort_values(["family_order", "order", "days"], ascending=[False, True, True], kind="stable")
