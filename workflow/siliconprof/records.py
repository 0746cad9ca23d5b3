"""The records of a checkout as a collection: finding damage, setting it aside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from siliconprof import closure, record
from siliconprof.errors import UserError, writing


def damaged(paths: Iterable[str | Path]) -> dict[Path, UserError]:
    """Existing records that cannot be used, and why.

    Content, hash and place are checked, not the schema: this runs at every start. An own record of an
    earlier version is whole: its cell's code has changed, so it is measured anew in any case, and
    the history keeps it.
    """
    found = {}
    for path in map(Path, paths):
        if path.exists():
            try:
                record.read_in_place(path, check_schema=False)
            except record.OlderRecord:
                continue
            except UserError as error:
                found[path] = error
    return found


def set_aside(path: Path, results: Path, dry_run: bool = False) -> Path:
    """Move a record to `results/damaged/`; where it is now.

    Raises:
        CannotWrite: one line.
    """
    kept = results / "damaged" / path.relative_to(results / "records")
    kept = kept.with_name(f"{path.stem}.{closure.sha256(path)[:12]}.json")
    if not dry_run:
        with writing(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, kept)
    return kept


def set_damaged_aside(paths: Iterable[str | Path], results: Path, dry_run: bool) -> None:
    """Move damaged records to `results/damaged/`, where no stage reads, and stop.

    Those of a newer checkout stop it too and stay where they are: nothing is wrong with them.

    Raises:
        UserError: there were some; one line each says where it is now and how to go on.
    """
    lines = []
    for path, what in damaged(paths).items():
        if isinstance(what, record.NewerRecord):
            lines.append(
                f"{what}: go on with that, or delete the file to have the cell measured anew"
            )
            continue
        kept = set_aside(path, results, dry_run)
        verb = "would be set" if dry_run else "set"
        lines.append(
            f"{what}; {verb} aside as {kept}: run the same command again to measure the cell "
            "anew, or restore a record from results/history/"
        )
    if lines:
        raise UserError("\n".join(lines))
