"""Speech to Whisper's inputs and labels.

The clips are generated (`builtin`, labelled synthetic), or come from a folder or the hub. They are

    features.npy           float32 (n_clips, n_mels, 100 * clip_seconds), see `log_mel.py`
    decoder_input_ids.npy  int32 (n_clips, L): start, language, task, no timestamps, the text
    labels.npy             int32 (n_clips, L): the same shifted by one token, with the end of
                           the text; -100 where there is nothing to learn

`speech_data.py` reads them back. Preparing takes twice the memory of the features: 4 MB a clip of
30 s.

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

import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import (
    log_mel,
    preparing,
    repository,
    speech_data,
    speech_synthesis,
    tokenizer,
)
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.datasets.log_mel import SAMPLING_RATE_HZ
from siliconprof.errors import in_one_line

if TYPE_CHECKING:
    import numpy as np

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
MAX_TOKENS = 448  # positions of Whisper's decoder
TOO_MANY_TOKENS = f"with a transcript of more than {MAX_TOKENS} tokens"
IGNORED = -100  # both frameworks' losses skip such labels
TOO_LONG = "longer than clip_seconds"
NO_TEXT = "without a transcript"
UNREADABLE = "not readable as audio"


def make(spec: DatasetSpec) -> preparing.Material:
    """Make the features and labels of a data set.

    Raises:
        PrepareError: the data set cannot be read, or a library is missing.
    """
    import numpy as np

    decoders = () if spec.source == "builtin" else ("soundfile", "soxr")
    versions = preparing.versions(spec, "tokenizers", "transformers", *decoders)
    rows, origin = read_speech(spec)
    clips = usable_clips(spec, rows, origin)
    dataset_tokenizer = tokenizer.for_dataset(spec, clips.texts, SPECIAL_TOKENS)
    end, *prompt = dataset_tokenizer.ids(SPECIAL_TOKENS)
    sequences = [[*prompt, *ids, end] for ids in dataset_tokenizer.encode(clips.texts)]
    usable_rows = [row for row, sequence in enumerate(sequences) if len(sequence) - 1 <= MAX_TOKENS]
    if not usable_rows:
        raise spec.error(
            f"all transcripts have more than {MAX_TOKENS} tokens; raise vocab_size, or correct "
            "text_column"
        )
    if len(usable_rows) < len(sequences):
        clips.left_out[TOO_MANY_TOKENS] = len(sequences) - len(usable_rows)
    features = np.stack([clips.features[row] for row in usable_rows]).astype("<f4", copy=False)
    inputs, labels = padded([sequences[row] for row in usable_rows], end)
    arrays = {"features": features, "decoder_input_ids": inputs, "labels": labels}
    text = tokenizer.END_OF_TEXT.join(clips.texts[row] for row in usable_rows).encode("utf-8")
    facts = {
        "n_clips": len(usable_rows),
        "sampling_rate_hz": SAMPLING_RATE_HZ,
        "audio_s": sum(clips.n_samples[row] for row in usable_rows) / SAMPLING_RATE_HZ,
        "left_out": dict(clips.left_out),
        "n_bytes": len(text),
        "n_tokens": int((labels != IGNORED).sum()),
        "label_length": labels.shape[1],
        "vocab_size_actual": dataset_tokenizer.size,
        "tokenizer_revision": dataset_tokenizer.revision,
        "text_sha256": preparing.sha256(text),
        "audio_sha256": clips.audio.hexdigest(),
        **preparing.checksums(arrays),
        "tokenizer_sha256": preparing.sha256(dataset_tokenizer.json),
    }
    shape = {"n_mels": spec.n_mels, "clip_seconds": spec.clip_seconds}
    facts |= {"sha256": speech_data.combined_sha256(facts | shape), **versions}
    return preparing.Material(origin, arrays, facts, {tokenizer.FILE: dataset_tokenizer.json})


def summary(facts: Mapping[str, Any]) -> str:
    """What was prepared, for a line."""
    skipped = ", ".join(f"{n} {why}" for why, n in facts["left_out"].items()) or "none"
    return (
        f"{facts['n_clips']} clips, {facts['audio_s']:.1f} s in all, left out: {skipped}; "
        f"{facts['n_tokens']} tokens of {facts['vocab_size_actual']}"
    )


def padded(sequences: Sequence[Sequence[int]], end_of_text: int) -> tuple[np.ndarray, np.ndarray]:
    """(decoder_input_ids, labels), int32 (n, L), of sequences of up to L + 1 tokens."""
    import numpy as np

    length = max(map(len, sequences)) - 1
    inputs = np.full((len(sequences), length), end_of_text, "<i4")
    labels = np.full((len(sequences), length), IGNORED, "<i4")
    for row, sequence in enumerate(sequences):
        inputs[row, : len(sequence) - 1] = sequence[:-1]
        labels[row, : len(sequence) - 1] = sequence[1:]
    return inputs, labels


def read_speech(spec: DatasetSpec) -> tuple[Rows, preparing.Origin]:
    """Open the source; iterating over the rows reads them.

    Raises:
        PrepareError: the source cannot be read.
    """
    if spec.source == "builtin":
        clips = speech_synthesis.clips(spec.clip_seconds)
        origin = preparing.Origin(preparing.SYNTHETIC_LICENCE, synthetic=True)
        return ((text, samples) for samples, text in clips), origin
    language = _language_folder(spec) if spec.source == "folder" else None
    if language is None:
        opened = repository.open_repository(spec)
        return repository.rows(opened, spec, "text_column", "audio_column"), opened.origin()
    spec = replace(spec, audio_column="path")
    opened = repository.open_lists(spec, language)
    listed = repository.rows(opened, spec, "text_column", "audio_column")
    files = [language / "README.md", language / f"{spec.split}.tsv"]
    origin = preparing.Origin(repository.licence(files[0]), files=files)
    return ((text, _clip_file(language, name)) for text, name in listed), origin


def _language_folder(spec: DatasetSpec) -> Path | None:
    """The folder of one language in Mozilla's layout (clips/, lists beside it), or None.

    Raises:
        PrepareError: there is no folder, or it holds several languages and `subset` names none.
    """
    folder = repository.existing_folder(spec)
    lists = [*folder.glob("*.tsv"), *folder.glob("*/*.tsv")]
    languages = {path.parent for path in lists if (path.parent / "clips").is_dir()}
    if not languages:
        return None
    if (chosen := folder / (spec.subset or "")) in languages:
        return chosen
    if folder in languages:
        mend = f"one language of Common Voice and has no folder '{spec.subset}'; leave subset out"
    else:
        names = ", ".join(sorted(path.name for path in languages))
        mend = f"Common Voice by language; set subset to one of: {names}"
    raise spec.error(f"folder '{spec.path}' holds {mend}")


def _clip_file(folder: Path, name: str | None) -> Path | None:
    """The file of a clip; the releases of 2019 list it without its suffix."""
    if not name:
        return None
    file = folder / "clips" / Path(name).name
    return file if file.suffix else file.with_suffix(".mp3")


@dataclass
class Clips:
    """The clips of a source that can be used, and how many cannot."""

    features: list[np.ndarray] = field(default_factory=list)  # float32 (n_mels, frames) each
    texts: list[str] = field(default_factory=list)
    n_samples: list[int] = field(default_factory=list)
    audio: Any = field(default_factory=hashlib.sha256)  # of all samples
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> number of clips
    example: str | None = None  # why the first unreadable file could not be read


def usable_clips(spec: DatasetSpec, rows: Rows, origin: preparing.Origin) -> Clips:
    """The first `max_clips` clips that can be used.

    Args:
        origin: gets the files that are read.

    Raises:
        PrepareError: there is none.
    """
    import numpy as np

    clips = Clips()
    for text, audio in rows:
        transcript = (text or "").strip()
        if not transcript:
            clips.left_out[NO_TEXT] += 1
            continue
        if isinstance(audio, str | Path) and "://" not in str(audio):
            origin.files.append(Path(audio))
        try:
            decoded = isinstance(audio, np.ndarray)
            samples = audio if decoded else decode(audio, spec.clip_seconds)
        except (OSError, ValueError, RuntimeError) as error:  # soundfile's is a RuntimeError
            clips.left_out[UNREADABLE] += 1
            clips.example = clips.example or in_one_line(error)
            continue
        if samples is None:
            clips.left_out[TOO_LONG] += 1
            continue
        clips.features.append(log_mel.log_mel(samples, spec.clip_seconds, spec.n_mels))
        clips.texts.append(transcript)
        clips.n_samples.append(len(samples))
        clips.audio.update(samples.astype("<i2").tobytes())
        if len(clips.texts) == spec.max_clips:
            break
    if not clips.texts:
        reasons = ", ".join(f"{n} {why}" for why, n in clips.left_out.items()) or "it is empty"
        example = f" ({clips.example})" if clips.example else ""
        raise spec.error(
            f"no clip of {repository.place(spec)} can be used: {reasons}{example}; raise "
            "clip_seconds, or correct text_column or split"
        )
    return clips


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
