"""Text to tokens, of a byte-level BPE.

The tokens are those of a BPE trained on the text (Sennrich et al. 2016, arXiv:1508.07909, over
bytes as in GPT-2), or of the `tokenizer` that the data set names. They are

    tokens.npy       1-D, uint16, or uint32 when vocab_size is above 65536

with a token END_OF_TEXT between documents. `training_data.py` reads them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath

import numpy as np

from siliconprof.datasets import dataset_spec, repository, sources, tokenizer, user_files
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.datasets.tokenizer import END_OF_TEXT

SENTIMENT_LABELS = ("neg", "pos")  # folders of IMDb's reviews


def make(spec: DatasetSpec) -> sources.Material:
    """Make the tokens of a data set.

    Raises:
        PrepareError: the data set cannot be read, or a library is missing.
    """
    versions = spec.versions("tokenizers")
    documents, origin = read_documents(spec)
    dataset_tokenizer = tokenizer.for_dataset(spec, documents, [END_OF_TEXT])
    # Shape (n_tokens,), without an END_OF_TEXT before the first document.
    dtype = np.dtype("<u2" if spec.vocab_size <= 65536 else "<u4")
    end = np.array(dataset_tokenizer.ids([END_OF_TEXT]), dtype)
    parts: list[np.ndarray] = []
    for ids in dataset_tokenizer.encode(documents):
        parts += [end, np.array(ids, dtype)]
    tokens = np.concatenate(parts[1:])
    facts = {
        "skipped": origin.skipped,
        "n_documents": len(documents),
        "n_tokens": int(tokens.size),
        **dataset_tokenizer.facts(documents),
        **versions,
    }
    return sources.Material(origin, {"tokens": tokens}, facts, dataset_tokenizer.json)


def read_documents(spec: DatasetSpec) -> tuple[list[str], sources.Origin]:
    """Read the text from its source, up to `max_bytes`.

    Raises:
        PrepareError: the source cannot be read, or holds no text.
    """
    if spec.source == "builtin":
        documents = limited([dataset_spec.BUILTIN_TEXT.read_text(encoding="utf-8")], spec.max_bytes)
        return documents, sources.Origin()
    download = _download(spec) if spec.source == "folder" else None
    if download:
        texts, origin = download
    else:
        opened = repository.open_repository(spec)
        texts = (text for (text,) in repository.rows(opened, spec, "text_column") if text)
        origin = opened.origin
    documents = limited(texts, spec.max_bytes)
    if not documents:
        column = "" if download else f"column '{spec.text_column}' of "
        raise spec.error(f"{column}{repository.place(spec)} holds no text; correct path or split")
    return documents, origin


def _download(spec: DatasetSpec) -> tuple[Iterator[str], sources.Origin] | None:
    """(texts, origin) where the folder is one of two downloads as they unpack, which hold more.

    They are IMDb's reviews (ai.stanford.edu/~amaas/data/sentiment), a text a file, and PTB's
    simple-examples (fit.vutbr.cz/~imikolov/rnnlm), a text a line.
    """
    folder, split = repository.existing_folder(spec), spec.split
    data = next((d for d in (folder, folder / "data") if (d / "ptb.train.txt").is_file()), None)
    if data:
        splits = {"train": "train", "validation": "valid", "test": "test"}
        of_splits = {name: [data / f"ptb.{part}.txt"] for name, part in splits.items()}
    elif all((folder / "train" / label).is_dir() for label in SENTIMENT_LABELS):
        data = folder / split
        of_splits = {
            name: [folder / name / label for label in SENTIMENT_LABELS]
            for name in ("train", "test")
        }
    else:
        return None
    if split not in of_splits:
        raise spec.error(
            f"no split '{split}' in {folder}; set split to one of: {', '.join(of_splits)}"
        )
    used = {path.name for paths in of_splits.values() for path in paths}
    with user_files.reading(data, spec.error):
        names = sorted(path.name for path in data.iterdir() if path.name not in used)
    origin = sources.Origin(skipped=[n for n in names if not user_files.is_added(PurePath(n))])

    def texts() -> Iterator[str]:
        for path in of_splits[split]:
            with user_files.reading(path, spec.error):
                files, others = user_files.listed(path, ".txt") if path.is_dir() else ([path], [])
            origin.skipped.extend(others)
            for file in files:
                origin.files.append(file)
                with user_files.reading(file, spec.error):
                    text = "".join(user_files.lines(file))
                yield from [text] if path.is_dir() else map(str.strip, text.splitlines())

    return texts(), origin


def limited(documents: Iterable[str], max_bytes: int) -> list[str]:
    """Take documents until they and the END_OF_TEXT between them fill `max_bytes` of UTF-8.

    Empty documents are dropped; the last one is cut, never inside a character.
    """
    taken: list[str] = []
    free_bytes = max_bytes
    for document in documents:
        separator_bytes = len(END_OF_TEXT) if taken else 0
        data = document.encode("utf-8", errors="replace")
        text = data[: max(free_bytes - separator_bytes, 0)].decode("utf-8", errors="ignore")
        text_bytes = len(text.encode("utf-8"))
        if text:
            taken.append(text)
            free_bytes -= separator_bytes + text_bytes
        if text_bytes < len(data):
            break
    return taken
