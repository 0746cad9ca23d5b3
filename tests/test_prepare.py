"""The prepare stage through its front door with text.

The hub is stood in for by a small HTTP server on this machine (`hub_server.py`), so the real client
and the real loading code run; its cache is filled by the hub's own client.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
import numpy as np
import pytest
from conftest import defaults
from hub_server import COMMIT
from prepare_stage import (
    BUILTIN,
    LFS_POINTER,
    SMALL,
    WORKFLOW,
    changed_sources,
    made,
    objection,
    prepare_each,
    prepare_here,
    refused,
    run_stage,
    write_parquet,
)
from siliconprof import plugins
from siliconprof.datasets import dataset_spec, prepare, sources
from siliconprof.datasets.tokenizer import END_OF_TEXT
from siliconprof.errors import UserError

DATA = WORKFLOW / "siliconprof" / "datasets" / "data"
HUB = {"name": "small", "source": "hub", "path": "owner/small", "vocab_size": 400, "split": "test"}
CONVERTED = "refs/convert/parquet"
PTB = {"name": "ptb", "source": "hub", "path": "ptb-text-only/ptb_text_only", "vocab_size": 400}
PTB |= {"revision": CONVERTED, "text_column": "sentence"}


def tokens_of(
    output: Path, run: subprocess.CompletedProcess[str] | None = None
) -> tuple[dict[str, Any], str]:
    """(dataset.json, the decoded text) of a successful run, or of one in this process."""
    from tokenizers import Tokenizer

    facts, data = made(output, run)
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    text = tokenizer.decode(data.tokens.tolist(), skip_special_tokens=False)
    assert facts["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert (facts["n_bytes"], facts["n_tokens"]) == (len(text.encode()), len(data.tokens))
    assert facts["vocab_size_actual"] == tokenizer.get_vocab_size() > data.tokens.max()
    return facts, text


def rows(split: str, n: int) -> list[str]:
    """Documents of unlike length, with characters of one to four bytes."""
    return [f"{split} {i}: the naïve 猫 says ‘hello’ 😀 " * (1 + i % 3) for i in range(n)]


def joined(split: str, n: int) -> str:
    return END_OF_TEXT.join(rows(split, n))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset repository as the hub lays it out: front matter, two subsets, parquet files."""
    root = tmp_path_factory.mktemp("repository")
    card = "---\nconfigs:\n"
    for subset, splits in (("plain", {"train": 300, "test": 40}), ("other", {"train": 9})):
        card += f"- config_name: {subset}\n  default: {json.dumps(subset == 'plain')}\n"
        card += "  data_files:\n"
        for split, n in splits.items():
            card += f"  - split: {split}\n    path: {subset}/{split}-*\n"
            texts = [*rows(f"{subset} {split}", n), None, ""]
            file = root / subset / f"{split}-00000-of-00001.parquet"
            write_parquet(file, text=texts, label=[*range(n + 2)])
    (root / "README.md").write_text(f"{card}---\n# A small dataset\n", encoding="utf-8")
    return root


# The built-in text ---------------------------------------------------------------------------


# Pinned: another computer, BLAS or NumPy must give these bytes, or losses do not compare.
PINNED = {
    "text": "0a42642e326dffde4e3e06cd5f87c54b2c67fcb4e9da9dc4e232fe99abe21713",
    "speech": "3b78235dcedcb59fdf5deb26b242342e1b7ad857df00f635a5b6c801f24c7409",
    "images": "e17f467003749ff8558384b01274bd2556674d6b81d74af4c1e38eb18c5180ea",
}
WHOLE = {
    "text": BUILTIN,
    "speech": SMALL["speech"] | {"max_clips": 24},
    "images": SMALL["images"] | {"n_train": 1500, "n_validation": 30, "n_test": 400},
}


@pytest.mark.parametrize("kind", PINNED)
def test_builtin_data_are_the_same_on_every_host(kind: str, tmp_path: Path) -> None:
    from numpy._core._multiarray_umath import __cpu_dispatch__ as dispatched

    dataset = WHOLE[kind]
    poison = tmp_path / "poison"
    poison.mkdir()
    if kind != "speech":  # whose features transformers makes
        for name in ("datasets", "huggingface_hub"):
            (poison / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    plain = dict.fromkeys(threads, "1") | {
        "OPENBLAS_CORETYPE": "Prescott",  # kernels of 2004, without AVX or FMA
        "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched),  # NumPy's sines and logarithms as well
        "PYTHONWARNINGS": "ignore",  # it names the features that this processor lacks
        "PYTHONHASHSEED": "7",
    }
    output, contents = tmp_path / "data", []
    output.mkdir()
    files = [output / name for name in (*dataset_spec.files(kind), "sources.json")]
    for file in files:  # what an earlier, different run left
        file.write_text("old")
    for environment in (dict.fromkeys(threads, "2"), plain):
        run = run_stage(dataset, output, tmp_path, search=[poison], **environment)
        facts, _ = made(output, run)
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    assert PINNED[kind] in (facts["sha256"], facts.get("features_sha256"), facts.get("text_sha256"))
    assert facts["synthetic"] is (kind != "text")


# A folder in the hub's layout ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("subset", "split", "n"),
    [(None, "train", 300), ("plain", "test", 40), ("other", None, 9)],
)
def test_folder(
    repository: Path, tmp_path: Path, subset: str | None, split: str | None, n: int
) -> None:
    dataset = {"name": "small", "source": "folder", "path": str(repository), "vocab_size": 400}
    dataset |= {"subset": subset, "split": split}
    output = tmp_path / "data"
    prepare_here(dataset, output)
    facts, text = tokens_of(output)
    subset, split = subset or "plain", split or "train"
    assert text == joined(f"{subset} {split}", n)
    assert (facts["n_documents"], facts["revision"]) == (n, None)
    ((root, seen),) = json.loads((output / "sources.json").read_text())["roots"].items()
    assert root == str(repository)
    assert {"README.md", f"{subset}/{split}-00000-of-00001.parquet", "."} <= seen.keys()


def test_files_of_a_folder_are_looked_at_again(gpt2_like: Path, tmp_path: Path) -> None:
    """Another content, another file, another tokenizer; not a folder that is not there."""
    folder, given, output = tmp_path / "lines", tmp_path / "given", tmp_path / "data"
    folder.mkdir()
    shutil.copytree(gpt2_like, given)
    lines = folder / "train.jsonl"
    lines.write_text('{"text": "one"}\n{"text": "two"}\n')
    dataset = {"name": "own", "source": "folder", "path": str(folder), "vocab_size": 1000}
    dataset |= {"tokenizer": str(given)}
    assert sources.state(output) == sources.NEW
    for file in (lines, given / "tokenizer.json"):
        prepare_here(dataset, output)
        assert changed_sources(output) == []
        assert sources.state(output) == sources.NEW
        file.write_bytes(file.read_bytes() + b"\n")
        assert changed_sources(output) == [str(file)]
        changed = sources.state(output)
        assert changed == sources.state(output) != sources.NEW
    # What a state is kept with is given by the pipeline, so that it stays once it is prepared.
    prepare_here(dataset, output, sources_state=changed)
    (folder / "train-2.jsonl").write_text('{"text": "three"}\n')
    assert changed_sources(output) == [str(folder)]
    folder.rename(tmp_path / "taken-away")
    assert sources.state(output) == changed
    (output / "sources.json").write_text("[]")
    assert sources.state(output) == sources.NEW


# Downloads as they unpack -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "split", "texts", "skipped"),
    [
        (
            {f"train/{label}/{n}_7.txt": f"{label} {n}" * 100 for label in ("pos", "neg", "unsup") for n in (1, 2)}
            | {"train/urls_pos.txt": "a", "test/pos/1_7.txt": "b", "test/neg/1_7.txt": "c"},
            "train",
            ["neg 1" * 100, "neg 2" * 100, "pos 1" * 100],
            ["unsup", "urls_pos.txt"],
        ),
        (
            {f"data/ptb.{part}.txt": " " + f"{part} one" * 120 + f" \n {part} two \n" for part in ("train", "valid", "test")}
            | {"data/ptb.char.train.txt": "o n e"},
            "validation",
            ["valid one" * 120],
            ["ptb.char.train.txt"],
        ),
    ],
)  # fmt: skip
def test_of_a_known_download_one_split_is_read(
    tmp_path: Path, files: dict[str, str], split: str, texts: list[str], skipped: list[str]
) -> None:
    """IMDb's aclImdb and PTB's simple-examples; only files that were read are listed."""
    folder, output = tmp_path / "own", tmp_path / "data"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    text = END_OF_TEXT.join(texts)
    dataset = {"name": "own", "source": "folder", "path": str(folder), "vocab_size": 300}
    spec = dataset_spec.parse(json.dumps(dataset | {"split": split}))
    prepare.prepare(spec.model_copy(update={"max_bytes": len(text)}), output)  # fewer than allowed
    facts, read = tokens_of(output)
    assert (read, facts["skipped"]) == (text, skipped)
    (seen,) = json.loads((output / "sources.json").read_text())["roots"].values()
    assert len(seen) <= len(texts) + 1 and "." not in seen
    assert f"no split 'dev' in {folder}" in objection(dataset | {"split": "dev"}, tmp_path / "none")


@pytest.mark.parametrize("name", ["train.parquet", "train.txt"])
def test_a_git_lfs_pointer_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LFS_POINTER)
    dataset = {"name": "own", "source": "folder", "path": str(tmp_path), "vocab_size": 300}
    said = objection(dataset, tmp_path / "none")
    assert str(tmp_path / name) in said and "run `git lfs pull`" in said


@pytest.mark.parametrize(
    ("module", "changes", "words"),
    [
        ("gpt2", {"n_layer": 2, "n_head": 2, "n_embd": 64, "scale_attn_weights": True}, None),
        ("gpt2", {"n_layer": 6, "n_head": 3}, "n_layer 6, not 2; n_head 3, not 2; correct size"),
        ("whisper", {"decoder_layers": 6}, "decoder_layers 6, not"),
        ("gpt2", "cut off", "model.safetensors is damaged (SafetensorError"),
    ],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, module: str, changes: dict[str, Any] | str, words: str | None
) -> None:
    from safetensors.numpy import save_file

    own = {"size": "nano", "weights": "pretrained", "weights_path": str(tmp_path)}
    of_data = {"dataset_vocab_size": 300, "dataset_clip_seconds": 2, "dataset_n_mels": 80}
    workload = plugins.load("workloads", module)(defaults(module, **own, **of_data))
    shapes = workload.weights.shapes
    file = tmp_path / "model.safetensors"
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, file)
    if isinstance(changes, str):
        file.write_text(changes)
    else:
        (tmp_path / "config.json").write_text(json.dumps(changes))
    if words is None:
        assert [name for name, _ in workload.weights.initial(0)] == list(shapes)
        return
    with pytest.raises(UserError, match=re.escape(words)) as error:
        list(workload.weights.initial(0))
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_column": "body"}, "no column 'body'; set text_column to one of: text and label"),
        ({"text_column": "label"}, "column 'label' of folder"),
        ({"split": "validation"}, "['train', 'test']"),
        ({"subset": "nope"}, "['plain', 'other']"),
        ({"tokenizer": "data"}, "no folder 'data' here, and the hub has no tokenizer.json"),
    ],
)
def test_a_wrong_source_is_one_line(
    repository: Path,
    tmp_path: Path,
    changes: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    dataset = {"name": "small", "source": "folder", "path": str(repository), "vocab_size": 400}
    assert words in objection(dataset | changes, tmp_path / "none")


def test_the_stage_says_one_line_and_leaves_old_files_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    small = BUILTIN | {"max_bytes": 5000}
    refused(run_stage(small, tmp_path / "file", tmp_path), f"{tmp_path / 'file'}: cannot write")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tokens.npy").write_text("old")
    wrong = small | {"source": "folder", "path": "none"}
    refused(run_stage(wrong, tmp_path / "data", tmp_path), "no folder", "source: builtin")
    assert [path.read_text() for path in (tmp_path / "data").iterdir()] == ["old"]


# The hub -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub with a data set, with PTB, a script with a parquet copy, and what Common Voice left."""
    root = tmp_path_factory.mktemp("hub")
    script, copy, empty = (root / name for name in ("script", "copy", "empty"))
    for folder in (script, empty):
        folder.mkdir()
        (folder / "README.md").write_text("# PTB\n")
    (script / "ptb_text_only.py").write_text("raise RuntimeError('this script must not run')\n")
    for split, n in (("train", 60), ("validation", 9), ("test", 8)):
        write_parquet(copy / "penn_treebank" / split / "0000.parquet", sentence=rows(split, n))
    (copy / ".gitattributes").write_text("*.parquet filter=lfs\n")
    repositories = {
        f"datasets/{HUB['path']}": {"main": repository},
        f"datasets/{PTB['path']}": {"main": script, CONVERTED: copy},
        "datasets/mozilla-foundation/common_voice_17_0": {"main": empty},
    }
    with hub_server.served(repositories) as endpoint:
        yield endpoint


def test_hub_and_its_cache(hub: str, tmp_path: Path) -> None:
    home, folders = tmp_path / "home", {tmp_path / one["name"]: one for one in (HUB, PTB)}
    assert prepare_each(folders, home, HF_ENDPOINT=hub) == {}
    online = [tokens_of(folder) for folder in folders]
    assert [text for _, text in online] == [joined("plain test", 40), joined("train", 60)]
    revisions = [(facts["asked_revision"], facts["revision"]) for facts, _ in online]
    assert revisions == [(None, COMMIT), (CONVERTED, hub_server.OTHER_COMMIT)]

    # That run cached the README at most: not a copy that can be read without the hub.
    refusals = prepare_each(folders, home)
    for folder, dataset in folders.items():
        assert f"neither the hub nor its cache has hub '{dataset['path']}" in refusals[str(folder)]

    for dataset in folders.values():
        hub_server.download(hub, home, dataset["path"], "dataset", dataset.get("revision"))
    assert prepare_each(folders, home) == {}
    assert [tokens_of(folder) for folder in folders] == online


def test_what_no_hub_has_is_one_line(hub: str, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"path": "mozilla-foundation/common_voice_17_0"}, "set source: folder"),  # emptied
        ({"path": "owner/none"}, "neither the hub nor its cache has hub 'owner/none'; RepositoryNot"),
        ({"path": "tests"}, "set source: folder"),  # a folder here
        (PTB | {"revision": None}, f"scripts are no longer supported; set revision: {CONVERTED}"),
        (PTB | {"subset": "ptb"}, "doesn't contain any data files; correct subset"),
        (PTB | {"split": "dev"}, "'dev'; validation"),
    ]  # fmt: skip
    datasets = {tmp_path / str(n): HUB | {"split": None} | own for n, (own, _) in enumerate(cases)}
    refusals = prepare_each(datasets, tmp_path / "home", HF_ENDPOINT=hub)
    for folder, (_, words) in zip(datasets, cases, strict=True):
        assert all(word in refusals[str(folder)] for word in words.split("; ")), words
        assert not folder.exists()


# A given tokenizer ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer.json like GPT-2's: its special token comes last.

    It has a model's limit, which must not cut a text, and would add a token by itself, as Whisper's.
    """
    from siliconprof.datasets import tokenizer
    from tokenizers import processors

    trained = tokenizer.train(["a film that I would see again"] * 3, 270, [])
    trained.add_special_tokens([END_OF_TEXT])
    end = (END_OF_TEXT, trained.token_to_id(END_OF_TEXT))
    trained.post_processor = processors.TemplateProcessing(f"{END_OF_TEXT} $0", None, [end])
    trained.enable_truncation(4)
    folder = tmp_path_factory.mktemp("tokenizer")
    trained.save(str(folder / "tokenizer.json"))
    return folder


def test_a_given_tokenizer(gpt2_like: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    given = (gpt2_like / "tokenizer.json").read_bytes()
    size = Tokenizer.from_str(given.decode()).get_vocab_size()
    dataset = BUILTIN | {"max_bytes": 5000, "vocab_size": 300, "tokenizer": str(gpt2_like)}
    output, home = tmp_path / "data", tmp_path / "hub"
    prepare_here(dataset, output)
    facts, text = tokens_of(output)
    assert text.encode() == (DATA / "builtin_text.txt").read_bytes()[:5000]
    assert (facts["vocab_size"], facts["vocab_size_actual"]) == (300, size)
    assert (facts["tokenizer"], facts["tokenizer_revision"]) == (str(gpt2_like), None)
    assert (output / "tokenizer.json").read_bytes() == given

    named = dataset | {"tokenizer": "owner/tok"}
    asked = {output: named, tmp_path / "no": dataset | {"tokenizer": "owner/no"}}
    with hub_server.served({"owner/tok": {"main": gpt2_like}}) as endpoint:
        (refusal,) = prepare_each(asked, home, HF_ENDPOINT=endpoint).values()
    assert "no folder 'owner/no'" in refusal and "leave it out" in refusal
    online = tokens_of(output)[0]
    assert (online["sha256"], online["tokenizer_revision"]) == (facts["sha256"], COMMIT)
    assert tokens_of(output, run_stage(named, output, home))[0] == online  # now from the cache

    assert f"has {size} tokens" in objection(dataset | {"vocab_size": size - 1}, tmp_path / "none")
    own = tmp_path / "own"
    own.mkdir()
    for content, words in (
        (b"{}", "cannot read the tokenizer"),
        (given.replace(END_OF_TEXT.encode(), b"</s>"), "has no token <|endoftext|>"),
    ):
        (own / "tokenizer.json").write_bytes(content)
        assert words in objection(dataset | {"tokenizer": str(own)}, tmp_path / "none")
