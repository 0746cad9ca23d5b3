"""Prepared speech, checked and cut into batches; needs numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siliconprof.datasets import prepared

if TYPE_CHECKING:
    import numpy as np


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
        """Yield batches forever, in the order of `prepared.shuffled`.

        A batch larger than the data, such as one that fills a GPU's memory, has clips twice.

        Returns:
            `input_features`, float32 (batch_size, n_mels, 100 * clip_seconds); `decoder_input_ids`
            and `labels`, int32 (batch_size, L).
        """
        import numpy as np

        n_clips = len(self.labels)
        for distinct in prepared.shuffled(n_clips, min(batch_size, n_clips), seed):
            rows = np.resize(distinct, batch_size)
            yield {
                "input_features": np.asarray(self.features[rows]),  # (B, n_mels, 100 clip_seconds)
                "decoder_input_ids": self.decoder_input_ids[rows],  # (B, L)
                "labels": self.labels[rows],  # (B, L)
            }
