"""Speech to Whisper's inputs and labels.

The clips are generated (`builtin`, labelled synthetic), or come from a folder or the hub. They are

    features.npy           float32 (n_clips, n_mels, 100 * clip_seconds), see `log_mel`
    decoder_input_ids.npy  int32 (n_clips, L): start, language, task, no timestamps, the text
    labels.npy             int32 (n_clips, L): the same shifted by one token, with the end of
                           the text; -100 where there is nothing to learn

`training_data.py` reads them back. Preparing takes twice the memory of the features: 4 MB a clip of
30 s.

Audio files are decoded by `soundfile` and resampled by `soxr`, rounded to 16 bits as in Whisper's
own loader. A compressed file may decode slightly differently on another host or with another
version: the checksums in dataset.json then differ, and the clips count as other data.

Common Voice, on which the paper pretrains, is no longer on the hub: since October 2025 Mozilla
distributes it only through the Mozilla Data Collective (its organisation's page on the hub says so,
and mozilla-foundation/common_voice_* hold no files any more). So a folder may have three layouts:
a language of Mozilla's unpacked archive (github.com/common-voice/cv-dataset,
datasets/scripted-speech),
parquet files with an `audio` column as on the hub, and audio files beside a metadata.csv.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from siliconprof.datasets import repository, sources, synthesis, tokenizer, user_files
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.datasets.synthesis import SAMPLING_RATE_HZ
from siliconprof.errors import in_one_line

Rows = Iterator[tuple[Any, Any]]  # (transcript or None, samples or where the audio is)

# Whisper's prompt as `transformers` spells it; a tokenizer that is trained here has these as its
# first ids, in this order. The language is `en` for every transcript: it only has to be one token.
SPECIAL_TOKENS = (
    tokenizer.END_OF_TEXT,
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|notimestamps|>",
)
N_FFT, HOP, GRID_POINTS = 400, 160, 1024  # of a clip's features
MAX_TOKENS = 448  # positions of Whisper's decoder
TOO_MANY_TOKENS = f"with a transcript of more than {MAX_TOKENS} tokens"
IGNORED = -100  # both frameworks' losses skip such labels
TOO_LONG = "longer than clip_seconds"
NO_TRANSCRIPT = "without a transcript"
UNREADABLE = "not readable as audio"
NOT_FINITE = "with samples that are NaN or infinite"
UNKNOWN_LENGTH = "of unknown length"  # streamed while it was recorded; libsndfile issue 1038
# Why clips cannot be used -> what to do.
CLIP_FIXES = {
    TOO_LONG: "raise clip_seconds",
    NO_TRANSCRIPT: "correct text_column",
    UNREADABLE: "correct audio_column, whose names are relative to the data set's folder, or copy "
    "the files again",
    NOT_FINITE: "convert the recordings again",
    UNKNOWN_LENGTH: "write the files again with their length, say by `ffmpeg -i OLD NEW`",
}


class _Unusable(Exception):
    """A clip that is skipped; one of `CLIP_FIXES` says why."""


def make(spec: DatasetSpec) -> sources.Material:
    """Make the features and labels of a data set.

    Raises:
        PrepareError: the data set cannot be read, or a library is missing.
    """
    decoders = () if spec.source == "builtin" else ("soundfile", "soxr")
    versions = spec.versions("tokenizers", "transformers", *decoders)
    rows, origin = _source(spec)
    clips, skipped, audio_sha256 = _usable(spec, rows, origin)
    dataset_tokenizer = tokenizer.for_dataset(spec, [clip.text for clip in clips], SPECIAL_TOKENS)
    end, *prompt = dataset_tokenizer.ids(SPECIAL_TOKENS)
    encoded = dataset_tokenizer.encode([clip.text for clip in clips])
    pairs = [
        (clip, [*prompt, *ids, end])
        for clip, ids in zip(clips, encoded, strict=True)
        if len(prompt) + len(ids) <= MAX_TOKENS
    ]
    if not pairs:
        raise spec.error(
            f"all transcripts have more than {MAX_TOKENS} tokens; raise vocab_size, or correct "
            "text_column"
        )
    if len(pairs) < len(clips):
        skipped[TOO_MANY_TOKENS] = len(clips) - len(pairs)
    clips = [clip for clip, _ in pairs]
    features = np.stack([clip.features for clip in clips]).astype("<f4", copy=False)
    inputs, labels = _padded([sequence for _, sequence in pairs], end)
    arrays = {"features": features, "decoder_input_ids": inputs, "labels": labels}
    facts = {
        "n_clips": len(clips),
        "sampling_rate_hz": SAMPLING_RATE_HZ,
        "audio_s": sum(clip.n_samples for clip in clips) / SAMPLING_RATE_HZ,
        "skipped": dict(skipped),
        "n_tokens": int((labels != IGNORED).sum()),
        "label_length": labels.shape[1],
        "audio_sha256": audio_sha256,
        **dataset_tokenizer.facts([clip.text for clip in clips]),
        **versions,
    }
    return sources.Material(origin, arrays, facts, dataset_tokenizer.json)


def _padded(sequences: Sequence[Sequence[int]], end_of_text: int) -> tuple[np.ndarray, np.ndarray]:
    """(decoder_input_ids, labels), int32 (n, L), of sequences of up to L + 1 tokens."""
    length = max(map(len, sequences)) - 1
    inputs = np.full((len(sequences), length), end_of_text, "<i4")
    labels = np.full((len(sequences), length), IGNORED, "<i4")
    for row, sequence in enumerate(sequences):
        inputs[row, : len(sequence) - 1] = sequence[:-1]
        labels[row, : len(sequence) - 1] = sequence[1:]
    return inputs, labels


def _source(spec: DatasetSpec) -> tuple[Rows, sources.Origin]:
    """Open the source; iterating over the rows reads them."""
    if spec.source == "builtin":
        clips = synthesis.clips(spec.clip_seconds)
        return ((text, samples) for samples, text in clips), sources.Origin(synthetic=True)
    if spec.source == "folder":  # perhaps in Mozilla's layout
        folder = repository.existing_folder(spec)
        places = [folder, *sorted(folder.glob("*/"))]
        languages = [
            place
            for place in places
            if (place / "clips").is_dir() and _lists(place)
            if not user_files.is_added(place.relative_to(folder))
        ]
        if folder in languages:
            file = folder / f"{spec.split}.tsv"
            return _listed(spec, file), sources.Origin(files=[file])
        if languages:
            raise spec.error(f"set path to one language: {repository.some(map(str, languages))}")
    opened = repository.open_repository(spec)
    return repository.rows(opened, spec, "text_column", "audio_column"), opened.origin


def _lists(folder: Path) -> list[Path]:
    """Mozilla's lists in a folder."""
    lists = [file for file in sorted(folder.glob("*.tsv")) if file.is_file()]
    return [file for file in lists if not user_files.is_added(Path(file.name))]


def _listed(spec: DatasetSpec, file: Path) -> Rows:
    """(transcript, clip) of one of Mozilla's lists, in which quotation marks quote nothing."""
    if not file.is_file():
        names = repository.some(path.stem for path in _lists(file.parent))
        raise spec.error(f"no {file.name} in {file.parent}; set split to one of: {names}")
    with user_files.reading(file, spec.error):
        rows = csv.DictReader(user_files.lines(file), delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            columns = rows.fieldnames or ()
            if missing := {spec.text_column, "path"}.difference(columns):
                fix = f"set text_column to one of: {repository.some(columns)}"
                if "path" in missing:
                    fix = (
                        f"it has {repository.some(columns)}; expected Mozilla's columns, with tabs"
                    )
                raise spec.error(f"{file} has no column '{min(missing)}'; {fix}")
            for row in rows:
                clip = file.parent / "clips" / Path(row["path"] or "").name
                # The releases of 2019 list clips without their suffix.
                yield row[spec.text_column], clip if clip.suffix else clip.with_suffix(".mp3")
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}; unpack it again") from None


class Clip(NamedTuple):
    """A clip that can be used."""

    features: np.ndarray  # float32 (n_mels, frames)
    text: str
    n_samples: int


def _usable(
    spec: DatasetSpec, rows: Rows, origin: sources.Origin
) -> tuple[list[Clip], Counter[str], str]:
    """(the first `max_clips` clips that can be used, reason -> number of others, audio's SHA-256).

    Args:
        origin: gets the files that are read.
    """
    clips: list[Clip] = []
    skipped: Counter[str] = Counter()
    audio_sha256, example = hashlib.sha256(), ""
    for text, audio in rows:
        transcript = (text or "").strip()
        if not transcript:
            skipped[NO_TRANSCRIPT] += 1
            continue
        if isinstance(audio, str | Path) and "://" not in str(audio):
            origin.files.append(Path(audio))
        try:
            decoded = isinstance(audio, np.ndarray)
            samples = audio if decoded else _decoded(audio, spec.clip_seconds)
        except _Unusable as error:
            skipped[str(error)] += 1
            continue
        except (OSError, ValueError, RuntimeError) as error:  # soundfile's is a RuntimeError
            skipped[UNREADABLE] += 1
            name = f"{audio}: " if isinstance(audio, str | Path) else ""
            example = example or f" ({name}{in_one_line(error)})"
            continue
        features = log_mel(samples, spec.clip_seconds, spec.n_mels)
        clips.append(Clip(features, transcript, len(samples)))
        audio_sha256.update(samples.astype("<i2").tobytes())
        if len(clips) == spec.max_clips:
            break
    if not clips:
        reasons = ", ".join(f"{n} {why}" for why, n in skipped.items()) or "it is empty"
        fix = ", or ".join(fix for why, fix in CLIP_FIXES.items() if skipped[why])
        raise spec.error(
            f"no clip of {repository.place(spec)} can be used: {reasons}{example}; "
            f"{fix or 'correct split'}"
        )
    return clips, skipped, audio_sha256.hexdigest()


def _decoded(audio: Any, clip_seconds: int) -> np.ndarray:
    """An audio file as int16 (n,) samples at 16 kHz, channels averaged.

    Raises:
        _Unusable, OSError, ValueError, RuntimeError: it cannot be used.
    """
    import soundfile
    import soxr

    data = repository.content(audio)
    # A streamed one says 2 or 4 GiB here. libsndfile reads what there is and says nothing.
    if data.startswith(b"RIFF") and len(data) < int.from_bytes(data[4:8], "little") < 0x7F000000:
        raise ValueError("it is cut off")
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        rate = file.samplerate
        if file.frames == np.iinfo(np.int64).max:
            raise _Unusable(UNKNOWN_LENGTH)
        if file.frames > clip_seconds * rate:
            raise _Unusable(TOO_LONG)
        channels = file.read(dtype="float64", always_2d=True)  # (n, channels)
    if not len(channels):
        raise ValueError("no samples")
    if not np.isfinite(channels).all():
        raise _Unusable(NOT_FINITE)
    samples = soxr.resample(channels.mean(axis=1), rate, SAMPLING_RATE_HZ)
    rounded = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    return rounded[: clip_seconds * SAMPLING_RATE_HZ]  # resampling may add a sample


@cache
def _filters(n_mels: int) -> np.ndarray:
    """float64 (201, n_mels): the mel bands."""
    from transformers.audio_utils import mel_filter_bank

    return mel_filter_bank(
        num_frequency_bins=N_FFT // 2 + 1,
        num_mel_filters=n_mels,
        min_frequency=0.0,
        max_frequency=SAMPLING_RATE_HZ / 2,
        sampling_rate=SAMPLING_RATE_HZ,
        norm="slaney",
        mel_scale="slaney",
    )


def log_mel(samples: np.ndarray, clip_seconds: int, n_mels: int) -> np.ndarray:
    """Whisper's features of one clip, padded with silence, the same on every host.

    These are the steps of `transformers.WhisperFeatureExtractor`, by the functions that it is made of.
    The extractor itself computes in float32 with torch where torch is installed, so that quiet bands
    depend on the processor, and hosts must compute their losses from equal bytes. Here the sums are
    float64, which hosts round differently by some 1e-15, and the result is rounded to 2**-10
    (0.04 dB): about one value in 1e12 could round to a neighbour; a data set has some millions.

    Args:
        samples: int16 (n,) at 16 kHz, at most `clip_seconds` of them.

    Returns:
        float32 (n_mels, 100 * clip_seconds), multiples of 2**-10.
    """
    from transformers.audio_utils import spectrogram, window_function

    clip = np.zeros(clip_seconds * SAMPLING_RATE_HZ)
    clip[: len(samples)] = samples / 32768
    logarithm = spectrogram(
        clip,
        window_function(N_FFT, "hann"),
        frame_length=N_FFT,
        hop_length=HOP,
        power=2.0,
        mel_filters=_filters(n_mels),
        log_mel="log10",
        dtype=np.float64,
    )[:, :-1]
    logarithm = np.maximum(logarithm, logarithm.max() - 8.0)
    return (np.rint((logarithm + 4.0) / 4.0 * GRID_POINTS) / GRID_POINTS).astype(np.float32)
