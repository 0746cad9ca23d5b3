"""Reads the clips of a speech data set: generated, from a folder, or from the hub.

Audio files are decoded by `soundfile` and resampled by `soxr`, rounded to 16 bits as in Whisper's
own loader. A compressed file may decode slightly differently on another host or with another
version: the checksums in dataset.json then differ, and the clips count as other data.

Common Voice, on which the paper pretrains, is no longer on the hub: since October 2025 Mozilla
distributes it only through the Mozilla Data Collective (its organisation's page on the hub says so,
and mozilla-foundation/common_voice_* hold no files any more). So a folder may have three layouts:
Mozilla's unpacked archive (github.com/common-voice/cv-dataset, datasets/scripted-speech),
parquet files with an `audio` column as on the hub, and audio files beside a metadata.csv.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import repository, speech_synthesis
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.datasets.log_mel import SAMPLING_RATE_HZ

if TYPE_CHECKING:
    import numpy as np

SYNTHETIC_LICENCE = "MIT"  # of this package, which generates it
TOO_LONG = "longer than clip_seconds"
NO_TEXT = "without a transcript"
UNREADABLE = "not readable as audio"


@dataclass
class Speech:
    """The clips to use, read lazily, and where they came from."""

    clips: Iterator[tuple[np.ndarray, str]]  # int16 (n,) samples at 16 kHz, and the transcript
    licence: str | None
    revision: str | None  # the hub's commit, None where unknown
    synthetic: bool
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> number of clips read so far
    example: str | None = None  # why the first unreadable file could not be read
    files: list[Path] = field(
        default_factory=list
    )  # read from a folder, with the clips read so far
    whole_folder: bool = False  # whether a new file in the folder would be read too


def read_speech(spec: DatasetSpec) -> Speech:
    """Open the source; iterating over `clips` reads them.

    Raises:
        PrepareError: the source cannot be read.
    """
    if spec.source == "builtin":
        clips = speech_synthesis.clips(spec.clip_seconds)
        return Speech(clips, SYNTHETIC_LICENCE, None, True)
    repository.quiet_libraries(spec)
    unpacked = _mozilla_folder(spec) if spec.source == "folder" else None
    if unpacked is not None:
        card = unpacked / "README.md"
        speech = Speech(iter(()), repository.licence(card), None, False)
        speech.files = [card, unpacked / f"{spec.split}.tsv"]
        rows = _mozilla_rows(spec, unpacked)
    else:
        opened = repository.open_repository(spec)
        speech = Speech(iter(()), opened.licence(), opened.revision, False)
        if spec.source == "folder":
            speech.files, speech.whole_folder = opened.files(), True
        rows = _repository_rows(spec, opened)
    speech.clips = _usable(spec, rows, speech)
    return speech


def _usable(
    spec: DatasetSpec, rows: Iterator[tuple[Any, Any]], speech: Speech
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the clips that can be used; count the others in `speech`.

    Args:
        rows: (transcript or None, the audio as bytes, path, or URL that fsspec opens).
    """
    for text, audio in rows:
        transcript = (text or "").strip()
        if not transcript:
            speech.left_out[NO_TEXT] += 1
            continue
        if audio and not isinstance(audio, bytes) and "://" not in str(audio):
            speech.files.append(Path(audio))
        try:
            samples = decode(audio, spec.clip_seconds)
        except (OSError, ValueError, RuntimeError) as error:  # soundfile's own is a RuntimeError
            speech.left_out[UNREADABLE] += 1
            speech.example = speech.example or repository.line(error)
            continue
        if samples is None:
            speech.left_out[TOO_LONG] += 1
            continue
        yield samples, transcript


def decode(audio: Any, clip_seconds: int) -> np.ndarray | None:
    """An audio file as int16 (n,) samples at 16 kHz, channels averaged; None when it is too long.

    Args:
        audio: its bytes, its path, or a URL that fsspec opens.

    Raises:
        OSError, ValueError, RuntimeError: it cannot be read, or is empty.
    """
    import numpy as np
    import soundfile
    import soxr

    with soundfile.SoundFile(io.BytesIO(repository.content(audio))) as file:
        rate = file.samplerate
        if file.frames > clip_seconds * rate:
            return None
        channels = file.read(dtype="float64", always_2d=True)  # (n, channels)
    if not len(channels):
        raise ValueError("no samples")
    samples = soxr.resample(channels.mean(axis=1), rate, SAMPLING_RATE_HZ)
    rounded = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    return rounded[: clip_seconds * SAMPLING_RATE_HZ]  # resampling may add a sample


# -- the hub's layouts ---------------------------------------------------------------------------


def _repository_rows(spec: DatasetSpec, opened: repository.Repository) -> Iterator[tuple[Any, Any]]:
    """(transcript, audio) of a data set that `datasets` reads."""
    columns = {"text_column": spec.text_column, "audio_column": spec.audio_column}
    for row in repository.records(opened.builder, spec, columns):
        yield row[spec.text_column], repository.stored(spec, row, "audio_column", "audio")


# -- Mozilla's layout ----------------------------------------------------------------------------


def _mozilla_folder(spec: DatasetSpec) -> Path | None:
    """The folder of one language with clips/ and its .tsv lists, or None for another layout.

    Raises:
        PrepareError: there is no folder, or it holds several languages and `subset` names none.
    """
    folder = repository.existing_folder(spec)
    subset_folder = folder / (spec.subset or "")
    if _is_mozilla(subset_folder):
        return subset_folder
    if _is_mozilla(folder):
        raise PrepareError(
            f"dataset '{spec.name}': folder '{spec.path}' holds one language of Common Voice and "
            f"has no folder '{spec.subset}'; leave subset out"
        )
    languages = sorted(path.parent.name for path in folder.glob("*/clips") if path.is_dir())
    languages = [name for name in languages if _is_mozilla(folder / name)]
    if languages:
        raise PrepareError(
            f"dataset '{spec.name}': folder '{spec.path}' holds Common Voice by language; set "
            f"subset to one of: {', '.join(languages)}"
        )
    return None


def _is_mozilla(folder: Path) -> bool:
    return (folder / "clips").is_dir() and any(folder.glob("*.tsv"))


def _mozilla_rows(spec: DatasetSpec, folder: Path) -> Iterator[tuple[Any, Any]]:
    """(transcript, file) of the clips that {split}.tsv lists, in its order."""
    clip_list = folder / f"{spec.split}.tsv"
    if not clip_list.is_file():
        names = sorted(path.stem for path in folder.glob("*.tsv"))
        raise PrepareError(
            f"dataset '{spec.name}': no {spec.split}.tsv in {folder}; set split to one of: "
            f"{', '.join(names)}"
        )
    try:
        with open(clip_list, encoding="utf-8", newline="") as stream:
            # Quotation marks are part of a sentence: they quote no field.
            for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
                repository.check_column(spec, row, "text_column", spec.text_column)
                repository.check_column(spec, row, "split", "path")
                yield row[spec.text_column], _clip_file(folder, row["path"] or "")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PrepareError(
            f"dataset '{spec.name}': cannot read {clip_list}: {repository.line(error)}; unpack "
            "the archive again"
        ) from error


def _clip_file(folder: Path, name: str) -> Path | None:
    """The file of a clip; the releases of 2019 list it without its suffix."""
    file = folder / "clips" / Path(name).name
    if not name:
        return None
    return file if file.suffix else file.with_suffix(".mp3")
