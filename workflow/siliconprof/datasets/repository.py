"""Rows of a data set on the hub, in the hub's cache, or in a folder with the hub's layout.

Every error that a user can fix (a wrong column, an unknown split, a hub that cannot be reached)
becomes one line here, which includes the message of `datasets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof import words
from siliconprof.datasets import git_lfs, preparing
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.errors import in_one_line

# The hub has a parquet copy of a data set on this branch, also of a data set that is a script,
# which `datasets` no longer runs. It is laid out SUBSET/SPLIT/0000.parquet (partial-SPLIT where a
# large one is cut), and has no README.
CONVERTED = "refs/convert/parquet"
# Part of an error of `datasets` -> how to fix it.
FIXES = {
    "scripts are no longer supported": f"set revision: {CONVERTED}, the hub's parquet copy, and "
    "subset: its folder there",
    # Such as Common Voice since October 2025, which Mozilla distributes itself.
    "EmptyDatasetError": "correct subset, or set source: folder and path: a copy that holds them",
    # The hub has it: its owner asks who reads it.
    "DatasetNotFoundError": "log in by `hf auth login`, or set source: folder and path: a copy",
    "split": "correct split",
    "BuilderConfig": "correct subset",
}
# Kind of data set -> the layouts of a folder that are looked for.
LAYOUTS = {
    "text": "files named by their split, such as train.parquet, train.jsonl, train.csv or train.txt",
    "speech": "Parquet files, a train.csv that names audio files, audio files beside a metadata.csv "
    "with commas and a column file_name, or Common Voice's clips/ beside train.tsv",
    "images": "Parquet files, pictures in train/CLASS/ and test/CLASS/, or the four IDX files "
    "(train-images-idx3-ubyte, ..., as they are or .gz)",
}
MOST_NAMES = 8  # of what lies in a folder, in an error line


@dataclass(frozen=True)
class Repository:
    """An opened data set."""

    builder: Any  # of `datasets`
    origin: preparing.Origin


def open_repository(spec: DatasetSpec) -> Repository:
    """Open the data set that the spec names.

    Raises:
        PrepareError: a library is missing, or the data set cannot be opened.
    """
    quiet_libraries(spec)
    if spec.source == "hub":
        return _open_hub(spec)
    folder = existing_folder(spec)
    # Absolute: `datasets` takes a relative 'a/b' without data for a name on the hub.
    builder = _builder(spec, str(folder.resolve()), spec.subset)
    splits = ("train", "test") if spec.kind == "images" else (spec.split,)
    clip_suffixes = tuple(getattr(builder, "EXTENSIONS", ()))  # of files that rows name
    by_split = (builder.config.data_files or {}).items()
    paths = [Path(str(file)) for name, files in by_split if str(name) in splits for file in files]
    files = [path for path in paths if path.suffix.lower() not in clip_suffixes]
    for file in files:
        try:
            git_lfs.refuse(file)
        except ValueError as error:
            raise spec.error(f"cannot read {file}: {error}") from None
    card = folder / "README.md"  # names the files
    return Repository(builder, preparing.Origin(files=[*files, card], whole_folder=True))


def quiet_libraries(spec: DatasetSpec) -> None:
    """Silence `datasets` and the hub's client: a `PrepareError` reports their errors in one line.

    Raises:
        PrepareError: one of the two is not installed.
    """
    preparing.versions(spec, "datasets", "huggingface_hub")
    import datasets
    import huggingface_hub

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


def existing_folder(spec: DatasetSpec) -> Path:
    """The folder that the spec names.

    Raises:
        PrepareError: there is none.
    """
    folder = Path(spec.path or "").expanduser()
    if not folder.is_dir():
        raise spec.error(
            f"no folder '{spec.path}' (relative to {Path.cwd()}); put the data set there, unpacked, "
            "in the hub's layout, or set source: builtin"
        )
    return folder


def _builder(spec: DatasetSpec, path: str, subset: str | None = None, **options: Any) -> Any:
    from datasets import load_dataset_builder

    try:
        return load_dataset_builder(path, subset, **options)
    except Exception as error:
        raise _unreadable(spec, error) from error


def _unreadable(spec: DatasetSpec, error: Exception) -> PrepareError:
    """The error for an exception of `datasets`, whose message lists subsets or splits."""
    message = in_one_line(error)
    fix = next((fix for part, fix in FIXES.items() if part in message), None)
    if fix is None and spec.source == "folder":
        paths = sorted(existing_folder(spec).iterdir())
        names = [f"{path.name}/" if path.is_dir() else path.name for path in paths]
        found = words.listing(names, MOST_NAMES) or "nothing"
        fix = f"looked for {LAYOUTS[spec.kind]}; found {found}"
    fix = fix or "correct path, subset or split"
    return spec.error(f"cannot read {place(spec)}: {message}; {fix}")


# -- the hub ---------------------------------------------------------------------------------------


def _open_hub(spec: DatasetSpec) -> Repository:
    """Open a dataset on the hub, or what `hf download` left in its cache where it is not reachable."""
    from huggingface_hub import HfApi, snapshot_download

    path = where = spec.path or ""
    if Path(path).expanduser().exists():  # `datasets` would read it instead of the hub
        raise spec.error(f"'{path}' is a file or folder here; set source: folder")
    try:
        commit = revision = HfApi().dataset_info(path, revision=spec.revision).sha
    except Exception as error:  # no network, no such data set or revision, no login
        revision = None
        try:
            where = snapshot_download(
                path, repo_type="dataset", revision=spec.revision, local_files_only=True
            )
        except OSError:
            where = ""
        commit = Path(where).name  # …/snapshots/COMMIT
        # Reading online leaves the README alone there.
        if not where or not {file.name for file in Path(where).iterdir()} - {"README.md"}:
            raise spec.error(
                f"neither the hub nor its cache has {place(spec)} ({in_one_line(error)}); correct "
                "path or revision, log in by `hf auth login`, or set source: folder and path: a copy"
            ) from error
    if spec.revision == CONVERTED:  # which has no README with the subsets
        builder = _builder(spec, where, revision=revision, data_dir=spec.subset)
    else:
        builder = _builder(spec, where, spec.subset, revision=revision)
    return Repository(builder, preparing.Origin(commit))


# -- rows ------------------------------------------------------------------------------------------


def rows(opened: Repository, spec: DatasetSpec, *keys: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns row by row, reading no further than the caller asks.

    Audio and images are not decoded: a value is the file's bytes, its path, or None.

    Args:
        keys: of the spec, that name the columns.

    Raises:
        PrepareError: there is no such split or column, a column holds something else than its key
            says, or a file is damaged.
    """
    try:
        for row in _undecoded(opened.builder, spec.split):
            yield tuple(_value(spec, row, key) for key in keys)
    except PrepareError:
        raise
    except Exception as error:  # no such split, a damaged file, a connection that breaks
        raise _unreadable(spec, error) from error


def _undecoded(builder: Any, split: str) -> Any:
    """The split as a stream of rows, with audio and images undecoded.

    `datasets` would decode audio with torchcodec, which needs FFmpeg, and images that are not used.
    """
    from datasets import Audio, Image, Value

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


def _value(spec: DatasetSpec, row: Mapping[str, Any], key: str) -> Any:
    """The value of the column that a key of the spec names."""
    column, fix = getattr(spec, key), f"set {key} to one of: {', '.join(map(str, row))}"
    if column not in row:
        raise spec.error(f"{place(spec)} has no column '{column}'; {fix}")
    value = row[column]
    if key in ("audio_column", "image_column"):
        value = (value.get("bytes") or value.get("path")) if isinstance(value, dict) else value
        if spec.source == "folder" and isinstance(value, str) and "://" not in value:
            value = str(existing_folder(spec) / value)  # a relative name is one in there
    if key == "text_column" and not isinstance(value, str | None):
        what = type(value).__name__
        raise spec.error(f"column '{column}' of {place(spec)} holds {what}, not text; {fix}")
    return value


def content(file: Any) -> bytes:
    """The bytes of a row's file, given as bytes, as a path, or as a URL that fsspec opens.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    import fsspec

    if isinstance(file, bytes):
        return file
    if not file or not isinstance(file, str | Path):
        raise ValueError("the row holds neither the file nor its name")
    if "://" not in str(file):
        git_lfs.refuse(Path(file))
    with fsspec.open(str(file), "rb") as stream:
        return bytes(stream.read())
