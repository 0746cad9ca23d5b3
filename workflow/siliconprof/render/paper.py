"""The paper's tables and figures, rebuilt across the devices of every host that was measured."""

from __future__ import annotations

from dataclasses import replace

from siliconprof import words
from siliconprof.analyse.published_values import model_and_size
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import beside, paper_blas, paper_figure3, paper_table4
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, quantity, told
from siliconprof.render.variants import Row, as_usual
from siliconprof.store.table_files import key

PRINTED = "the paper"  # in place of a source of records
JOULES = "energy_per_sample_j"


def add(data: Data, book: Book) -> None:
    """The section.

    Args:
        data: of every host and reference bundle, since the paper compares devices.
    """
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
