"""Workloads and probes that no other exhibit shows, by what their plug-ins declare: a table of each."""

import math
from typing import Any

import pandas as pd

from siliconprof import plugins, words
from siliconprof.analyse.frames import Frames
from siliconprof.declarations import Quantity
from siliconprof.render import exhibit
from siliconprof.render.exhibit import PLACE, Column, Exhibit, Num, Text
from siliconprof.workloads.base import KernelWorkload

PROBE = "probe-"
TINY = 1e-3  # ratios below are shown in powers of ten
SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def rows(frames: Frames) -> pd.DataFrame:
    shown = {name for _, module in exhibit.modules() for name in exhibit.load(module).shows}
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


def table(frame: pd.DataFrame) -> list[Column]:
    """The parameters of its points, and every quantity that any row has."""
    of = frame["of"].iloc[0]
    declared = {} if of.startswith(PROBE) else _plugin(of).POINT
    names: list[Column] = [Text("workload", "Workload", folds=True), *PLACE]
    for name, one in declared.items():
        if name not in frame or frame[name].isna().all():
            continue
        if one.type in ("string", "boolean"):
            names.append(Text(name, _title(one.label)))
        else:
            names.append(Num(name, _title(one.label), one.unit, integer=one.type == "integer"))
    return [*names, *_quantities(of, frame)]


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
        return words.suited(SECONDS, typical)
    if one.unit == "" and 0 < typical < TINY:
        size = 10.0 ** math.floor(math.log10(typical))
        return words.scientific(size).partition("× ")[2], size
    if one.unit in ("", "1/s"):
        return one.unit, 1.0
    prefix, scale = words.suited(words.PREFIXES, typical)
    return f"{prefix}{one.unit.replace('byte', 'B')}", scale


EXHIBIT = Exhibit(
    id="declared",
    rows=rows,
    table=table,
    each="of",
    needs="It needs a workload or a probe that no other exhibit shows.",
)
