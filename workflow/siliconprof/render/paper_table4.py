"""The paper's Table 4: what a framework or trainer gains over another, and what explains its gaps.

What launches, products and bandwidth can explain of the gaps that the paper prints is in bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, pairs
from siliconprof.render.data import Data, grouped
from siliconprof.render.paper_figure3 import MS, applied, per_sample, usable
from siliconprof.render.tables import (
    Column,
    Table,
    Value,
    integer,
    missing,
    published,
    spanned,
)
from siliconprof.render.variants import family, order


def add(data: Data, book: Book) -> None:
    """One pass without the Hugging Face platform, and what explains the gaps that are printed."""
    book.heading("Table 4: trainers and frameworks", anchor="paper-table-4")
    book.table("paper-table-4", "paper-table-4", gains(data))


# -- gains ---------------------------------------------------------------------------------------


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
            data.place(a.row),
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
    """(what, first, second) of equal work on one device, in fp32, everything in memory.

    MLX and torch in a plain loop, a plain loop and the Trainer.
    """
    fitting = [
        point
        for point in sorted(data.training(), key=order)
        if usable(point)
        and (applied(point), point["precision"]) == ("fits", "fp32")
        and not point["lora_rank"]
    ]
    for rows in grouped(fitting, lambda point: point["source"]).values():
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
