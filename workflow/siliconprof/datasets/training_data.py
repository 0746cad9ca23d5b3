"""Prepared data as a training reads them, cut into batches; needs numpy only.

Every framework takes its batches from here, so all of them train on the same numbers in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from siliconprof.datasets import prepared
from siliconprof.datasets.prepared import SPLITS, DataError

if TYPE_CHECKING:
    import numpy as np


def load(folder: Path) -> TokenData | SpeechData | ImageData:
    """Read what a prepare stage wrote to `folder`, and check its arrays.

    Every kind has `name`, `sha256` and `vocab_size`, which is None for images.

    Raises:
        DataError: an array is missing or damaged.
    """
    facts = prepared.read_facts(folder)
    kind, own = facts["kind"], {key: facts[key] for key in ("name", "sha256")}
    own |= {array: prepared.read_array(folder, facts, array) for array in prepared.ARRAYS[kind]}
    if kind == "images":
        return ImageData(**own, counts={part: facts[f"n_{part}"] for part in SPLITS})
    if kind == "text":
        return TokenData(**own, vocab_size=facts["vocab_size"])
    return SpeechData(
        **own, **{key: facts[key] for key in ("vocab_size", "clip_seconds", "n_mels")}
    )


def shuffled(n_samples: int, batch_size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the indices of batches (batch_size,) forever, in a new order every epoch.

    Samples that fill no batch are left out of that epoch. Samples are sorted by
    64-bit random numbers from the PCG64 bit generator itself: NumPy keeps the stream of a bit
    generator from version to version, but not the results of `Generator.permutation` (NEP 19).

    Args:
        seed: 0 or more.
    """
    import numpy as np

    epoch = 0
    while True:
        # Not seed + epoch, which would give neighbouring seeds the same epochs.
        keys = np.random.PCG64([seed, epoch]).random_raw(n_samples)
        order = np.argsort(keys, kind="stable")
        for start in range(0, n_samples - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
        epoch += 1


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
        """Yield int32 batches of shape (batch_size, seq_len) forever, as in `shuffled`.

        Raises:
            DataError: there are fewer than `batch_size` windows; at the call, not at the first
                batch.
        """
        windows = self.windows(batch_size, seq_len)
        return (windows[rows] for rows in shuffled(len(windows), batch_size, seed))

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


@dataclass(frozen=True)
class SpeechData:
    """One prepared speech data set of n clips.

    `features`: log-mel, float32 (n, n_mels, 100 * clip_seconds), mapped from its file.
    `decoder_input_ids`, `labels`: int32 (n, L); `labels[:, i]` is the target after
    `decoder_input_ids[:, : i + 1]`, -100 where there is no target. Every other value is
    below `vocab_size`.
    """

    features: np.ndarray
    decoder_input_ids: np.ndarray
    labels: np.ndarray
    sha256: str
    vocab_size: int
    clip_seconds: int
    n_mels: int
    name: str

    def batches(self, batch_size: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield batches forever, in the order of `shuffled`.

        A batch larger than the data, such as one that fills a GPU's memory, has clips twice.

        Returns:
            `input_features`, float32 (batch_size, n_mels, 100 * clip_seconds); `decoder_input_ids`
            and `labels`, int32 (batch_size, L).
        """
        import numpy as np

        n_clips = len(self.labels)
        for distinct in shuffled(n_clips, min(batch_size, n_clips), seed):
            rows = np.resize(distinct, batch_size)
            yield {
                "input_features": np.asarray(self.features[rows]),  # (B, n_mels, 100 clip_seconds)
                "decoder_input_ids": self.decoder_input_ids[rows],  # (B, L)
                "labels": self.labels[rows],  # (B, L)
            }


@dataclass(frozen=True)
class ImageData:
    """One prepared data set of n grey images of ten classes.

    `images`: uint8 (n, 28, 28), 0 is black; `labels`: uint8 (n,), 0 to 9. Both hold the training
    part first, then validation and test; `counts` has the number of images of each part.
    """

    images: np.ndarray
    labels: np.ndarray
    counts: Mapping[str, int]
    sha256: str
    name: str
    vocab_size: None = None  # images have no tokens

    def batches(self, batch_size: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield batches of the training part forever, in the order of `shuffled`.

        Returns:
            `images`, float32 (batch_size, 28, 28) from 0 to 1, and `labels`, int32 (batch_size,).

        Raises:
            DataError: the part has fewer than `batch_size` images; at the call, not at the first
                batch.
        """
        n_train = self.counts["train"]  # the arrays hold the training part first
        if n_train < batch_size:
            raise DataError(
                f"data '{self.name}': {n_train} training images, fewer than one batch of "
                f"{batch_size}; use a smaller batch size, or more images (n_train)"
            )
        return (self.batch(rows) for rows in shuffled(n_train, batch_size, seed))

    def part_batches(self, part: str, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield `train`, `validation` or `test` once, in order; the last batch may be smaller."""
        start = sum(self.counts[before] for before in SPLITS[: SPLITS.index(part)])
        stop = start + self.counts[part]
        for at in range(start, stop, batch_size):
            yield self.batch(slice(at, min(at + batch_size, stop)))

    def batch(self, rows: np.ndarray | slice) -> dict[str, np.ndarray]:
        """The images and labels of some rows, copied, in the formats of `batches`."""
        import numpy as np

        return {
            "images": self.images[rows].astype(np.float32) / np.float32(255),  # (B, 28, 28)
            "labels": self.labels[rows].astype(np.int32),  # (B,)
        }
