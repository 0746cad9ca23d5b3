"""Golden results: records of three small runs, and the tables that today's code makes of them.

    python tests/golden/update.py                    make the tables anew, and say what changes
    python tests/golden/update.py page NAME DIR      make the page of a run: DIR/results/report.html
    python tests/golden/update.py freeze NAME DIR    take the records of a finished run from DIR/results

`records/NAME.tar.xz` has a run's matrix, hosts and records, of which each series of raw times is
thinned to 20 values: `default` is the default run on a CPU, `h200` and `m2` are runs on simulated
GPUs. `tables/NAME.tar.xz` has the tables.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = ("default", "h200", "m2")
MOST_VALUES = 20
TOLERANCE = 1e-9


def _pack(folder: Path, archive: Path, pattern: str = "**/*.json") -> None:
    """Pack a folder's files in a fixed order, without times or owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.glob(pattern)):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as stream:
                tar.addfile(entry, stream)
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(archive: Path, folder: Path) -> Path:
    """The folder, with an archive's files in it."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(folder)  # our own; Python 3.11.2 knows no filter
    return folder


def _thin(values: list[Any]) -> list[Any]:
    """Up to 20 of a list, evenly spread."""
    places = np.linspace(0, len(values) - 1, min(len(values), MOST_VALUES)).round().astype(int)
    return [values[place] for place in places]


def thinned(record: dict[str, Any]) -> dict[str, Any]:
    """The record with at most 20 values of each series; steps still belong to their times."""
    record["samples"] = _thin(record["samples"])
    for point in record["points"]:
        point["times"] = {name: _thin(values) for name, values in point["times"].items()}
        for row in (point.get("operators") or {}).get("rows", []):
            row["seconds"] = row.get("seconds") and _thin(row["seconds"])
        if steps := point.get("steps"):
            kinds = steps["kind"]
            of_kinds = {kind: [i for i, one in enumerate(kinds) if one == kind] for kind in kinds}
            chosen = sorted(place for places in of_kinds.values() for place in _thin(places))
            lists = {name: v for name, v in steps.items() if isinstance(v, list)}
            steps |= {name: [values[place] for place in chosen] for name, values in lists.items()}
    return record


def seal(path: Path, record: dict[str, Any]) -> None:
    """Write a record with the hash of its content."""
    from siliconprof.store.record import content_sha256

    record["sha256"] = content_sha256(record)
    path.write_text(json.dumps(record, sort_keys=True), encoding="utf-8")


def freeze(name: str, run: Path) -> None:
    """Keep the records of a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "results")
        for part in ("hosts", "records"):
            shutil.copytree(run / "results" / part, copy / part)
        shutil.copy(run / "results/matrix.json", copy)
        for path in copy.glob("records/**/*.json"):
            seal(path, thinned(json.loads(path.read_text(encoding="utf-8"))))
        _pack(Path(folder), HERE / "records" / f"{name}.tar.xz")


def make_tables(name: str, folder: Path) -> Path:
    """The folder of the tables that today's code makes of a run's records, the exhibits' among them."""
    return make_page(unpack(HERE / "records" / f"{name}.tar.xz", folder))


def make_page(folder: Path) -> Path:
    """The folder of the tables, made of the records of a run below `results/`, and its page."""
    tables, figures = folder / "results/tables", folder / "results/figures"
    environment = {"PYTHONPATH": str(ROOT / "workflow"), "SILICONPROF_ACCEPT_SIMULATED": "1"}
    for module in ("analyse.aggregate", "pipeline.analyse", "render.page"):
        subprocess.run(
            [sys.executable, "-m", f"siliconprof.{module}", "--matrix", "results/matrix.json"],
            cwd=folder,
            env=os.environ | environment,
            check=True,
        )
    for path in figures.glob("*.csv"):
        path.replace(tables / f"page-{path.name}")
    return tables


def read(path: Path) -> pd.DataFrame:
    """A table, its rows in the order of their content."""
    frame = pd.read_csv(path, low_memory=False)
    frame = frame[sorted(frame.columns)]
    text = frame.select_dtypes(exclude="number").columns
    keys = [*text, *frame.columns.difference(text)]
    return frame.sort_values(keys, kind="stable", ignore_index=True) if keys else frame


def differences(expected: Path, found: Path) -> list[str]:
    """What differs between two folders of tables, a line a table or a column."""
    old, new = ({path.name for path in folder.glob("*.csv")} for folder in (expected, found))
    lines = [f"{name}: {'gone' if name in old else 'new'}" for name in sorted(old ^ new)]
    for name in sorted(old & new):
        a, b = read(expected / name), read(found / name)
        gone, more = a.columns.difference(b.columns), b.columns.difference(a.columns)
        if len(gone) or len(more):
            lines.append(f"{name}: columns gone: {', '.join(gone)}; new: {', '.join(more)}")
        if len(a) != len(b):
            lines.append(f"{name}: {len(a)} rows, now {len(b)}")
            continue
        for column in a.columns.intersection(b.columns):
            try:
                pd.testing.assert_series_equal(
                    a[column], b[column], check_dtype=False, rtol=TOLERANCE, atol=0
                )
            except AssertionError as error:
                lines.append(f"{name}: {column}: {' '.join(str(error).split())[:300]}")
    return lines


def main() -> None:
    """Make the tables anew, or a page, or take in a run's records."""
    if sys.argv[1:2] == ["page"]:
        make_tables(sys.argv[2], Path(sys.argv[3]))
        return
    if sys.argv[1:2] == ["freeze"]:
        freeze(sys.argv[2], Path(sys.argv[3]))
        return
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            tables = make_tables(name, Path(folder) / "run")
            archive = HERE / "tables" / f"{name}.tar.xz"
            for line in differences(unpack(archive, Path(folder) / "before"), tables):
                print(f"{name}: {line}")
            _pack(tables, archive, "*.csv")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "workflow"))
    main()
