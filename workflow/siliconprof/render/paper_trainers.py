"""The paper's Tables 4 and 5 as charts: printed values hatched, ours of the same work below them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from siliconprof import words
from siliconprof.render import beside, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.paper_bars import (
    Bar,
    Group,
    Panel,
    Span,
    by_kind,
    by_place,
    draw,
    figures,
    filled,
    hatched,
    place,
    portions,
    where,
)
from siliconprof.render.paper_figure3 import MS, applied, per_sample, spanned, usable, way
from siliconprof.render.tables import Column, Table, Value, integer, missing, published
from siliconprof.render.traces import key as key_of
from siliconprof.render.variants import Row, as_usual, differ_in, family, model, order

INTERVAL = "95 % interval"
GPU = "gpu"
NO_ENERGY = (
    "No GPU energy of Whisper-medium at batch 4 in fp32 was measured on a device of "
    "Table 5 on any host, so nothing stands beside the printed values."
)


# -- Table 4 -----------------------------------------------------------------------------------


def add_passes(data: Data, book: Book) -> None:
    """One pass without the Hugging Face platform, published and measured, and this run's likes."""
    book.heading("Table 4: trainers and frameworks", anchor="paper-table-4")
    panels = [printed_passes(data), *own_passes(data)]
    own_rows, matching = measured(panels), measured(panels[:1])
    entries: list[style.Entry] = [hatched()]
    if own_rows:
        entries += [
            (style.swatch(style.shade("grey", 100)), "measured, plain loop"),
            (style.swatch(style.shade("grey", 45)), "measured, Hugging Face Trainer"),
            (style.sample(None, "-", color=style.INK, linewidth=0.9), INTERVAL),
        ]
    for index, part in enumerate(figures(panels)):
        book.figure(
            "paper-table-4" + (f"-{index + 1}" if index else ""),
            "paper-table-4",
            partial(draw, part, entries, 2),
            like="Filled bars below them are ours, of the same work on the same device"
            if matching
            else "No such training was measured on these devices, so no bar of ours stands "
            "beside them",
            own=" The other panels are measured trainings: on one device, MLX against plain torch "
            "and the Hugging Face Trainer against the plain loop."
            if len(panels) > 1
            else " On no device was equal work measured in both MLX and torch, or with both trainers, "
            "so this run has nothing like it to show.",
            intervals=uncertainty.origin_text(own_rows),
        )
    book.table("paper-table-4", "paper-table-4", gains(data))


def printed_passes(data: Data) -> Panel:
    """Table 4 by sample, with ours of each row below it."""
    groups: dict[str, list[Bar]] = {}
    for row in data.published["table4_pass_time"]:
        name = data.registry["devices"].get(row["device"], {}).get("name", row["device"])
        batch = int(row["batch_size"])
        seconds = float(row["pass_time_s"]) / batch
        label = f"{row['backend']} · batch {batch}"
        text = f"{words.significant(seconds)} s"
        hover_text = (
            f"published, Table 4: {row['workload']}, {name}, {row['backend']}, batch {batch}: "
            f"{row['pass_time_s']} s one pass, {text} per sample"
        )
        printed = Bar(label, [(Span(seconds), style.published(row["backend"]))], text, hover_text)
        own_bars = [
            pass_bar(data, point, f"{row['backend']} · measured", 1.0, "s")
            for point in beside.trainings(
                data, row, backend=row["backend"], trainer="plain", precision="fp32", offloads=False
            )
        ]
        groups.setdefault(name, []).extend([printed, *own_bars])
    return Panel(
        "Table 4: GPT2-large, no Trainer",
        "fp32, each device with a batch of its own",
        [list(groups.items())],
        "time of one sample / s",
    )


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
    groups: dict[tuple, list[Row]] = {}
    for point in sorted(data.training(), key=order):
        fits = (
            usable(point)
            and as_usual(point)
            and applied(point) == "fits"
            and point["precision"] == "fp32"
        )
        if fits and not point["lora_rank"] and per_sample(point, "unsplit_step"):
            same = (
                *where(point),
                family(point),
                bool(point.get("gradient_checkpointing")),
                point.get("weights"),
                point["method_version"],
            )
            groups.setdefault(same, []).append(point)
    return [
        rows
        for rows in groups.values()
        if len({(row["backend"], row["trainer"]) for row in rows}) > 1
    ]


def own_passes(data: Data) -> list[Panel]:
    """A panel for each model: plain torch, MLX and the Hugging Face Trainer, device by device."""
    by_model: dict[tuple[str, str], list[Row]] = {}
    for rows in alike(data):
        by_model.setdefault((model(rows[0]), family(rows[0]).label), []).extend(rows)
    panels = []
    for (name, label), rows in by_model.items():
        for kind in by_kind(rows):
            groups: list[Group] = [
                (device, [pass_bar(data, row, way(row), MS, "ms") for row in part])
                for device, part in by_place(data, kind).items()
            ]
            panels += [
                Panel(
                    f"Measured: {name}",
                    f"{label.partition(', ')[2]}, fp32",
                    [part],
                    "time of one sample / ms",
                    MS,
                )
                for part in portions(groups)
            ]
    return panels


def gains(data: Data) -> Table:
    """How many times as long the slower side takes: printed, computed from print, measured."""
    result = Table(
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
    empty = missing("not published")
    for statement in data.published["seed001_statements"]:
        if "optimized kernels" in statement["statement"]:
            low, high = (1 + float(statement[f"value_{end}"]) / 100 for end in ("min", "max"))
            result.add(
                _compared("MLX against MPS", "published: “30%-40% speed advantage”"),
                missing("devices not named one by one"),
                Value(statement["model"], mark="prose"),
                empty,
                empty,
                empty,
                published(f"{low:g} to {high:g}", statement["source"]),
            )
    printed = {(r["device"], r["backend"]): r for r in data.published["table4_pass_time"]}
    for (device, backend), row in printed.items():
        other = printed.get((device, "torch-mps"))
        if backend != "mlx" or other is None:
            continue
        name = data.registry["devices"].get(device, {}).get("name", device)
        batch = int(row["batch_size"])
        times = [float(r["pass_time_s"]) / batch / MS for r in (row, other)]
        result.add(
            _compared("MLX against MPS", "published: Table 4"),
            name,
            row["workload"],
            published(row["batch_size"], row["source"]),
            *(
                Value(
                    words.significant(ms, 4),
                    ms,
                    mark="computed",
                    title=f"computed from the printed {r['pass_time_s']} s a pass",
                )
                for ms, r in zip(times, (row, other), strict=True)
            ),
            Value(
                words.significant(times[1] / times[0]),
                times[1] / times[0],
                mark="computed",
                title="computed from two printed numbers",
            ),
        )
    for compared, first, second in comparisons(data):
        a, b = Step.of(first), Step.of(second)
        assert a and b
        ratio = b.middle / a.middle
        below = "–".join(words.significant(v) for v in (b.low / a.high, b.high / a.low))
        result.add(
            _compared(
                compared, ", ".join(filter(None, ["measured", words.caution(first, second)]))
            ),
            place(data, first),
            family(first).name,
            integer(first["samples_per_step"], "not recorded"),
            spanned(per_sample(first, "unsplit_step"), MS),
            spanned(per_sample(second, "unsplit_step"), MS),
            Value(words.significant(ratio), ratio, below),
            of=(first, second),
        )
    return result


def _compared(what: str, whence: str) -> Value:
    return Value(what, sort=what, below=whence)


def comparisons(data: Data) -> Iterator[tuple[str, Row, Row]]:
    """(what, first, second): MLX and torch in a plain loop, a plain loop and the Trainer."""
    for rows in alike(data):
        for first in rows:
            for second in rows:
                if not (Step.of(first) and Step.of(second)):
                    continue
                plain = first["trainer"] == second["trainer"] == "plain"
                if plain and first["backend"] == "mlx" and differ_in(first, second, "backend"):
                    yield f"MLX against {second['backend']}", first, second
                if (first["trainer"], second["trainer"]) == ("plain", "hf") and differ_in(
                    first, second, "trainer"
                ):
                    yield f"plain against hf, {first['backend']}", first, second


# -- Table 5 -----------------------------------------------------------------------------------


def add_energy(data: Data, book: Book) -> None:
    """Energy of one sample: printed by iteration and divided by its batch, ours of that scope."""
    book.heading("Table 5: energy of the GPU", anchor="paper-table-5")
    panel = energies(data)
    own_rows = measured([panel])
    entries: list[style.Entry] = [hatched()]
    if own_rows:
        entries.append((style.swatch(style.shade("grey", 100)), "measured, GPU alone"))
    book.figure(
        "paper-table-5",
        "paper-table-5",
        partial(draw, [panel], entries, 1),
        like="Filled bars are ours: the same training and the same scope, the GPU alone."
        if own_rows
        else NO_ENERGY,
    )


def energies(data: Data) -> Panel:
    """Table 5 by sample, with ours of each row below it."""
    counted: dict[tuple, list[Row]] = {}
    for line in data.energy:
        if line.get("scope") == GPU and words.number(line.get("energy_per_sample_j")):
            counted.setdefault(key_of(line), []).append(line)
    groups: list[Group] = []
    for row in data.published["table5_energy"]:
        entry = data.registry["devices"].get(row["device"], {})
        name = entry.get("name", row["device"])
        batch, step_j = int(row["batch_size"]), row["energy_per_iteration_j"]
        joules = float(step_j) / batch
        text = f"{words.significant(joules)} J ({step_j} J an iteration)"
        hue = next((b for b in entry.get("backends", []) if b.startswith("torch-")), "other")
        bars = [
            Bar(
                "published",
                [(Span(joules), style.published(hue))],
                text,
                f"published, Table 5: {row['workload']}, {name}, batch {batch}, "
                f"{row['precision']}, {row['scope']}: {text}",
            )
        ]
        like = beside.trainings(data, row, precision=row["precision"], trainer="hf", offloads=False)
        bars += [
            energy_bar(data, point, line)
            for point in like
            for line in counted.get(key_of(point), [])
        ]
        groups.append((name, bars))
    return Panel(
        "Table 5: Whisper-medium, batch 4, fp32",
        "by sample: an iteration divided by 4",
        [groups],
        "energy of one sample / J",
    )


def energy_bar(data: Data, point: Row, line: Row) -> Bar:
    """One source of energy of a training, by sample."""
    joules = float(line["energy_per_sample_j"])
    text = f"{words.significant(joules)} J ({words.significant(line['energy_per_step_j'], 4)} J "
    return Bar(
        f"{words.backend_name(point)} · {line['name']}",
        [(Span(joules), filled(style.shade(point["backend"])))],
        text + "an iteration)",
        f"{point['workload']}, {place(data, point)}, {way(point)}, {point['precision']}, GPU alone "
        f"by {line['name']} ({line['quality']}): {text}an iteration), {beside.length(point)}",
        point,
    )


def measured(panels: Sequence[Panel]) -> list[Row]:
    """The rows of all bars that are ours."""
    return [
        bar.of
        for panel in panels
        for groups in panel.axes
        for _, bars in groups
        for bar in bars
        if bar.of
    ]
