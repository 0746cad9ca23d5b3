"""The tokenizer of a data set: trained on its text, or taken from the hub or a folder."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.datasets import user_files
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.errors import in_one_line

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class DatasetTokenizer:
    """A tokenizer with the content of its file."""

    tokenizer: Any  # tokenizers.Tokenizer
    json: bytes  # tokenizer.json
    revision: str | None  # the hub's commit, None where it is not from the hub
    spec: DatasetSpec

    @property
    def size(self) -> int:
        """The largest id plus one: the rows that an embedding needs."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of special tokens."""
        return [self.tokenizer.token_to_id(token) for token in tokens]

    def facts(self, documents: Sequence[str]) -> dict[str, Any]:
        """What dataset.json has of a text and its tokenizer."""
        text = END_OF_TEXT.join(documents).encode("utf-8")
        return {
            "n_bytes": len(text),
            "text_sha256": hashlib.sha256(text).hexdigest(),
            "vocab_size_actual": self.size,
            "tokenizer_revision": self.revision,
            "tokenizer_sha256": hashlib.sha256(self.json).hexdigest(),
        }

    def encode(self, documents: Sequence[str]) -> Iterator[list[int]]:
        """The ids of each document's text, without the special tokens a tokenizer may add.

        Raises:
            PrepareError: the tokenizer cannot encode the text, or makes no tokens of it.
        """
        n_tokens = 0
        try:
            for start in range(0, len(documents), 1000):  # bounds memory, changes no result
                batch = documents[start : start + 1000]
                for encoding in self.tokenizer.encode_batch(batch, add_special_tokens=False):
                    n_tokens += len(encoding.ids)
                    yield encoding.ids
            if not n_tokens:
                raise ValueError("it makes no tokens of it")
        except Exception as error:  # such as a word beyond its vocabulary, without [UNK] for those
            raise self.spec.error(
                f"tokenizer '{self.spec.tokenizer}': its {TOKENIZER_FILE} cannot encode the text "
                f"({in_one_line(error)}); choose another, or leave tokenizer out to have one trained"
            ) from None


def for_dataset(
    spec: DatasetSpec, documents: Sequence[str], special_tokens: Sequence[str]
) -> DatasetTokenizer:
    """The tokenizer that the spec names, or one trained on the documents.

    Args:
        special_tokens: the first ids of a trained one; a named one has them under its own ids.

    Raises:
        PrepareError: the named one cannot be read, lacks a special token or is larger than
            `vocab_size`.
    """
    if spec.tokenizer is None:
        trained = train(documents, spec.vocab_size, special_tokens)
        json = trained.to_str().encode("utf-8")
        return DatasetTokenizer(trained, json, None, spec)
    chosen = _read(spec)
    ids = zip(special_tokens, chosen.ids(special_tokens), strict=True)
    if missing := [token for token, number in ids if number is None]:
        raise spec.error(
            f"tokenizer '{spec.tokenizer}' has no token {', '.join(missing)}; choose another, or "
            "leave tokenizer out to have one trained"
        )
    if chosen.size > spec.vocab_size:
        raise spec.error(
            f"vocab_size is {spec.vocab_size}; tokenizer '{spec.tokenizer}' has {chosen.size} "
            "tokens, expected at least as many"
        )
    return chosen


def train(documents: Sequence[str], vocab_size: int, special_tokens: Sequence[str]) -> Any:
    """Train a byte-level BPE whose first ids are the special tokens and then the single bytes.

    Ties between equally frequent pairs are broken by id, so the result does not depend on the
    number of threads.

    Returns:
        A tokenizer with at most `vocab_size` tokens: fewer when no pair occurs twice.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer, length=len(documents))
    return tokenizer


def _read(spec: DatasetSpec) -> DatasetTokenizer:
    """The tokenizer that the spec names, from its folder or the hub (or the hub's cache)."""
    from tokenizers import Tokenizer

    name = str(spec.tokenizer)
    folder = Path(name).expanduser()
    where = f"the tokenizer {folder / TOKENIZER_FILE}"
    try:
        if folder.is_dir():
            path, revision = folder / TOKENIZER_FILE, None
        else:
            from huggingface_hub import hf_hub_download

            where = f"tokenizer: no folder '{name}' here, and the hub has no {TOKENIZER_FILE} of that name"
            path = Path(hf_hub_download(name, TOKENIZER_FILE))
            revision = path.parent.name  # …/snapshots/COMMIT/tokenizer.json
        user_files.refuse(path, as_text=True)
        json = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        tokenizer = Tokenizer.from_str(json.decode("utf-8"))
    except Exception as error:  # no login or network, missing, or whatever bad content raises
        raise spec.error(
            f"cannot read {where} ({in_one_line(error)}); correct tokenizer, or leave it out to "
            "have one trained"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return DatasetTokenizer(tokenizer, json, revision, spec)
