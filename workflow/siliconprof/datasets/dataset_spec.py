"""The specification of a data set: which keys of an entry of `datasets` belong to which kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof.datasets.prepared import ARRAYS
from siliconprof.errors import UserError
from siliconprof.store import model
from siliconprof.store.experiment import Dataset

KINDS = ("text", "speech", "images")
OWN_KEYS = {
    "text": ("max_bytes",),
    "speech": ("clip_seconds", "max_clips", "audio_column", "n_mels"),
    "images": ("n_train", "n_validation", "n_test", "image_column", "label_column"),
}
# Only text and speech have these: they consist of tokens, and come from one split of the source.
TOKEN_KEYS = ("vocab_size", "tokenizer", "text_column", "split")
TOKENISED = ("text", "speech")
# The libraries whose versions decide what the arrays hold.
LIBRARIES: dict[str, tuple[str, ...]] = {
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
SHAPES: dict[str, tuple[str, ...]] = {
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


def packages_of(spec: DatasetSpec) -> tuple[str, ...]:
    """The distributions that preparing a data set may import."""
    return LIBRARIES[spec.kind] + (() if spec.source == "builtin" else READERS[spec.kind])


def requested_facts(spec: DatasetSpec) -> dict[str, Any]:
    """The part of dataset.json that repeats the spec: the keys of its kind."""
    facts = spec.model_dump(exclude={*foreign_keys(spec.kind)})
    facts["asked_revision"] = facts.pop("revision")  # beside the one that was found
    return facts


def foreign_keys(kind: Any) -> dict[str, str]:
    """The keys that belong to other kinds of data set -> those kinds, for a message."""
    keys = {key: other for other, own in OWN_KEYS.items() if other != kind for key in own}
    if kind in KINDS and kind not in TOKENISED:
        keys |= dict.fromkeys(TOKEN_KEYS, " or ".join(TOKENISED))
    return keys


def files(kind: str) -> list[str]:
    """The names of the files that a prepare stage writes for others, dataset.json first."""
    arrays = [f"{name}.npy" for name in ARRAYS[kind]]
    return ["dataset.json", *arrays, *(["tokenizer.json"] if kind in TOKENISED else [])]


def problems(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) of every mistake that no schema can express.

    Values that break the schema are passed as well, so no type is taken for granted.
    """
    kind, source = entry.get("kind") or "text", entry.get("source")
    if kind not in KINDS:
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
