"""The prepare stage as a user runs it, and what all kinds of data set promise."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from measuring import own_environment
from siliconprof.datasets import dataset_spec, prepare, prepared, sources, training_data
from siliconprof.store import documents

WORKFLOW = ROOT / "workflow"
BUILTIN = {"name": "builtin", "source": "builtin", "vocab_size": 512}
SMALL = {
    "text": BUILTIN | {"max_bytes": 5000},
    "speech": BUILTIN | {"kind": "speech", "max_clips": 3},
    "images": {"name": "builtin", "source": "builtin", "kind": "images"}
    | {"n_train": 30, "n_validation": 12, "n_test": 10},
}


def as_json(dataset: dict[str, Any]) -> str:
    """An entry without what it leaves to its default."""
    return json.dumps({key: value for key, value in dataset.items() if value is not None})


def run_python(
    *arguments: str, home: Path, search: Sequence[Path] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with a hub home; offline unless there is a hub."""
    offline = {} if "HF_ENDPOINT" in env else {"HF_HUB_OFFLINE": "1"}
    environment = own_environment(search, HF_HOME=str(home), **offline | env)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def run_stage(
    dataset: dict[str, Any], output: Path, home: Path, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run the stage as a user does; `more` as `run_python` takes it."""
    words = ("--dataset", as_json(dataset), "--output-dir", str(output))
    return run_python("-m", "siliconprof.datasets.prepare", *words, home=home, **more)


PREPARE_EACH = """
import json, os, sys
from pathlib import Path
from siliconprof.datasets import dataset_spec, prepare
refusals = {}
for folder, dataset in json.loads(sys.argv[1]).items():
    try:
        prepare.main(dataset=dataset, output_dir=Path(folder))
    except dataset_spec.PrepareError as error:
        refusals[folder] = str(error)
print(json.dumps(refusals), flush=True)
os._exit(0)  # as the stage ends
"""


def prepare_each(datasets: Mapping[Path, dict[str, Any]], home: Path, **env: str) -> dict[str, str]:
    """Prepare data sets in their folders; folder -> the line with which its data set is refused.

    In one new process: the hub's client takes seconds to import, and reads its variables then.
    """
    words = json.dumps({str(folder): as_json(dataset) for folder, dataset in datasets.items()})
    run = run_python("-c", PREPARE_EACH, words, home=home, **env)
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    refusals: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    assert not any("\n" in line for line in refusals.values())
    return refusals


def prepare_here(dataset: dict[str, Any], output: Path, **more: str) -> dict[str, Any]:
    """The same in this process; the content of dataset.json."""
    return prepare.prepare(dataset_spec.parse(as_json(dataset)), output, **more)


def made(output: Path, run: subprocess.CompletedProcess[str] | None = None) -> tuple[Any, Any]:
    """(dataset.json, data) of a prepared folder; its files, facts and checksums are checked."""
    facts = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    if run is not None:
        assert (run.returncode, run.stderr) == (0, ""), run.stderr
        assert facts["sha256"] in run.stdout and facts["name"] in run.stdout
    kind = facts["kind"]
    names = {path.name for path in output.glob("[!.]*")}
    assert names == {*dataset_spec.files(kind), "sources.json"}
    assert dataset_spec.read_facts(output) == facts
    for name in prepared.ARRAYS[kind]:
        values = np.load(output / f"{name}.npy")
        assert facts[f"{name}_sha256"] == prepared.array_sha256(values)
    data = training_data.load(output)
    assert (data.name, data.sha256) == (facts["name"], facts["sha256"])
    if kind in dataset_spec.TOKENISED:
        tokenizer = (output / "tokenizer.json").read_bytes()
        assert facts["tokenizer_sha256"] == hashlib.sha256(tokenizer).hexdigest()
        assert data.vocab_size == facts["vocab_size"] >= facts["vocab_size_actual"]
    return facts, data


def refused(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a run ended with exit code 2 and one line that holds every word."""
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    for word in words:
        assert word in run.stderr


def objection(dataset: dict[str, Any], output: Path) -> str:
    """The one line with which a data set is refused, and nothing is written."""
    with pytest.raises(dataset_spec.PrepareError) as error:
        prepare_here(dataset, output)
    assert "\n" not in str(error.value)
    assert not output.exists()
    return str(error.value)


LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 123\n"


def parquet(**columns: list[Any]) -> bytes:
    """A parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def write_parquet(path: Path, **columns: list[Any]) -> None:
    """One as the hub holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(parquet(**columns))


def png(image: np.ndarray) -> bytes:
    """A picture as a file."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def idx(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes, as yann.lecun.com/exdb/mnist describes it."""
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


def changed_sources(output: Path) -> list[str]:
    """Paths of the files and folders that changed since a preparation."""
    found = documents.read(output / sources.SOURCES_FILE)
    return [path for path, _ in sources.changes(found)]
