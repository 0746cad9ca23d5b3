"""Labels for the rows of a claim's cases: their place, workload and size."""

from __future__ import annotations

from siliconprof.analyse.throughputs import place
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row


def where(row: Row) -> str:
    """`cpu-x (torch-cpu)`, with host and source where it is another host."""
    away = "" if row["source"] == HERE else f", {row['host']}, {row['source']}"
    return f"{row['device']} ({row['backend']}{away})"


def _size(row: Row, without: str = "") -> str:
    parts = []
    for name, words in (
        ("n_layer", "{:g} layers"),
        ("n_embd", "of width {:g}"),
        ("seq_len", "{:g} tokens"),
        ("batch_size", "batch {:g}"),
    ):
        if row.get(name) and name != without:
            parts.append(words.format(row[name]))
    return ", ".join(parts).replace(" layers, of", " layers of")


def label(row: Row, without: str = "") -> str:
    """The label of one row with its size, without the parameter `without`."""
    parts = [f"{row['workload']} on {where(row)}", _size(row, without) + _shape(row)]
    return ", ".join(filter(None, (part.removeprefix(", ") for part in parts)))


def _shape(row: Row) -> str:
    """`, 8×2000×2000` of an operation; empty for anything else."""
    sizes = [row.get(name) for name in ("batch", "m", "k", "n")]
    if not row.get("m"):
        return ""
    return ", " + "×".join(f"{size:g}" for size in sizes if size)


def pair_label(one: Row, other: Row) -> str:
    """The label of two compared rows; what both share comes once."""
    if place(one) == place(other):
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return f"{names} on {where(one)}, {formats}{_shape(one)}"
    batch = f", batch {one['batch_size']:g}" if one.get("batch_size") else _shape(one)
    return f"{one['workload']}{batch}, {where(one)} against {where(other)}"
