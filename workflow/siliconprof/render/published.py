"""Published numbers: never mixed with ours, marked one by one, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from siliconprof import words
from siliconprof.render import beside
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, printed, told
from siliconprof.render.traces import key as key_of
from siliconprof.render.variants import Row, label, variant

BYTES_PER_PARAMETER = 16  # fp32 weights, gradients, AdamW's two moments; fits Table 2 exactly
LENGTHS = (
    "The paper tells neither the tokens of a sequence nor the length of a clip, and time, "
    "memory and energy depend on them. Each value from here names those it was measured or derived "
    "with, so it does not repeat the printed one."
)
OUR_MODEL = (
    "by our memory model against the device's memory, whatever was then run: 1 fits, 2 needs "
    "offloading, 3 near capacity"
)


def add(data: Data, book: Book) -> None:
    """The paper's six tables; its statements, and those of others, stand among the claims."""
    shown = {
        row["device"]
        for name in ("table1_devices", "table6_kernel_launch")
        for row in data.published[name]
    }
    measured = sorted({data.device_name(c) for c in data.cells if c["device"] in shown})
    book.note(
        f"Devices of these tables among the results: {words.listing(measured)}; their values stand "
        "in the columns headed “measured”."
        if measured
        else "No device of these tables was measured here, on another host or in a reference "
        "bundle, so the columns headed “measured” would be empty and are left out."
    )
    for number, make in enumerate((table1, table2, table3, table4, table5, table6), 1):
        book.table(f"published-{number}", f"published-{number}", make(data))


def _table(
    rows: Sequence[Row],
    *columns: Column,
    lengths: bool = False,
    css: Callable[[Row], str] = lambda row: "",
) -> Table:
    """A line for each published row; what all say of how to read them stands below, once.

    Args:
        lengths: whether a table that shows anything of ours says what the paper leaves open.
    """
    shared = shared_remarks(rows)
    repeated = {remark[:-1].lower() for remark in shared}

    def note(row: Row) -> Value:
        own = (part for part in _parts(row) if part.lower() not in repeated)
        return Value("; ".join(own), mark="note")

    source = told("Source", "source", folds=True, mark="prose")
    reading = told("How to read it", note, folds=True)
    table = Table.of(rows, [*columns, source, reading], lambda row: None, shared, css=css)
    if lengths and any(value.mark == "measured" for row in table.rows for value in row):
        table.notes.append(LENGTHS)
    return table


def shared_remarks(rows: Sequence[Row]) -> list[str]:
    """Parts of the notes that every row has; they stand below the table, once."""
    if len(rows) < 2:
        return []
    shared = [part for part in _parts(rows[0]) if part and all(part in _parts(r) for r in rows)]
    return [f"{part[0].upper()}{part[1:]}." for part in shared]


def _parts(row: Row) -> list[str]:
    return (row["note"] or "").split("; ")


def _device(data: Data) -> Column:
    """The registry's name of a published row's device, the printed one for the pointer."""

    def value(row: Row) -> Value:
        as_printed, name = row.get("device_as_printed"), data.listed_name(row["device"])
        return Value(name, name, title=f"printed as {as_printed}" if as_printed else "")

    return told("Device", value)


WORKLOAD = told("Workload", "workload")
BATCH_SIZE = printed("batch size", "", "batch_size")


def table1(data: Data) -> Table:
    """Devices; beside them what the host reports and the fastest product measured."""

    def memory(row: Row) -> Value:
        cells = [c for c in data.cells if c["device"] == row["device"] and c["device_memory_bytes"]]
        one_of_each = list({cell["host"]: cell for cell in cells}.values())
        return beside.shown(one_of_each, lambda c: words.mebibytes(c["device_memory_bytes"]))

    def fastest(row: Row) -> Value:
        points = beside.measured(data, row["device"], "matmul", precision="fp32")
        timed = sorted((p for p in points if p["flop_per_s"]), key=lambda p: -p["flop_per_s"])
        return beside.shown(timed[:1], product)

    def product(p: Row) -> str:
        rate = words.scaled(p["flop_per_s"], "FLOP/s")
        return f"{rate} ({words.backend_name(p)}, {words.shape(p)})"

    return _table(
        data.published["table1_devices"],
        _device(data),
        printed("memory", "GB", "memory_gb"),
        printed("peak", "TFLOPS", "compute_tflops"),
        printed("launch price", "USD", "launch_price_usd"),
        told("measured: memory found", memory, folds=True),
        told("measured: fastest fp32 product", fastest, folds=True),
    )


def table2(data: Data) -> Table:
    """Workloads; the printed GiB divide millions by 1024, the computed ones are true."""

    def gib(row: Row) -> float:
        return float(row["parameters_m"]) * 1e6 * BYTES_PER_PARAMETER / 2**30

    def computed(head: str, unit: str, of: Callable[[Row], float], help: str = "") -> Column:
        def value(row: Row) -> Value:
            return Value(f"{of(row):.3f}", of(row), mark="computed", title="computed here")

        return Column(head, unit, True, help, value=value)

    return _table(
        data.published["table2_workloads"],
        told("Workload", "workload_as_printed"),
        printed("parameters", "10⁶", "parameters_m"),
        printed("memory as printed", "GiB", "theoretical_memory_gib"),
        computed("true memory, computed", "GiB", gib, "printed parameters × 16 bytes / 2³⁰"),
        computed("printed / true", "", lambda row: float(row["theoretical_memory_gib"]) / gib(row)),
    )


def table3(data: Data) -> Table:
    """Which device trains what; rows on which the two transcriptions disagree say so.

    On the Hugging Face platform, so beside it stands what its Trainer drove; and offloaded where
    the row is of scenario 2, nowhere else.
    """
    rows = data.published["table3_configurations"]
    same = grouped(rows, lambda row: (row["workload"], row["device"], row["batch_size"]))

    def others(row: Row) -> list[Row]:
        """The transcriptions that say otherwise."""
        alike = same[row["workload"], row["device"], row["batch_size"]]
        return [r for r in alike if r is not row] if len({r["scenario"] for r in alike}) > 1 else []

    def other(row: Row) -> Value:
        texts = [f"{r['source'].split(',')[0]} says {r['scenario']}" for r in others(row)]
        return Value("; ".join(texts), mark="bad") if texts else Value("the same")

    def step(row: Row) -> Value:
        planned = beside.planned(data, row, trainer="hf")
        refused = dict.fromkeys(
            f"{c['status']}: {c['reason']}" for c in planned if c["status"] != "ok"
        )
        return beside.shown(
            beside.trainings(data, row, trainer="hf", offloads=row["scenario"] == "2"),
            lambda p: f"{beside.step(p)} ({label(p)}; {beside.length(p)})",
            "; ".join(refused) or beside.NOT_MEASURED,
        )

    return _table(
        rows,
        printed("Scenario", "", "scenario"),
        told(
            "derived here",
            lambda row: beside.derived(beside.planned(data, row, trainer="hf")),
            OUR_MODEL,
            folds=True,
        ),
        WORKLOAD,
        BATCH_SIZE,
        _device(data),
        told("Other transcription", other),
        told("measured: unsplit step, Trainer", step, folds=True),
        css=lambda row: "disagree" if others(row) else "",
        lengths=True,
    )


def table4(data: Data) -> Table:
    """Pass times; ours is a whole unsplit step, optimizer included."""

    def step(row: Row) -> Value:
        wanted = {"backend": row["backend"], "trainer": "plain", "precision": "fp32"}
        return beside.shown(beside.trainings(data, row, offloads=False, **wanted), show)

    def show(point: Row) -> str:
        return f"{beside.step(point)} ({', '.join([*variant(point), beside.length(point)])})"

    return _table(
        data.published["table4_pass_time"],
        _device(data),
        told("Backend", "backend"),
        told("Workload", "workload", folds=True),
        BATCH_SIZE,
        printed("one pass", "s", "pass_time_s"),
        told("measured: unsplit step, plain loop, fp32", step, folds=True),
        told("Precision", "precision", folds=True),
        lengths=True,
    )


def table5(data: Data) -> Table:
    """Energy of the GPU; beside it only what was measured of that scope, by the Trainer."""
    counted = beside.gpu_energy(data)

    def joules(row: Row) -> Value:
        like = beside.trainings(data, row, precision=row["precision"], trainer="hf", offloads=False)
        return beside.shown([point for point in like if key_of(point) in counted], show)

    def show(point: Row) -> str:
        texts = (
            f"{words.significant(line['energy_per_step_j'], 4)} J by {line['name']}, "
            f"{line['quality']}"
            for line in counted[key_of(point)]
        )
        return f"{', '.join(texts)} ({label(point)}; {beside.length(point)})"

    return _table(
        data.published["table5_energy"],
        _device(data),
        printed("energy per iteration", "J", "energy_per_iteration_j"),
        told("Of what", "scope"),
        WORKLOAD,
        BATCH_SIZE,
        told("Precision", "precision"),
        told("measured: GPU alone", joules, folds=True),
        lengths=True,
    )


def table6(data: Data) -> Table:
    """Kernel launch; which of our four numbers is the paper's is not known."""

    def launches(row: Row) -> Value:
        return beside.shown(beside.measured(data, row["device"], "kernel_launch"), show)

    def show(point: Row) -> str:
        three = (point[f"{kind}_median_s"] for kind in ("cold", "launch_and_wait", "enqueue"))
        times = ", ".join(words.duration(value) if value else words.DASH for value in three)
        return f"{times} ({words.backend_name(point)}, {point['launch']})"

    return _table(
        data.published["table6_kernel_launch"],
        _device(data),
        printed("cold launch", "ms", "cold_launch_ms"),
        printed("follow-up launch", "ms", "followup_launch_ms"),
        told("measured: cold, launch and wait, enqueue", launches, folds=True),
    )
