"""Reads a prepared data set of the kind that its dataset.json names; needs numpy only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from siliconprof.datasets import image_data, prepared, speech_data, token_data
from siliconprof.datasets.prepared import DataError

Data = token_data.TokenData | speech_data.SpeechData | image_data.ImageData
READERS: dict[str, Callable[[Path], Data]] = {
    "text": token_data.load,
    "speech": speech_data.load,
    "images": image_data.load,
}


def load(folder: Path) -> Data:
    """Read and check what a prepare stage wrote to `folder`.

    Every kind has `name`, `sha256` and `vocab_size`, which is None for images.

    Raises:
        DataError: a file is missing or damaged, or the kind is unknown.
    """
    folder = Path(folder)
    kind = str(prepared.read_facts(folder).get("kind", "text"))  # older folders have no kind
    if kind not in READERS:
        raise DataError(
            f"data {folder}: is of kind '{kind}'; expected one of: {', '.join(READERS)}; "
            f"{prepared.FIX}"
        )
    return READERS[kind](folder)
