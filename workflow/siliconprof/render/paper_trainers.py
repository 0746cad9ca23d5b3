"""The paper's Tables 4 and 5 as charts: printed values hatched, ours of the same work below them."""

from __future__ import annotations

from collections.abc import Iterator

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import beside, paper_bars, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Panel
from siliconprof.render.compare import Step, pairs
from siliconprof.render.data import Data, grouped
from siliconprof.render.paper_bars import HATCHED, Bar, Span, filled, measured, place
from siliconprof.render.paper_figure3 import MS, applied, per_sample, usable, way
from siliconprof.render.tables import Column, Table, Value, integer, missing, published, spanned
from siliconprof.render.traces import key as key_of
from siliconprof.render.variants import Row, family, model, order

GPU = "gpu"
NO_ENERGY = (
    "No GPU energy of Whisper-medium at batch 4 in fp32 was measured on a device of "
    "Table 5 on any host, so nothing stands beside the printed values."
)
LIKE_PASSES = "Filled bars below them are ours, of the same work on the same device"
NO_PASSES = "No such training was measured on these devices, so no bar of ours stands beside them"
OWN_PASSES = (
    " The other panels are measured trainings: on one device, MLX against plain torch "
    "and the Hugging Face Trainer against the plain loop."
)
NO_OWN_PASSES = (
    " On no device was equal work measured in both MLX and torch, or with both trainers, "
    "so this run has nothing like it to show."
)


# -- Table 4 -----------------------------------------------------------------------------------


def add_passes(data: Data, book: Book) -> None:
    """One pass without the Hugging Face platform, published and measured, and this run's likes."""
    book.heading("Table 4: trainers and frameworks", anchor="paper-table-4")
    panels = [printed_passes(data), *own_passes(data)]
    legend: list[style.Entry] = [HATCHED]
    if measured(panels):
        legend += [
            (style.swatch(style.shade("grey", 100)), "measured, plain loop"),
            (style.swatch(style.shade("grey", 45)), "measured, Hugging Face Trainer"),
            (style.sample(None, "-", color=style.INK, linewidth=0.9), "95 % interval"),
        ]
    like = LIKE_PASSES if measured(panels[:1]) else NO_PASSES
    own = OWN_PASSES if len(panels) > 1 else NO_OWN_PASSES
    paper_bars.add(book, "paper-table-4", panels, legend, like=like, own=own)
    book.table("paper-table-4", "paper-table-4", gains(data))


def printed_passes(data: Data) -> Panel:
    """Table 4 by sample, with ours of each row below it."""
    groups: dict[str, list[Bar]] = {}
    for row in data.published["table4_pass_time"]:
        name, backend, batch = data.listed_name(row["device"]), row["backend"], row["batch_size"]
        seconds = float(row["pass_time_s"]) / int(batch)
        text = f"{words.significant(seconds)} s"
        printed = Bar(
            f"{backend} · batch {batch}",
            [(Span(seconds), style.published(backend))],
            text,
            f"published, Table 4: {row['workload']}, {name}, {backend}, batch {batch}: "
            f"{row['pass_time_s']} s one pass, {text} per sample",
        )
        like = beside.trainings(
            data, row, backend=backend, trainer="plain", precision="fp32", offloads=False
        )
        own = [pass_bar(data, point, f"{backend} · measured", 1.0, "s") for point in like]
        groups.setdefault(name, []).extend([printed, *own])
    remark = "fp32, each device with a batch of its own"
    title, label = "Table 4: GPT2-large, no Trainer", "time of one sample / s"
    return paper_bars.panel(title, remark, groups.items(), label)


def pass_bar(data: Data, row: Row, label: str, scale: float, unit: str) -> Bar:
    """The unsplit step of a training by sample."""
    span = per_sample(row, "unsplit_step")
    assert span
    caution = words.caution(row)
    face = style.shade(row["backend"], 100 if row["trainer"] == "plain" else 45)
    return Bar(
        label,
        [(span, filled(face))],
        f"{words.significant(span.middle / scale)} {unit}" + (" (flagged)" if caution else ""),
        f"{row['workload']}, {place(data, row)}, {way(row)}, {row['precision']}: "
        f"{span.text(scale, unit)} per sample, batch {int(row['samples_per_step'])}, "
        f"{beside.length(row)}" + (f"; {caution}" if caution else ""),
        row,
    )


def alike(data: Data) -> list[list[Row]]:
    """Trainings of equal work on one device, in fp32, that differ in backend or trainer."""

    def fits(point: Row) -> bool:
        return (
            usable(point)
            and (applied(point), point["precision"]) == ("fits", "fp32")
            and not point["lora_rank"]
            and per_sample(point, "unsplit_step") is not None
        )

    def work(point: Row) -> tuple:
        checkpointed = bool(point.get("gradient_checkpointing"))
        own = (point.get("weights"), point["method_version"])
        return (*device_of(point), family(point), checkpointed, *own)

    groups = grouped(filter(fits, sorted(data.training(), key=order)), work)
    return [
        rows
        for rows in groups.values()
        if len({(row["backend"], row["trainer"]) for row in rows}) > 1
    ]


def own_passes(data: Data) -> list[Panel]:
    """Panels of each model: plain torch, MLX and the Hugging Face Trainer, device by device."""
    rows_alike = (row for rows in alike(data) for row in rows)
    by_model = grouped(rows_alike, lambda row: (model(row), family(row).label))

    def bar(row: Row) -> Bar:
        return pass_bar(data, row, way(row), MS, "ms")

    panels: list[Panel] = []
    for (name, label), rows in by_model.items():
        title, remark = f"Measured: {name}", f"{label.partition(', ')[2]}, fp32"
        panels += paper_bars.panels(data, rows, bar, title, remark, "time of one sample / ms", MS)
    return panels


def gains(data: Data) -> Table:
    """How many times as long the slower side takes: printed, computed from print, measured."""
    table = Table(
        [
            Column("Compared", below="where from"),
            Column("Device"),
            Column("Of what"),
            Column("batch", "", True),
            Column("first", "ms per sample", True, "95 % interval below"),
            Column("second", "ms per sample", True, "95 % interval below"),
            Column("second / first", "×", True, "what both 95 % intervals allow below"),
        ]
    )
    for row in data.published["feng2025_statements"]:
        if "optimized kernels" in row["statement"]:
            low, high = (1 + float(row[f"value_{end}"]) / 100 for end in ("min", "max"))
            table.add(
                _compared("MLX against MPS", "published: “30%-40% speed advantage”"),
                missing("devices not named one by one"),
                Value(row["model"], mark="prose"),
                *[missing("not published")] * 3,
                published(f"{low:g} to {high:g}", row["source"]),
            )
    printed = {(r["device"], r["backend"]): r for r in data.published["table4_pass_time"]}
    for (device, backend), row in printed.items():
        other = printed.get((device, "torch-mps"))
        if backend == "mlx" and other:
            first, second = (
                float(r["pass_time_s"]) / int(row["batch_size"]) / MS for r in (row, other)
            )
            table.add(
                _compared("MLX against MPS", "published: Table 4"),
                data.listed_name(device),
                row["workload"],
                published(row["batch_size"], row["source"]),
                _computed(first, f"the printed {row['pass_time_s']} s a pass", 4),
                _computed(second, f"the printed {other['pass_time_s']} s a pass", 4),
                _computed(second / first, "two printed numbers"),
            )
    for what, a, b in comparisons(data):
        rows = (a.row, b.row)
        spans = [per_sample(row, "unsplit_step") for row in rows]
        table.add(
            _compared(what, ", ".join(filter(None, ["measured", words.caution(*rows)]))),
            place(data, a.row),
            family(a.row).name,
            integer(a.row["samples_per_step"], "not recorded"),
            *(spanned(*span, MS) for span in spans if span),
            spanned(*b.over(a)),
            of=rows,
        )
    return table


def _compared(what: str, whence: str) -> Value:
    return Value(what, sort=what, below=whence)


def _computed(value: float, of: str, digits: int = 3) -> Value:
    title = f"computed from {of}"
    return Value(words.significant(value, digits), value, mark="computed", title=title)


def comparisons(data: Data) -> Iterator[tuple[str, Step, Step]]:
    """(what, first, second): MLX and torch in a plain loop, a plain loop and the Trainer."""
    for rows in alike(data):
        steps = [step for row in rows if (step := Step.of(row))]
        found = [
            (f"MLX against {other.row['backend']}", mlx, other)
            for mlx, other in pairs(steps, "backend", "mlx")
            if mlx.row["trainer"] == "plain"
        ]
        found += [
            (f"plain against hf, {plain.row['backend']}", plain, other)
            for plain, other in pairs(steps, "trainer", "plain")
            if other.row["trainer"] == "hf"
        ]
        yield from sorted(found, key=lambda one: (steps.index(one[1]), steps.index(one[2])))


# -- Table 5 -----------------------------------------------------------------------------------


def add_energy(data: Data, book: Book) -> None:
    """Energy of one sample: printed by iteration and divided by its batch, ours of that scope."""
    book.heading("Table 5: energy of the GPU", anchor="paper-table-5")
    panel = energies(data)
    legend: list[style.Entry] = [HATCHED]
    like = NO_ENERGY
    if measured([panel]):
        legend.append((style.swatch(style.shade("grey", 100)), "measured, GPU alone"))
        like = "Filled bars are ours: the same training and the same scope, the GPU alone."
    paper_bars.add(book, "paper-table-5", [panel], legend, columns=1, like=like)


def energies(data: Data) -> Panel:
    """Table 5 by sample, with ours of each row below it."""
    groups: list[tuple[str, list[Bar]]] = []
    for row in data.published["table5_energy"]:
        entry, name = (
            data.registry["devices"].get(row["device"], {}),
            data.listed_name(row["device"]),
        )
        hue = next((b for b in entry.get("backends", []) if b.startswith("torch-")), "other")
        joules = float(row["energy_per_iteration_j"]) / int(row["batch_size"])
        text = f"{words.significant(joules)} J ({row['energy_per_iteration_j']} J an iteration)"
        hover = (
            f"published, Table 5: {row['workload']}, {name}, batch {row['batch_size']}, "
            f"{row['precision']}, {row['scope']}: {text}"
        )
        like = beside.trainings(data, row, precision=row["precision"], trainer="hf", offloads=False)
        bars = [
            Bar("published", [(Span(joules), style.published(hue))], text, hover),
            *(energy_bar(data, *pair) for pair in counted(data, like)),
        ]
        groups.append((name, bars))
    title, remark = "Table 5: Whisper-medium, batch 4, fp32", "by sample: an iteration divided by 4"
    return paper_bars.panel(title, remark, groups, "energy of one sample / J")


def counted(data: Data, points: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Trainings with each line of energy.csv that counted the GPU alone."""
    for point in points:
        for line in data.energy:
            known = words.number(line.get("energy_per_sample_j"))
            if known and line.get("scope") == GPU and key_of(line) == key_of(point):
                yield point, line


def energy_bar(data: Data, point: Row, line: Row) -> Bar:
    """One source of energy of a training, by sample."""
    joules = float(line["energy_per_sample_j"])
    step_text = words.significant(line["energy_per_step_j"], 4)
    text = f"{words.significant(joules)} J ({step_text} J an iteration)"
    return Bar(
        f"{words.backend_name(point)} · {line['name']}",
        [(Span(joules), filled(style.shade(point["backend"])))],
        text,
        f"{point['workload']}, {place(data, point)}, {way(point)}, {point['precision']}, GPU alone "
        f"by {line['name']} ({line['quality']}): {text}, {beside.length(point)}",
        point,
    )
