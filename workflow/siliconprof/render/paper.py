"""The paper's tables and figures, rebuilt across the devices of every host that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse.published_values import model_and_size
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import beside, paper_blas, paper_figure3, paper_table4
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, missing, quantity, told
from siliconprof.render.variants import Row, as_usual
from siliconprof.store.table_files import key

INDEX = "paper-index"
PRINTED = "the paper"  # in place of a source of records
JOULES = "energy_per_sample_j"
NO_NUMBER = missing("not published as numbers: a picture")
NOT_MADE = "nothing to draw: no such cell was measured"


class Entry(NamedTuple):
    """One place where a table or figure of the paper is rebuilt."""

    name: str  # in the paper
    what: str
    anchor: str  # where it is rebuilt, or how the names of the figures there begin
    called: str

    @property
    def published(self) -> Value:
        """Where the printed values are: those of its tables alone were printed as numbers."""
        kind, _, number = self.name.partition(" ")
        return Value("table", link=f"#table-published-{number}") if kind == "Table" else NO_NUMBER


WHAT_WHERE = "which device trains what in which scenario"
ENTRIES = (
    Entry("Figure 1", "the stack from model to hardware", "figure-stack", "drawing"),
    Entry("Figure 2", "the three scenarios of memory", "figure-scenarios", "drawing"),
    Entry("Table 1", "the devices", "table-published-1", "table"),
    Entry("Table 2", "the workloads and their memory", "table-models", "table"),
    Entry("Table 3", WHAT_WHERE, "table-scenarios", "table"),
    Entry("Figure 3", "forward and backward time", "paper-figure-3", "figure and table"),
    Entry("Table 4", "one pass in MLX, MPS and CUDA", "paper-table-4", "table"),
    Entry("Figure 4", "memory and step time near capacity", "near-capacity", "figure"),
    Entry("section 4.3", "page faults in each step", "faults", "table"),
    Entry("Table 5", "energy of an iteration", "table-published-5", "table"),
    Entry("Table 6", "kernel launch", "table-kernel-launch", "table"),
    Entry("Figure 5", "matrix-matrix product", "matmul-", "figure"),
    Entry("Figure 6", "matrix-vector product", "matvec-", "figure"),
    Entry("Figure 7", "vector-Jacobian product", "vjp-", "figure"),
)


def add(data: Data, book: Book) -> None:
    """The section.

    Args:
        data: of every host and reference bundle, since the paper compares devices.
    """
    book.table(INDEX, INDEX, index())
    paper_figure3.add(data, book)
    paper_table4.add(data, book)
    paper_blas.add(data, book)
    book.table("paper-devices", "paper-devices", devices(data))


def devices(data: Data) -> Table:
    """Which device for which model, after section 5: the fastest measured way, and the printed."""
    lines: list[Row] = []
    for model in (row["workload_as_printed"] for row in data.published["table2_workloads"]):
        of_model = by_rate(data, model) + printed_of(data, model)
        for line in of_model:
            usd, rate = data.sheets.price_usd(line), words.number(line["samples_per_s"])
            line["per_usd"] = 1e3 * rate / usd if rate and usd else None
        best = {
            name: choose(words.numbers(of_model, name), default=None)
            for name, choose in (("samples_per_s", max), ("per_usd", max), (JOULES, min))
        }
        lines += (line | {"model": model, "best": best} for line in of_model)
    columns = (
        told("Model", "model"),
        told("Device", data.place),
        told("Backend", "backend"),
        told("Scenario", lambda line: (line["scenario_applied"] or "").replace("-", " ")),
        _best("speed", "samples/s", "samples_per_s"),
        _best("for 1,000 USD", "samples/s", "per_usd"),
        _best("energy of the GPU", "J per sample", JOULES),
    )
    return Table.of(lines, columns, lambda line: line if line["source"] != PRINTED else None)


def by_rate(data: Data, model: str) -> list[Row]:
    """The fastest training of a model on each device, with the energy of its GPU."""
    counted = beside.gpu_energy(data)
    own = [
        point | {JOULES: counted.get(key(point), [{}])[0].get(JOULES)}
        for point in data.with_speed()
        if (point["module"], point.get("size")) == model_and_size(model)
        and as_usual(point)
        and not point["lora_rank"]
        and point["samples_per_s"]
    ]
    own.sort(key=lambda point: -point["samples_per_s"])
    return [points[0] for points in grouped(own, device_of).values()]


def printed_of(data: Data, model: str) -> list[Row]:
    """A line for each device of Table 4 or 5: its first pass, its energy, its scenario."""
    scenarios, energies, passes = (
        {row["device"]: row for row in reversed(data.published[name]) if row["workload"] == model}
        for name in ("table3_configurations", "table5_energy", "table4_pass_time")
    )
    applied = {number: name for name, number in beside.SCENARIO_OF.items()}
    lines = []
    for device in dict.fromkeys((*passes, *energies)):
        line: Row = {"device": device, "source": PRINTED, "backend": None, "scenario_applied": None}
        line |= {"samples_per_s": None, JOULES: None}
        if row := scenarios.get(device):
            line["scenario_applied"] = applied[row["scenario"]]
        if row := passes.get(device):
            rate = float(row["batch_size"]) / float(row["pass_time_s"])
            line |= {"backend": row["backend"], "samples_per_s": rate}
        if row := energies.get(device):
            line[JOULES] = float(row["energy_per_iteration_j"]) / float(row["batch_size"])
        lines.append(line)
    return lines


def _best(head: str, unit: str, name: str) -> Column:
    """A column of numbers: what is computed from printed ones is marked, a model's best is bold."""

    def value(line: Row) -> Value:
        shown = quantity(line[name], "neither measured nor printed")
        marks = ["computed"] * (line["source"] == PRINTED) + ["best"] * (
            line[name] == line["best"][name]
        )
        return shown if shown.reason else replace(shown, mark=" ".join(marks))

    return Column(head, unit, True, value=value)


def index() -> Table:
    """Where each table and figure of the paper is."""
    columns = (
        told("In the paper", lambda entry: Value(entry.name, sort=float(ENTRIES.index(entry)))),
        told("Rebuilt here", lambda entry: Value(entry.called, link=f"#{entry.anchor}")),
        told("What it shows", attrgetter("what")),
        told("Published values", attrgetter("published")),
    )
    return Table.of(ENTRIES, columns, about=lambda entry: None)


def settle(book: Book) -> None:
    """Point every line of the index at what the complete page has.

    Where a target has several parts, such as a figure of each device, the link leads to the first.
    """
    anchors = [section.anchor for section in book.sections]
    anchors += [block.anchor for section in book.sections for block in section.blocks]
    for section in book.sections:
        for block in section.blocks:
            if block.anchor == f"table-{INDEX}":
                block.rows = [[_settled(value, anchors) for value in row] for row in block.rows]


def _settled(value: Value, anchors: Sequence[str]) -> Value:
    anchor = value.link.removeprefix("#")
    if not anchor or anchor in anchors:
        return value
    first_part = next((name for name in anchors if name.startswith(f"figure-{anchor}")), None)
    if first_part:
        return replace(value, link=f"#{first_part}")
    return Value(words.DASH, title=NOT_MADE, mark="missing")
