"""Prepared tokens, checked and cut into batches; needs numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from siliconprof import prepared
from siliconprof.prepared import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TokenData:
    """One prepared text data set.

    `tokens` has shape (n_tokens,), uint16 or uint32; every value is below `vocab_size`, the size
    that was asked for and that a model's embedding should have.
    """

    tokens: np.ndarray
    tokens_sha256: str
    vocab_size: int
    name: str

    @property
    def sha256(self) -> str:
        """What the data are, whatever their kind."""
        return self.tokens_sha256

    def windows(self, seq_len: int) -> np.ndarray:
        """Cut the tokens into n = n_tokens // seq_len neighbouring windows, without overlap.

        Returns:
            int32 of shape (n, seq_len); the rest that fills no window is left out.
        """
        import numpy as np

        n_windows = len(self.tokens) // seq_len
        return self.tokens[: n_windows * seq_len].reshape(n_windows, seq_len).astype(np.int32)

    def batches(self, batch_size: int, seq_len: int, seed: int) -> Iterator[np.ndarray]:
        """Yield int32 batches of shape (batch_size, seq_len) forever, as `prepared.shuffled` says.

        Raises:
            DataError: there are fewer than `batch_size` windows; at the call, not at the first
                batch.
        """
        windows = self.windows(seq_len)
        if len(windows) < batch_size:
            raise DataError(
                f"data '{self.name}': {len(self.tokens)} tokens make {len(windows)} windows of "
                f"{seq_len}, fewer than one batch of {batch_size}; use a smaller batch_size or "
                "seq_len, or more text (max_bytes)"
            )
        return (windows[rows] for rows in prepared.shuffled(len(windows), batch_size, seed))


def load(folder: Path) -> TokenData:
    """Read and check what `prepare` left in `folder`.

    Raises:
        DataError: a file is missing or damaged, or the tokens are not those of dataset.json.
    """
    folder = Path(folder)
    facts = prepared.read_facts(folder)
    try:
        expected, vocab_size = str(facts["tokens_sha256"]), int(facts["vocab_size"])
        name = str(facts["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise prepared.damaged_facts(folder, error) from None
    tokens = prepared.read_array(folder, name, "tokens.npy", expected)
    return TokenData(tokens, expected, vocab_size, name)
