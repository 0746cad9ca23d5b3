"""A batch of zeros in the shapes that a training reads, for a step whose values do not matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconprof.datasets import image_data, speech_data, token_data


def blank_data(kind: str | None, parameters: Mapping[str, Any]) -> Any:
    """One batch of zeros as a data set of a kind, for its shapes.

    None for a workload that reads no data set.
    """
    import numpy as np

    if kind is None:
        return None
    if kind == "images":
        n_train = parameters.get("batch_size") or max(parameters["batch_sizes"])
        images = np.zeros((n_train, *image_data.SHAPE), np.uint8)
        counts = {"train": n_train, "validation": 0, "test": 0}
        return image_data.ImageData(images, np.zeros(n_train, np.uint8), counts, "", "blank")
    batch_size, vocab_size = parameters["batch_size"], parameters["dataset_vocab_size"]
    if kind == "speech":
        clip_seconds, n_mels = parameters["dataset_clip_seconds"], parameters["dataset_n_mels"]
        return speech_data.SpeechData(
            np.zeros((batch_size, n_mels, 100 * clip_seconds), np.float32),
            np.zeros((batch_size, 1), np.int32),  # the workload fills them to its own length
            np.zeros((batch_size, 1), np.int32),
            "",
            vocab_size,
            clip_seconds,
            n_mels,
            "blank",
        )
    # Some workloads take a token more for the last label, and hold half of the tokens out at most.
    tokens = np.zeros(4 * batch_size * (parameters["seq_len"] + 1), np.uint16)
    return token_data.TokenData(tokens, "", vocab_size, "blank")
