"""Shared by all prepare stages: parse arguments, write the folder, end the process."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from siliconprof.datasets import dataset_spec, source_files
from siliconprof.datasets.dataset_spec import DatasetSpec, PrepareError
from siliconprof.store import temporary

if TYPE_CHECKING:
    import numpy as np

STAGES = {  # kind of data set -> the module that prepares it
    "text": "siliconprof.datasets.prepare",
    "speech": "siliconprof.datasets.prepare_speech",
    "images": "siliconprof.datasets.prepare_images",
}


def run(
    kind: str,
    description: str,
    prepare: Callable[[DatasetSpec, Path, str], dict[str, Any]],
    summary: Callable[[Mapping[str, Any]], str],
    argv: Sequence[str] | None,
) -> int:
    """Run a prepare stage and return its exit status.

    Raises:
        PrepareError: the data set is of another kind, or `prepare` failed.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {STAGES[kind]}", description=description)
    parser.add_argument("--dataset", required=True, help="the data set as JSON: name, source, ...")
    parser.add_argument(
        "--output-dir", required=True, type=Path, help="the folder to write, results/data/NAME"
    )
    parser.add_argument(
        "--sources-state",
        default=source_files.NEW,
        help="a state that the pipeline finds in sources.json again",
    )
    arguments = parser.parse_args(argv)
    spec = dataset_spec.parse(arguments.dataset)
    if spec.kind != kind:
        raise PrepareError(
            f"dataset '{spec.name}': is of kind {spec.kind}; use python -m {STAGES[spec.kind]}"
        )
    print(summary(prepare(spec, arguments.output_dir, arguments.sources_state)))
    return 0


def missing_package(spec: DatasetSpec, error: ImportError) -> PrepareError:
    """The error for a library that is not installed."""
    return PrepareError(
        f"dataset '{spec.name}': preparing needs the package '{error.name}'; "
        "install the pins in envs/"
    )


def sha256(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def write_folder(
    name: str,
    output_dir: Path,
    arrays: Mapping[str, np.ndarray],
    tokenizer_json: bytes | None,
    facts: Mapping[str, Any],
    sources: Mapping[str, Any],
) -> None:
    """Write a prepared folder.

    Call it when everything is computed. `dataset.json` is deleted first and written last, and a
    folder without it counts as not prepared, so a crash leaves no mixture of old and new.

    Args:
        tokenizer_json: None for data without tokens.
        sources: from `source_files.read`.

    Raises:
        PrepareError, CannotWrite: the folder or a file in it cannot be written.
    """
    facts_json = json.dumps(facts, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "dataset.json").unlink(missing_ok=True)
        for file, array in arrays.items():
            replace(output_dir / file, array)
        if tokenizer_json is not None:
            replace(output_dir / "tokenizer.json", tokenizer_json)
        replace(output_dir / source_files.FILE, json.dumps(sources, indent=1).encode() + b"\n")
        replace(output_dir / "dataset.json", facts_json)
    except OSError as error:
        raise PrepareError(
            f"dataset '{name}': cannot write {output_dir}: {error.strerror}; "
            "choose another --output-dir or make room"
        ) from None


def replace(path: Path, content: bytes | np.ndarray) -> None:
    """Write a file so that it is whole or absent.

    Raises:
        CannotWrite: it cannot be written; one line.
    """
    import numpy as np

    with temporary.opened(path, sealed=True) as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            np.save(stream, content, allow_pickle=False)


def end(status: int) -> NoReturn:
    """End the process without a teardown, once everything is written.

    Arrow's read-ahead threads abort the interpreter's teardown when a parquet file was left
    half-read (apache/arrow issues 34314 and 45214), which a limit or a wrong column causes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
