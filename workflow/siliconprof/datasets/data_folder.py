"""Reads a prepared data set of the kind that its dataset.json names; needs numpy only."""

from __future__ import annotations

from pathlib import Path

from siliconprof.datasets import prepared
from siliconprof.datasets.image_data import PARTS, ImageData
from siliconprof.datasets.speech_data import SpeechData
from siliconprof.datasets.token_data import TokenData


def load(folder: Path) -> TokenData | SpeechData | ImageData:
    """Read what a prepare stage wrote to `folder`, and check its arrays.

    Every kind has `name`, `sha256` and `vocab_size`, which is None for images.

    Raises:
        DataError: an array is missing or damaged.
    """
    facts = prepared.read_facts(folder)
    kind, name, sha256 = facts["kind"], facts["name"], facts["sha256"]
    first, *more = (
        prepared.read_array(folder, facts, array, mapped=array == "features")
        for array in prepared.ARRAYS[kind]
    )
    if kind == "images":
        counts = {part: facts[f"n_{part}"] for part in PARTS}
        return ImageData(first, more[0], counts, sha256, name)
    vocab_size = facts["vocab_size"]
    if kind == "text":
        return TokenData(first, sha256, vocab_size, name)
    seconds, n_mels = facts["clip_seconds"], facts["n_mels"]
    return SpeechData(first, more[0], more[1], sha256, vocab_size, seconds, n_mels, name)
