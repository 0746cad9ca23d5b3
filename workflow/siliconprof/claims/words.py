"""The rows of a claim's cases in words: where they are from, what they did, at which size."""

from __future__ import annotations

from siliconprof.analyse.throughputs import place
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row


def where(row: Row) -> str:
    """`cpu-x (torch-cpu)`, with the host's name where it is not this one's."""
    away = "" if row["source"] == HERE else f", {row['host']}, {row['source']}"
    return f"{row['device']} ({row['backend']}{away})"


def _size(row: Row, without: str = "") -> str:
    said = []
    for name, words in (
        ("n_layer", "{:g} layers"),
        ("n_embd", "of width {:g}"),
        ("seq_len", "{:g} tokens"),
        ("batch_size", "batch {:g}"),
    ):
        if row.get(name) and name != without:
            said.append(words.format(row[name]))
    return ", ".join(said).replace(" layers, of", " layers of")


def named(row: Row, without: str = "") -> str:
    """A row alone, at its size; a parameter along which others lie is left out."""
    said = [f"{row['workload']} on {where(row)}", _size(row, without) + _shape(row)]
    return ", ".join(filter(None, (part.removeprefix(", ") for part in said)))


def _shape(row: Row) -> str:
    """`, 8×2000×2000` of an operation; empty for anything else."""
    sizes = [row.get(name) for name in ("batch", "m", "k", "n")]
    if not row.get("m"):
        return ""
    return ", " + "×".join(f"{size:g}" for size in sizes if size)


def against(one: Row, other: Row) -> str:
    """Two rows held against each other; what both share is said once."""
    if place(one) == place(other):
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return f"{names} on {where(one)}, {formats}{_shape(one)}"
    batch = f", batch {one['batch_size']:g}" if one.get("batch_size") else _shape(one)
    return f"{one['workload']}{batch}, {where(one)} against {where(other)}"
