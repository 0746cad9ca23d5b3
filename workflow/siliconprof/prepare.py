"""Prepare one dataset: text in, arrays out; the same text gives the same bytes on every host.

    python -m siliconprof.prepare --dataset '{"name": "builtin", "source": "builtin", \
"vocab_size": 1024}' --output-dir results/data/builtin

The text comes from the package (`builtin`), from a dataset repository on disk as the hub lays it
out (`folder`), or from the hub (`hub`; without a network, from what the hub's cache holds). A
byte-level BPE is trained on it (Sennrich et al. 2016, arXiv:1508.07909, over bytes as in GPT-2),
and the folder gets:

    tokens.npy       1-D, uint16, or uint32 when vocab_size is above 65536; little endian
    tokenizer.json   as the `tokenizers` library reads it
    dataset.json     what it is, its licence, sizes and checksums; written last

`token_data.py` reads the folder back and needs numpy only.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.corpus import END_OF_TEXT, SOURCES, DatasetSpec, PrepareError, read_corpus
from siliconprof.errors import stage

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

# 256 bytes and END_OF_TEXT: with fewer, some text would have no tokens.
MIN_VOCAB_SIZE = 257
# How many documents the tokenizer encodes at once: bounds memory, changes no result.
ENCODE_BATCH = 1000


def parse_spec(text: str) -> DatasetSpec:
    """Read the JSON of `--dataset`; a missing or null optional key takes its default.

    Raises:
        PrepareError: no JSON object, or keys that are missing, unknown or of the wrong kind.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise PrepareError(f"--dataset: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise PrepareError(f"--dataset: expected a JSON object, not {text}")
    label = f"dataset '{given.get('name')}'"
    known = {field.name for field in fields(DatasetSpec)}
    if unknown := sorted(given.keys() - known):
        raise PrepareError(
            f"{label}: unknown key {', '.join(unknown)}; expected: {', '.join(sorted(known))}"
        )
    for key in ("name", "source", "vocab_size"):
        if given.get(key) is None:
            raise PrepareError(f"{label}: '{key}' is missing")
    given = {key: value for key, value in given.items() if value is not None}
    for key, value in given.items():
        wanted = int if key in ("vocab_size", "max_bytes") else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise PrepareError(f"{label}: '{key}' is {value!r}; expected {wanted.__name__}")
    spec = DatasetSpec(**given)
    if spec.source not in SOURCES:
        raise PrepareError(
            f"{label}: source is '{spec.source}'; expected one of: {', '.join(SOURCES)}"
        )
    if spec.source != "builtin" and not spec.path:
        meaning = "the hub's name of the dataset" if spec.source == "hub" else "its folder"
        raise PrepareError(f"{label}: source '{spec.source}' needs 'path': {meaning}")
    if spec.vocab_size < MIN_VOCAB_SIZE:
        raise PrepareError(
            f"{label}: vocab_size is {spec.vocab_size}; expected at least {MIN_VOCAB_SIZE} "
            "(every byte, and the end of a text)"
        )
    if spec.max_bytes < 1:
        raise PrepareError(f"{label}: max_bytes is {spec.max_bytes}; expected at least 1")
    return spec


def train_tokenizer(documents: Sequence[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose ids 0 to 256 are END_OF_TEXT and the single bytes.

    Ties between equally frequent pairs are broken by id, so the result does not depend on the
    number of threads.

    Returns:
        A tokenizer with at most `vocab_size` tokens: fewer when no pair occurs twice any more.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[str], vocab_size: int) -> np.ndarray:
    """Encode the documents, END_OF_TEXT between them, into one array of shape (n_tokens,)."""
    import numpy as np

    dtype = np.dtype("<u2" if vocab_size <= 65536 else "<u4")
    end = np.array([tokenizer.token_to_id(END_OF_TEXT)], dtype)
    parts: list[np.ndarray] = []
    for start in range(0, len(documents), ENCODE_BATCH):
        for encoding in tokenizer.encode_batch(documents[start : start + ENCODE_BATCH]):
            parts += [end, np.array(encoding.ids, dtype)]
    return np.concatenate(parts[1:])  # no END_OF_TEXT before the first document


def prepare(spec: DatasetSpec, output_dir: Path) -> dict[str, Any]:
    """Prepare one dataset and return the content of its `dataset.json`.

    Old files in `output_dir` stay untouched until everything new is computed; without its
    `dataset.json` the folder counts as not prepared, so a crash leaves no mixture behind.

    Raises:
        PrepareError: the dataset cannot be read, a library is missing, the folder not writable.
    """
    try:
        import numpy as np
        import tokenizers
    except ImportError as error:
        raise PrepareError(
            f"dataset '{spec.name}': preparing needs the package '{error.name}'; "
            "install the pins in envs/"
        ) from None
    corpus = read_corpus(spec)
    text = corpus.text.encode("utf-8")
    tokenizer = train_tokenizer(corpus.documents, spec.vocab_size)
    tokens = encode(tokenizer, corpus.documents, spec.vocab_size)
    tokenizer_json = tokenizer.to_str().encode("utf-8")
    array_file = io.BytesIO()
    np.save(array_file, tokens, allow_pickle=False)
    facts: dict[str, Any] = {
        "name": spec.name,
        "source": spec.source,
        "path": spec.path if spec.source != "builtin" else None,
        "subset": spec.subset if spec.source != "builtin" else None,
        "split": spec.split if spec.source != "builtin" else None,
        "text_column": spec.text_column if spec.source != "builtin" else None,
        "revision": corpus.revision,
        "licence": corpus.licence,
        "synthetic": False,
        "max_bytes": spec.max_bytes,
        "n_documents": len(corpus.documents),
        "n_bytes": len(text),
        "n_tokens": int(tokens.size),
        "vocab_size": spec.vocab_size,
        "vocab_size_actual": tokenizer.get_vocab_size(),
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        "tokenizer_sha256": hashlib.sha256(tokenizer_json).hexdigest(),
        "tokenizers_version": tokenizers.__version__,
    }
    facts_json = json.dumps(facts, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "dataset.json").unlink(missing_ok=True)
        _replace(output_dir / "tokens.npy", array_file.getvalue())
        _replace(output_dir / "tokenizer.json", tokenizer_json)
        _replace(output_dir / "dataset.json", facts_json)
    except OSError as error:
        raise PrepareError(
            f"dataset '{spec.name}': cannot write {output_dir}: {error.strerror}; "
            "choose another --output-dir or make room"
        ) from None
    return facts


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or absent."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _summary(facts: Mapping[str, Any]) -> str:
    return (
        f"dataset '{facts['name']}': {facts['n_documents']} documents, {facts['n_bytes']} bytes, "
        f"{facts['n_tokens']} tokens of {facts['vocab_size_actual']}, "
        f"SHA-256 {facts['tokens_sha256']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; answer its exit status.

    Raises:
        PrepareError: see `prepare`.
    """
    parser = argparse.ArgumentParser(
        prog="python -m siliconprof.prepare", description="Prepare one dataset: text to tokens."
    )
    parser.add_argument("--dataset", required=True, help="JSON: name, source, vocab_size, ...")
    parser.add_argument("--output-dir", required=True, type=Path, help="results/data/NAME")
    arguments = parser.parse_args(argv)
    facts = prepare(parse_spec(arguments.dataset), arguments.output_dir)
    print(_summary(facts))
    return 0


if __name__ == "__main__":
    status = stage(main)
    # Arrow's read-ahead threads abort the interpreter's teardown when a parquet file was left
    # half-read (apache/arrow issues 34314 and 45214), as max_bytes and a wrong column leave it.
    # Everything is written by now, so the process ends without a teardown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
