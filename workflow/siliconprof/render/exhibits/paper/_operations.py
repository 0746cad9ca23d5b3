"""What Figures 5, 6 and 7 share: an operation's throughput by shape, number format and backend."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames

GIGA = 1e9


def rows(frames: Frames, module: str, amount: str = "flops") -> pd.DataFrame:
    """Each measured shape, small ones first: `shape` and `rate` with its interval.

    Args:
        amount: what a rate is of: `flops` or `bytes`.
    """
    frame = frames.points
    frame = frame[frame["module"].eq(module) & frame[amount].gt(0) & frame["step_ms"].gt(0)]
    each = 1e3 / GIGA * frame[amount]
    shapes = frame[["module", "batch", "m", "k", "n"]].to_dict("records")
    return frame.assign(
        shape=pd.Series(map(words_of, shapes), frame.index, "string"),
        rate=each / frame["step_ms"],
        rate_low=each / frame["step_ms_high"],
        rate_high=each / frame["step_ms_low"],
        size=frame[["batch", "m", "k", "n"]].prod(axis=1),
    ).sort_values(["size", "batch", "m", "k", "n"], kind="stable")


def words_of(shape: Mapping[Any, Any]) -> str:
    """`8 × 128³`; of a matrix-vector product the matrix alone."""
    if shape["module"] != "matvec":
        return words.shape(shape)
    batch, m, k = (int(shape[name]) for name in ("batch", "m", "k"))
    matrix = f"{m}²" if m == k else f"{m} × {k}"
    if batch == 1:
        return matrix
    return f"{batch} × {matrix if m == k else f'({matrix})'}"
