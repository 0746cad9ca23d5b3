"""What is asked of a data set, an entry of `datasets`, and what it became, its dataset.json.

Both are typed, and checked where they are written and before a cell. The measuring process reads
what its supervisor has checked, see `prepared`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from siliconprof import packages
from siliconprof.datasets import prepared
from siliconprof.errors import UserError, in_one_line
from siliconprof.parameters import Count
from siliconprof.store import model
from siliconprof.store.experiment import Dataset
from siliconprof.store.model import Sha256, Text

DATASET_KINDS = ("text", "speech", "images")
# Kind of data set -> the module that makes its arrays by `make(spec)`.
MAKERS = {kind: f"siliconprof.datasets.prepare_{kind}" for kind in DATASET_KINDS}
BUILTIN_TEXT = Path(__file__).resolve().parent / "data" / "builtin_text.txt"
OWN_KEYS = {
    "text": ("max_bytes",),
    "speech": ("clip_seconds", "max_clips", "audio_column", "n_mels"),
    "images": ("n_train", "n_validation", "n_test", "image_column", "label_column"),
}
# Only text and speech have these: they consist of tokens, and come from one split of the source.
TOKEN_KEYS = ("vocab_size", "tokenizer", "text_column", "split")
TOKENISED = ("text", "speech")
# The libraries whose versions decide what the arrays hold.
KIND_LIBRARIES: dict[str, tuple[str, ...]] = {
    "text": ("tokenizers",),
    "speech": ("tokenizers", "transformers"),
    "images": (),
}
# And those that read a source other than the package's own.
READERS: dict[str, tuple[str, ...]] = {
    "text": ("datasets",),
    "speech": ("datasets", "soundfile", "soxr"),
    "images": ("datasets",),
}
# What a model needs before its data are read: a workload gets each value as `dataset_KEY`.
SHAPE_KEYS: dict[str, tuple[str, ...]] = {
    "text": ("vocab_size",),
    "speech": ("vocab_size", "clip_seconds", "n_mels"),
    "images": (),  # all have 28 x 28 pixels and ten classes
}
# All 256 bytes, and the special tokens of a tokenizer that is trained here: the end of a text, and
# for speech Whisper's prompt. With fewer, some text would have no tokens.
MIN_VOCAB_SIZE = {"text": 257, "speech": 261}


class PrepareError(UserError):
    """The data set cannot be prepared as specified; one line says how to fix it."""


class DatasetSpec(Dataset):
    """What to prepare: a named entry of the config; each source and kind ignores others' keys."""

    name: str

    def error(self, message: str) -> PrepareError:
        """The error whose line names this data set."""
        return PrepareError(f"dataset '{self.name}': {message}")

    def versions(self, *libraries: str) -> dict[str, str]:
        """The versions of the libraries that make the arrays, for dataset.json.

        Raises:
            PrepareError: a library is not installed, or does not load.
        """
        try:
            return {f"{name}_version": import_module(name).__version__ for name in libraries}
        except Exception as error:  # a broken one raises anything
            raise self.error(packages.failure(libraries) or in_one_line(error)) from None


def foreign_keys(kind: Any) -> dict[str, str]:
    """Return key -> the kinds of data set that it belongs to, for keys that this kind does not have."""
    keys = {key: other for other, own in OWN_KEYS.items() if other != kind for key in own}
    if kind in DATASET_KINDS and kind not in TOKENISED:
        keys |= dict.fromkeys(TOKEN_KEYS, " or ".join(TOKENISED))
    return keys


def files(kind: str) -> list[str]:
    """The names of the files that a prepare stage writes for others, dataset.json first."""
    arrays = [f"{name}.npy" for name in prepared.ARRAYS[kind]]
    return ["dataset.json", *arrays, *(["tokenizer.json"] if kind in TOKENISED else [])]


def problems(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of every mistake that no schema can express.

    Values that break the schema are passed as well, so no type is taken for granted.
    """
    kind, source = entry.get("kind") or "text", entry.get("source")
    if kind not in DATASET_KINDS:
        return
    for key, other in foreign_keys(kind).items():
        if entry.get(key) is not None:
            yield key, f"belongs to kind {other}; this data set is of kind {kind}, leave it out"
    if kind in TOKENISED and "vocab_size" not in entry:
        yield "vocab_size", "is missing; expected integer"
    if source in ("hub", "folder") and not entry.get("path"):
        expected = {"hub": "a name on the hub", "folder": "a folder"}[source]
        yield "path", f"is missing; expected {expected}"
    if entry.get("revision") is not None and source == "folder":
        yield "revision", "a folder has one revision, the one that lies there; leave it out"
    least, vocab_size = MIN_VOCAB_SIZE.get(kind, 0), entry.get("vocab_size")
    if isinstance(vocab_size, int) and not entry.get("tokenizer") and 257 <= vocab_size < least:
        yield (
            "vocab_size",
            f"is {vocab_size}; expected at least {least} (every byte, and Whisper's special tokens)",
        )


def parse(text: str) -> DatasetSpec:
    """Read the JSON of `--dataset`: `name`, and an entry of the config.

    Raises:
        UserError: what is wrong with it, one line each.
    """
    try:
        entry = json.loads(text)
    except ValueError as error:
        raise PrepareError(f"--dataset: not JSON: {error}") from None
    return model.checked(DatasetSpec, entry, "--dataset: ")


# -- dataset.json ---------------------------------------------------------------------------------


class _Prepared(DatasetSpec):
    """The keys of every kind; `revision` is the hub's commit, where known."""

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


def check_facts(facts: Mapping[str, Any], where: str) -> None:
    """Check the content of a dataset.json.

    Raises:
        DataError: every mistake, in one line.
    """
    mistakes = model.problems(Facts, facts)
    if not mistakes and prepared.combined_sha256(facts) != facts["sha256"]:
        mistakes = ["sha256: is not that of its arrays"]
    if mistakes:
        raise prepared.DataError(f"{where}: {'; '.join(mistakes)}")


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of a folder's dataset.json.

    Raises:
        DataError: it is missing or damaged, or says why nothing could be prepared.
    """
    facts = prepared.read_facts(folder)
    check_facts(facts, f"data {folder}: dataset.json is damaged; {prepared.FIX}")
    return facts
