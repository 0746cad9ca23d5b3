"""What the exhibits of the transformer studies share: models in words, and courses of trainings."""

from collections.abc import Sequence

import pandas as pd

from siliconprof.analyse.frames import POINT

SHAPE = ["n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len"]


def shape(frame: pd.DataFrame) -> pd.Series:
    """`4 × 256, 8 heads of 32, d_ff 1024, 128 tokens` of each row."""
    n_layer, n_embd, n_head, head_dim, d_ff, seq_len = (whole(frame[name]) for name in SHAPE)
    heads = ", " + n_head + " heads of " + head_dim
    return n_layer + " × " + n_embd + heads + ", d_ff " + d_ff + ", " + seq_len + " tokens"


def whole(numbers: pd.Series) -> pd.Series:
    """Whole numbers as texts."""
    return numbers.astype("Int64").astype("string")


def means(curves: pd.DataFrame, values: Sequence[str], most: int) -> pd.DataFrame:
    """Each training's values over its steps, or means over as many steps as leave at most so many."""
    width = -(-curves.groupby(POINT)["step"].transform("size") // most)
    parts = curves.assign(part=curves["step"] // width).groupby([*POINT, "part"], sort=False)
    return parts[["step", *values]].mean().reset_index()
