"""Where the text of a data set comes from: the package, a folder, or the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from siliconprof.datasets import repository
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.datasets.tokenizer import END_OF_TEXT

BUILTIN_TEXT = Path(__file__).resolve().parent / "data" / "builtin_text.txt"
BUILTIN_LICENCE = "PSF-2.0"


@dataclass(frozen=True)
class Corpus:
    """The text to use, and where it came from."""

    documents: list[str]
    licence: str | None
    revision: str | None  # the hub's commit, None where unknown
    files: Sequence[Path] = ()  # the folder's files that were read

    @property
    def text(self) -> str:
        """The documents joined by END_OF_TEXT: the text that the tokens decode to."""
        return END_OF_TEXT.join(self.documents)


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


def read_corpus(spec: DatasetSpec) -> Corpus:
    """Read the text from its source.

    Raises:
        PrepareError: the source cannot be read, or holds no text.
    """
    if spec.source == "builtin":
        documents = limited([BUILTIN_TEXT.read_text(encoding="utf-8")], spec.max_bytes)
        return Corpus(documents, BUILTIN_LICENCE, None)
    opened = repository.open_repository(spec)
    documents = limited(_documents(opened, spec), spec.max_bytes)
    if not documents:
        raise PrepareError(
            f"dataset '{spec.name}': column '{spec.text_column}' of {repository.place(spec)} "
            "holds no text"
        )
    files = opened.files() if spec.source == "folder" else ()
    return Corpus(documents, opened.licence(), opened.revision, files)


def _documents(opened: repository.Repository, spec: DatasetSpec) -> Iterator[str]:
    """Yield the split's documents in order, reading no further than the caller asks."""
    columns = {"text_column": spec.text_column}
    for row in repository.records(opened.builder, spec, columns):
        if row[spec.text_column]:
            yield row[spec.text_column]
