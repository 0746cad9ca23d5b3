"""Published numbers: never mixed with ours, marked one by one, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from siliconprof import words
from siliconprof.render import beside
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, published
from siliconprof.render.traces import key as key_of
from siliconprof.render.variants import Row, label, variant

BYTES_PER_PARAMETER = 16  # fp32 weights, gradients, AdamW's two moments; fits Table 2 exactly
STATEMENTS = ("seed001_statements", "seed003_speedups", "seed004_speedups")


def add(data: Data, book: Book) -> None:
    """The paper's six tables and every statement with a number."""
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
        "bundle, so the columns headed “measured” are empty."
    )
    tables: Sequence[tuple[str, str, Callable[[Data], Table]]] = (
        ("published-1", "published-1", table1),
        ("published-2", "published-2", table2),
        ("published-3", "published-3", table3),
        ("published-4", "published-4", table4),
        ("published-5", "published-5", table5),
        ("published-6", "published-6", table6),
    )
    for name, key, make in tables:
        book.table(name, key, make(data))
    many = sum(len(data.published[name]) for name in STATEMENTS)
    book.table(
        "published-statements",
        "published-statements",
        statements(data),
        folded=words.count(many, "statement"),
    )


def _name(data: Data, device: str | None) -> str:
    """The registry's name of a device."""
    entry = data.registry["devices"].get(device)
    return entry["name"] if entry else device or ""


def _device(data: Data, row: Row) -> Value:
    """The registry's name of a published row's device, the printed one for the pointer."""
    printed = row.get("device_as_printed")
    name = _name(data, row["device"])
    return Value(name, sort=name, title=f"printed as {printed}" if printed else "")


def shared_remarks(rows: Sequence[Row]) -> list[str]:
    """Parts of the notes that every row has; they stand below the table, once."""
    if len(rows) < 2:
        return []
    first = (rows[0]["note"] or "").split("; ")
    shared = [part for part in first if part and all(part in _parts(row) for row in rows)]
    return [f"{part[0].upper()}{part[1:]}." for part in shared]


def _parts(row: Row) -> list[str]:
    return (row["note"] or "").split("; ")


def _source(row: Row, shared: Sequence[str] = ()) -> list[Value | str | None]:
    """The last two columns of every published table."""
    shared_parts = {remark[:-1].lower() for remark in shared}
    own = "; ".join(part for part in _parts(row) if part.lower() not in shared_parts)
    return [Value(row["source"], sort=row["source"], mark="prose"), Value(own, mark="note")]


SOURCE = [Column("Source", folds=True), Column("How to read it", folds=True)]


def table1(data: Data) -> Table:
    """Devices; beside them what the host reports and the fastest product measured."""
    table = Table(
        [
            Column("Device"),
            Column("memory", "GB", True),
            Column("peak", "TFLOPS", True),
            Column("launch price", "USD", True),
            Column("measured: memory found", folds=True),
            Column("measured: fastest fp32 product", folds=True),
            *SOURCE,
        ]
    )
    rows = data.published["table1_devices"]
    shared = table.notes = shared_remarks(rows)
    for row in rows:
        cells = [c for c in data.cells if c["device"] == row["device"] and c["device_memory_bytes"]]
        products = beside.measured(data, row["device"], "matmul", precision="fp32")
        products = [point for point in products if point["flop_per_s"]]
        table.add(
            _device(data, row),
            *(
                published(row[name], row["source"])
                for name in ("memory_gb", "compute_tflops", "launch_price_usd")
            ),
            beside.shown(
                list({c["host"]: c for c in cells}.values()),
                lambda c: words.mebibytes(c["device_memory_bytes"]),
            ),
            beside.shown(
                sorted(products, key=lambda p: -p["flop_per_s"])[:1],
                lambda p: (
                    f"{words.scaled(p['flop_per_s'], 'FLOP/s')} "
                    f"({words.backend_name(p)}, {words.shape(p)})"
                ),
            ),
            *_source(row, shared),
        )
    return table


def table2(data: Data) -> Table:
    """Workloads; the printed GiB divide millions by 1024, the computed ones are true."""
    table = Table(
        [
            Column("Workload"),
            Column("parameters", "10⁶", True),
            Column("memory as printed", "GiB", True),
            Column("true memory, computed", "GiB", True, "printed parameters × 16 bytes / 2³⁰"),
            Column("printed / true", "", True),
            *SOURCE,
        ]
    )
    rows = data.published["table2_workloads"]
    shared = table.notes = shared_remarks(rows)
    for row in rows:
        true = float(row["parameters_m"]) * 1e6 * BYTES_PER_PARAMETER / 2**30
        ratio = float(row["theoretical_memory_gib"]) / true
        table.add(
            row["workload_as_printed"],
            published(row["parameters_m"], row["source"]),
            published(row["theoretical_memory_gib"], row["source"]),
            Value(f"{true:.3f}", sort=true, mark="computed", title="computed here"),
            Value(f"{ratio:.3f}", sort=ratio, mark="computed", title="computed here"),
            *_source(row, shared),
        )
    return table


def table3(data: Data) -> Table:
    """Which device trains what; rows on which the two transcriptions disagree say so.

    On the Hugging Face platform, so beside it stands what its Trainer drove; and offloaded where
    the row is of scenario 2, nowhere else.
    """
    table = Table(
        [
            Column("Scenario", "", True),
            Column(
                "derived here",
                help="by our memory model against the device's memory, "
                "whatever was then run: 1 fits, 2 needs offloading, 3 near capacity",
                folds=True,
            ),
            Column("Workload"),
            Column("batch size", "", True),
            Column("Device"),
            Column("Other transcription"),
            Column("measured: unsplit step, Trainer", folds=True),
            *SOURCE,
        ]
    )
    rows = data.published["table3_configurations"]
    shared = table.notes = shared_remarks(rows)
    for row in rows:
        same = [
            r
            for r in rows
            if (r["workload"], r["device"], r["batch_size"])
            == (row["workload"], row["device"], row["batch_size"])
        ]
        agree = len({r["scenario"] for r in same}) == 1
        cells = beside.planned(data, row, trainer="hf")
        own_rows = beside.trainings(data, row, trainer="hf", offloads=row["scenario"] == "2")
        refused = [f"{c['status']}: {c['reason']}" for c in cells if c["status"] != "ok"]
        table.add(
            published(row["scenario"], row["source"]),
            beside.derived(cells),
            row["workload"],
            published(row["batch_size"], row["source"]),
            _device(data, row),
            Value("the same")
            if agree
            else Value(
                "; ".join(
                    f"{r['source'].split(',')[0]} says {r['scenario']}"
                    for r in same
                    if r is not row
                ),
                mark="bad",
            ),
            beside.shown(
                own_rows,
                lambda p: f"{beside.step(p)} ({label(p)}; {beside.length(p)})",
                "; ".join(dict.fromkeys(refused)) or beside.NOT_MEASURED,
            ),
            *_source(row, shared),
            css="" if agree else "disagree",
        )
    return beside.with_lengths(table)


def table4(data: Data) -> Table:
    """Pass times; ours is a whole unsplit step, optimizer included."""
    table = Table(
        [
            Column("Device"),
            Column("Backend"),
            Column("Workload", folds=True),
            Column("batch size", "", True),
            Column("one pass", "s", True),
            Column("measured: unsplit step, plain loop, fp32", folds=True),
            *SOURCE,
        ]
    )
    rows = data.published["table4_pass_time"]
    shared = table.notes = shared_remarks(rows)

    def show(point: Row) -> str:
        return f"{beside.step(point)} ({', '.join([*variant(point), beside.length(point)])})"

    for row in rows:
        own_rows = beside.trainings(
            data, row, backend=row["backend"], trainer="plain", precision="fp32", offloads=False
        )
        table.add(
            _device(data, row),
            row["backend"],
            row["workload"],
            published(row["batch_size"], row["source"]),
            published(row["pass_time_s"], row["source"]),
            beside.shown(own_rows, show),
            *_source(row, shared),
        )
    return beside.with_lengths(table)


def table5(data: Data) -> Table:
    """Energy of the GPU; beside it only what was measured of that scope, by the Trainer."""
    table = Table(
        [
            Column("Device"),
            Column("energy per iteration", "J", True),
            Column("Of what"),
            Column("Workload"),
            Column("batch size", "", True),
            Column("Precision"),
            Column("measured: GPU alone", folds=True),
            *SOURCE,
        ]
    )
    rows = data.published["table5_energy"]
    shared = table.notes = shared_remarks(rows)
    joules: dict[tuple, list[Row]] = {}
    for line in data.energy:
        if line.get("scope") == "gpu" and words.number(line.get("energy_per_step_j")):
            joules.setdefault(key_of(line), []).append(line)

    def show(point: Row) -> str:
        texts = (
            f"{words.significant(line['energy_per_step_j'], 4)} J by {line['name']}, "
            f"{line['quality']}"
            for line in joules[key_of(point)]
        )
        return f"{', '.join(texts)} ({label(point)}; {beside.length(point)})"

    for row in rows:
        own_rows = beside.trainings(
            data, row, precision=row["precision"], trainer="hf", offloads=False
        )
        table.add(
            _device(data, row),
            published(row["energy_per_iteration_j"], row["source"]),
            row["scope"],
            row["workload"],
            published(row["batch_size"], row["source"]),
            row["precision"],
            beside.shown([point for point in own_rows if key_of(point) in joules], show),
            *_source(row, shared),
        )
    return beside.with_lengths(table)


def table6(data: Data) -> Table:
    """Kernel launch; which of our four numbers is the paper's is not known."""
    table = Table(
        [
            Column("Device"),
            Column("cold launch", "ms", True),
            Column("follow-up launch", "ms", True),
            Column("measured: cold, launch and wait, enqueue", folds=True),
            *SOURCE,
        ]
    )

    def show(point: Row) -> str:
        three = (point[f"{kind}_median_s"] for kind in ("cold", "launch_and_wait", "enqueue"))
        times = ", ".join(words.duration(value) if value else words.DASH for value in three)
        return f"{times} ({words.backend_name(point)}, {point['launch']})"

    rows = data.published["table6_kernel_launch"]
    shared = table.notes = shared_remarks(rows)
    for row in rows:
        table.add(
            _device(data, row),
            published(row["cold_launch_ms"], row["source"]),
            published(row["followup_launch_ms"], row["source"]),
            beside.shown(beside.measured(data, row["device"], "kernel_launch"), show),
            *_source(row, shared),
        )
    return table


def statements(data: Data) -> Table:
    """Numbers of running text, from the paper and from seeds 003 and 004."""
    table = Table(
        [
            Column("Statement"),
            Column("Value", "", True),
            Column("Compared"),
            Column("Of what"),
            Column("batch size", "", True),
            *SOURCE,
        ]
    )
    for name in STATEMENTS:
        for row in data.published[name]:
            low, high = row["value_min"], row["value_max"]
            if low == high:
                value_text = low
            elif low is None:
                value_text = f"up to {high}"
            elif high is None:
                value_text = f"at least {low}"
            else:
                value_text = f"{low} to {high}"
            devices = [_name(data, row[column]) for column in ("device_a", "device_b")]
            table.add(
                Value(row["statement"], sort=row["statement"], mark="prose"),
                published(
                    f"{value_text} {_unit(row['unit'])}" if value_text else None, row["source"]
                ),
                Value(" against ".join(filter(None, devices)) or words.DASH, mark="prose"),
                Value(row["model"] or words.DASH, sort=row["model"] or "", mark="prose"),
                published(row["batch_size"], row["source"]) if row["batch_size"] else None,
                *_source(row),
            )
    return table


def _unit(unit: str | None) -> str:
    return {"percent": "%", "times": "×"}.get(unit or "", unit or "")
