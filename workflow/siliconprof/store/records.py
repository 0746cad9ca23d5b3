"""The records of a folder of results as a collection."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from siliconprof.store.cell import RECORD

HERE, IMPORTED, REFERENCE = "this host", "another host", "reference"  # whose a record is


def foreign_records(results: Path, own: Collection[str]) -> Iterator[Path]:
    """Records of hosts that this run does not measure: imported, shared or collected.

    Files that are not named as a record are left out, see `misnamed`: Snakemake could read such a
    name as a pattern, and a shell as a command.

    Args:
        own: labels of this run's hosts.
    """
    folder = results / "records"
    for host in sorted(folder.glob("*")):
        if host.is_dir() and host.name not in own:
            for name in listed(host):
                if RECORD.fullmatch(f"{host.name}/{name}"):
                    yield host / name


def misnamed(results: Path) -> list[Path]:
    """JSON files below `records/` whose path cannot be a record's."""
    folder = results / "records"
    return [folder / name for name in listed(folder) if not RECORD.fullmatch(name)]


def listed(folder: Path) -> list[str]:
    """Names of what ends in `.json` below a folder, relative to it, as `Path.rglob` sorts them.

    There may be ten thousand, and every start lists them: `rglob` takes five times as long.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        found += [f"{parent}/{name}" for name in (*folders, *files) if name.endswith(".json")]
    start = len(f"{folder}/")
    return sorted((name[start:] for name in found), key=lambda name: name.split("/"))
