"""Prepared tokens, checked and cut into batches; needs numpy only.

The measured process reads what `prepare` wrote, also on a bare host that was handed the folder.
Every framework takes its batches from here, so all of them train on the same numbers in the same
order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from siliconprof.errors import UserError

if TYPE_CHECKING:
    import numpy as np


class DataError(UserError):
    """The prepared data are missing, damaged or too few; the line says how to mend that."""


@dataclass(frozen=True)
class TokenData:
    """One prepared dataset.

    `tokens` has shape (n_tokens,), uint16 or uint32; every value is below `vocab_size`, the size
    that was asked for and that a model's embedding should have.
    """

    tokens: np.ndarray
    tokens_sha256: str
    vocab_size: int
    name: str

    def windows(self, seq_len: int) -> np.ndarray:
        """Cut the tokens into n = n_tokens // seq_len neighbouring windows, without overlap.

        Returns:
            int32 of shape (n, seq_len); the rest that fills no window is left out.
        """
        import numpy as np

        n_windows = len(self.tokens) // seq_len
        return self.tokens[: n_windows * seq_len].reshape(n_windows, seq_len).astype(np.int32)

    def batches(self, batch_size: int, seq_len: int, seed: int) -> Iterator[np.ndarray]:
        """Yield int32 batches of shape (batch_size, seq_len) forever.

        Each epoch visits the windows in a new order; windows that fill no batch are left out of
        that epoch. The order is that of 64-bit random numbers, one for each window, taken
        straight from the PCG64 bit generator: NumPy keeps the stream of a bit generator from
        version to version, but not what `Generator.permutation` makes of it (NEP 19).

        Args:
            seed: 0 or more.

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
        return _shuffled(windows, batch_size, seed)


def _shuffled(windows: np.ndarray, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches (batch_size, seq_len) of windows (n, seq_len), reshuffled every epoch."""
    import numpy as np

    epoch = 0
    while True:
        # [seed, epoch] and not their sum, which would give neighbouring seeds the same epochs.
        keys = np.random.PCG64([seed, epoch]).random_raw(len(windows))
        order = np.argsort(keys, kind="stable")
        for start in range(0, len(windows) - batch_size + 1, batch_size):
            yield windows[order[start : start + batch_size]]
        epoch += 1


def load(folder: Path) -> TokenData:
    """Read and check what `prepare` left in `folder`.

    Raises:
        DataError: a file is missing or damaged, or the tokens are not those of dataset.json.
    """
    import numpy as np

    folder = Path(folder)
    mend = "prepare it again (python -m siliconprof.prepare), or copy the whole folder again"
    try:
        facts = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        expected, vocab_size = str(facts["tokens_sha256"]), int(facts["vocab_size"])
        name = str(facts["name"])
    except FileNotFoundError:
        raise DataError(
            f"data {folder}: no dataset.json, so nothing is prepared here; {mend}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"data {folder}: dataset.json is damaged ({error!r}); {mend}") from None
    try:
        tokens = np.load(folder / "tokens.npy", allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python and can raise anything
        line = " ".join(str(error).split())
        raise DataError(
            f"data '{name}' in {folder}: cannot read tokens.npy ({line}); {mend}"
        ) from None
    # The checksum is that of little-endian bytes, whatever the byte order of this host.
    tokens_sha256 = hashlib.sha256(
        tokens.astype(tokens.dtype.newbyteorder("<")).tobytes()
    ).hexdigest()
    if tokens_sha256 != expected:
        raise DataError(
            f"data '{name}' in {folder}: tokens.npy is damaged: SHA-256 {tokens_sha256}, "
            f"dataset.json says {expected}; {mend}"
        )
    return TokenData(tokens, tokens_sha256, vocab_size, name)
