"""Take over a record from the history where it still answers for the cell that is to be measured.

Snakemake runs a job again for reasons of its own: it was killed before it noted that the record
was done, its notes were lost with `.snakemake/`, an input was made again with the same content, an
edit was undone. A record names its own cell, code, versions and data. So the start of a run lists
the records that answer today's cells (`pipeline.startup`), and `measure` takes such a record from
the history. A cell whose record somebody has deleted is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets import prepared
from siliconprof.errors import UserError
from siliconprof.store import record, temporary
from siliconprof.store.cell import Cell, identity

if TYPE_CHECKING:
    from siliconprof.store.contents import Record

ANSWERS = "answers.txt"  # in the history: hashes of the records that this run may take over


def offer(sha256s: Iterable[str], history: Path) -> None:
    """Write the list of records that the jobs of this run may take over.

    Args:
        sha256s: hashes of the records.
        history: the folder `results/history`.

    Raises:
        CannotWrite: one line.
    """
    temporary.write(history / ANSWERS, "".join(f"{sha256}\n" for sha256 in sha256s))


def find(
    cell: Cell,
    code_of: Callable[[Cell], Mapping[str, Any]],
    declared: Mapping[str, Any],
    history: Path | None,
) -> Path | None:
    """A record of the history that answers for this cell; None when it must be measured.

    Args:
        code_of: gives fingerprint and modules of a cell's method code, today.
        declared: versions that the pipeline declares, today.
        history: the folder `results/history`.
    """
    if history is None:
        return None
    try:
        offered = set((history / ANSWERS).read_text(encoding="ascii").split())
    except (OSError, UnicodeDecodeError):
        return None
    for path in sorted((history / cell.path).glob("*.json")):
        if path.stem in offered:
            try:
                if _answers(record.load(path), cell, code_of(cell), declared):
                    return path
            except (UserError, OSError):
                continue
    return None


def _answers(
    stored: Record, cell: Cell, code: Mapping[str, Any], declared: Mapping[str, Any]
) -> bool:
    """Whether measuring the cell now would give this record again, apart from noise.

    The record of a failed cell need not say which data it read: such a cell is measured again.
    """
    untried = stored.status in ("unsupported", "skipped")
    if cell.dataset and not untried:
        now = prepared.read_facts(Path(cell.dataset)).get("sha256")
        if stored.dataset.data_sha256 is None or stored.dataset.data_sha256 != now:
            return False
    if cell.parameters.get("weights") == "pretrained" and not untried:
        if not stored.method.weights:
            return False
    return (
        identity(vars(stored.cell)) == identity(vars(cell))
        and stored.code.fingerprint == code["fingerprint"]
        and stored.environment.declared == declared
        and stored.method_version == record.METHOD_VERSION
    )
