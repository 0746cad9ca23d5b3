"""Records that a killed pipeline finished and did not live to note.

Snakemake notes that a job is done some time after its output is there. Killed in between, it takes
the record for a torn one, deletes it and has the cell measured again, which may cost hours. Yet a
record proves its own soundness, and says of which question, code, versions and data it is. So the
next pipeline looks, before Snakemake does, which of the records that are marked as incomplete are
sound, and hands their hashes to its jobs; `measure` then takes the record from the history, where
it answers for today's cell, and measures in every other case.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof import node_check, prepared, record
from siliconprof.cell import Cell
from siliconprof.errors import UserError

VARIABLE = "SILICONPROF_FINISHED"  # hashes of records, with spaces between them
MARKERS = Path(".snakemake/incomplete")


def _marked(markers: Path) -> Iterator[str]:
    """Outputs that Snakemake has not seen finished.

    A marker's path is the output's in base64, in pieces where that is long; all folders begin
    with `@` (Snakemake 9, `persistence/file.py`, `_record_path`).
    """
    for parent, _, names in os.walk(markers):
        for name in names:
            pieces = Path(parent, name).relative_to(markers).parts
            try:
                joined = "".join(piece.removeprefix("@") for piece in pieces)
                yield base64.urlsafe_b64decode(joined).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue  # no marker


def finished(records: Iterable[str], markers: Path = MARKERS) -> str:
    """What to hand to the jobs of this run as `VARIABLE`.

    Args:
        records: this host's, of today's matrix.
    """
    found = []
    for path in sorted(set(records) & set(_marked(markers))):
        try:
            left = record.read(Path(path), check_schema=False)
        except UserError:
            continue  # torn or gone: measured again
        # What was a wrong node's fault is tried again, see `cluster_run.Nodes.prepare`.
        if not node_check.refused(left):
            found.append(left["sha256"])
    return " ".join(found)


def find(
    cell: Cell,
    code: Callable[[], Mapping[str, str]],
    declared: Mapping[str, Any],
    history: Path | None,
) -> str | None:
    """The text of this cell's record, where an earlier pipeline finished it; None = measure.

    Args:
        code: gives path -> SHA-256 of every module that the cell can load, today.
        declared: versions that the pipeline declares, today.
        history: the folder `results/history`.
    """
    for sha256 in os.environ.get(VARIABLE, "").split():
        path = Path(history or "", cell.path, f"{sha256}.json")
        if history is None or not path.is_file():
            continue
        try:
            found = record.read(path)
            if _answers(found, cell, code(), declared):
                return path.read_text(encoding="utf-8")
        except (UserError, OSError):
            continue
    return None


def _answers(
    found: Mapping[str, Any], cell: Cell, code: Mapping[str, str], declared: Mapping[str, Any]
) -> bool:
    """Whether a record is what measuring the cell now would give, but for chance."""
    used = found["method"].get("weights") or {}
    if used.get("weights_sha256") and not used.get("weights_revision"):
        return False  # of a person's own folder, at which nobody has looked now
    if cell.dataset and found["dataset"] is not None:
        now = prepared.read_facts(Path(cell.dataset)).get("sha256")
        if found["dataset"]["data_sha256"] != now:
            return False
    return (
        found["cell"] == json.loads(cell.to_json())
        and found["code"] == dict(code)
        and found["environment"]["declared"] == dict(declared)
        and found["method_version"] == record.METHOD_VERSION
        and found["schema_version"] == record.SCHEMA_VERSION
    )
