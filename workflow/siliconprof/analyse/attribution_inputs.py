"""What was measured beside the trainings of a gap: costs of one thing, products, clocks, flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from siliconprof.analyse.ceilings import DISPATCH, Limits
from siliconprof.analyse.equal_work import flagged, work
from siliconprof.analyse.throughputs import Noise, device_of, place
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store.table_files import Row, key

WARNED = ("contended", "noisy", "above_peak", "above_ceiling")  # flags of cells that costs rest on


@dataclass(frozen=True)
class Measured:
    """What was measured beside the trainings, looked up by a training's row."""

    limits: Limits
    # (*place, quantity, of products with their format) -> line of ceilings.csv with a value
    lines: Mapping[tuple, Row]
    sweeps: Sequence[Sequence[Row]]  # products of a step: of one place, format and training
    works_of: Mapping[str, set[tuple]]  # workload -> what its steps compute
    clocks: Mapping[tuple, Row]  # key of a cell -> its line of probes.csv
    noise: Noise
    flags: Mapping[tuple, list[str]]  # (*place, workload, precision) -> what to know of its cell
    parts: Mapping[tuple, Mapping[str, Row]]  # see `step_parts.by_point`

    @classmethod
    def of(
        cls,
        points: Sequence[Row],
        lines: Sequence[Row],
        probes: Sequence[Row],
        cells: Sequence[Row],
        limits: Limits,
        noise: Noise,
        parts: Mapping[tuple, Mapping[str, Row]],
    ) -> Measured:
        """From rows of the tables.

        Args:
            points: measured ones, with the columns of cells.csv that `attribution` adds.
        """
        best: dict[tuple, Row] = {}
        for line in lines:
            if line["value"] is not None and line["quantity"] == "matmul":
                best[*place(line), f"matmul in {line['precision']}"] = line
            elif line["value"] is not None:
                current = best.setdefault((*place(line), line["quantity"]), line)
                if line["unit"] != "s" and line["value"] > current["value"]:
                    best[*place(line), line["quantity"]] = line
                elif line["unit"] == "s" and line["how"] == DISPATCH:
                    best[*place(line), line["quantity"]] = line
        swept: dict[tuple, list[Row]] = {}
        works_of: dict[str, set[tuple]] = {}
        for point in points:
            if point.get("of") and point.get("step_median_s") and point.get("count"):
                name = (*place(point), point["precision"], point["workload"], point["of"])
                swept.setdefault(name, []).append(point)
            elif point["trainer"]:
                works_of.setdefault(point["workload"], set()).add(_step(point))
        return cls(
            limits,
            best,
            list(swept.values()),
            works_of,
            {key(row): row for row in probes if row["probe"] == "clocks"},
            noise,
            {
                (*place(cell), cell["workload"], cell["precision"]): [
                    code for code in WARNED if flagged(cell, code)
                ]
                for cell in cells
            },
            parts,
        )

    def warned(self, row: Row) -> str:
        """What to know of the cell that a line or a point is from: ` (bandwidth flagged noisy)`."""
        codes = self.flags.get((*place(row), row["workload"], row["precision"]))
        return f" ({row['workload']} flagged {' and '.join(codes)})" if codes else ""

    @cached_property
    def _faults(self) -> dict[tuple, Row]:
        """(source, host) -> what a page fault costs there; the system's matter, not a backend's."""
        fault_lines: dict[tuple, Row] = {}
        for name, line in self.lines.items():
            if name[-1] == "page_fault":
                fault_lines.setdefault((line["source"], line["host"]), line)
        return fault_lines

    def line(self, row: Row, quantity: str) -> Row | None:
        """A line of ceilings.csv for a row's device and backend, None without one."""
        return self.lines.get((*place(row), quantity))

    def of_device(self, row: Row, quantity: str) -> Row | None:
        """The same of the row's backend, else of the best backend that works on its device."""
        if own := self.line(row, quantity):
            return own
        others = [
            line
            for name, line in self.lines.items()
            if name[-1] == quantity and device_of(line) == device_of(row)
        ]
        return max(others, key=lambda line: line["value"], default=None)

    def of_host_cpu(self, row: Row, quantity: str) -> Row | None:
        """The same of the CPU on a row's host, by any backend."""
        lines = [
            line
            for name, line in self.lines.items()
            if name[-1] == quantity
            and line["device_kind"] == "cpu"
            and (line["source"], line["host"]) == (row["source"], row["host"])
        ]
        return max(lines, key=lambda line: line["value"], default=None)

    def page_fault(self, row: Row) -> Row | None:
        """What a page fault costs on a row's host."""
        return self._faults.get((row["source"], row["host"]))

    def sweep(self, row: Row) -> Sequence[Row]:
        """The products of a row's step as they were timed on its device and backend, in its format.

        Most shapes first where several cells have them; empty where none has.
        """
        number_format = PEAK_OF_PRECISION[row["precision"]]
        sweeps = [
            group
            for group in self.sweeps
            if place(group[0]) == place(row)
            and group[0]["precision"] == number_format
            and (
                group[0]["of"] == row["workload"]
                or _step(row) in self.works_of.get(group[0]["of"], ())
            )
        ]
        return max(sweeps, key=len, default=())


def _step(row: Row) -> tuple:
    return (*work(row), str(row.get("gradient_checkpointing")))
