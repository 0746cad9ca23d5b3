"""What a pipeline does in its checkout before Snakemake looks: mends what earlier ones left.

Only the main process of a run that may write does this, once. What a killed pipeline leaves: files
that it was writing (`temporary`), finished records that it did not live to note (`settle_records`).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from siliconprof.cells import freshness, matrix
from siliconprof.cells.matrix import PlannedCell
from siliconprof.errors import UserError, writing
from siliconprof.measure import supervise, takeover
from siliconprof.store import documents, record, records, temporary


def prepare(results: Path, planned: Sequence[PlannedCell]) -> None:
    """Mend what can be mended.

    Args:
        planned: the cells of this run, as far as they are known.

    Raises:
        CannotWrite: a disk is full or read-only; one line.
    """
    if any(Path(".snakemake/locks").glob("*")):
        return  # another run goes on here, or was killed: Snakemake tells, and ends
    temporary.sweep(results)
    temporary.remove(results / "history" / supervise.CHECKS)  # of earlier runs
    # Of a killed run: Snakemake would stop at copies of outputs that it has already made.
    temporary.remove(Path(".snakemake/backups"))
    remake_incomplete(planned)
    takeover.offer(settle_records(planned, results), results / "history")


def settle_records(
    planned: Iterable[PlannedCell], results: Path, dry_run: bool = False
) -> list[str]:
    """Ask every record whether it answers for its cell today; hashes of those that do.

    Snakemake knows what a record was made with by notes that can be lost, and asks no record. So
    one that does not answer makes room for the newest of the history that does, else it goes, and
    Snakemake finds the cell without a record. What has changed is said in words.

    Raises:
        CannotWrite: one line.
    """
    history = results / "history"
    notes = records.Notes(history)
    answering: list[str] = []
    changes: Counter[str] = Counter()
    for one in planned:
        name, folder, sha256 = matrix.record_path(one.cell), history / one.cell.path, ""
        path = Path(name)
        if os.path.exists(name):
            question, note = freshness.question(one), notes.of(name)
            if note and note.get("answers") == question:
                answering.append(note["sha256"])
                if not dry_run:
                    record.forget_retired(folder)
                continue
            try:
                found = record.read(path, check_schema=False)
                sha256, why = found["sha256"], freshness.outdated(one, found)
            except record.OtherVersion as error:
                sha256 = documents.read(path)["sha256"]
                why = [str(error).removeprefix(f"{path}: ")]
            except UserError:
                continue  # it has been named, see `records.unreadable`
            if not why:
                answering.append(sha256)
                notes.add(path, sha256, question)
                if not dry_run:
                    record.keep_in_history(folder, sha256, path.read_text(encoding="utf-8"))
                    record.forget_retired(folder)
                continue
        elif record.retired(folder):
            why = ["its record was retired"]
        else:
            continue
        kept = next((k for k in record.earlier(folder, sha256) if _answers(one, k)), None)
        if kept is not None:
            changes["an earlier record answers and is taken from results/history"] += 1
            answering.append(kept.stem)
        else:
            changes.update(f"measured again: {reason}" for reason in why)
        if not dry_run:
            if path.exists():
                record.retire(path, folder, sha256)
            if kept is not None:
                record.restore(path, kept)
    if not dry_run:
        notes.store()
    for text, count in changes.most_common():
        print(f"{count} cell{'s' * (count > 1)}: {text}", file=sys.stderr)
    return answering


def _answers(planned: PlannedCell, path: Path) -> bool:
    """Whether a record of the history answers for a cell."""
    try:
        return not freshness.outdated(planned, record.read(path, check_schema=False))
    except UserError:
        return False


def remake_incomplete(planned: Iterable[PlannedCell]) -> None:
    """Have data prepared again of which an array is missing.

    Raises:
        CannotWrite: one line.
    """
    for array in sorted({Path(array) for one in planned for array in one.arrays}):
        facts = array.with_name("dataset.json")
        if facts.exists() and not array.exists():
            with writing(facts):
                facts.unlink()
            print(f"{array}: missing; it is prepared again", file=sys.stderr)
