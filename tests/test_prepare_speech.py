"""The speech prepare stage through its front door, and the reader of what it leaves.

Common Voice is laid out small as the hub had it (parquet) and as Mozilla's archive unpacks
(github.com/common-voice/cv-dataset, datasets/scripted-speech/README.md); the audio in it is
generated and written by soundfile. Expected features are those of WhisperFeatureExtractor.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import prepare_stage
import pytest
from prepare_stage import changed_sources, objection, prepare_here
from siliconprof.datasets import prepare_speech, synthesis, training_data

RATE = 16_000
BUILTIN = {"name": "words", "kind": "speech", "source": "builtin", "vocab_size": 512}
PROMPT = "<|en|><|transcribe|><|notimestamps|>"
END = "<|endoftext|>"


def prepare(
    dataset: dict[str, Any], output: Path
) -> tuple[dict[str, Any], training_data.SpeechData, list[str]]:
    """(dataset.json, data, transcripts), prepared in this process."""
    from tokenizers import Tokenizer

    prepare_here(dataset, output)
    facts, data = prepare_stage.made(output)
    shape = (facts["n_clips"], facts["n_mels"], 100 * facts["clip_seconds"])
    assert data.features.shape == shape
    assert data.labels.shape == (shape[0], facts["label_length"])
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    start, end = tokenizer.token_to_id("<|startoftranscript|>"), tokenizer.token_to_id(END)
    texts = []
    for inputs, labels in zip(data.decoder_input_ids, data.labels, strict=True):
        learned = labels[labels != -100]
        assert (labels[len(learned) :] == -100).all() and learned[-1] == end
        # What is fed in is what is to be said, one token later, and then the end again and again.
        assert inputs[0] == start and (inputs[1 : len(learned)] == learned[:-1]).all()
        assert (inputs[len(learned) :] == end).all()
        said = tokenizer.decode(learned.tolist(), skip_special_tokens=False)
        assert said.startswith(PROMPT) and said.endswith(END)
        texts.append(said.removeprefix(PROMPT).removesuffix(END))
    joined = END.join(texts).encode()
    assert facts["text_sha256"] == hashlib.sha256(joined).hexdigest()
    assert facts["n_bytes"] == len(joined)
    assert facts["n_tokens"] == int((data.labels != -100).sum())
    assert max(data.labels.max(), data.decoder_input_ids.max()) < facts["vocab_size_actual"]
    return facts, data, texts


def whisper_features(samples: np.ndarray, clip_seconds: int, n_mels: int = 80) -> np.ndarray:
    """transformers' features of int16 samples, float32 (n_mels, 100 * clip_seconds)."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=clip_seconds)
    wave = samples.astype(np.float32) / 32768
    return extractor(wave, sampling_rate=RATE, return_tensors="np").input_features[0]


# -- the built-in speech ---------------------------------------------------------------------------


def test_builtin_speech(tmp_path: Path) -> None:
    facts, data, texts = prepare(BUILTIN | {"max_clips": 24}, tmp_path / "many")
    assert facts["skipped"] == {} and 24 < facts["audio_s"] < 48
    assert len(set(texts)) == facts["n_clips"] == 24
    assert all(set(text.split()) <= set(synthesis.SPOKEN_WORDS) and text for text in texts)
    # Whisper's special tokens come first, in a fixed order.
    tokens = json.loads((tmp_path / "many" / "tokenizer.json").read_text())["added_tokens"]
    names = [END, "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    assert [(token["id"], token["content"]) for token in tokens] == [*enumerate(names)]
    # More clips are other clips beside the same ones.
    fewer = prepare_here(BUILTIN | {"max_clips": 8}, tmp_path / "few")
    assert fewer["sha256"] != facts["sha256"]
    assert np.array_equal(training_data.load(tmp_path / "few").features, data.features[:8])


@pytest.mark.parametrize(("clip_seconds", "n_mels"), [(1, 80), (5, 128)])
def test_features_are_whispers(clip_seconds: int, n_mels: int) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    n = clip_seconds * RATE
    loud = generator.integers(-32768, 32768, n).astype(np.int16)
    chirp = (20000 * np.sin(np.arange(n - 5000) ** 2 * 1e-5)).astype(np.int16)
    faint = (3 * np.sin(np.arange(n // 2) * 0.3)).astype(np.int16)
    for samples in (loud, chirp, faint, np.zeros(0, np.int16)):
        ours = prepare_speech.log_mel(samples, clip_seconds, n_mels)
        assert ours.shape == (n_mels, 100 * clip_seconds)
        assert np.array_equal(ours, np.rint(ours * 1024) / 1024)
        assert np.abs(ours - whisper_features(samples, clip_seconds, n_mels)).max() < 1e-3


# -- Common Voice --------------------------------------------------------------------------------


def voice(number: int, rate: int, seconds: float) -> np.ndarray:
    """A generated clip at another rate, float (n,), cut to a length."""
    import soxr

    samples = synthesis.clip(number, 2)[0] / 32768
    return soxr.resample(samples, RATE, rate)[: int(seconds * rate)]


def encoded(samples: np.ndarray, rate: int, suffix: str = "MP3") -> bytes:
    """An audio file."""
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=suffix)
    return stream.getvalue()


SENTENCES = ["NA", 'He said: "Stop it" and left', "", "12", "Far too long."]


@pytest.fixture(scope="module")
def recordings() -> list[bytes]:
    """Five clips of Common Voice, mp3 at 48 kHz; the last is longer than 2 s."""
    two_channels = np.stack([voice(3, 48000, 1.5)] * 2, axis=1)
    long = np.concatenate([voice(4, 48000, 1.5)] * 2)
    clips = [voice(0, 48000, 1.0), voice(1, 48000, 1.5), voice(2, 48000, 1), two_channels, long]
    return [encoded(clip, 48000) for clip in clips]


@pytest.fixture(scope="module")
def common_voice(tmp_path_factory: pytest.TempPathFactory, recordings: list[bytes]) -> Path:
    """Common Voice as the hub had it: parquet, audio as bytes and path, a sixth row damaged."""
    rows = [{"bytes": data, "path": f"c{i}.mp3"} for i, data in enumerate(recordings)]
    rows += [{"bytes": b"no audio at all", "path": "c5.mp3"}]
    root = tmp_path_factory.mktemp("cv")
    sentences = [*SENTENCES, "Damaged."]
    file = root / "en" / "validated-00000-of-00001.parquet"
    prepare_stage.write_parquet(file, audio=rows, sentence=sentences, up_votes=[2] * 6)
    card = "configs:\n- config_name: en\n  data_files:\n  - split: validated\n"
    features = "dataset_info:\n  config_name: en\n  features:\n  - {name: audio, dtype: audio}\n"
    features += "  - {name: sentence, dtype: string}\n  - {name: up_votes, dtype: int64}\n"
    (root / "README.md").write_text(f"---\n{card}    path: en/validated-*\n{features}---\n# CV\n")
    return root


CV = {"name": "cv", "kind": "speech", "source": "folder", "vocab_size": 300}
CV |= {"subset": "en", "split": "validated", "text_column": "sentence"}
SKIPPED = {
    prepare_speech.NO_TRANSCRIPT: 1,
    prepare_speech.TOO_LONG: 1,
    prepare_speech.UNREADABLE: 1,
}


def check_common_voice(
    facts: dict[str, Any], data: training_data.SpeechData, texts: list[str]
) -> None:
    """Check what was prepared of the five or six clips."""
    assert texts == [SENTENCES[i] for i in (0, 1, 3)]
    assert facts["n_clips"] == 3 and facts["synthetic"] is False
    assert facts["sampling_rate_hz"] == RATE
    assert facts["soundfile_version"] and facts["soxr_version"]
    # mp3 is lossy, so it is near: the same sounds, at the same time.
    original = (voice(1, RATE, 1.5) * 32768).astype(np.int16)
    expected = whisper_features(original, 2)[:, :140]
    assert np.corrcoef(expected.ravel(), data.features[1][:, :140].ravel())[0, 1] > 0.97
    assert (data.features[0][:, 110:] == data.features[0].min()).all()  # silence after 1 s


def test_common_voice_as_the_hub_had_it(common_voice: Path, tmp_path: Path) -> None:
    output, none = tmp_path / "data", tmp_path / "none"
    local = CV | {"path": str(common_voice)}
    facts, data, texts = prepare(local, output)
    check_common_voice(facts, data, texts)
    assert facts["skipped"] == SKIPPED
    assert facts["audio_s"] == pytest.approx(1.0 + 1.5 + 1.5, abs=0.1)
    first = prepare_here(local | {"max_clips": 1}, output)
    assert first["n_clips"] == 1 and first["skipped"] == {}  # read no further than needed
    long = prepare_here(local | {"clip_seconds": 4}, output)
    assert long["n_clips"] == 4 and prepare_speech.TOO_LONG not in long["skipped"]
    for changes, words in (
        ({"audio_column": "clip"}, "set audio_column to one of"),
        ({"audio_column": "up_votes"}, "not readable as audio"),
    ):
        assert words in objection(local | changes, none)


@pytest.fixture
def mozilla(tmp_path: Path, recordings: list[bytes]) -> Path:
    """Common Voice as Mozilla's archive unpacks: a folder for a language, lists, clips/."""
    language = tmp_path / "cv-corpus-27.0-2026-09-11" / "en"
    (language / "clips").mkdir(parents=True)
    rows = []
    for number, (data, sentence) in enumerate(zip(recordings, SENTENCES, strict=True)):
        name = f"common_voice_en_{number}.mp3"
        (language / "clips" / name).write_bytes(data)
        rows.append(["x", name if number else name.removesuffix(".mp3"), sentence, "2"])
    rows[1] += ["a column too many"]
    rows.append(["x", "common_voice_en_99.mp3", "Its file is missing.", "2"])
    head = ["client_id", "path", "sentence", "up_votes"]
    lines = "\n".join("\t".join(row) for row in [head, *rows])
    (language / "validated.tsv").write_text(lines + "\n", encoding="utf-8")
    (language / "dev.tsv").write_text("\t".join(head) + "\n", encoding="utf-8")
    return language


def test_common_voice_as_mozilla_gives_it_out(mozilla: Path, tmp_path: Path) -> None:
    output = tmp_path / "data"
    dataset = CV | {"subset": None, "path": str(mozilla)}
    facts, data, texts = prepare(dataset, output)
    check_common_voice(facts, data, texts)
    assert facts["skipped"] == SKIPPED

    # Of the folder only what was read counts: other lists and clips may come, go and change.
    (root,) = json.loads((output / "sources.json").read_text())["roots"].items()
    assert root[0] == str(mozilla)
    read = [f"clips/common_voice_en_{n}.mp3" for n in (*range(len(SENTENCES)), 99)]
    named = {"validated.tsv", *read}
    assert root[1].keys() <= named and len(root[1]) > 4
    missing = mozilla / "clips" / "common_voice_en_99.mp3"
    missing.write_bytes(b"now it is there")
    (mozilla / "clips" / "new.mp3").write_bytes(b"new")
    assert changed_sources(output) == [str(missing)]

    none = tmp_path / "none"
    (mozilla / "test.tsv").write_bytes(b"path\tsentence\n\xff\xfe\tx\n")
    for changes, words in (
        ({"split": "test"}, "test.tsv: it is not text in UTF-8"),
        ({"split": "dev"}, "can be used: it is empty"),
        ({"path": str(mozilla.parent)}, f"set path to one language: {mozilla}"),
        ({"text_column": "text"}, "no column 'text'; set text_column to one of: client_id, path"),
    ):
        assert words in objection(dataset | changes, none), changes


# -- audio files beside a metadata.csv -------------------------------------------------------------


def test_audio_folder_keeps_every_sample(tmp_path: Path) -> None:
    """The hub's `audiofolder`: 16-bit wav at 16 kHz, which loses nothing."""
    folder, output = tmp_path / "own" / "train", tmp_path / "data"
    folder.mkdir(parents=True)
    clips = [synthesis.clip(number, 2) for number in range(3)]
    lines = ["file_name,sentence"]
    for number, (samples, text) in enumerate(clips):
        (folder / f"c{number}.wav").write_bytes(encoded(samples, RATE, "WAV"))
        lines.append(f"c{number}.wav,{text}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    dataset = {"name": "af", "kind": "speech", "source": "folder", "path": str(folder.parent)}
    facts, data, texts = prepare(dataset | {"text_column": "sentence", "vocab_size": 300}, output)
    assert texts == [text for _, text in clips]
    for features, (samples, _) in zip(data.features, clips, strict=True):
        assert np.array_equal(features, prepare_speech.log_mel(samples, 2, 80))


def test_clips_that_a_table_names_and_what_is_no_table(tmp_path: Path) -> None:
    """Names are relative to the folder. LJSpeech's table has bars and no head."""
    folder, output, none = tmp_path / "own", tmp_path / "data", tmp_path / "none"
    folder.mkdir()
    samples, text = synthesis.clip(0, 2)
    (folder / "a0.wav").write_bytes(encoded(samples, RATE, "WAV"))
    (folder / "train.csv").write_text(f"file,text\na0.wav,{text}\n")
    dataset = {"name": "t", "kind": "speech", "source": "folder", "path": str(folder)}
    dataset |= {"audio_column": "file", "vocab_size": 300}
    assert prepare(dataset, output)[2] == [text]
    (seen,) = json.loads((output / "sources.json").read_text())["roots"].values()
    assert seen.keys() == {"README.md", "train.csv", "a0.wav", "."}

    (folder / "a0.wav").unlink()
    said = objection(dataset, none)
    assert f"'{folder}/a0.wav'" in said and "correct audio_column" in said
    assert "clip_seconds" not in said and "text_column" not in said
    (folder / "train.csv").rename(folder / "metadata.csv")
    (folder / "metadata.csv").write_text(f"a0|{text}|{text}\n")
    (folder / "wavs").mkdir()
    (folder / "wavs" / "a0.wav").write_bytes(encoded(samples, RATE, "WAV"))
    said = objection(dataset, none)
    assert "metadata.csv with commas and a column file_name" in said
    assert f"cannot read {folder}/metadata.csv" in said


# -- what the measured process reads ------------------------------------------------------------


def test_batches_of_clips(tmp_path: Path) -> None:
    _, data, _ = prepare(BUILTIN | {"max_clips": 10}, tmp_path)
    order = list(itertools.islice(training_data.shuffled(10, 3, seed=7), 4))  # more than an epoch
    for rows, batch in zip(order, data.batches(3, seed=7), strict=False):
        assert np.array_equal(batch["input_features"], data.features[rows])
        assert np.array_equal(batch["decoder_input_ids"], data.decoder_input_ids[rows])
        assert np.array_equal(batch["labels"], data.labels[rows])
    rows = next(training_data.shuffled(10, 10, seed=7))
    more = next(data.batches(12, seed=7))  # than there are clips
    assert np.array_equal(more["labels"], data.labels[[*rows, *rows[:2]]])
