"""Models: exact parameter counts and both formulas for the memory that training them takes."""

from __future__ import annotations

from siliconprof import words
from siliconprof.memory import memory_model
from siliconprof.render.beside import model_and_size
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, published, quantity


def add(data: Data, book: Book) -> None:
    """Every size of every model, whether it was trained here or not."""
    if data.models:
        book.heading("Models", anchor="models")
        book.table("models", "models", table(data), vocab=memory_model.VOCAB_SIZE)


def table(data: Data) -> Table:
    """Computed from the configurations; what the paper printed stands apart."""
    result = Table(
        [
            Column("Model"),
            Column("Size"),
            Column("parameters", "", True, "exact, from the configuration"),
            Column("trained with LoRA", "", True, "rank 8"),
            Column("16 bytes each", "GiB", True, "fp32 weights, gradients, two moments of AdamW"),
            Column("the paper's formula", "“GiB”", True, "10⁶ parameters × 16 / 1024, computed"),
            Column("printed in Table 2", "“GiB”", True),
        ]
    )
    printed_rows = {
        model_and_size(row["workload_as_printed"]): row
        for row in data.published["table2_workloads"]
    }
    for row in data.models:
        printed = printed_rows.get((row["model"], row["size"]))
        result.add(
            row["model"],
            Value(row["size"], sort=words.number(row["n_parameters"])),
            _count(row["n_parameters"], "unknown"),
            _count(row["lora_trainable"], "has no adapters here"),
            quantity(row["theoretical_gib"], "unknown", digits=4),
            quantity(row["paper_gib"], "unknown", digits=4),
            published(printed["theoretical_memory_gib"], printed["source"])
            if printed
            else missing("not in Table 2"),
        )
    return result


def _count(value: object, reason: str) -> Value:
    """A whole number with its digits in threes."""
    number = words.number(value)
    if number is None:
        return missing(reason)
    return Value(f"{number:,.0f}".replace(",", words.THIN), sort=number)
