"""The prepare stage through its front door, and the reader of what it leaves.

The hub is stood in for by a small HTTP server on this machine (`hub_server.py`), so the real client
and the real loading code run; its cache is filled by the hub's own client.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
import numpy as np
import pytest
from hub_server import COMMIT
from prepare_stage import WORKFLOW, loaded_by, prepare_here, refused, run_stage
from siliconprof.datasets import (
    data_folder,
    dataset_spec,
    prepare,
    prepare_text,
    source_files,
    token_data,
)
from siliconprof.datasets import repository as repository_module
from siliconprof.datasets.tokenizer import END_OF_TEXT

DATA = WORKFLOW / "siliconprof" / "datasets" / "data"
BUILTIN = {"name": "builtin", "source": "builtin", "vocab_size": 512}
REPOSITORY = "owner/small"
CLOSED_PORT = "http://127.0.0.1:9"
FILES = ("dataset.json", "sources.json", "tokenizer.json", "tokens.npy")
FACTS = (
    "name kind source path subset split text_column asked_revision vocab_size tokenizer max_bytes"
    " revision licence synthetic n_documents n_bytes n_tokens vocab_size_actual"
    " tokenizer_revision text_sha256 tokens_sha256 tokenizer_sha256 sha256 tokenizers_version"
).split()


def prepared(run: subprocess.CompletedProcess[str], output: Path) -> tuple[dict[str, Any], str]:
    """Check a successful run and its checksums; return (dataset.json, the decoded text)."""
    from tokenizers import Tokenizer

    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert sorted(path.name for path in output.glob("[!.]*")) == sorted(FILES)
    facts = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    assert list(facts) == FACTS
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    tokens = np.load(output / "tokens.npy")
    text = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
    assert facts["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert facts["n_bytes"] == len(text.encode())
    assert facts["n_tokens"] == len(tokens)
    assert facts["vocab_size_actual"] == tokenizer.get_vocab_size() > tokens.max()
    digest = hashlib.sha256((output / "tokenizer.json").read_bytes()).hexdigest()
    assert facts["tokenizer_sha256"] == digest
    data = data_folder.load(output)
    assert isinstance(data, token_data.TokenData) and facts["kind"] == "text"
    assert data.sha256 == data.tokens_sha256 == facts["sha256"] == facts["tokens_sha256"]
    return facts, text


def rows(split: str, n: int) -> list[str | None]:
    """Documents of unlike length, with characters of one to four bytes, and an empty cell."""
    texts = [f"{split} {i}: the naïve 猫 says ‘hello’ 😀 " * (1 + i % 3) for i in range(n)]
    return [*texts, None, ""]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset repository as the hub lays it out: front matter, two subsets, parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("repository")
    for subset, split, n in (("plain", "train", 300), ("plain", "test", 40), ("other", "train", 9)):
        folder = root / subset
        folder.mkdir(exist_ok=True)
        texts = rows(f"{subset} {split}", n)
        table = pa.table({"text": texts, "label": list(range(len(texts)))})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet", row_group_size=50)
    (root / "README.md").write_text(
        """---
license: cc-by-4.0
configs:
- config_name: plain
  default: true
  data_files:
  - split: train
    path: plain/train-*
  - split: test
    path: plain/test-*
- config_name: other
  data_files:
  - split: train
    path: other/train-*
---
# A small dataset
""",
        encoding="utf-8",
    )
    return root


def used(texts: list[str | None]) -> list[str]:
    return [text for text in texts if text]


# The built-in text ---------------------------------------------------------------------------


def test_builtin_text_is_the_committed_one() -> None:
    data = (DATA / "builtin_text.txt").read_bytes()
    assert 900_000 < len(data) < 1_000_000
    assert hashlib.sha256(data).hexdigest() in (DATA / "README.md").read_text(encoding="utf-8")
    text = data.decode("ascii")
    assert set(text) - {"\n"} <= {chr(code) for code in range(32, 127)}
    assert not re.search(r"\w@\w+\.\w|/home/|/Users/|/root/|[A-Z]:\\", text)
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (DATA / "LICENSE-PSF.txt").read_text()


@pytest.mark.skipif(
    sys.version_info[:3] != (3, 11, 7), reason="the text was made from CPython 3.11.7's library"
)
def test_builtin_text_can_be_made_again(tmp_path: Path) -> None:
    made = tmp_path / "text.txt"
    command = [sys.executable, str(DATA / "make_builtin_text.py"), "--output", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    assert made.read_bytes() == (DATA / "builtin_text.txt").read_bytes()


def test_builtin_needs_no_datasets_and_repeats_byte_for_byte(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    for name in ("datasets", "huggingface_hub"):
        (poison / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    output = tmp_path / "data"
    output.mkdir()
    for name in FILES:  # what an earlier, different run left
        (output / name).write_text("old")
    first = run_stage(BUILTIN, output, tmp_path, pythonpath=poison, PYTHONHASHSEED="1")
    facts, text = prepared(first, output)
    assert text.encode() == (DATA / "builtin_text.txt").read_bytes()
    assert facts["licence"] == "PSF-2.0" and facts["synthetic"] is False
    assert facts["vocab_size"] == facts["vocab_size_actual"] == 512
    data = token_data.load(output)
    assert data.tokens.dtype == np.uint16 and data.tokens.ndim == 1
    assert (data.name, data.vocab_size) == ("builtin", 512)

    bytes_before = [(output / name).read_bytes() for name in FILES]
    again = run_stage(BUILTIN, output, tmp_path, PYTHONHASHSEED="2", RAYON_NUM_THREADS="1")
    assert again.returncode == 0, again.stderr
    assert [(output / name).read_bytes() for name in FILES] == bytes_before


# A folder in the hub's layout ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("subset", "split", "n"),
    [(None, "train", 300), ("plain", "test[:25%]", 10), ("other", None, 9)],
)
def test_folder(
    repository: Path, tmp_path: Path, subset: str | None, split: str | None, n: int
) -> None:
    dataset = {"name": "small", "source": "folder", "path": str(repository), "vocab_size": 400}
    dataset |= {"subset": subset, "split": split}
    output = tmp_path / "data"
    facts, text = prepared(run_stage(dataset, output, tmp_path / "home"), output)
    word = f"{subset or 'plain'} {(split or 'train').split('[')[0]}"
    assert text == END_OF_TEXT.join(used(rows(word, n)))
    assert facts["n_documents"] == n
    assert facts["licence"] == "cc-by-4.0"
    assert facts["revision"] is None
    (root,) = json.loads((output / "sources.json").read_text())["roots"].items()
    assert root[0] == str(repository) and root[1]["names_sha256"]
    assert {
        "README.md",
        f"{subset or 'plain'}/{(split or 'train').split('[')[0]}-00000-of-00001.parquet",
    } <= root[1]["files"].keys()


def test_files_of_a_folder_are_looked_at_again(gpt2_like: Path, tmp_path: Path) -> None:
    """Another content, another file, another tokenizer; not other times, nor a folder that left."""
    folder, given, output = tmp_path / "lines", tmp_path / "given", tmp_path / "data"
    folder.mkdir()
    shutil.copytree(gpt2_like, given)
    lines, more, card = folder / "train.jsonl", folder / "train-2.jsonl", folder / "README.md"
    lines.write_text('{"text": "one"}\n{"text": "two"}\n')
    dataset = {
        "name": "own",
        "source": "folder",
        "path": str(folder),
        "tokenizer": str(given),
        "vocab_size": 1000,
    }
    assert source_files.state(output) == source_files.NEW
    prepared(run_stage(dataset, output, tmp_path / "home"), output)
    same = source_files.state(output)
    assert same == source_files.NEW and source_files.changed(output) == []

    def differs(path: Path) -> bool:
        assert source_files.changed(output) == [str(path)]
        assert source_files.state(output) == source_files.state(output) != same
        return True

    for file in (lines, given / "tokenizer.json"):
        content = file.read_bytes()
        file.write_bytes(content.replace(b"o", b"0"))
        assert differs(file)
        file.write_bytes(content)  # another time, the same content
        assert source_files.state(output) == same
        os.utime(file, (1, 1))
        assert source_files.state(output) == same
    assert b"o" in content
    for file in (more, card):
        file.write_text('{"text": "three"}\n')
        assert str(folder) in source_files.changed(output)
        file.unlink()
    lines.rename(tmp_path / "away")
    assert set(source_files.changed(output)) == {str(folder), str(lines)}
    (tmp_path / "away").rename(lines)
    folder.rename(tmp_path / "taken-away")
    assert source_files.state(output) == same
    (tmp_path / "taken-away").rename(folder)

    # What a state is kept with is given by the pipeline, so that it stays once it is prepared.
    lines.write_text('{"text": "four"}\n')
    other = source_files.state(output)
    prepare_here(dataset, output, sources_state=other)
    assert source_files.state(output) == other != same
    (output / "sources.json").write_text("[]")
    assert source_files.state(output) == source_files.NEW


def test_folder_of_json_lines_without_a_card_is_cut_at_max_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    texts = used(rows("train", 50))
    lines = [json.dumps({"content": text}) for text in texts]
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    dataset = {"name": "lines", "source": "folder", "path": str(folder), "vocab_size": 300}
    dataset |= {"text_column": "content", "max_bytes": 1000}
    output = tmp_path / "data"
    facts, text = prepared(run_stage(dataset, output, tmp_path / "home"), output)
    assert END_OF_TEXT.join(texts).startswith(text)
    assert 1000 - len(END_OF_TEXT) - 4 < facts["n_bytes"] <= 1000
    assert facts["licence"] is None


def test_limit_never_cuts_a_character_nor_adds_a_byte() -> None:
    documents = ["aé", "", "😀😀", "b"]
    whole = END_OF_TEXT.join(used([*documents]))
    n_whole = len(whole.encode())
    for max_bytes in range(1, n_whole + 3):
        text = END_OF_TEXT.join(prepare_text.limited(documents, max_bytes))
        n_bytes = len(text.encode())
        assert whole.startswith(text)
        assert n_bytes <= max_bytes
        # All is used, or nothing more fits: no character, and no separator with a character.
        assert n_bytes == n_whole or n_bytes > max_bytes - len(END_OF_TEXT) - 4


@pytest.mark.slow
def test_a_failure_says_one_line_and_leaves_old_files_alone(
    repository: Path, tmp_path: Path
) -> None:
    dataset = {"name": "small", "source": "folder", "path": str(repository), "vocab_size": 400}
    output = tmp_path / "data"
    output.mkdir()
    (output / "tokens.npy").write_text("old")

    def attempt(**changes: object) -> subprocess.CompletedProcess[str]:
        return run_stage(dataset | changes, output, tmp_path / "home")

    refused(attempt(text_column="body"), "'small'", "no column 'body'", "text, label")
    refused(attempt(text_column="label"), "'label'", "int, not text")
    refused(attempt(split="validation"), "'validation'", "['train', 'test']")
    refused(attempt(subset="nope"), "'nope'", "['plain', 'other']")
    refused(attempt(path=str(tmp_path / "none")), "no folder", "source: builtin")
    assert [path.name for path in output.glob("[!.]*")] == ["tokens.npy"]
    assert (output / "tokens.npy").read_text() == "old"


def test_output_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    dataset = BUILTIN | {"max_bytes": 5000}
    refused(run_stage(dataset, tmp_path / "file", tmp_path), "cannot write", "--output-dir")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ('{"name": "x", "source": "builtin"}', "'vocab_size' is missing"),
        ('{"name": "x", "source": "web", "vocab_size": 512}', "builtin, hub, folder"),
        ('{"name": "x", "source": "builtin", "vocab_size": 256}', "at least 257"),
        ('{"name": "x", "source": "builtin", "vocab_size": "512"}', "expected int"),
        ('{"name": "x", "source": "builtin", "vocab_size": true}', "expected int"),
        ('{"name": "x", "source": "builtin", "vocab_size": 512, "max_bytes": 0}', "at least 1"),
        ('{"name": "x", "source": "builtin", "vocab_size": 512, "spilt": "a"}', "spilt"),
        (
            '{"name": "x", "source": "hub", "vocab_size": 512}',
            "'path': is missing; expected a name on the hub",
        ),
        ('{"name": "x", "source": "folder", "vocab_size": 512}', "'path': is missing"),
        ('{"name": "x", "source": "builtin", "vocab_size": 512, "n_mels": 80}', "kind speech"),
        (
            '{"name": "x", "source": "folder", "path": "y", "revision": "z", "vocab_size": 512}',
            "'revision': a folder has one revision",
        ),
        ('{"name": "x", "kind": "sound", "source": "builtin", "vocab_size": 512}', "text, speech"),
    ],
)
def test_wrong_dataset_is_refused(given: str, words: str) -> None:
    with pytest.raises(dataset_spec.PrepareError, match=re.escape(words)) as error:
        dataset_spec.parse(given)
    assert "\n" not in str(error.value)


def test_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    given = BUILTIN | {"vocab_size": 65537, "max_bytes": 20_000}
    facts = prepare_here(given, tmp_path)
    data = token_data.load(tmp_path)
    assert data.tokens.dtype == np.uint32
    assert data.vocab_size == 65537 > facts["vocab_size_actual"] > data.tokens.max()


def test_a_crash_while_writing_leaves_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = BUILTIN | {"max_bytes": 20_000}
    prepare_here(small, tmp_path)
    token_data.load(tmp_path)
    write = prepare.replace

    def crash(path: Path, content: bytes | np.ndarray) -> None:
        if path.name == "tokenizer.json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(prepare, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        prepare_here(small, tmp_path)
    with pytest.raises(token_data.DataError, match=r"no dataset\.json"):
        token_data.load(tmp_path)


# The hub -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hub(repository: Path) -> Iterator[str]:
    """The address of a hub that has one dataset, REPOSITORY."""
    with hub_server.served({f"datasets/{REPOSITORY}": {"main": repository}}) as endpoint:
        yield endpoint


HUB = {"name": "small", "source": "hub", "path": REPOSITORY, "vocab_size": 400, "split": "test"}
HUB_TEXT = END_OF_TEXT.join(used(rows("plain test", 40)))


def test_hub_and_its_cache(hub: str, tmp_path: Path) -> None:
    home, output = tmp_path / "home", tmp_path / "data"
    online, text = prepared(run_stage(HUB, output, home, HF_ENDPOINT=hub), output)
    assert text == HUB_TEXT
    assert (online["revision"], online["licence"]) == (COMMIT, "cc-by-4.0")

    # That run cached the README alone: not a copy that can be read without the hub.
    assert list(home.rglob("snapshots/*/README.md"))
    refused(run_stage(HUB, output, home), "'small'", "hub is not reachable")

    snapshot = hub_server.download(hub, home, REPOSITORY, "dataset")
    assert snapshot == home / "hub" / "datasets--owner--small" / "snapshots" / COMMIT
    assert (snapshot / "plain" / "test-00000-of-00001.parquet").is_file()
    assert prepared(run_stage(HUB, output, home), output) == (online, HUB_TEXT)
    refused(run_stage(HUB | {"split": "nope"}, output, home), "'nope'", "['train', 'test']")


def test_hub_that_refuses_the_connection_is_one_line(tmp_path: Path) -> None:
    # The hub's client waits 23 s between its attempts; here it does not wait.
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep = lambda s: None\n")
    run = run_stage(HUB, tmp_path / "data", tmp_path, pythonpath=tmp_path, HF_ENDPOINT=CLOSED_PORT)
    refused(run, "'small'", "hub is not reachable", "source: folder", "source: builtin")
    assert not (tmp_path / "data").exists()


# The paper's own data sets, laid out as the hub has them -----------------------------------------

IMDB_CARD = """---
license:
- other
pretty_name: IMDB
dataset_info:
  config_name: plain_text
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': neg
          '1': pos
  splits:
  - name: train
    num_examples: 40
  - name: test
    num_examples: 30
  - name: unsupervised
    num_examples: 50
configs:
- config_name: plain_text
  data_files:
  - split: train
    path: plain_text/train-*
  - split: test
    path: plain_text/test-*
  - split: unsupervised
    path: plain_text/unsupervised-*
  default: true
---
# Dataset Card for "imdb"
"""
PTB_CARD = (
    "---\nlicense:\n- other\nlicense_details: LDC User Agreement for Non-Members\n---\n# PTB\n"
)
CONVERTED = "refs/convert/parquet"


def write_parquet(path: Path, **columns: list[Any]) -> None:
    """A parquet file as the hub holds it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def reviews(split: str, n: int) -> list[str]:
    return [
        f"{split} review {i}: a film <br /><br />that I would see again. " * 3 for i in range(n)
    ]


def sentences(split: str, n: int) -> list[str]:
    return [f"{split} no. {i} mr. <unk> said N shares were sold on the exchange" for i in range(n)]


@pytest.fixture(scope="module")
def paper_repositories(tmp_path_factory: pytest.TempPathFactory) -> hub_server.Repositories:
    """IMDB; PTB, which is a script with a parquet copy on another branch; what CV left behind."""
    root = tmp_path_factory.mktemp("paper")
    imdb, ptb, copy, empty = (root / name for name in ("imdb", "ptb", "copy", "empty"))
    for split, n in (("train", 40), ("test", 30), ("unsupervised", 50)):
        file = imdb / "plain_text" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, text=reviews(split, n), label=[0] * n)
    (imdb / "README.md").write_text(IMDB_CARD)
    ptb.mkdir()
    (ptb / "README.md").write_text(PTB_CARD)
    (ptb / "ptb_text_only.py").write_text("raise RuntimeError('this script must not run')\n")
    for split, n in (("train", 60), ("validation", 9), ("test", 8)):
        file = copy / "penn_treebank" / split / "0000.parquet"
        write_parquet(file, sentence=sentences(split, n))
    (copy / ".gitattributes").write_text("*.parquet filter=lfs\n")
    empty.mkdir()
    (empty / "README.md").write_text("---\nlicense: cc0-1.0\n---\nGone.\n")
    return {
        "datasets/stanfordnlp/imdb": {"main": imdb},
        "datasets/ptb-text-only/ptb_text_only": {"main": ptb, CONVERTED: copy},
        "datasets/mozilla-foundation/common_voice_17_0": {"main": empty},
    }


@pytest.fixture(scope="module")
def paper_hub(paper_repositories: hub_server.Repositories) -> Iterator[str]:
    with hub_server.served(paper_repositories) as endpoint:
        yield endpoint


IMDB = {"name": "imdb", "source": "hub", "path": "stanfordnlp/imdb", "vocab_size": 400}
PTB = {
    "name": "ptb",
    "source": "hub",
    "path": "ptb-text-only/ptb_text_only",
    "revision": CONVERTED,
    "text_column": "sentence",
    "vocab_size": 400,
}


@pytest.mark.slow
def test_imdb_from_the_hub_its_cache_and_a_folder(
    paper_hub: str, paper_repositories: hub_server.Repositories, tmp_path: Path
) -> None:
    home, output = tmp_path / "home", tmp_path / "data"
    wanted = END_OF_TEXT.join(reviews("train", 40))
    facts, text = prepared(run_stage(IMDB, output, home, HF_ENDPOINT=paper_hub), output)
    assert text == wanted
    assert (facts["revision"], facts["licence"]) == (COMMIT, "other")
    pinned = IMDB | {"revision": COMMIT, "split": "unsupervised"}
    facts, text = prepared(run_stage(pinned, output, home, HF_ENDPOINT=paper_hub), output)
    assert text == END_OF_TEXT.join(reviews("unsupervised", 50))
    assert facts["asked_revision"] == facts["revision"] == COMMIT
    gone = run_stage(IMDB | {"revision": "v9"}, output, home, HF_ENDPOINT=paper_hub)
    refused(gone, "'imdb'", "no dataset 'stanfordnlp/imdb' with revision 'v9'")

    hub_server.download(paper_hub, home, IMDB["path"], "dataset")
    facts, text = prepared(run_stage(IMDB, output, home), output)
    assert (text, facts["revision"]) == (wanted, COMMIT)
    folder = paper_repositories["datasets/stanfordnlp/imdb"]["main"]
    local = IMDB | {"source": "folder", "path": str(folder)}
    facts, text = prepared(run_stage(local, output, home), output)
    assert (text, facts["revision"], facts["licence"]) == (wanted, None, "other")


@pytest.mark.slow
def test_ptb_from_the_hubs_parquet_copy_its_cache_and_a_folder(
    paper_hub: str, paper_repositories: hub_server.Repositories, tmp_path: Path
) -> None:
    home, output = tmp_path / "home", tmp_path / "data"
    script = run_stage(PTB | {"revision": None}, output, home, HF_ENDPOINT=paper_hub)
    refused(script, "'ptb'", "scripts are no longer supported", f"set revision: {CONVERTED}")

    wanted = END_OF_TEXT.join(sentences("train", 60))
    for dataset in (PTB, PTB | {"subset": "penn_treebank"}):
        facts, text = prepared(run_stage(dataset, output, home, HF_ENDPOINT=paper_hub), output)
        assert text == wanted
        assert facts["asked_revision"] == CONVERTED
        assert (facts["revision"], facts["licence"]) == (hub_server.OTHER_COMMIT, "other")
    absent = run_stage(PTB | {"subset": "ptb"}, output, home, HF_ENDPOINT=paper_hub)
    refused(absent, "no subset 'ptb'", "set subset to one of: penn_treebank")

    fresh = tmp_path / "fresh"
    snapshot = hub_server.download(paper_hub, fresh, PTB["path"], "dataset", CONVERTED)
    assert snapshot.name == hub_server.OTHER_COMMIT
    dataset = PTB | {"split": "validation"}
    facts, text = prepared(run_stage(dataset, output, fresh), output)
    assert text == END_OF_TEXT.join(sentences("validation", 9))
    assert facts["revision"] == hub_server.OTHER_COMMIT
    refused(run_stage(PTB | {"split": "dev"}, output, fresh), "'dev'", "validation")

    folder = paper_repositories["datasets/ptb-text-only/ptb_text_only"][CONVERTED]
    local = {key: value for key, value in PTB.items() if key != "revision"}
    local |= {"source": "folder", "path": str(folder / "penn_treebank")}
    assert prepared(run_stage(local, output, fresh), output)[1] == wanted


def test_what_no_hub_has_is_one_line(paper_hub: str, repository: Path, tmp_path: Path) -> None:
    """A repository that was emptied, one that never was, and the name of a folder here."""
    for path, words in (
        ("mozilla-foundation/common_voice_17_0", ("any data files", "set source: folder")),
        ("owner/none", ("no dataset 'owner/none'",)),
        (str(repository), ("set source: folder",)),
    ):
        run = run_stage(IMDB | {"path": path}, tmp_path / "data", tmp_path, HF_ENDPOINT=paper_hub)
        refused(run, path, *words)


def test_old_layouts_of_the_parquet_copy(tmp_path: Path) -> None:
    spec = dataset_spec.parse(json.dumps(PTB | {"subset": "en"}))
    names = [
        "en/imdb-train.parquet",
        "en/csv-test-00000-of-00002.parquet",
        "en/csv-test-00001-of-00002.parquet",
        "en/validated/0000.parquet",
        "en/partial-other/0000.parquet",
        "de/train/0000.parquet",
        "README.md",
    ]
    assert repository_module._files_of_copy(spec, names) == {
        "train": [names[0]],
        "test": names[1:3],
        "validated": [names[3]],
        "other": [names[4]],
    }
    with pytest.raises(dataset_spec.PrepareError, match="several subsets; set subset.*de, en"):
        repository_module._files_of_copy(dataset_spec.parse(json.dumps(PTB)), names)


# A given tokenizer ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer.json like GPT-2's: its special token comes last."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["a film that I would see again"] * 3,
        trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False),
    )
    made.add_special_tokens([END_OF_TEXT])
    made.enable_truncation(4)  # a model's limit, which must not cut a text
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_a_given_tokenizer(gpt2_like: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    size = Tokenizer.from_file(str(gpt2_like / "tokenizer.json")).get_vocab_size()
    dataset = BUILTIN | {"max_bytes": 5000, "vocab_size": 300, "tokenizer": str(gpt2_like)}
    output = tmp_path / "data"
    facts, text = prepared(run_stage(dataset, output, tmp_path / "home"), output)
    assert text.encode() == (DATA / "builtin_text.txt").read_bytes()[:5000]
    assert (facts["vocab_size"], facts["vocab_size_actual"]) == (300, size)
    assert (facts["tokenizer"], facts["tokenizer_revision"]) == (str(gpt2_like), None)
    used = (output / "tokenizer.json").read_bytes()
    assert used == (gpt2_like / "tokenizer.json").read_bytes()

    with hub_server.served({"owner/tok": {"main": gpt2_like}}) as endpoint:
        named = dataset | {"tokenizer": "owner/tok"}
        home = tmp_path / "hub"
        online = prepared(run_stage(named, output, home, HF_ENDPOINT=endpoint), output)[0]
        none = run_stage(dataset | {"tokenizer": "owner/no"}, output, home, HF_ENDPOINT=endpoint)
        refused(none, "no folder 'owner/no'", "leave it out")
    assert (online["tokens_sha256"], online["tokenizer_revision"]) == (
        facts["tokens_sha256"],
        COMMIT,
    )
    assert prepared(run_stage(named, output, home), output)[0] == online  # now from the cache

    small = run_stage(dataset | {"vocab_size": size - 1}, output, home)
    refused(small, f"vocab_size is {size - 1}", f"has {size} tokens")
    (tmp_path / "tokenizer.json").write_text("{}")
    refused(run_stage(dataset | {"tokenizer": str(tmp_path)}, output, home), "tokenizer.json")
    nameless = (gpt2_like / "tokenizer.json").read_text().replace(END_OF_TEXT, "</s>")
    (tmp_path / "tokenizer.json").write_text(nameless)
    lacking = run_stage(dataset | {"tokenizer": str(tmp_path)}, output, home)
    refused(lacking, "has no token <|endoftext|>")


# What the measured process reads -------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared folder with the tokens 0 to 999."""
    tokens = np.arange(1000, dtype=np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    digest = hashlib.sha256(tokens.tobytes()).hexdigest()
    facts = {"name": "count", "vocab_size": 1024, "tokens_sha256": digest}
    (tmp_path / "dataset.json").write_text(json.dumps(facts))
    return tmp_path


def test_every_damaged_byte_of_the_tokens_is_noticed(folder: Path) -> None:
    file = folder / "tokens.npy"
    whole = file.read_bytes()
    for position in [*range(80), 500, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        file.write_bytes(damaged)
        try:
            data = token_data.load(folder)
        except token_data.DataError as error:
            assert "\n" not in str(error) and "count" in str(error)
        else:  # a harmless byte of the header, such as a space: the tokens are still right
            assert data.tokens.tolist() == list(range(1000))
    file.write_bytes(whole[:-2])
    with pytest.raises(token_data.DataError, match="'count'"):
        token_data.load(folder)
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(token_data.DataError, match="damaged: SHA-256"):
        token_data.load(folder)
    file.unlink()
    with pytest.raises(token_data.DataError, match=r"tokens\.npy"):
        token_data.load(folder)


def test_damaged_or_missing_facts_are_noticed(folder: Path) -> None:
    for text in ("{", "[]", "{}", '{"name": "x", "vocab_size": "many", "tokens_sha256": ""}'):
        (folder / "dataset.json").write_text(text)
        with pytest.raises(token_data.DataError, match=r"dataset\.json is damaged"):
            token_data.load(folder)
    (folder / "dataset.json").unlink()
    with pytest.raises(token_data.DataError, match=r"no dataset\.json"):
        token_data.load(folder)


def test_batches_visit_every_window_once_an_epoch(folder: Path) -> None:
    data = token_data.load(folder)
    assert data.windows(30).shape == (33, 30) and data.windows(30).dtype == np.int32
    n_batches = 33 // 4
    first_two = list(itertools.islice(data.batches(4, 30, seed=7), 2 * n_batches))
    assert all(batch.shape == (4, 30) and batch.dtype == np.int32 for batch in first_two)
    orders = []
    for epoch in (first_two[:n_batches], first_two[n_batches:]):
        starts = np.concatenate(epoch)[:, 0]
        assert np.array_equal(np.concatenate(epoch), starts[:, None] + np.arange(30))
        assert len(set(starts)) == 32 and set(starts) <= set(range(0, 990, 30))
        orders.append(starts.tolist())
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])
    again = list(itertools.islice(data.batches(4, 30, seed=7), 2 * n_batches))
    assert np.array_equal(first_two, again)
    other = np.concatenate(list(itertools.islice(data.batches(4, 30, seed=8), n_batches)))
    assert other[:, 0].tolist() not in orders


def test_batch_order_is_the_same_on_every_host(folder: Path) -> None:
    # Pinned: another NumPy or another computer must give these windows, or losses do not compare.
    batches = token_data.load(folder).batches(5, 100, seed=0)
    starts = [next(batches)[:, 0].tolist() for _ in range(4)]
    assert starts == [
        [300, 200, 100, 800, 600],
        [0, 700, 400, 500, 900],
        [700, 400, 500, 100, 900],
        [800, 600, 200, 0, 300],
    ]


def test_too_few_windows_is_one_line_at_the_call(folder: Path) -> None:
    data = token_data.load(folder)
    assert next(data.batches(10, 100, seed=0)).shape == (10, 100)
    for batch_size, seq_len in ((11, 100), (1, 1001)):
        with pytest.raises(token_data.DataError, match="fewer than one batch") as error:
            data.batches(batch_size, seq_len, seed=0)
        assert "\n" not in str(error.value)


def test_reading_needs_numpy_only(folder: Path) -> None:
    program = """
from siliconprof.datasets import token_data
next(token_data.load(sys.argv[1]).batches(2, 8, seed=0))
"""
    assert loaded_by(program, str(folder)) == {"numpy"}
