"""results.csv: what a reader wants in a spreadsheet, one line per training and operation.

Its numbers are those of the page: the step with its interval, the share of the fastest product that the step may use, the flags of every check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof.analyse.equal_work import has_no_speed, variant
from siliconprof.analyse.throughputs import (
    FLAG_OF_VERDICT,
    PRODUCT_INTENSITY,
    describe,
    fastest_product,
)
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import columns
from siliconprof.store.table_files import KEY, Row, grouped, key, point_key

SERIES = ("unsplit_step", "step", "launch_and_wait")  # the first that a point has is its time
MS, GIGA, MIB = 1e3, 1e-9, 2**-20  # from seconds, from a rate, from bytes
AT_FULL_SPEED = (
    "step_ms",
    "step_low_ms",
    "step_high_ms",
    "samples_per_s",
    "tokens_per_s",
    "gflop_per_s",
    "gb_per_s",
    "share_of_ceiling",
    "energy_per_step_j",
    "energy_scope",
)


def impossible(checks: Sequence[Row]) -> dict[tuple, list[Row]]:
    """Key of a cell -> its checks that found a throughput above what its device can do."""
    return grouped((check for check in checks if check["verdict"] in FLAG_OF_VERDICT), key)


@dataclass(frozen=True)
class Table:
    """Makes the lines.

    Args:
        products: the lines of ceilings.csv about products.
        checks: lines of checks.csv.
        energy: lines of energy.csv.
    """

    products: Sequence[Row]
    checks: Sequence[Row]
    energy: Sequence[Row]
    sheets: DataSheets

    def rows(self, cells: Sequence[Row], points: Sequence[Row]) -> Iterator[Row]:
        """A line for each point of the cells that are ok, and one for each other cell.

        Args:
            points: of cells that are ok, with the cells' columns.
        """
        of_cell = grouped(points, key)
        above = impossible(self.checks)
        shares = {
            point_key(check): check["of_ceiling"]
            for check in self.checks
            if check["quantity"] == "bytes_per_s"
        }
        known = [line for line in self.energy if line.get("energy_per_step_j") is not None]
        energies = {point_key(line): line for line in reversed(known)}  # the first of a point
        for cell in cells:
            flags = [
                cell["flags"],
                *(FLAG_OF_VERDICT[c["verdict"]] for c in above.get(key(cell), [])),
            ]
            shared = columns.blank("results") | {name: cell[name] for name in KEY}
            shared |= {name: cell[name] for name in ("trainer", "batch_size", "status")}
            shared |= {
                "price_usd": self.sheets.price_usd(cell),
                "flags": ";".join(dict.fromkeys(filter(None, flags))),
            }
            for point in of_cell.get(key(cell), [{}]):
                line = shared
                if point:
                    energy = energies.get(point_key(point), {})
                    share = shares.get(point_key(point))
                    line = shared | self._measured(point, energy, share)
                if has_no_speed(cell):
                    line = line | dict.fromkeys(AT_FULL_SPEED)
                yield line

    def _measured(self, point: Row, energy: Row, of_bandwidth: float | None) -> Row:
        """What a point adds to the columns of its cell."""
        stem = next((stem for stem in SERIES if point.get(f"{stem}_median_s")), None)
        middle = point[f"{stem}_median_s"] if stem else None
        low, high = ((point[f"{stem}_{end}_s"] if stem else None) for end in ("low", "high"))
        apart = variant(point) if point["trainer"] else []
        return {
            "point": int(point["point"]),
            "operation": ", ".join(filter(None, [describe(point), *apart])),
            "batch_size": point.get("samples_per_step") or point.get("batch_size"),
            "status": point.get("point_status") or point["status"],
            "step_ms": _scaled(middle, MS),
            "step_low_ms": _scaled(low, MS),
            "step_high_ms": _scaled(high, MS),
            "processes": int(point["processes"]),
            "samples_per_s": point.get("samples_per_s"),
            "tokens_per_s": point.get("tokens_per_s"),
            "gflop_per_s": _scaled(point.get("flop_per_s"), GIGA),
            "gb_per_s": _scaled(point.get("bytes_per_s"), GIGA),
            "share_of_ceiling": self._share(point, of_bandwidth),
            "peak_memory_mib": _scaled(point.get("device_peak_bytes"), MIB),
            "energy_per_step_j": energy.get("energy_per_step_j"),
            "energy_scope": energy.get("scope"),
        }

    def _share(self, point: Row, of_bandwidth: float | None) -> float | None:
        """Of the fastest product, or of the memory's bandwidth where that is what bounds it."""
        rate, moved = point.get("flop_per_s"), point.get("bytes")
        if not rate or (moved and point["flops"] < PRODUCT_INTENSITY * moved):
            return of_bandwidth
        best = fastest_product(self.products, point)
        return rate / best if best else None


def _scaled(value: Any, factor: float) -> float | None:
    """A number in another unit; None where there is none."""
    return None if value is None else value * factor
