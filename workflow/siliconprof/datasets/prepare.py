"""Prepare one data set: its source in, arrays out; the same source gives the same bytes everywhere.

    python -m siliconprof.datasets.prepare --dataset '{"name": "builtin", "source": "builtin", \
"vocab_size": 1024}' --output-dir results/data/builtin

The source is the package (`builtin`), a dataset repository on disk as the hub lays it out
(`folder`), or the hub (`hub`; without a network, the hub's cache). The folder gets:

    *.npy            the arrays, little endian; `prepare_text.py`, `prepare_speech.py` and
                     `prepare_images.py` say which
    tokenizer.json   of text and speech, as the `tokenizers` library reads it
    sources.json     the files of a folder that were read, to detect later changes
    dataset.json     its name and origin, sizes and checksums; written last

With `--record-failure`, as the rule has it, data that cannot be prepared cost their own cells alone:
dataset.json says why, the arrays are empty files, and the records of the cells repeat the reason.

`training_data.py` reads the folder back and needs numpy only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from siliconprof import options, packages
from siliconprof.datasets import dataset_spec, prepared, sources
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.errors import UserError, in_one_line, stage, writing
from siliconprof.lifetime import killed_by, leave
from siliconprof.store import temporary


def prepare(
    spec: DatasetSpec, output_dir: Path, sources_state: str = sources.NEW
) -> dict[str, Any]:
    """Prepare one data set and return the content of its `dataset.json`.

    Args:
        sources_state: from `sources.state` for the folder.

    Raises:
        PrepareError: the data set cannot be read, or a library is missing.
        CannotWrite: the folder is not writable.
    """
    import numpy as np

    try:
        made: sources.Material = import_module(dataset_spec.MAKERS[spec.kind]).make(spec)
    except PermissionError as error:
        raise spec.error(f"{in_one_line(error)}; make it readable") from error
    origin, facts = made.origin, spec.model_dump(exclude={*dataset_spec.foreign_keys(spec.kind)})
    facts["asked_revision"] = facts.pop("revision")  # beside the one that was found
    facts |= {**made.facts, "revision": origin.revision, "synthetic": origin.synthetic}
    facts |= {f"{name}_sha256": prepared.array_sha256(of) for name, of in made.arrays.items()}
    facts["sha256"] = prepared.combined_sha256(facts)
    dataset_spec.check_facts(facts, f"dataset '{spec.name}'")
    read = sources.read(spec, origin, sources_state)
    files = {sources.SOURCES_FILE: json.dumps(read, indent=1).encode() + b"\n"}
    if made.tokenizer:
        files["tokenizer.json"] = made.tokenizer
    files["dataset.json"] = json.dumps(facts, indent=2, ensure_ascii=False).encode() + b"\n"
    with writing(output_dir):
        # Deleted first and written last: without it a folder counts as not prepared, so that a
        # crash leaves no mixture of old and new.
        (output_dir / "dataset.json").unlink(missing_ok=True)
        for name, array in made.arrays.items():
            with temporary.opened(output_dir / f"{name}.npy") as stream:
                np.save(stream, array, allow_pickle=False)
        for name, content in files.items():
            temporary.write(output_dir / name, content)
    return facts


def record_failure(spec: DatasetSpec, output_dir: Path, reason: str) -> None:
    """Write a folder that says why there are no data; the next run prepares it again."""
    again = json.dumps({"state": f"tried at {time.time_ns()} ns", "roots": {}}).encode()
    facts = {"name": spec.name, "kind": spec.kind, prepared.FAILED_FILE: reason}
    for name in reversed(dataset_spec.files(spec.kind)):  # dataset.json last
        is_facts = name == prepared.FACTS_FILE
        temporary.write(output_dir / name, json.dumps(facts, indent=2) if is_facts else b"")
    temporary.write(output_dir / sources.SOURCES_FILE, again)


def _tried(spec: DatasetSpec, dataset: str, output_dir: Path, state: str) -> str | None:
    """Prepare in a process of its own, which may be killed; return why that failed, or None."""
    command = [sys.executable, "-P", "-m", "siliconprof.datasets.prepare", "--dataset", dataset]
    done = subprocess.run(
        [*command, "--output-dir", str(output_dir), "--sources-state", state],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    sys.stderr.write(done.stderr)
    if not (status := done.returncode):
        return None
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    reason = last if status > 0 else f"{killed_by(-status)}; {last}"
    named = f"dataset '{spec.name}': "
    return named + (reason.removeprefix(named) or f"ended with status {status}")


def main(
    *,
    dataset: Annotated[str, "the data set as JSON: name, source, ..."],
    output_dir: Annotated[Path, "results/data/NAME"],
    sources_state: Annotated[str, "what `sources.state` says of it"] = sources.NEW,
    record_failure_: Annotated[
        bool,
        "where it cannot be prepared, have dataset.json say why, for its cells, and end with 0",
    ] = False,
) -> None:
    """Run the stage, in a process that finds only the packages that it needs.

    Raises:
        PrepareError: see `prepare`.
    """
    spec = dataset_spec.parse(dataset)
    if record_failure_:
        if reason := _tried(spec, dataset, output_dir, sources_state):
            record_failure(spec, output_dir, reason)
            print(f"{reason} (its cells fail; the next run tries again)")
        return
    readers = () if spec.source == "builtin" else dataset_spec.READERS[spec.kind]
    needed = dataset_spec.KIND_LIBRARIES[spec.kind] + readers
    packages.hide(packages.all_but(frozenset(needed)))
    try:
        facts = prepare(spec, output_dir, sources_state)
    except Exception as error:
        if not isinstance(error, UserError) and (why := packages.failure(needed)):
            raise spec.error(why) from error
        raise
    label = "synthetic, " if facts["synthetic"] else ""
    counts = [f"{n} {key[2:]}" for key, n in facts.items() if key.startswith("n_")]
    skipped = json.dumps(facts.get("skipped") or [])
    print(
        f"dataset '{spec.name}': {label}{', '.join(counts)}; skipped: {skipped}; "
        f"SHA-256 {facts['sha256']}"
    )


if __name__ == "__main__":
    # Arrow's read-ahead threads abort the interpreter's teardown when a parquet file was left
    # half-read (apache/arrow issues 34314 and 45214), which a limit or a wrong column causes.
    leave(stage(partial(options.call, main)))
