"""Folders as people have them: what systems add to them, and files that are not what they say.

Each case is a small folder through the prepare stage: it becomes data, or one line that names the
file, says what is wrong and how to mend it.
"""

from __future__ import annotations

import bz2
import io
import json
from collections.abc import Mapping
from gzip import compress as packed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import COMMIT
from prepare_stage import idx, made, objection, parquet, png, prepare_here, run_stage
from siliconprof.datasets import prepare_speech
from siliconprof.datasets.weights import Checkpoint
from siliconprof.errors import UserError

Files = Mapping[str, bytes | str | Path]  # name -> content, or where a link leads

IMDB = {
    f"{split}/{label}/{n}_7.txt": f"{label} {n}"
    for split in ("train", "test")
    for label in ("neg", "pos")
    for n in range(2)
}
PTB = {f"data/ptb.{part}.txt": f"{part} one\n" for part in ("train", "valid", "test")}
LINES = "text,n\nNA,1\n12,2\n"
VOICE = "client_id\tpath\tsentence\n1\ta.wav\thello\n"
SPEECH = {"kind": "speech", "text_column": "sentence"}
LISTED = {"kind": "speech", "audio_column": "path", "text_column": "sentence"}
PICTURES = {"kind": "images", "n_train": 18, "n_validation": 2, "n_test": 20}
IDX = {"kind": "images", "n_train": 8, "n_validation": 2, "n_test": 10}


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            (folder / name).symlink_to(content)
        else:
            data = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(data)


def wav(*samples: float, suffix: str = "WAV") -> bytes:
    """Half a second of sound at 16 kHz that begins with some samples."""
    import soundfile

    stream, wave = io.BytesIO(), np.sin(np.arange(8000) * 0.1) / 4
    wave[: len(samples)] = samples
    subtype = "FLOAT" if samples else "PCM_16"
    soundfile.write(stream, wave, 16_000, format=suffix, subtype=subtype)
    return stream.getvalue()


def of_unknown_length(flac: bytes) -> bytes:
    """FLAC as recorders stream it: its header, which counts samples in 36 bits, says 0."""
    return flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]


BLANK = png(np.zeros((28, 28), np.uint8))
IMAGES, LABELS = idx(np.zeros((10, 28, 28), np.uint8)), idx(np.zeros(10, np.uint8))


def shards(*missing: int, name: str = "data/train-{:05}-of-00003.parquet") -> dict[str, bytes]:
    texts = {number: parquet(text=[f"part {number}"]) for number in range(3)}
    return {name.format(n): data for n, data in texts.items() if n not in missing}


def pictures() -> dict[str, bytes]:
    parts = [(part, label, n) for part in ("train", "test") for label in range(10) for n in (0, 1)]
    return {f"{part}/{label}/{n}.png": BLANK for part, label, n in parts}


def two_parts(image: bytes, label: Any, **more: Any) -> dict[str, bytes]:
    """Ten pictures alike for training and as many for a test, as the hub has them."""
    rows = parquet(image=[image] * 10, label=[label] * 10, **more)
    return dict.fromkeys(("train.parquet", "test.parquet"), rows)


def mnist(**changes: bytes) -> dict[str, bytes]:
    """The four files, each .gz."""
    arrays = {"images-idx3": IMAGES, "labels-idx1": LABELS}
    files = {f"{p}-{n}-ubyte.gz": packed(arrays[n]) for p in ("train", "t10k") for n in arrays}
    return files | {f"train-{name}-ubyte.gz": data for name, data in changes.items()}


def own(folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    dataset = {"name": "own", "source": "folder", "path": str(folder), **changes}
    return dataset if dataset.get("kind") == "images" else {"vocab_size": 300, **dataset}


# What systems add.
ADDED = [".DS_Store", "._0_7.txt", "Thumbs.db", "desktop.ini", ".ipynb_checkpoints/x.txt"]
ADDED += ["@eaDir/0/x.jpg", "0_7.txt~", "Icon\r", "__MACOSX/._x", "$RECYCLE.BIN/x.png"]


@pytest.mark.parametrize(
    ("files", "changes", "facts"),
    [
        (
            {f"train/neg/{name}": b"\0\1" for name in ADDED}
            | {".DS_Store": "", "train/Thumbs.db": "", "train/pos/more/x.txt": "x"}
            | {"train/neg/9_7.txt": Path("nowhere"), "train/pos/all": Path("../neg")}
            | {"train/pos/urls.csv": "x"}
            | IMDB,
            {},
            {
                "n_documents": 4,
                "skipped": ["1 dead link in neg", "2 folders in pos", "1 other file in pos"],
            },
        ),
        (
            {f"data/{name}": b"\0" for name in ADDED} | shards(),
            {},
            {"n_documents": 3, "skipped": []},
        ),
        (
            {"train-0.txt": "a b", "train-1.txt": Path("nowhere")},
            {},
            {"n_documents": 1, "skipped": ["1 dead link: train-1.txt"]},
        ),
        (
            {f"train/{at}{name}": b"x" for name in ADDED for at in ("", "3/")}
            | {"train/3/9.png": Path("nowhere"), **pictures()},
            PICTURES,
            {"n_images": 40, "skipped": ["1 dead link: train/3/9.png"]},
        ),
        ({"._train.tsv": "\0", "train.tsv": VOICE, "clips/a.wav": wav()}, SPEECH, {"n_clips": 1}),
        # a byte order mark
        ({"train.txt": "\ufeffword\n"}, {}, {"n_bytes": 4}),
        ({**IMDB, "train/neg/0_7.txt": "\ufeffneg 0"}, {}, {"n_bytes": 4 * 5 + 3 * 13}),
        (
            {"train.tsv": "\ufeffsentence\tpath\nhello\ta.wav\n", "clips/a.wav": wav()},
            SPEECH,
            {"n_clips": 1},
        ),
        ({"train.csv": "\ufeff" + LINES}, {}, {"n_documents": 2}),
        ({"train.json": '\ufeff[{"text": "a"}]'}, {}, {"n_documents": 1}),
        # IDX files that a browser unpacked, or that are packed without .gz
        (mnist(**{"images-idx3": IMAGES}), IDX, {"n_images": 20}),
        (
            {name.removesuffix(".gz"): data for name, data in mnist().items()},
            IDX,
            {"n_images": 20},
        ),
    ],
)  # fmt: skip
def test_what_is_read(
    tmp_path: Path, files: Files, changes: dict[str, Any], facts: dict[str, Any]
) -> None:
    write(tmp_path / "own", files)
    prepare_here(own(tmp_path / "own", changes), tmp_path / "data")
    got, _ = made(tmp_path / "data")
    assert {key: got[key] for key in facts} == facts


def test_a_folder_is_read_where_no_home_can_be_written(tmp_path: Path) -> None:
    write(tmp_path, {"own/train.csv": LINES, "file": ""})
    run = run_stage(own(tmp_path / "own", {}), tmp_path / "data", tmp_path / "file" / "home")
    assert made(tmp_path / "data", run)[0]["n_documents"] == 2


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (wav(0.5, float("nan")), prepare_speech.NOT_FINITE),
        (wav(float("-inf")), prepare_speech.NOT_FINITE),
        (of_unknown_length(wav(suffix="FLAC")), prepare_speech.UNKNOWN_LENGTH),
        (wav()[:-4000], prepare_speech.UNREADABLE),  # a copy that broke off
        (b"", prepare_speech.UNREADABLE),
    ],
)
def test_a_clip_that_cannot_be_used_is_skipped_with_its_reason(
    tmp_path: Path, file: bytes, why: str
) -> None:
    files = {"clips/a.wav": wav(), "clips/b.wav": file}
    write(tmp_path / "own", files | {"train.tsv": VOICE + "1\tb.wav\tthere\n"})
    facts = prepare_here(own(tmp_path / "own", SPEECH), tmp_path / "data")
    assert (facts["n_clips"], facts["skipped"]) == (1, {why: 1})
    write(tmp_path / "own", {"train.tsv": VOICE.replace("a.wav", "b.wav")})
    said = objection(own(tmp_path / "own", SPEECH), tmp_path / "none")
    assert f"1 {why}" in said and prepare_speech.CLIP_FIXES[why] in said


NO_UNK = json.dumps(
    {"version": "1.0", "added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": True}
     | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)],
     "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "a": 1}, "unk_token": "[UNK]"}}
    | dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")),
)  # fmt: skip
CARD = "---\ndataset_info:\n  splits:\n  - {name: train, num_examples: 9, num_bytes: 1}\n---\n"


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        # binary, or in another encoding
        (PTB | {"data/ptb.train.txt": packed(b"a b\n")}, {}, "ptb.train.txt: it is gzip"),
        (IMDB | {"train/pos/1_7.txt": "a".encode("utf-16")}, {}, "pos/1_7.txt: it is UTF-16"),
        (IMDB | {"train/pos/1_7.txt": b"caf\xe9"}, {}, "pos/1_7.txt: it is not text in UTF-8"),
        (IMDB | {"train/pos/1_7.txt": ""}, {}, "pos/1_7.txt: it is empty"),
        ({"train/pos/.DS_Store": "", "train/neg/._x": ""}, {}, "split 'train' holds no text"),
        ({n: t for n, t in IMDB.items() if n > "train"}, {"split": "test"}, "/test: FileNotFoundError"),
        ({"train.txt": "a\n" * 40_000 + "\0" * 9 + "a\n" * 40_000}, {}, "train.txt: ValueError: it holds zero"),
        ({"train.csv": bz2.compress(LINES.encode())}, {}, "train.csv: it is bzip2, not text"),
        # lists that are damaged
        ({"train.tsv": VOICE + "\0" * 200_000, "clips/a.wav": ""}, SPEECH, "train.tsv: it holds zero"),
        ({"train.tsv": VOICE + "1\ta.wav\t" + "x" * 200_000, "clips/a.wav": ""}, SPEECH, "train.tsv: line 2: field larger"),
        ({"train.tsv": "sentence\nx\n", "clips/a.wav": ""}, SPEECH, "has no column 'path'; it has sentence"),
        ({"t/tokenizer.json": NO_UNK, "train.txt": "b"}, {"tokenizer": "t"}, "tokenizer.json cannot encode the text (Exception: WordLevel"),
        ({"t/tokenizer.json": "", "train.txt": "b"}, {"tokenizer": "t"}, "tokenizer.json (ValueError: it is empty"),
        # one file of several
        (shards() | {"data/train-00001-of-00003.parquet": shards()["data/train-00001-of-00003.parquet"][:-9]}, {}, "train-00001-of-00003.parquet: ArrowInvalid"),
        ({"train-0.jsonl": '{"text": "a"}', "train-1.jsonl": '{"text": '}, {}, "train-1.jsonl: ArrowInvalid"),
        ({"train-0.jsonl": '{"text": "a"}', "train-1.jsonl": ""}, {}, "train-1.jsonl: it is empty"),
        ({"train-0.csv": "text\na\n", "train-1.csv": "body\nb\n"}, {}, "train-1.csv has the columns body, but"),
        ({"train/metadata.csv": "", "train/a.wav": wav()}, LISTED, "metadata.csv: it is empty"),
        # what describes a data set
        ({"train.csv": LINES, "README.md": "---\nconfigs: [a\n---\n"}, {}, "README.md: ParserError"),
        ({"train.csv": LINES, "README.md": b"---\nlicense: \xe9\n---\n"}, {}, "README.md: UnicodeDecodeError"),
        ({"train.csv": LINES, "dataset_infos.json": ""}, {}, "dataset_infos.json: ValueError: it is empty"),
        # less than there should be
        (shards(1), {}, "train-*-of-00003.parquet there is only 00000 and 00002"),
        (shards(0, name="train/{:04}.parquet"), {}, "train/*.parquet there is only 0001 and 0002"),
        ({"train.csv": LINES, "README.md": CARD}, {}, "has 2 rows, but 9 by its README.md"),
        # the wrong type of column
        ({"train.parquet": parquet(text=[["a"], ["b"]])}, {}, "holds list, not text; convert it to one text a row"),
        ({"train.parquet": parquet(text=[{"a": 1}], body=["b"])}, {}, "one text a row, or set text_column to one of: body"),
        ({"train.parquet": parquet(**{f"p{n}": [1] for n in range(785)})}, {}, "one of: p0, p1, p2, p3, p4 and 780 more"),
        *(
            (two_parts(BLANK, label), IDX, f"label is {label!r} of type {kind}")
            for label, kind in (("0", "str"), (0.0, "float"), (True, "bool"))
        ),
        # pictures that are none, of another size or class, or too few
        (two_parts(png(np.zeros((28, 28, 3), np.uint8)), 3), IDX, "28 x 28 pixels in mode RGB"),
        (two_parts(b"no picture", 3), IDX, "UnidentifiedImageError"),
        (two_parts(BLANK, 11), IDX, "label is 11; expected 0 to 9"),
        (two_parts(BLANK, 3), IDX | {"image_column": "img"}, "no column 'img'; set image_column to one of: image and label"),
        (two_parts(BLANK, 3), IDX | {"n_train": 9}, "has 10 images in train, 11 are needed"),
        (mnist(**{"images-idx3": packed(LABELS)}), IDX, "begins with 00 00 08 01, but an IDX file with 00 00 08 03"),
        (mnist(**{"images-idx3": packed(IMAGES[:-1])}), IDX, "holds 7839 values and says 7840"),
        (mnist(**{"images-idx3": packed(idx(np.zeros((10, 32, 32), np.uint8)))}), IDX, "have 32 x 32 pixels; expected 28 x 28"),
        (mnist(**{"labels-idx1": packed(idx(np.zeros(9, np.uint8)))}), IDX, "10 images, train-labels-idx1-ubyte"),
        (mnist(**{"labels-idx1": packed(idx(np.full(10, 10, np.uint8)))}), IDX, "10 labels up to 10; expected as many, of 0 to 9"),
        ({name.replace("-idx", ".idx"): data for name, data in mnist().items()}, IDX, "train-labels.idx1-ubyte.gz"),  # Kaggle's
        # where the advice was of no use
        ({"train.txt": Path("nowhere")}, {}, "looked for files named by their split, such as train.parquet"),
        ({"train/a/0.png": BLANK, "train/b/0.png": BLANK}, PICTURES, "images need two parts, train and test"),
        (pictures() | {"train/1/more/0.png": BLANK}, PICTURES, "put all pictures into SPLIT/CLASS/"),
        (pictures() | {"train/0/0.png": b""}, PICTURES, "train/0/0.png): is no image"),
        (mnist(**{"labels-idx1": b""}), IDX, "train-labels-idx1-ubyte.gz: it is empty"),
        (mnist(**{"images-idx3": packed(IMAGES)[:-9]}), IDX, "train-images-idx3-ubyte.gz: EOFError"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, files: Files, changes: dict[str, Any], words: str, monkeypatch: Any
) -> None:
    write(tmp_path / "own", files)
    if "tokenizer" in changes:
        changes = changes | {"tokenizer": str(tmp_path / "own" / changes["tokenizer"])}
    said = objection(own(tmp_path / "own", changes), tmp_path / "data")
    assert words in said and str(tmp_path / "own") in said, said
    assert "set source: folder" not in said


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (shards(), None),
        (shards(1, 2), "train-*-of-00003.parquet there is only 00000"),
        (shards(1) | {"data/train-00001-of-00003.parquet": Path("nowhere")}, "is not whole: no data/"),
        ({"train-0.jsonl": '{"text": "a"}', "train-1.jsonl": Path("nowhere")}, "no train-1.jsonl"),
        ({"train.jsonl": '{"text": "a"}', "README.md": CARD}, "has 1 rows, but 9 by its README.md"),
        (shards() | {"data/train-00001-of-00003.parquet": b""}, "00001-of-00003.parquet: it is empty"),
    ],
)  # fmt: skip
def test_half_a_snapshot_is_no_data_set(
    tmp_path: Path, files: Files, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download into the hub's cache that broke off, read without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    root = tmp_path / "datasets--owner--some"
    write(root, {"refs/main": COMMIT})
    write(root / "snapshots" / COMMIT, files)
    dataset = {"name": "own", "source": "hub", "path": "owner/some", "vocab_size": 300}
    if words:
        assert words in objection(dataset, tmp_path / "data")
    else:
        assert prepare_here(dataset, tmp_path / "data")["revision"] == COMMIT


INDEX = "model.safetensors.index.json"
PARTS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
MAP = json.dumps({"weight_map": {"a": PARTS[0], "b": PARTS[1]}})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": ""}, "config.json: it is empty"),
        ({"config.json": "[]"}, "config.json: it holds list, expected an object"),
        ({"config.json": '{"a'}, "config.json: JSONDecodeError"),
        ({"config.json": Path("nowhere")}, "config.json: FileNotFoundError"),
        ({INDEX: ""}, f"{INDEX}: it is empty"),
        ({INDEX: '{"weight_map": ["a"]}'}, f"{INDEX} has no weight_map"),
        ({INDEX: MAP, PARTS[0]: "x"}, f"no {PARTS[1]} in it, found {PARTS[0]}"),
        ({INDEX: MAP, PARTS[0]: "x", PARTS[1]: ""}, f"{PARTS[1]}: it is empty"),
    ],
)
def test_a_damaged_file_beside_weights_is_named(tmp_path: Path, files: Files, words: str) -> None:
    write(tmp_path, {"model.safetensors": "x"} | files)
    with pytest.raises(UserError) as error:
        Checkpoint(str(tmp_path), config={"n_layer": 2})
    assert words in str(error.value) and "\n" not in str(error.value)
