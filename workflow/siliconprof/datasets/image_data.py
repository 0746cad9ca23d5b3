"""Prepared images, checked and cut into batches; needs numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siliconprof.datasets import prepared
from siliconprof.datasets.prepared import DataError

if TYPE_CHECKING:
    import numpy as np

PARTS = ("train", "validation", "test")  # in the order in which the arrays hold them
SHAPE = (28, 28)  # of MNIST, and of all data sets that are laid out like it
N_CLASSES = 10


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
        """Yield batches of the training part forever, in the order of `prepared.shuffled`.

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
        return (self.batch(rows) for rows in prepared.shuffled(n_train, batch_size, seed))

    def part_batches(self, part: str, batch_size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield `train`, `validation` or `test` once, in order; the last batch may be smaller."""
        start = sum(self.counts[before] for before in PARTS[: PARTS.index(part)])
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
