"""dataset.json of a prepared folder, typed by kind: checked where it is written and before a cell.

It repeats what was asked for, the keys of the entry of the config. The measuring process reads what
its supervisor has checked, see `prepared`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from siliconprof.datasets import prepared
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.store import model
from siliconprof.store.model import Count, Sha256, Text


class _Prepared(DatasetSpec):
    """What every kind has; `revision` is the hub's commit, where known."""

    asked_revision: str | None
    synthetic: bool
    sha256: Sha256  # of all arrays


class _Tokenised(_Prepared):
    vocab_size_actual: Count
    tokenizer_revision: str | None
    tokenizer_sha256: Sha256
    tokenizers_version: str
    n_bytes: Count
    n_tokens: Count
    text_sha256: Sha256


class TextFacts(_Tokenised):
    kind: Literal["text"]
    skipped: list[str]  # names of what a known download holds besides
    n_documents: Count
    tokens_sha256: Sha256


class SpeechFacts(_Tokenised):
    kind: Literal["speech"]
    n_clips: Count
    sampling_rate_hz: Count
    audio_s: Annotated[float, Field(gt=0)]
    skipped: dict[Text, Count]  # why -> how many clips
    label_length: Count
    audio_sha256: Sha256
    features_sha256: Sha256
    decoder_input_ids_sha256: Sha256
    labels_sha256: Sha256
    transformers_version: str
    soundfile_version: str | None = None  # of speech that is not generated
    soxr_version: str | None = None


class ImageFacts(_Prepared):
    kind: Literal["images"]
    skipped: list[str] = []  # what its folder holds besides
    n_images: Count
    n_classes: Count
    images_sha256: Sha256
    labels_sha256: Sha256


Facts = Annotated[TextFacts | SpeechFacts | ImageFacts, Field(discriminator="kind")]


def check(facts: Mapping[str, Any], where: str) -> None:
    """See that this is the content of a dataset.json.

    Raises:
        DataError: every mistake, in one line.
    """
    mistakes = model.problems(Facts, facts)
    if not mistakes and prepared.combined_sha256(facts) != facts["sha256"]:
        mistakes = ["sha256: is not that of its arrays"]
    if mistakes:
        raise prepared.DataError(f"{where}: {'; '.join(mistakes)}")


def read(folder: Path) -> dict[str, Any]:
    """The content of a folder's dataset.json.

    Raises:
        DataError: it is missing or damaged, or says why nothing could be prepared.
    """
    facts = prepared.read_facts(folder)
    check(facts, f"data {folder}: dataset.json is damaged; {prepared.FIX}")
    return facts
