"""The cost of the first touch of a page: a page fault and a page of zeros.

A fresh anonymous mapping is written to once per page, in two passes, of which only the first
faults: the difference per page is the cost of a fault, which belongs to the operating system. Huge
pages are refused where possible (madvise(2), MADV_NOHUGEPAGE), since one fault would bring many
pages in; the count of minor faults shows whether that worked. Swap is not touched.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping
from typing import Annotated, Any

from siliconprof.declarations import Parameter, Quantity
from siliconprof.hosts import machine
from siliconprof.parameters import Limits, Several
from siliconprof.probes.page_faults import read_faults
from siliconprof.session.cell_run import CellRun
from siliconprof.stats import statistics
from siliconprof.workloads.base import KernelWorkload, only_fp32

HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
FAULTS_DIFFER_ABOVE = 0.02  # of the pages: faults that the mapping's pages do not explain


class Plugin(KernelWorkload):
    """first_touch"""

    refuses = only_fp32("a page fault computes nothing, so it has no precision")
    POINT = {
        "pages": Parameter("integer", label="pages"),
        "page_size_bytes": Parameter("integer", label="page", unit="byte"),
    }
    # Without a throughput: the time of a fault is no bandwidth of memory.
    QUANTITIES = {
        "fault_s_per_page": Quantity("first touch of a page", "s", "lower"),
        "step_s": Quantity("both passes", "s", "lower", series=True),
        "first_pass_s": Quantity("first pass", "s", "lower", series=True),
        "second_pass_s": Quantity("second pass", "s", "lower", series=True),
    }

    class Parameters(KernelWorkload.Parameters):
        pages: Annotated[
            Several[Annotated[int, Limits(ge=64)]], "pages of a mapping; all are points of one cell"
        ] = [1024, 4096, 16384]

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        return f"{row['pages']:g} pages"

    def n_points(self) -> int:
        return len(self.parameters["pages"])

    def measure(self, cell_run: CellRun) -> None:
        setting = machine.read_text(HUGE_PAGES).strip()
        cell_run.method["first_touch"] = {
            "times": "step_s: a mapping made, written to twice and given back; first_pass_s and "
            "second_pass_s: one write per page, in every run, warm-up and given-up attempts included",
            "huge_pages": f"transparent huge pages: {setting or 'unknown'}; refused by "
            "MADV_NOHUGEPAGE where the system has it, else the count of faults shows how many pages "
            "each brings",
        }
        for pages in sorted(self.parameters["pages"]):
            cell_run.add_point(self.point(cell_run, pages))

    def point(self, cell_run: CellRun, pages: int) -> dict[str, Any]:
        """One size of mapping."""
        size, ones = pages * mmap.PAGESIZE, b"\1" * pages
        times: dict[str, list[float]] = {"first_pass_s": [], "second_pass_s": []}
        faults: dict[str, list[int]] = {"first_pass": [], "second_pass": []}

        def touch() -> None:
            """Map, touch every page twice and unmap."""
            with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                if hasattr(mmap, "MADV_NOHUGEPAGE"):
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
                before, _ = read_faults()
                start = time.perf_counter()
                memory[:: mmap.PAGESIZE] = ones  # one byte of each page, in a loop in C
                touched = time.perf_counter()
                between, _ = read_faults()
                again = time.perf_counter()
                memory[:: mmap.PAGESIZE] = ones
                end = time.perf_counter()
                after, _ = read_faults()
            times["first_pass_s"].append(touched - start)
            times["second_pass_s"].append(end - again)
            faults["first_pass"].append(between - before)
            faults["second_pass"].append(after - between)

        measured = cell_run.repeat(f"the first touch of {pages} pages", touch)
        last = len(measured["times"]["step_s"])  # without warm-up and what was given up
        first_s, second_s = (statistics.median(of[-last:]) for of in times.values())
        of_first = statistics.median(faults["first_pass"])
        if abs(of_first - pages) > FAULTS_DIFFER_ABOVE * pages:
            cell_run.flag(
                "faults_differ",
                f"{of_first:.0f} faults for {pages} pages: a fault brings in another number of pages",
            )
        return measured | {
            "params": {"pages": pages, "page_size_bytes": mmap.PAGESIZE},
            "times": measured["times"] | times,
            "quantities": {"fault_s_per_page": (first_s - second_s) / pages},
            "faults": faults,
            "flops": None,
            "flops_source": "none",
            "bytes": size,
            "result_error": None,
            "memory": cell_run.memory(),
        }
