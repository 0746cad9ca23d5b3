"""Every measured throughput against what the hardware can do: the data sheet, and our own ceilings.

A missing synchronisation, a wrong clock or an operation that did less than it claims gives a
throughput that the hardware cannot have. Any excess over the data sheet counts; over our own
ceiling, which has an error itself, only an excess of more than a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pandas as pd

from siliconprof import formatting
from siliconprof.declarations import PRODUCT_INTENSITY, workload_of
from siliconprof.hosts import caches
from siliconprof.hosts.datasheet import DataSheets, Figure
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store import columns, table_files
from siliconprof.store.table_files import Row

OK = "ok"
ABOVE_PEAK = "above the datasheet's peak"
ABOVE_CEILING = "above our own ceiling"
NOT_COMPARED = "not compared"
FLAG_OF_VERDICT = {ABOVE_PEAK: "above_peak", ABOVE_CEILING: "above_ceiling"}
DEVICE = ["source", "host", "device"]
PLACE = [*DEVICE, "backend"]
OF_FORMATS = [*DEVICE, "precision"]
# Of a point: bytes that its calls use repeatedly, whether caches are cold, its quantities.
USED = ["whole_bytes", "is_cold", "yields"]
RATES = ["flop_per_s", "burst_flop_per_s", "bytes_per_s"]
MOST_OF_CEILING = 1.25
FLOP, BYTE = "FLOP/s", "byte/s"
IN_CACHE = "its data fit the last-level cache, so memory is no limit to it"


def step_number(points: pd.DataFrame, part: str) -> pd.Series:
    """A column of the whole step, such as `median_s`; of the split step where the whole was not timed."""
    is_whole = nonzero(points["whole_step_median_s"])
    return points[f"whole_step_{part}"].where(is_whole, points[f"step_{part}"])


def nonzero(values: pd.Series) -> pd.Series:
    """Mask of the values that are neither missing nor 0."""
    return values.notna() & values.ne(0)


def with_datasheet(frame: pd.DataFrame, figure: Callable[[Row], Figure], *by: str) -> pd.DataFrame:
    """Add `datasheet_value`, `_source`, `_note` and `_reason` from each row's data sheet.

    Args:
        figure: looks up one row.
        by: the columns that the figure depends on beside the device.
    """
    on = [*DEVICE, *by]
    keys = frame[on].drop_duplicates(ignore_index=True)
    found = [figure(row) for row in table_files.rows(keys)]
    figures = pd.DataFrame(found, keys.index, ["value", "source", "note", "reason"])
    figures = figures.astype({"value": float}).add_prefix("datasheet_")
    return frame.merge(keys.join(figures), "left", on)


def ceilings_of(ceilings: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """`ceiling` with its interval and `ceiling_how` of each `PLACE` and number format."""
    of = ceilings[ceilings["quantity"] == quantity]
    text = of[["backend", "workload", "how", "precision"]].astype("string")
    how = text["backend"] + ", " + text["workload"] + ": " + text["how"] + ", " + text["precision"]
    names = {f"value{end}": f"ceiling{end}" for end in ("", "_low", "_high")}
    of = of.rename(columns={"precision": "format"} | names).assign(ceiling_how=how)
    numbers = [*names.values()]
    return of[[*PLACE, "format", *numbers, "ceiling_how"]].astype(dict.fromkeys(numbers, float))


def bandwidths(ceilings: pd.DataFrame) -> pd.DataFrame:
    """`ceilings_of` each device's memory bandwidth: the best of all backends and number formats."""
    of = ceilings_of(ceilings, "memory_bandwidth")
    best = of.sort_values("ceiling", ascending=False, kind="stable").drop_duplicates(DEVICE)
    return best.drop(columns=["backend", "format"])


def check(points: pd.DataFrame, ceilings: pd.DataFrame, sheets: DataSheets) -> pd.DataFrame:
    """Lines of checks.csv."""
    names = [name for name in columns.declared_columns("checks") if name in points]
    names += ["flops", "bytes", "cache_bytes", *USED, "order"]
    used = pd.DataFrame(map(_used, table_files.rows(points)), points.index, USED)
    points = points.assign(order=range(len(points))).join(used.astype({"whole_bytes": float}))
    rows = points.melt(names, RATES, "quantity", "value")
    rows = rows[nonzero(rows["value"])]
    pairs = zip(rows["quantity"].str.removeprefix("burst_"), rows["yields"], strict=True)
    rows = rows[np.array([name in of for name, of in pairs], dtype=bool)]
    in_bytes = rows["quantity"] == "bytes_per_s"
    rows = rows.assign(unit=in_bytes.map({True: BYTE, False: FLOP}), compared_value=rows["value"])
    of_products = _against_products(rows[~in_bytes], ceilings, sheets)
    of_memory = _against_memory(rows[in_bytes], ceilings, sheets)
    checks = pd.concat([of_products, of_memory]).sort_values("order", kind="stable")
    of_sheet = checks["compared_value"] / checks["datasheet_value"]
    of_own = checks["compared_value"] / checks["ceiling"]
    judged = [of_sheet > 1, of_own > MOST_OF_CEILING, of_sheet.isna() & of_own.isna()]
    verdict = np.select(judged, [ABOVE_PEAK, ABOVE_CEILING, NOT_COMPARED], OK)
    checks = checks.assign(of_datasheet=of_sheet, of_ceiling=of_own, verdict=verdict)
    reasons = [_reason(row) for row in table_files.rows(checks)]
    return checks.assign(reason=pd.Series(reasons, checks.index, object))


def _used(point: Row) -> tuple[float | None, bool, Collection[str]]:
    plugin = workload_of(point)
    if plugin is None:
        return None, False, ("flop_per_s", "bytes_per_s")
    whole = point.get(plugin.working_set) if plugin.working_set else None
    return whole, point["cache"] == "cold", plugin.QUANTITIES


def fastest_product(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """`ceiling`, `_low`, `_high`, `_how` and `_format` of each point, the ceiling of its products.

    That is the fastest product of any backend of its device in the number format of its precision; of
    mixed precision, which does some of its work in fp32, the faster of both, where both are known.
    """
    products = ceilings_of(ceilings, "matmul").drop(columns="backend")
    products = products.assign(ceiling_format=products["format"])
    products = products.sort_values("ceiling", ascending=False, kind="stable")
    products = products.drop_duplicates([*DEVICE, "format"])
    formats = _formats(points).merge(products, "left", [*DEVICE, "format"])
    found = points[OF_FORMATS].merge(_fastest(formats, "ceiling"), "left", OF_FORMATS)
    return found.drop(columns=OF_FORMATS).set_axis(points.index)


def _formats(points: pd.DataFrame) -> pd.DataFrame:
    """Every number format in which each device and precision may compute products."""
    own = points[OF_FORMATS].drop_duplicates()
    own = own.assign(format=own["precision"].map(PEAK_OF_PRECISION))
    return pd.concat([own, own[own["format"] != own["precision"]].assign(format="fp32")])


def _fastest(formats: pd.DataFrame, column: str) -> pd.DataFrame:
    """The fastest format by a column; one whose value is unknown wins, since it may be the fastest."""
    ranked = formats.sort_values(column, ascending=False, na_position="first", kind="stable")
    return ranked.drop_duplicates(OF_FORMATS).drop(columns="format")


def _against_products(
    rows: pd.DataFrame, ceilings: pd.DataFrame, sheets: DataSheets
) -> pd.DataFrame:
    """Add the bounds of products in any of several formats; none where one of these is unknown."""
    rows = rows.join(fastest_product(rows, ceilings))
    peaks = with_datasheet(_formats(rows), lambda row: sheets.peak(row, row["format"]), "format")
    rows = rows.merge(_fastest(peaks, "datasheet_value"), "left", OF_FORMATS)
    limited = nonzero(rows["bytes"]) & (rows["flops"] < PRODUCT_INTENSITY * rows["bytes"])
    rows.loc[limited, ["ceiling", "ceiling_how", "ceiling_format"]] = np.nan
    reasons = {True: "memory limits it, and no product does", False: "no product was measured"}
    return rows.assign(ceiling_reason=limited.map(reasons))


def _against_memory(rows: pd.DataFrame, ceilings: pd.DataFrame, sheets: DataSheets) -> pd.DataFrame:
    """Add the bandwidth of memory, and the least bytes per second that it must have delivered."""
    # Of what an operation goes through, a cache of C bytes can hold C at most; the rest came from
    # memory. Where the cache's size is unknown the largest one that we know is assumed.
    rows = with_datasheet(rows.merge(bandwidths(ceilings), "left", DEVICE), sheets.bandwidth)
    cached = rows["cache_bytes"].fillna(caches.beyond_bytes(None) / 2)
    moved = rows["bytes"].astype(float)  # by one call
    whole = rows["whole_bytes"].where(nonzero(rows["whole_bytes"]), moved)
    distinct = np.minimum(whole, moved)
    cold = (2 * cached).where(rows["is_cold"].astype(bool), 0.0)
    rows["traversed"] = np.maximum(np.maximum(rows["whole_bytes"].fillna(0.0), distinct), cold)
    rows["compared_value"] = rows["value"] * distinct / moved * (1 - cached / rows["traversed"])
    rows["ceiling_reason"] = "no ceiling of ours: nothing that gives one was measured"
    fits = rows["traversed"] <= cached
    figures = ["compared_value", "ceiling", "ceiling_how", "datasheet_value", "datasheet_source"]
    rows.loc[fits, figures] = np.nan
    rows.loc[fits, ["ceiling_reason", "datasheet_reason"]] = IN_CACHE
    return rows


def _reason(row: Row) -> str | None:
    """Why a throughput is too high, or why it was not compared; None where it is fine."""
    if row["verdict"] == NOT_COMPARED:
        reasons = row["ceiling_reason"], row["datasheet_reason"]
        return " and ".join(dict.fromkeys(filter(None, reasons)))
    if row["verdict"] == OK:
        return None
    burst = " in a burst" if row["quantity"].startswith("burst") else ""
    start = f"{row['how'] or 'a point'}: {formatting.scaled(row['value'], row['unit'])}{burst} is"
    if row["verdict"] == ABOVE_PEAK:
        peak, source = (
            formatting.scaled(row["datasheet_value"], row["unit"]),
            row["datasheet_source"],
        )
        return f"{start} {row['of_datasheet']:.3g} times the data sheet's {peak} ({source})"
    ceiling = formatting.scaled(row["ceiling"], row["unit"])
    return (
        f"{start} {row['of_ceiling']:.3g} times our own ceiling of {ceiling} ({row['ceiling_how']})"
    )
