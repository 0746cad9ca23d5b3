"""Points that lack what tells them apart: their times are times of nobody knows what.

A record of another writer may hold such points and still be valid. They are left out of the
tables, and the cell is flagged, so that every stage after may rely on a point's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof.analyse import study_rows

# What tells the points of a module apart, among their parameters or their cell's.
_PRODUCT = ("batch", "m", "k", "n")
_TRAINED = ("batch_size", "samples_per_step", "n_parameters")
_TRANSFORMER = ("batch_size", "n_parameters", "tokens_per_step", "n_layer", "n_embd")
NAMED_BY = {
    "matmul": _PRODUCT, "vjp": _PRODUCT, "matvec": _PRODUCT,
    "bandwidth": ("kernel", "working_set_bytes", "cache"),
    "copy": ("direction", "transfer_bytes"), "first_touch": ("pages", "page_size_bytes"),
    "kernel_launch": ("launch",), "gpt2": (*_TRAINED, "n_trainable_parameters", "tokens_per_step"),
    "whisper": (*_TRAINED, "n_trainable_parameters"),
    "transformer_grid": (*_TRANSFORMER, "n_head", "d_ff", "seq_len", "vocab_size"),
    "optimizer_sweep": _TRANSFORMER,
    "mlp": _TRAINED, "cnn": _TRAINED, "lstm": _TRAINED,
}  # fmt: skip


def lacking(data: Mapping[str, Any], point: Mapping[str, Any]) -> list[str]:
    """What a point lacks of that which tells the points of its module apart."""
    told = {**study_rows.settings(data["cell"], point["params"]), **point["params"]}
    return [name for name in NAMED_BY.get(data["cell"]["module"], ()) if told.get(name) is None]


def flags(data: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A flag for a record whose points are left out because nobody can say what they are of."""
    nameless = [names for point in data["points"] if (names := lacking(data, point))]
    if nameless:
        absent = ", ".join(sorted({name for names in nameless for name in names}))
        yield {
            "code": "incomplete",
            "detail": f"{len(nameless)} of {len(data['points'])} points left out: no {absent}",
        }
