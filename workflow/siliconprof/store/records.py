"""The records of a folder of results as a collection."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from siliconprof.store.cell import RECORD

HERE, IMPORTED, REFERENCE = "this host", "another host", "reference"  # whose a record is


def foreign_records(results: Path, own: Collection[str]) -> Iterator[Path]:
    """Records of hosts that this run does not measure: imported, shared or collected.

    Files that are not named as a record are left out: Snakemake could read such a name as a
    pattern, and a shell as a command.

    Args:
        own: labels of this run's hosts.
    """
    folder = results / "records"
    for host in sorted(folder.glob("*")):
        for path in sorted(host.rglob("*.json")) if host.name not in own else ():
            if RECORD.fullmatch(path.relative_to(folder).as_posix()):
                yield path
