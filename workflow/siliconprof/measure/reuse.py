"""Give a record back from the history where it is exactly what measuring its cell would be about.

An edit that was undone, a library that was put back: the history has a record of the same cell, code,
versions and data. The latest one is never given back: whoever has Snakemake measure a cell whose
latest record answers (`--forcerun measure`, a record deleted by hand) wants it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import prepared
from siliconprof.errors import UserError
from siliconprof.store import record
from siliconprof.store.cell import Cell, identity

if TYPE_CHECKING:
    from siliconprof.store.contents import Record


def find(
    cell: Cell, code: Mapping[str, Any], declared: Mapping[str, Any], history: Path
) -> Path | None:
    """The newest record of the history that answers for this cell; None when it must be measured.

    Args:
        code: fingerprint and modules of the cell's method code, today.
        declared: versions that the pipeline declares, today.
        history: the folder `results/history`.
    """
    for number, path in enumerate(record.earlier(history / cell.path)):
        try:
            stored = record.load(path)
            if _answers(stored, cell, code, declared):
                return path if number and stored.status == "ok" else None
        except (UserError, OSError):
            continue
    return None


def _answers(
    stored: Record, cell: Cell, code: Mapping[str, Any], declared: Mapping[str, Any]
) -> bool:
    """Whether measuring the cell now would give this record again, apart from noise."""
    if cell.dataset:
        now = prepared.read_facts(Path(cell.dataset)).get("sha256")
        if stored.dataset.data_sha256 is None or stored.dataset.data_sha256 != now:
            return False
    if cell.parameters.get("weights") == "pretrained" and not stored.method.weights:
        return False
    return (
        identity(vars(stored.cell)) == identity(vars(cell))
        and stored.code.fingerprint == code["fingerprint"]
        and stored.environment.declared == declared
    )
