"""Rows of a data set on the hub, in the hub's cache, or in a folder with the hub's layout.

Every error that a user can mend (a wrong column, an unknown split, a hub that cannot be reached)
becomes one line here, which includes the message of `datasets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.datasets import preparing
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError

# The hub has a parquet copy of a data set on this branch, also of a data set that is a script,
# which `datasets` no longer runs. It is laid out SUBSET/SPLIT/0000.parquet (partial-SPLIT where a
# large one is cut), formerly SUBSET/NAME-SPLIT.parquet, and has no README.
CONVERTED = "refs/convert/parquet"
CONVERTED_FILE = re.compile(
    r"(?P<subset>[^/]+)/(?:(?:partial-)?(?P<split>[^/]+)/\d+|"
    r"[^/]+?-(?P<old>[A-Za-z_.]+)(?:-\d+-of-\d+)?)\.parquet"
)


@dataclass(frozen=True)
class Repository:
    """An opened data set."""

    builder: Any  # of `datasets`
    card: Path | None  # its README.md, None where unknown
    revision: str | None  # the hub's commit, None where unknown

    def origin(self) -> preparing.Origin:
        """Where the data came from, with the files on disk but clips that are files of their own."""
        files_by_split = (self.builder.config.data_files or {}).values()
        clip_suffixes = tuple(getattr(self.builder, "EXTENSIONS", ()))
        paths = [Path(str(file)) for files in files_by_split for file in files]
        read = [path for path in paths if path.suffix.lower() not in clip_suffixes]
        files = [*read, *([self.card] if self.card else [])]
        return preparing.Origin(licence(self.card), self.revision, files=files, whole_folder=True)


def open_repository(spec: DatasetSpec) -> Repository:
    """Open the data set that the spec names.

    Raises:
        PrepareError: a library is missing, or the data set cannot be opened.
    """
    quiet_libraries(spec)
    return _open_hub(spec) if spec.source == "hub" else _open_folder(spec)


def quiet_libraries(spec: DatasetSpec) -> None:
    """Silence `datasets` and the hub's client: a `PrepareError` reports their errors in one line.

    Raises:
        PrepareError: one of the two is not installed.
    """
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise PrepareError(
            f"dataset '{spec.name}': source '{spec.source}' needs the package '{error.name}'; "
            "install the pins in envs/, or set source: builtin"
        ) from None
    datasets.config.TORCH_AVAILABLE = False  # else iterating imports torch: 1.6 s, for plain rows
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity(huggingface_hub.utils.logging.CRITICAL)


def place(spec: DatasetSpec) -> str:
    """The location of the data set, for an error line."""
    subset = f", subset '{spec.subset}'" if spec.subset else ""
    revision = f", revision '{spec.revision}'" if spec.revision else ""
    return f"{spec.source} '{spec.path}'{subset}{revision}, split '{spec.split}'"


def line(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def existing_folder(spec: DatasetSpec) -> Path:
    """The folder that the spec names.

    Raises:
        PrepareError: there is none.
    """
    folder = Path(spec.path or "").expanduser()
    if not folder.is_dir():
        raise PrepareError(
            f"dataset '{spec.name}': no folder '{spec.path}' (relative to {Path.cwd()}); put the "
            "dataset there in the hub's layout, or set source: builtin"
        )
    return folder


def _open_folder(spec: DatasetSpec) -> Repository:
    """Open a dataset repository on disk."""
    from datasets import load_dataset_builder

    folder = existing_folder(spec)
    try:
        # Absolute: `datasets` takes a relative 'a/b' without data for a name on the hub.
        builder = load_dataset_builder(str(folder.resolve()), spec.subset)
    except Exception as error:
        raise _unreadable(spec, error) from error
    return Repository(builder, folder / "README.md", None)


def _files_of_copy(spec: DatasetSpec, names: Iterable[str]) -> dict[str, list[str]]:
    """The files of the spec's subset on the branch of parquet copies, by split.

    By default `datasets` guesses splits from the names train, validation and test, and takes
    Common Voice's `validated` and `invalidated` for one split.

    Raises:
        PrepareError: there are several subsets and the spec names none, or there is no such subset.
    """
    files_by_subset: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        if match := CONVERTED_FILE.fullmatch(name):
            splits = files_by_subset.setdefault(match["subset"], {})
            splits.setdefault(match["split"] or match["old"], []).append(name)
    subset = spec.subset or (next(iter(files_by_subset)) if len(files_by_subset) == 1 else None)
    if subset not in files_by_subset:
        problem = f"has no subset '{subset}'" if subset else "has several subsets"
        raise PrepareError(
            f"dataset '{spec.name}': {place(spec)} "
            f"{problem if files_by_subset else 'holds no parquet file'}; set subset to one of: {', '.join(files_by_subset) or '(none)'}"
        )
    return files_by_subset[subset]


def _open_hub(spec: DatasetSpec) -> Repository:
    """Open a dataset on the hub, or in the hub's cache when the hub cannot be reached."""
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    path = spec.path or ""
    if Path(path).expanduser().exists():  # `datasets` would read it instead of the hub
        raise PrepareError(
            f"dataset '{spec.name}': '{path}' is a file or folder here; set source: folder"
        )
    try:
        if spec.revision == CONVERTED:
            names = HfApi().list_repo_files(path, repo_type="dataset", revision=CONVERTED)
            files = _files_of_copy(spec, names)
            builder = load_dataset_builder(path, revision=CONVERTED, data_files=files)
        else:
            builder = load_dataset_builder(path, spec.subset, revision=spec.revision)
    except PrepareError:
        raise
    except (DatasetNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        revision = f" with revision '{spec.revision}'" if spec.revision else ""
        raise PrepareError(
            f"dataset '{spec.name}': the hub has no dataset '{path}'{revision}, or it needs a "
            "login (`hf auth login`); correct path, or set source: builtin"
        ) from error
    except Exception as error:
        # `datasets` hides some transport errors in a FileNotFoundError that only names them.
        # The HTTP library of the hub's client depends on its version, hence the check by name.
        transport = any(base.__name__ == "TransportError" for base in type(error).__mro__)
        unreachable = transport or isinstance(error, ConnectionError | HfHubHTTPError)
        if not unreachable and "LocalEntryNotFoundError" not in str(error):
            raise _unreadable(spec, error) from error
        return _open_snapshot(spec, error)
    commit = builder.hash if re.fullmatch("[0-9a-f]{40}", builder.hash or "") else None
    return Repository(builder, _hub_card(path, commit), commit)


def _hub_card(path: str, commit: str | None) -> Path | None:
    """The README.md of that commit, or the main branch's: a branch of copies has none."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    card = try_to_load_from_cache(path, "README.md", repo_type="dataset", revision=commit)
    if isinstance(card, str):
        return Path(card)
    try:
        return Path(hf_hub_download(path, "README.md", repo_type="dataset"))
    except Exception:  # no README.md, or the connection is gone: the licence stays unknown
        return None


def _open_snapshot(spec: DatasetSpec, error: Exception) -> Repository:
    """Open the copy that `hf download` left in the hub's cache; `error` is why the hub failed."""
    from datasets import load_dataset_builder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    path = spec.path or ""
    try:
        folder = Path(
            snapshot_download(
                path, repo_type="dataset", revision=spec.revision, local_files_only=True
            )
        )
        if spec.revision == CONVERTED:
            names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.parquet")]
            files = _files_of_copy(spec, names)
            builder = load_dataset_builder(str(folder), data_files=files)
        else:
            builder = load_dataset_builder(str(folder), spec.subset)
    except PrepareError:
        raise
    except (LocalEntryNotFoundError, FileNotFoundError):  # not cached, or its README alone
        raise PrepareError(
            f"dataset '{spec.name}': the hub is not reachable and its cache has no copy of "
            f"'{path}' ({line(error)}); set source: folder and path: ..., "
            "or source: builtin"
        ) from error
    except Exception as cache_error:
        raise _unreadable(spec, cache_error) from cache_error
    card = folder / "README.md"
    return Repository(builder, card if card.is_file() else _hub_card(path, None), folder.name)


def _unreadable(spec: DatasetSpec, error: Exception) -> PrepareError:
    """The error for any other exception of `datasets`, whose message lists subsets or splits."""
    mend = "correct path, subset or split"
    if "scripts are no longer supported" in str(error):
        mend = f"set revision: {CONVERTED}, the hub's parquet copy, and subset: its folder there"
    elif type(error).__name__ == "EmptyDatasetError":
        # Such as Common Voice since October 2025, which Mozilla distributes itself.
        mend = "set source: folder and path: a copy that holds them"
    return PrepareError(f"dataset '{spec.name}': cannot read {place(spec)}: {line(error)}; {mend}")


def _rows(builder: Any, split: str) -> Any:
    """The split as a data set of rows, with audio and images undecoded.

    It is streamed, except for a slice, which is read as a whole. `datasets` would decode audio with
    torchcodec, which needs FFmpeg, and also images that are not used.
    """
    from datasets import Audio, Image, Value

    if "[" in split:  # such as train[:10%], for which the number of rows must be known
        builder.download_and_prepare()
        rows = builder.as_dataset(split=split)
    else:
        if hasattr(builder.config, "decode_num_threads"):
            builder.config.decode_num_threads = 0  # on the hub it would decode ahead, in threads
        rows = builder.as_streaming_dataset(split=split)
    # For files in folders it has the paths, but needs torchcodec even to return those.
    undecoded = Value("string") if builder.name == "audiofolder" else Audio(decode=False)
    for column, feature in (rows.features or {}).items():
        if isinstance(feature, Audio):
            rows = rows.cast_column(column, undecoded)
        elif isinstance(feature, Image):
            rows = rows.cast_column(column, Image(decode=False))
    return rows


def records(
    builder: Any, spec: DatasetSpec, columns: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the split's rows in order, reading no further than the caller asks.

    Args:
        columns: key of the spec -> the column it names, which must be there.

    Raises:
        PrepareError: there is no such split or column, the text column holds no text, or a file is
            damaged.
    """
    rows: Iterator[dict[str, Any]] | None = None
    while True:
        try:
            rows = rows or iter(_rows(builder, spec.split))
            row = next(rows, None)
        except Exception as error:  # no such split, a damaged file, a connection that breaks
            raise _unreadable(spec, error) from error
        if row is None:
            return
        for key, column in columns.items():
            check_column(spec, row, key, column)
        yield row


def stored(spec: DatasetSpec, row: Mapping[str, Any], key: str, what: str) -> bytes | str | None:
    """The undecoded file in a row: its bytes or its path; None where the row has neither.

    Args:
        key: the key of the spec that names the column.
        what: what the file should be, for the error line.

    Raises:
        PrepareError: the column holds something else.
    """
    file = row[getattr(spec, key)]
    if isinstance(file, dict):
        file = file.get("bytes") or file.get("path")
    if file is not None and not isinstance(file, bytes | str):
        raise PrepareError(
            f"dataset '{spec.name}': column '{getattr(spec, key)}' of {place(spec)} holds "
            f"{type(file).__name__}, not {what}; set {key} to one of: {', '.join(row)}"
        )
    return file


def content(file: Any) -> bytes:
    """The bytes of a row's file, given as bytes, as a path, or as a URL that fsspec opens.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    import fsspec

    if isinstance(file, bytes):
        return file
    if not file:
        raise ValueError("the row holds neither the file nor its name")
    with fsspec.open(str(file), "rb") as stream:
        return stream.read()


def check_column(spec: DatasetSpec, row: Mapping[str, Any], key: str, column: str) -> None:
    """Check that a row has a column and that the text column holds text.

    Raises:
        PrepareError: the row lacks the column, or the text column holds something else.
    """
    if column not in row:
        raise PrepareError(
            f"dataset '{spec.name}': {place(spec)} has no column '{column}'; "
            f"set {key} to one of: {', '.join(map(str, row))}"
        )
    value = row[column]
    if key == "text_column" and value is not None and not isinstance(value, str):
        raise PrepareError(
            f"dataset '{spec.name}': column '{column}' of {place(spec)} holds "
            f"{type(value).__name__}, not text; set text_column to one of: {', '.join(row)}"
        )


def licence(card: Path | None) -> str | None:
    """The licence that a dataset's README.md names in its front matter, or None."""
    from huggingface_hub import DatasetCard

    if card is None or not card.is_file():
        return None
    licences = DatasetCard.load(card, ignore_metadata_errors=True).data.get("license")
    if isinstance(licences, list):
        return ", ".join(map(str, licences))
    return None if licences is None else str(licences)
