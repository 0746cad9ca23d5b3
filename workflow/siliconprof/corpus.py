"""Where the text of a dataset comes from: the package, a folder, or the hub.

Everything that a person can mend (a wrong column, an unknown split, a hub that cannot be reached)
becomes one line here; what `datasets` says about it is part of that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError

SOURCES = ("builtin", "hub", "folder")
END_OF_TEXT = "<|endoftext|>"
BUILTIN_TEXT = Path(__file__).resolve().parent / "data" / "builtin_text.txt"
BUILTIN_LICENCE = "PSF-2.0"
DEFAULT_MAX_BYTES = 4_000_000


class PrepareError(UserError):
    """The dataset cannot be prepared as asked; one line says what, where, and how to mend it."""


@dataclass(frozen=True)
class DatasetSpec:
    """What to prepare. `path`, `subset`, `split` and `text_column` mean nothing to `builtin`."""

    name: str
    source: str
    vocab_size: int
    path: str | None = None
    subset: str | None = None
    split: str = "train"
    text_column: str = "text"
    max_bytes: int = DEFAULT_MAX_BYTES


@dataclass(frozen=True)
class Corpus:
    """The text to use, and what is known about where it came from."""

    documents: list[str]
    licence: str | None
    revision: str | None  # the hub's commit, where it is known

    @property
    def text(self) -> str:
        """The documents in one piece, END_OF_TEXT between them: what the tokens decode to."""
        return END_OF_TEXT.join(self.documents)


def limited(documents: Iterable[str], max_bytes: int) -> list[str]:
    """Take documents until they and the END_OF_TEXT between them fill `max_bytes` of UTF-8.

    Empty documents are dropped; the last one is cut, never inside a character.
    """
    taken: list[str] = []
    room = max_bytes
    for document in documents:
        separator_bytes = len(END_OF_TEXT) if taken else 0
        data = document.encode("utf-8", errors="replace")
        kept = data[: max(room - separator_bytes, 0)].decode("utf-8", errors="ignore")
        kept_bytes = len(kept.encode("utf-8"))
        if kept:
            taken.append(kept)
            room -= separator_bytes + kept_bytes
        if kept_bytes < len(data):
            break
    return taken


def read_corpus(spec: DatasetSpec) -> Corpus:
    """Get the text from its source.

    Raises:
        PrepareError: the source cannot be read, or holds no text.
    """
    if spec.source == "builtin":
        documents = limited([BUILTIN_TEXT.read_text(encoding="utf-8")], spec.max_bytes)
        return Corpus(documents, BUILTIN_LICENCE, None)
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise PrepareError(
            f"dataset '{spec.name}': source '{spec.source}' needs the package '{error.name}'; "
            "install the pins in envs/, or set source: builtin"
        ) from None
    datasets.config.TORCH_AVAILABLE = False  # iterating would import it: 1.6 s, for text rows
    # What goes wrong is said once, in our own line.
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity(huggingface_hub.utils.logging.CRITICAL)

    builder, card, revision = _open_hub(spec) if spec.source == "hub" else _open_folder(spec)
    documents = limited(_column(builder, spec), spec.max_bytes)
    if not documents:
        raise PrepareError(
            f"dataset '{spec.name}': column '{spec.text_column}' of {_place(spec)} holds no text"
        )
    return Corpus(documents, _licence(card), revision)


def _place(spec: DatasetSpec) -> str:
    """Where the dataset lies, for an error line."""
    subset = f", subset '{spec.subset}'" if spec.subset else ""
    return f"{spec.source} '{spec.path}'{subset}, split '{spec.split}'"


def _line(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def _open_folder(spec: DatasetSpec) -> tuple[Any, Path, None]:
    """Open a dataset repository on disk; return (builder, its README.md, None)."""
    from datasets import load_dataset_builder

    folder = Path(spec.path or "").expanduser()
    if not folder.is_dir():
        raise PrepareError(
            f"dataset '{spec.name}': no folder '{spec.path}' (seen from {Path.cwd()}); put the "
            "dataset there as the hub lays it out, or set source: builtin"
        )
    try:
        # Absolute, because a relative 'a/b' that lacks data would be taken for a name on the hub.
        builder = load_dataset_builder(str(folder.resolve()), spec.subset)
    except Exception as error:
        raise _unreadable(spec, error) from error
    return builder, folder / "README.md", None


def _open_hub(spec: DatasetSpec) -> tuple[Any, Path | None, str | None]:
    """Open a dataset on the hub, or in the hub's cache when the hub cannot be reached.

    Returns:
        (builder, its README.md where known, commit where known)
    """
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    path = spec.path or ""
    if Path(path).expanduser().exists():  # `datasets` would read it and never ask the hub
        raise PrepareError(
            f"dataset '{spec.name}': '{path}' is a file or folder here; set source: folder"
        )
    try:
        builder = load_dataset_builder(path, spec.subset)
    except DatasetNotFoundError as error:
        raise PrepareError(
            f"dataset '{spec.name}': the hub has no dataset '{path}', or it needs a login "
            "(`hf auth login`); correct path, or set source: builtin"
        ) from error
    except Exception as error:
        # `datasets` hides some transport errors in a FileNotFoundError that only names them.
        # The hub's client changes its HTTP library from version to version: known by name.
        transport = any(base.__name__ == "TransportError" for base in type(error).__mro__)
        unreachable = transport or isinstance(error, ConnectionError | HfHubHTTPError)
        if not unreachable and "LocalEntryNotFoundError" not in str(error):
            raise _unreadable(spec, error) from error
        return _open_snapshot(spec, error)
    commit = builder.hash if re.fullmatch("[0-9a-f]{40}", builder.hash or "") else None
    card = try_to_load_from_cache(path, "README.md", repo_type="dataset", revision=commit)
    return builder, Path(card) if isinstance(card, str) else None, commit


def _open_snapshot(spec: DatasetSpec, error: Exception) -> tuple[Any, Path, str]:
    """Open the copy that `hf download` left in the hub's cache; `error` says why the hub failed."""
    from datasets import load_dataset_builder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(spec.path or "", repo_type="dataset", local_files_only=True)
        )
        builder = load_dataset_builder(str(folder), spec.subset)
    except (LocalEntryNotFoundError, FileNotFoundError):  # not cached, or its README alone
        raise PrepareError(
            f"dataset '{spec.name}': the hub is not reachable and its cache has no copy of "
            f"'{spec.path}' ({_line(error)}); set source: folder and path: ..., "
            "or source: builtin"
        ) from error
    except Exception as cache_error:
        raise _unreadable(spec, cache_error) from cache_error
    return builder, folder / "README.md", folder.name


def _unreadable(spec: DatasetSpec, error: Exception) -> PrepareError:
    """The line for whatever else `datasets` raises; it names known subsets and splits itself."""
    return PrepareError(
        f"dataset '{spec.name}': cannot read {_place(spec)}: {_line(error)}; "
        "correct path, subset or split"
    )


def _rows(builder: Any, split: str) -> Any:
    """The split as a data set of rows: read piece by piece, or as a whole for a slice."""
    if "[" in split:  # such as train[:10%], for which the number of rows must be known
        builder.download_and_prepare()
        return builder.as_dataset(split=split)
    return builder.as_streaming_dataset(split=split)


def _column(builder: Any, spec: DatasetSpec) -> Iterator[str]:
    """Yield the split's documents in order, reading no further than the caller asks."""
    rows: Iterator[dict[str, Any]] | None = None
    while True:
        try:
            rows = rows or iter(_rows(builder, spec.split))
            row = next(rows, None)
        except Exception as error:  # no such split, a damaged file, a connection that breaks
            raise _unreadable(spec, error) from error
        if row is None:
            return
        if spec.text_column not in row:
            raise PrepareError(
                f"dataset '{spec.name}': {_place(spec)} has no column '{spec.text_column}'; "
                f"set text_column to one of: {', '.join(row)}"
            )
        value = row[spec.text_column]
        if value is not None and not isinstance(value, str):
            raise PrepareError(
                f"dataset '{spec.name}': column '{spec.text_column}' of {_place(spec)} holds "
                f"{type(value).__name__}, not text; set text_column to one of: {', '.join(row)}"
            )
        if value:
            yield value


def _licence(card: Path | None) -> str | None:
    """The licence that a dataset's README.md names in its front matter, or None."""
    from huggingface_hub import DatasetCard

    if card is None or not card.is_file():
        return None
    licence = DatasetCard.load(card, ignore_metadata_errors=True).data.get("license")
    if isinstance(licence, list):
        return ", ".join(map(str, licence))
    return None if licence is None else str(licence)
