"""Prepare one text data set: text in, tokens out; the same text gives the same bytes everywhere.

    python -m siliconprof.datasets.prepare --dataset '{"name": "builtin", "source": "builtin", \
"vocab_size": 1024}' --output-dir results/data/builtin

The text comes from the package (`builtin`), from a dataset repository on disk as the hub lays it
out (`folder`), or from the hub (`hub`; without a network, from the hub's cache). The
tokens are those of a byte-level BPE trained on it (Sennrich et al. 2016, arXiv:1508.07909, over
bytes as in GPT-2), or of the `tokenizer` that the data set names. The folder gets:

    tokens.npy       1-D, uint16, or uint32 when vocab_size is above 65536; little endian
    tokenizer.json   as the `tokenizers` library reads it
    sources.json     the files of a folder that were read, to detect later changes
    dataset.json     its name and origin, licence, sizes and checksums; written last

`token_data.py` reads the folder back and needs numpy only. Speech: `prepare_speech.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import dataset_spec, prepared, preparing, source_files, tokenizer
from siliconprof.datasets.corpus import END_OF_TEXT, read_corpus
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.errors import stage

if TYPE_CHECKING:
    import numpy as np


def encode(
    dataset_tokenizer: tokenizer.DatasetTokenizer, documents: Sequence[str], vocab_size: int
) -> np.ndarray:
    """Encode the documents, END_OF_TEXT between them, into one array of shape (n_tokens,)."""
    import numpy as np

    dtype = np.dtype("<u2" if vocab_size <= 65536 else "<u4")
    end = np.array(dataset_tokenizer.ids([END_OF_TEXT]), dtype)
    parts: list[np.ndarray] = []
    for ids in dataset_tokenizer.encode(documents):
        parts += [end, np.array(ids, dtype)]
    return np.concatenate(parts[1:])  # no END_OF_TEXT before the first document


def prepare(
    spec: DatasetSpec, output_dir: Path, sources_state: str = source_files.NEW
) -> dict[str, Any]:
    """Prepare one text data set and return the content of its `dataset.json`.

    Args:
        sources_state: from `source_files.state` for the folder.

    Raises:
        PrepareError: the data set cannot be read, a library is missing, or the folder is not
            writable.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise preparing.missing_package(spec, error) from None
    corpus = read_corpus(spec)
    text = corpus.text.encode("utf-8")
    dataset_tokenizer = tokenizer.for_dataset(spec, corpus.documents, [END_OF_TEXT])
    tokens = encode(dataset_tokenizer, corpus.documents, spec.vocab_size)
    tokens_sha256 = prepared.array_sha256(tokens)
    facts = dataset_spec.requested_facts(spec) | {
        "revision": corpus.revision,
        "licence": corpus.licence,
        "synthetic": False,
        "n_documents": len(corpus.documents),
        "n_bytes": len(text),
        "n_tokens": int(tokens.size),
        "vocab_size_actual": dataset_tokenizer.size,
        "tokenizer_revision": dataset_tokenizer.revision,
        "text_sha256": preparing.sha256(text),
        "tokens_sha256": tokens_sha256,
        "tokenizer_sha256": preparing.sha256(dataset_tokenizer.json),
        "sha256": tokens_sha256,
        "tokenizers_version": tokenizers.__version__,
    }
    sources = source_files.read(spec, corpus.files, True, sources_state)
    arrays = {"tokens.npy": tokens}
    preparing.write_folder(spec.name, output_dir, arrays, dataset_tokenizer.json, facts, sources)
    return facts


def summary(facts: Mapping[str, Any]) -> str:
    """One line that describes the prepared data set."""
    return (
        f"dataset '{facts['name']}': {facts['n_documents']} documents, {facts['n_bytes']} bytes, "
        f"{facts['n_tokens']} tokens of {facts['vocab_size_actual']}, SHA-256 {facts['sha256']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage and return its exit status.

    Raises:
        PrepareError: see `prepare`.
    """
    return preparing.run("text", "Prepare one data set: text to tokens.", prepare, summary, argv)


if __name__ == "__main__":
    preparing.end(stage(main))
