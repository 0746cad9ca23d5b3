"""Rows of a data set on the hub, in the hub's cache, or in a folder with the hub's layout.

Every error that a user can fix (a wrong column, an unknown split, a hub that cannot be reached)
becomes one line here, which includes the message of `datasets`.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from siliconprof import formatting
from siliconprof.datasets import sources, user_files
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.errors import in_one_line

# The hub has a parquet copy of a data set on this branch, also of a data set that is a script,
# which `datasets` no longer runs. It is laid out SUBSET/SPLIT/0000.parquet (partial-SPLIT where a
# large one is cut), and has no README.
CONVERTED = "refs/convert/parquet"
# Part of an error of `datasets` -> how to fix it.
HUB_FIXES = {
    "scripts are no longer supported": f"set revision: {CONVERTED}, the hub's parquet copy, and "
    "subset: its folder there",
    # Such as Common Voice since October 2025, which Mozilla distributes itself.
    "EmptyDatasetError": "correct subset, or set source: folder and path: a copy that holds them",
    # The hub has it: its owner asks who reads it.
    "DatasetNotFoundError": "log in by `hf auth login`, or set source: folder and path: a copy",
}
ARGUMENT_FIXES = {"Bad split": "correct split", "BuilderConfig": "correct subset"}
NO_PART = "images need two parts, train and test: files that are named so, or folders"
# Kind of data set -> the layouts of a folder that are looked for.
LAYOUTS = {
    "text": "files named by their split, such as train.parquet, train.jsonl, train.csv or train.txt",
    "speech": "Parquet files, a train.csv that names audio files, audio files beside a metadata.csv "
    "with commas and a column file_name, or Common Voice's clips/ beside train.tsv",
    "images": "Parquet files, pictures in train/CLASS/ and test/CLASS/, or the four IDX files "
    "(train-images-idx3-ubyte, ..., as they are or .gz)",
}
CARD = "README.md"  # may begin with YAML that names the files
MOST_NAMES = 5  # of files or columns, in an error line


@dataclass(frozen=True)
class Repository:
    """An opened data set."""

    builder: Any  # of `datasets`
    origin: sources.Origin
    files: Sequence[Path] = ()  # here, of the splits that are read; without clips and pictures


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
    files = _whole_files(spec, builder, folder.resolve())
    links = user_files.dead_links(folder)
    origin = sources.Origin(files=[*files, folder / CARD], whole_folder=True)
    if links:
        origin.skipped.append(f"{formatting.count(len(links), 'dead link')}: {some(links)}")
    return Repository(builder, origin, files)


def _whole_files(spec: DatasetSpec, builder: Any, root: Path) -> list[Path]:
    """Return the files in a folder that a data set's splits are read from, each checked.

    Files that no person put there are taken out of what is read.
    """
    splits = ("train", "test") if spec.kind == "images" else (spec.split,)
    clip_suffixes = tuple(getattr(builder, "EXTENSIONS", ()))  # of files that rows name
    files: list[Path] = []
    for name, of_split in (builder.config.data_files or {}).items():
        own = [
            file
            for file in map(str, of_split)
            if "://" in file or not user_files.is_added(Path(os.path.relpath(file, root)))
        ]
        of_split[:] = own or of_split  # a card may name such a file
        if str(name) in splits:
            files += [Path(file) for file in of_split if "://" not in file]
    files = [file for file in files if file.suffix.lower() not in clip_suffixes]
    for file in files:
        with user_files.reading(file, spec.error):
            user_files.refuse(file, as_text=file.suffix.lower() in user_files.TEXT_SUFFIXES)
    if missing := user_files.missing_parts(files):
        raise spec.error(f"{place(spec)} is not whole: {missing}")
    return files


def some(names: Iterable[Any]) -> str:
    """Return the first names and how many more there are, for an error line."""
    return formatting.listing(map(str, names), MOST_NAMES)


def quiet_libraries(spec: DatasetSpec) -> None:
    """Silence `datasets` and the hub's client: a `PrepareError` reports their errors in one line.

    Raises:
        PrepareError: one of the two is not installed.
    """
    spec.versions("datasets", "huggingface_hub")
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
        # Rows are streamed: its cache gets a lock alone, for which a home need not be writable.
        with tempfile.TemporaryDirectory() as cache:
            return load_dataset_builder(path, subset, cache_dir=cache, **options)
    except Exception as error:
        if wrong := _wrong_card(Path(path)):
            raise spec.error(f"cannot read {wrong}; correct that file, or remove it") from error
        raise _unreadable(spec, error) from error


def _wrong_card(folder: Path) -> str | None:
    """Which of the files that describe a data set cannot be read, and why; None for none."""
    from datasets.info import DatasetInfosDict
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard

    def read_card(file: Path) -> None:
        data = DatasetCard.load(file).data
        MetadataConfigs.from_dataset_card_data(data)
        DatasetInfosDict.from_dataset_card_data(data)

    readers = {
        CARD: read_card,
        ".huggingface.yaml": lambda file: yaml.safe_load("".join(user_files.lines(file))),
        "dataset_infos.json": user_files.read_object,
    }
    for name, read in readers.items():
        file = folder / name
        try:
            if file.is_file():
                read(file)
        except Exception as error:
            return f"{file}: {in_one_line(error)}"
    return None


def _unreadable(spec: DatasetSpec, error: Exception) -> PrepareError:
    """The error for an exception of `datasets`, whose message lists subsets or splits."""
    message = in_one_line(error).partition(" with any supported extension")[0]
    fixes = ARGUMENT_FIXES if spec.source == "folder" else ARGUMENT_FIXES | HUB_FIXES
    fixes = fixes | {"Bad split": NO_PART} if spec.kind == "images" else fixes
    fix = next((fix for part, fix in fixes.items() if part in message), None)
    if fix is None and spec.source == "folder":
        folder = existing_folder(spec)
        paths = [p for p in sorted(folder.iterdir()) if not user_files.is_added(Path(p.name))]
        names = [
            f"{p.name}{'/' if p.is_dir() else '' if p.exists() else ' (a dead link)'}"
            for p in paths
        ]
        found = some(names) or "nothing"
        fix = f"looked for {LAYOUTS[spec.kind]}; found {found}"
        if (folder / CARD).is_file():
            fix += "; or correct what README.md says of files and columns"
    fix = fix or "correct path, subset or split"
    return spec.error(f"cannot read {place(spec)}: {message}; {fix}")


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
        except OSError as missing:  # there is none, or a part of one
            where, error = "", missing if "Incomplete" in type(missing).__name__ else error
        commit = Path(where).name  # …/snapshots/COMMIT
        # Reading online leaves the README alone there.
        if not where or not {file.name for file in Path(where).iterdir()} - {CARD}:
            raise spec.error(
                f"neither the hub nor its cache has {place(spec)} ({in_one_line(error)}); correct "
                "path or revision, log in by `hf auth login`, or set source: folder and path: a copy"
            ) from error
    if spec.revision == CONVERTED:  # which has no README with the subsets
        builder = _builder(spec, where, revision=revision, data_dir=spec.subset)
    else:
        builder = _builder(spec, where, spec.subset, revision=revision)
    if not Path(where).is_dir():
        return Repository(builder, sources.Origin(commit))
    if links := user_files.dead_links(Path(where)):
        raise spec.error(f"{where} is not whole: no {some(links)}; download it again")
    return Repository(builder, sources.Origin(commit), _whole_files(spec, builder, Path(where)))


def rows(opened: Repository, spec: DatasetSpec, *keys: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns row by row, reading no further than the caller asks.

    Audio and images are not decoded: a value is the file's bytes, its path, or None.

    Args:
        keys: of the spec, that name the columns.

    Raises:
        PrepareError: there is no such split or column, a column holds something else than its key
            says, or a file is damaged.
    """
    n_rows = 0
    try:
        for row in _undecoded(opened.builder, spec):
            yield tuple(_value(opened, spec, row, key) for key in keys)
            n_rows += 1
    except PrepareError:
        raise
    except Exception as error:  # no such split, a damaged file, a connection that breaks
        is_option = any(part in str(error) for part in ARGUMENT_FIXES)
        if wrong := None if is_option else _wrong_file(opened, spec, error):
            raise spec.error(wrong) from error
        raise _unreadable(spec, error) from error
    split = (opened.builder.info.splits or {}).get(spec.split)
    if split and split.num_examples and split.num_examples != n_rows:
        raise spec.error(
            f"{place(spec)} has {n_rows} rows, but {split.num_examples} by its {CARD}; copy or "
            f"download the rest, or correct {CARD}"
        )


def _wrong_file(
    opened: Repository, spec: DatasetSpec, error: Exception | None = None
) -> str | None:
    """Which file here cannot be read, or has other columns than the first; None if none.

    Args:
        error: of all of them together; without one, only the first row of each is read.
    """
    first: Mapping[str, Any] = {}
    for file in opened.files:
        alone = copy.copy(opened.builder)
        alone.config = copy.copy(alone.config)
        alone.config.data_files = {spec.split: [str(file)]}
        try:
            if error and len(opened.files) == 1:
                raise error
            rows_of_file = islice(_undecoded(alone, spec), None if error else 1)
            row: Mapping[str, Any] = next(iter(deque(rows_of_file, maxlen=1)), {})
        except Exception as wrong:
            fix = "correct it, or copy it again"
            if hasattr(alone, "EXTENSIONS"):  # it lists clips or pictures
                fix += f"; looked for {LAYOUTS[spec.kind]}"
            return f"cannot read {file}: {in_one_line(wrong)}; {fix}"
        first = first or row
        if row and set(row) != set(first):
            return f"{file} has the columns {some(row)}, but {opened.files[0]} {some(first)}"
    return None


def _undecoded(builder: Any, spec: DatasetSpec) -> Any:
    """The split as a stream of rows, with audio and images undecoded.

    `datasets` would decode audio with torchcodec, which needs FFmpeg, and images that are not used.
    """
    from datasets import Audio, Image, Value

    if hasattr(builder.config, "decode_num_threads"):
        builder.config.decode_num_threads = 0  # on the hub it would decode ahead, in threads
    if builder.name == "text":
        builder.config.encoding = "utf-8-sig"  # a byte order mark is no part of the text
    if hasattr(builder.config, "converters"):  # of CSV: else "NA" is no text, and "12" a number
        builder.config.converters = {spec.text_column: str}
        builder.config.keep_default_na = False
    rows = builder.as_streaming_dataset(split=spec.split)
    # For files in folders it has the paths, but needs torchcodec even to return those.
    undecoded = Value("string") if builder.name == "audiofolder" else Audio(decode=False)
    for column, feature in (rows.features or {}).items():
        if isinstance(feature, Audio):
            rows = rows.cast_column(column, undecoded)
        elif isinstance(feature, Image):
            rows = rows.cast_column(column, Image(decode=False))
    return rows


def _value(opened: Repository, spec: DatasetSpec, row: Mapping[str, Any], key: str) -> Any:
    column = getattr(spec, key)
    if column not in row:
        fix = f"set {key} to one of: {some(row)}"
        if opened.builder.name == "imagefolder":
            fix = "put all pictures into SPLIT/CLASS/, none above or below, of two classes or more"
        wrong = _wrong_file(opened, spec)
        raise spec.error(wrong or f"{place(spec)} has no column '{column}'; {fix}")
    value = row[column]
    if key in ("audio_column", "image_column"):
        value = (value.get("bytes") or value.get("path")) if isinstance(value, dict) else value
        if spec.source == "folder" and isinstance(value, str) and "://" not in value:
            value = str(existing_folder(spec) / value)  # a relative name is one in there
    if opened.builder.name == "text" and "\0" in str(value):
        raise ValueError(user_files.ZEROS)
    if key == "text_column" and not isinstance(value, str | None):
        others = [name for name, other in row.items() if isinstance(other, str)]
        fix = f", or set text_column to one of: {some(others)}" if others else ""
        raise spec.error(
            f"column '{column}' of {place(spec)} holds {type(value).__name__}, not text; convert it "
            f"to one text a row{fix}"
        )
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
        raise ValueError(f"the row holds {type(file).__name__}, neither the file nor its name")
    if "://" not in str(file):
        user_files.refuse(Path(file))
    with fsspec.open(str(file), "rb") as stream:
        return bytes(stream.read())
