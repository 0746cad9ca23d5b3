"""Every measured throughput against what the hardware can do: the data sheet, and our own ceilings.

A synchronisation left out, a clock that is wrong or a product that was not what it claimed shows
as a throughput that the hardware does not have. Any excess over the data sheet counts, over our own
ceiling, which has an error itself, only one of more than a quarter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from siliconprof import plugins
from siliconprof.declarations import mebibytes
from siliconprof.hosts import caches
from siliconprof.hosts.datasheet import DataSheets, Figure
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.stats import inference
from siliconprof.store.table_files import KEY, Row

OK = "ok"
ABOVE_PEAK = "above the datasheet's peak"
ABOVE_CEILING = "above our own ceiling"
NOT_COMPARED = "not compared"
FLAG_OF_VERDICT = {ABOVE_PEAK: "above_peak", ABOVE_CEILING: "above_ceiling"}
PLACE = ("source", "host", "device", "backend")
MOST_OF_CEILING = 1.25
MANY = 1000.0  # degrees of freedom of an interval that no few processes make: the normal one's
# Below so many operations a byte the memory bounds an operation and not the speed of products: a
# library whose products are slow may be faster at it.
PRODUCT_INTENSITY = 2.0
FLOP, BYTE = "FLOP/s", "byte/s"
DISPATCH, AMORTISED = "dispatch", "amortised"  # launches of an operator in a row
LAUNCHES = (AMORTISED, "launch_and_wait")  # the second is in ceilings.csv whatever was measured
NO_PRODUCT = "no product was measured on this device and backend in this number format"
NO_BANDWIDTH = "no bandwidth of this device's memory was measured"
NO_LAUNCH = "no launch was measured on this device and backend"


def place(row: Mapping[str, Any]) -> tuple:
    """Which device and backend of whose records a row is about."""
    return tuple(row[name] for name in PLACE)


def device_of(row: Mapping[str, Any]) -> tuple:
    """Which device of whose records a row is about."""
    return place(row)[:-1]


def describe(point: Mapping[str, Any]) -> str:
    """A point in its workload's words; by name and value where that plug-in is missing."""
    plugin = workload_of(point)
    if plugin is not None:
        return plugin.describe_point(point)
    params = json.loads(point.get("params") or "{}")
    return ", ".join(f"{name} {value}" for name, value in params.items())


def workload_of(point: Mapping[str, Any]) -> Any:
    """The plug-in of a point's workload; None for one that another checkout measured."""
    if point["module"] not in plugins.names("workloads"):
        return None
    return plugins.load("workloads", point["module"])


def scaled(value: float, unit: str) -> str:
    """`31.4 GFLOP/s`."""
    giga = value / 1e9
    return f"{giga:.0f} G{unit}" if giga >= 1000 else f"{giga:.4g} G{unit}"


def step_s(point: Mapping[str, Any]) -> float | None:
    """Median of a whole step, else of a split one; None where there is neither."""
    return point.get("unsplit_step_median_s") or point.get("step_median_s")


def metric(point: Mapping[str, Any]) -> str:
    """The series that a point's rate is made of."""
    return "unsplit_step_s" if point.get("unsplit_step_median_s") else "step_s"


def estimate(point: Row, stem: str) -> inference.Estimate | None:
    """The logarithm of a median with its standard error, by its 95 % interval; None without one.

    Args:
        stem: of the series, such as `unsplit_step`.
    """
    middle, low, high = (point.get(f"{stem}_{part}_s") for part in ("median", "low", "high"))
    if not (middle and low and high):
        return None
    df = point["processes"] - 1 or MANY
    reach = inference.student_quantile((1 + inference.CONFIDENCE) / 2, df)
    error = math.log(high / low) / 2 / reach
    return inference.Estimate(math.log(middle), error, df, interval_text(point))


def interval_text(point: Mapping[str, Any]) -> str:
    """`between 5 processes`, or `within one process`."""
    n = int(point["processes"])
    return f"between {n} processes" if n > 1 else "within one process"


def fastest_product(lines: Iterable[Row], row: Mapping[str, Any]) -> float | None:
    """FLOP/s of the fastest product that a training of a row may use.

    Of its device by any backend, in its number format or in fp32: a backend that multiplies
    slowly, or in a format that its device lacks, is no measure of what a step could reach.
    None where no product of its own format was measured, which may be the faster one.

    Args:
        lines: of ceilings.csv.
    """
    own = PEAK_OF_PRECISION[row["precision"]]
    of_device = [
        line
        for line in lines
        if line["quantity"] == "matmul" and line["value"] and device_of(line) == device_of(row)
    ]
    if all(line["precision"] != own for line in of_device):
        return None
    return max(line["value"] for line in of_device if line["precision"] in (own, "fp32"))


class Ceiling(NamedTuple):
    """A figure that others are held against."""

    value: float | None
    how: str | None = None
    reason: str | None = None  # why there is none


@dataclass(frozen=True)
class Ceilings:
    """Our own ceilings: the lines of ceilings.csv, looked up by a row of any table."""

    products: Mapping[tuple, Ceiling]  # (*place, number format) -> FLOP/s
    bandwidths: Mapping[tuple, Ceiling]  # device -> bytes/s, of its memory, by any backend
    launches: Mapping[tuple, Ceiling]  # place -> seconds
    caches: Mapping[tuple, int]  # device -> bytes

    @classmethod
    def of(cls, lines: Sequence[Row], cells: Sequence[Row]) -> Ceilings:
        """From the rows of ceilings.csv and cells.csv."""
        products: dict[tuple, Ceiling] = {}
        bandwidths: dict[tuple, Ceiling] = {}
        for line in lines:
            ceiling = Ceiling(line["value"], _source(line), line["reason"])
            if line["quantity"] == "matmul":
                products[(*place(line), line["precision"])] = ceiling
            elif line["quantity"] == "memory_bandwidth":
                # Memory knows neither backends nor number formats: what any of them got is there.
                best = bandwidths.get(device_of(line))
                if best is None or (ceiling.value or 0.0) > (best.value or 0.0):
                    bandwidths[device_of(line)] = ceiling
        launches = {
            place(line): Ceiling(None, reason=line["reason"])
            for line in lines
            if line["quantity"] in LAUNCHES and line["reason"]
        }
        launches |= {
            place(line): Ceiling(
                line["value"], f"{line['backend']}, {line['workload']}: launches of a + 1 in a row"
            )
            for line in lines
            if line["quantity"] == AMORTISED and line["how"] == DISPATCH
        }
        return cls(products, bandwidths, launches, cache_sizes(cells))

    def product(self, row: Row) -> Ceiling:
        """The fastest product of a row's device, backend and number format, in FLOP/s."""
        ceiling = self.products.get((*place(row), PEAK_OF_PRECISION[row["precision"]]))
        return ceiling or Ceiling(None, reason=NO_PRODUCT)

    def bandwidth(self, row: Row) -> Ceiling:
        """The bandwidth of the memory of a row's device by any backend, in bytes/s."""
        return self.bandwidths.get(device_of(row)) or Ceiling(None, reason=NO_BANDWIDTH)

    def launch(self, row: Row) -> Ceiling:
        """Seconds of one launch of an operator among many, on a row's device and backend."""
        return self.launches.get(place(row)) or Ceiling(None, reason=NO_LAUNCH)


def _source(line: Row) -> str | None:
    if not line["how"]:
        return None
    return f"{line['backend']}, {line['workload']}: {line['how']}, {line['precision']}"


def cache_sizes(cells: Sequence[Row]) -> dict[tuple, int]:
    """Device -> size of its last-level cache in bytes, where any record tells."""
    return {
        device_of(cell): int(cell["last_level_cache_bytes"])
        for cell in cells
        if cell["last_level_cache_bytes"]
    }


def formats(precision: str) -> tuple[str, ...]:
    """Number formats in which a cell may multiply; mixed precision does some of it in fp32."""
    number_format = PEAK_OF_PRECISION[precision]
    return (number_format,) if number_format == precision else (number_format, "fp32")


def check(points: Sequence[Row], ceilings: Ceilings, sheets: DataSheets) -> Iterator[Row]:
    """Lines of checks.csv.

    Args:
        points: measured ones, with `record` beside the columns of points.csv.
    """
    for point in points:
        plugin = workload_of(point)
        yields = ("flop_per_s", "bytes_per_s") if plugin is None else plugin.QUANTITIES
        for name in ("flop_per_s", "burst_flop_per_s") if "flop_per_s" in yields else ():
            if point.get(name):
                number_formats = formats(point["precision"])
                own = _fastest([ceilings.products.get((*place(point), f)) for f in number_formats])
                if point["bytes"] and point["flops"] < PRODUCT_INTENSITY * point["bytes"]:
                    own = Ceiling(None, reason="memory limits it, and no product does")
                sheet = _highest([sheets.peak(point, f) for f in number_formats])
                yield _checked(point, name, FLOP, point[name], own, sheet)
        if point.get("bytes_per_s") and "bytes_per_s" in yields:
            compared, why = _from_memory(point, ceilings.caches.get(device_of(point)))
            bandwidth = ceilings.bandwidths.get(device_of(point))
            sheet = sheets.bandwidth(point)
            if compared is None:
                bandwidth, sheet = Ceiling(None, reason=why), Figure(None, reason=why)
            yield _checked(point, "bytes_per_s", BYTE, compared, bandwidth, sheet)


def _fastest(ceilings: Sequence[Ceiling | None]) -> Ceiling:
    """What bounds work that may be done in any of some formats; all of them must be known."""
    valued = [ceiling for ceiling in ceilings if ceiling is not None and ceiling.value is not None]
    if len(valued) < len(ceilings):
        reasons = [ceiling.reason for ceiling in ceilings if ceiling and ceiling.reason]
        return Ceiling(None, reason=reasons[0] if reasons else "no product was measured")
    return max(valued, key=lambda ceiling: ceiling.value or 0.0)


def _highest(figures: Sequence[Figure]) -> Figure:
    """The same of a data sheet."""
    for figure in figures:
        if figure.value is None:
            return figure
    return max(figures, key=lambda figure: figure.value or 0.0)


def _from_memory(point: Row, cache_bytes: int | None) -> tuple[float | None, str | None]:
    """(bytes per second that memory must have delivered at least, or None and why not).

    Of what an operation goes through, a cache of C bytes can hold C at most; the rest came from
    memory. Where the cache's size is unknown the largest one that we know is assumed.
    """
    beyond = caches.beyond_bytes(cache_bytes)
    cached = beyond / 2 if cache_bytes is None else float(cache_bytes)
    moved = float(point["bytes"])  # by one call
    plugin = workload_of(point)
    whole = float((plugin and point.get(plugin.working_set)) or 0)
    distinct = min(whole or moved, moved)
    traversed = max(whole, distinct, beyond if plugin and plugin.is_cold(point) else 0.0)
    if traversed <= cached:
        size = mebibytes(cached)
        cache = f"the last-level cache of {size}" if cache_bytes else f"a cache of up to {size}"
        return None, f"its {mebibytes(traversed)} fit {cache}, so memory is no limit to it"
    return point["bytes_per_s"] * distinct / moved * (1 - cached / traversed), None


def _checked(
    point: Row,
    name: str,
    unit: str,
    compared: float | None,
    own: Ceiling | None,
    sheet: Figure,
) -> Row:
    """One throughput's verdict."""
    own = own or Ceiling(None, reason="no ceiling of ours: nothing that gives one was measured")
    of_sheet = compared / sheet.value if compared and sheet.value else None
    of_own = compared / own.value if compared and own.value else None
    verdict, reason = OK, None
    if of_sheet is not None and of_sheet > 1:
        verdict = ABOVE_PEAK
        reason = (
            f"{_throughput_text(point, name)} is {of_sheet:.3g} times the data sheet's "
            f"{scaled(sheet.value or 0.0, unit)} ({sheet.source})"
        )
    elif of_own is not None and of_own > MOST_OF_CEILING:
        verdict = ABOVE_CEILING
        reason = (
            f"{_throughput_text(point, name)} is {of_own:.3g} times our own ceiling of "
            f"{scaled(own.value or 0.0, unit)} ({own.how})"
        )
    elif of_sheet is None and of_own is None:
        verdict = NOT_COMPARED
        reason = " and ".join(dict.fromkeys(filter(None, (own.reason, sheet.reason))))
    return {name: point[name] for name in (*KEY, "device_kind", "blas", "module")} | {
        "point": int(point["point"]),
        "how": describe(point),
        "quantity": name,
        "value": point[name],
        "unit": unit,
        "compared_value": compared,
        "datasheet_value": sheet.value,
        "datasheet_source": sheet.source,
        "of_datasheet": of_sheet,
        "ceiling": own.value,
        "ceiling_how": own.how,
        "of_ceiling": of_own,
        "verdict": verdict,
        "reason": reason,
        "record": point["record"],
    }


def _throughput_text(point: Row, name: str) -> str:
    burst = " in a burst" if name.startswith("burst") else ""
    unit = BYTE if name == "bytes_per_s" else FLOP
    return f"{describe(point) or 'a point'}: {scaled(point[name], unit)}{burst}"
