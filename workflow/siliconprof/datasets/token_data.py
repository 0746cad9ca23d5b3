"""Prepared tokens, checked and cut into batches; needs numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from siliconprof.datasets import prepared
from siliconprof.datasets.prepared import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TokenData:
    """One prepared text data set.

    `tokens` has shape (n_tokens,), uint16 or uint32; every value is below `vocab_size`, the size
    in the spec, which a model's embedding should have.
    """

    tokens: np.ndarray
    sha256: str
    vocab_size: int
    name: str
    part: str = ""  # `training ` or `held-out `, for messages; empty for the whole

    def split(self, held_out_share: float) -> tuple[TokenData, TokenData]:
        """(data to train on, held-out data): the last `held_out_share` of the tokens is held out.

        Both have the whole data's SHA-256, which identifies the data that they are parts of.
        """
        at = len(self.tokens) - int(held_out_share * len(self.tokens))
        return (
            replace(self, tokens=self.tokens[:at], part="training "),
            replace(self, tokens=self.tokens[at:], part="held-out "),
        )

    def batches(self, batch_size: int, seq_len: int, seed: int) -> Iterator[np.ndarray]:
        """Yield int32 batches of shape (batch_size, seq_len) forever, as in `prepared.shuffled`.

        Raises:
            DataError: there are fewer than `batch_size` windows; at the call, not at the first
                batch.
        """
        windows = self.windows(batch_size, seq_len)
        return (windows[rows] for rows in prepared.shuffled(len(windows), batch_size, seed))

    def in_order(self, batch_size: int, seq_len: int) -> Iterator[np.ndarray]:
        """Yield int32 batches of shape (batch_size, seq_len) once, in the order of the text.

        Windows that fill no batch are left out.

        Raises:
            DataError: there are fewer than `batch_size` windows; at the call.
        """
        windows = self.windows(batch_size, seq_len)
        last = len(windows) - batch_size
        return (windows[at : at + batch_size] for at in range(0, last + 1, batch_size))

    def windows(self, batch_size: int, seq_len: int) -> np.ndarray:
        """Cut the tokens into n = n_tokens // seq_len neighbouring windows, without overlap.

        Returns:
            int32 of shape (n, seq_len); the rest that fills no window is left out.

        Raises:
            DataError: there are fewer than `batch_size` windows.
        """
        import numpy as np

        n_windows = len(self.tokens) // seq_len
        if n_windows < batch_size:
            raise DataError(
                f"data '{self.name}': {len(self.tokens)} {self.part}tokens make {n_windows} "
                f"windows of {seq_len}, fewer than one batch of {batch_size}; use a smaller "
                "batch_size or seq_len, or more text (max_bytes)"
            )
        return self.tokens[: n_windows * seq_len].reshape(n_windows, seq_len).astype(np.int32)
