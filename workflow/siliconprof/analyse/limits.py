"""What was measured beside a training on its device: products, memory, launches; as limits to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siliconprof.analyse import ceilings
from siliconprof.analyse.throughputs import Ceiling, Ceilings, device_of, place
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store.table_files import Row

DISPATCH, AMORTISED = "dispatch", "amortised"  # launches of an operator in a row
LAUNCHES = (AMORTISED, "launch_and_wait")  # the second is in ceilings.csv whatever was measured
NO_PRODUCT = "no product was measured on this device and backend in this number format"
NO_BANDWIDTH = "no bandwidth of this device's memory was measured"
NO_LAUNCH = "no launch was measured on this device and backend"


@dataclass(frozen=True)
class Limits:
    """The lines of ceilings.csv, asked by a row of any table."""

    ceilings: Ceilings
    launches: Mapping[tuple, Ceiling]  # place -> seconds

    @classmethod
    def of(cls, lines: Sequence[Row], cells: Sequence[Row]) -> Limits:
        """From the rows of ceilings.csv and cells.csv."""
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
        return cls(ceilings.of_table(lines, ceilings.cache_sizes(cells)), launches)

    def product(self, row: Row) -> Ceiling:
        """The fastest product of a row's device, backend and number format, in FLOP/s."""
        found = self.ceilings.products.get((*place(row), PEAK_OF_PRECISION[row["precision"]]))
        return found or Ceiling(None, reason=NO_PRODUCT)

    def bandwidth(self, row: Row) -> Ceiling:
        """The bandwidth of the memory of a row's device by any backend, in bytes/s."""
        return self.ceilings.bandwidths.get(device_of(row)) or Ceiling(None, reason=NO_BANDWIDTH)

    def launch(self, row: Row) -> Ceiling:
        """Seconds of one launch of an operator among many, on a row's device and backend."""
        return self.launches.get(place(row)) or Ceiling(None, reason=NO_LAUNCH)

    def cache_bytes(self, row: Row) -> int | None:
        """Size of the last-level cache of a row's device, None when nobody told it."""
        return self.ceilings.caches.get(device_of(row))
