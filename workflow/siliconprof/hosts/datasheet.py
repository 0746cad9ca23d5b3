"""Data-sheet figures, from the registry, for the device in a row of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof.hosts import registry
from siliconprof.hosts.registry import Registry
from siliconprof.store.record import HERE

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Figure:
    """One figure of a data sheet, or why there is none."""

    value: float | None  # FLOP/s or bytes/s
    source: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DataSheets:
    """The registry as seen from this host."""

    registry: Registry
    host: Mapping[str, Any]  # the host file's content

    def registry_id(self, row: Mapping[str, Any]) -> str | None:
        """The registry's id of a row's device: by this host's file, or by another's name for it."""
        ids = [row["device"], registry.kind_of(row["device"])]
        if row["source"] == HERE:
            here = [one for one in self.host["devices"] if one["id"] == row["device"]]
            ids = [one["registry_id"] for one in here] or ids
        return next((one for one in ids if one in self.registry["devices"]), None)

    def entry(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The registry's entry of a row's device."""
        return self.registry["devices"].get(self.registry_id(row))

    def peak(self, row: Mapping[str, Any], number_format: str) -> Figure:
        """Peak of products in fp32, tf32, fp16 or bf16, in FLOP/s."""
        entry = self.entry(row)
        printed = entry["peak_tflops"][registry.PEAK_OF_PRECISION[number_format]] if entry else None
        return self._figure(entry, row, printed, TERA, f"a peak for {number_format} on")

    def bandwidth(self, row: Mapping[str, Any]) -> Figure:
        """Bandwidth of the device's memory, in bytes/s."""
        entry = self.entry(row)
        printed = entry["bandwidth_gb_per_s"] if entry else None
        return self._figure(entry, row, printed, GIGA, "the bandwidth of")

    def price_usd(self, row: Mapping[str, Any]) -> float | None:
        """What the device costs, or the computer that it is sold in; None where no source says."""
        entry = self.entry(row)
        printed = entry["price_usd"] if entry else None
        return float(printed["value"]) if printed else None

    def _figure(
        self,
        entry: Mapping[str, Any] | None,
        row: Mapping[str, Any],
        printed: Mapping[str, Any] | None,
        scale: float,
        what: str,
    ) -> Figure:
        if entry is None:
            return Figure(None, reason=f"{row['device']} is not in the registry of data sheets")
        if printed is None:
            return Figure(None, reason=f"no source gives {what} {entry['name']}")
        source = self.registry["sources"].get(printed["source"]) or {}
        title = source.get("title", printed["source"])
        return Figure(scale * float(printed["value"]), title)
