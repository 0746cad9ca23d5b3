"""What a pipeline does in its checkout before Snakemake looks: mends what earlier ones left.

Only the main process of a run that may write does this, once. What a killed pipeline leaves: its
locks (`lock`), jobs in a cluster's queue (`slurm`), files that it was writing (`temporary`),
finished records that it did not live to note (`settle_records`). What a clock leaves that was ahead:
files of the future, beside which no edit looks new.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from siliconprof.cells import freshness, matrix
from siliconprof.cells.matrix import PlannedCell
from siliconprof.errors import CannotWrite, UserError, writing
from siliconprof.measure import lock, supervise, takeover
from siliconprof.pipeline import slurm
from siliconprof.store import documents, record, records, temporary

ROOM_BYTES = 2**20  # less is not worth beginning with: the page alone takes more
LONG_AGO_S = 1  # since 1970: older than any code; 0 is no time at all to Snakemake
SAME_TIME_S = 2.0  # two hosts' clocks, or a coarse file system's


def prepare(results: Path, planned: Sequence[PlannedCell], through: str | None = None) -> None:
    """Mend what can be mended.

    Args:
        planned: the cells of this run, as far as they are known.
        through: the executor that jobs are submitted through; None when they stay here.

    Raises:
        CannotWrite: a disk is full or read-only; one line.
    """
    require_room(lock.SNAKEMAKE_FOLDER)
    require_room(results)
    lock.start_alone()
    killed = lock.clear_stale()
    if through == slurm.EXECUTOR:  # before anybody looks at what they may still write
        slurm.clear_left_jobs(cancel=killed)
    temporary.sweep(results)
    temporary.remove(results / "history" / supervise.CHECKS)  # of earlier runs
    if lock.nobody_else():  # what another is writing at this moment is no damage
        # Of a killed run: Snakemake would stop at copies of outputs that it has already made.
        temporary.remove(lock.SNAKEMAKE_FOLDER / "backups")
        remake_incomplete(planned)
        takeover.offer(settle_records(planned, results), results / "history")
    else:  # nobody knows what the other has deleted or forces
        takeover.offer([], results / "history")
    set_back(results)


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
    retired: set[str] = set()
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
            retired.add(name)
        if not dry_run:
            if path.exists():
                record.retire(path, folder, sha256)
            if kept is not None:
                record.restore(path, kept)
    if not dry_run:
        notes.store()
    elif retired:
        _hide(retired)
    for text, count in changes.most_common():
        print(f"{count} cell{'s' * (count > 1)}: {text}", file=sys.stderr)
    return answering


def _hide(names: set[str]) -> None:
    """Have Snakemake decide in a dry run, which moves no record, as if these were gone."""
    from snakemake import io

    asked = io._IOFile.exists_local

    async def exists_local(self: Any) -> Any:
        return str(self) not in names and await asked(self)

    io._IOFile.exists_local = exists_local


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


def require_room(folder: Path) -> None:
    """See that something can be written to a folder.

    Raises:
        CannotWrite: it cannot; one line.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trial = temporary.beside(folder / "trial")
        try:
            trial.write_bytes(bytes(ROOM_BYTES))
        finally:
            temporary.remove(trial)


def hear_sigterm() -> None:
    """Have SIGTERM end Snakemake whenever it comes.

    Snakemake 9 takes its scheduler's lock in the signal's handler (`scheduling/job_scheduler.py`,
    `exit_gracefully`), which runs in the main thread: where that holds the lock at this moment it
    waits for itself for ever. In a thread of its own the handler waits until the lock is free.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler):
        return

    def beside(signum: int, frame: object) -> None:
        threading.Thread(target=handler, args=(signum, frame), daemon=True).start()

    signal.signal(signal.SIGTERM, beside)


def explain(results: Path) -> None:
    """Say why a run has failed, where that is a disk: its own log may not have had room for it."""
    for folder in (results, lock.SNAKEMAKE_FOLDER):
        try:
            require_room(folder)
        except CannotWrite as error:
            print(error, file=sys.stderr)


# What rules make from records, each before what it is made of.
PAGES = ("report.html", "study.html")
ANALYSED = (
    *("claims", "predicted", "published_gaps", "attribution", "expected", "scaling", "ceilings"),
    "checks",
)
DERIVED = (
    *PAGES,
    "errors.txt",
    "figures/.snakemake_timestamp",
    "drawn/.snakemake_timestamp",
    *(f"tables/{name}.csv" for name in ANALYSED),
    "results.csv",
    "tables/*.csv",
    "reference/*/.snakemake_timestamp",
    "retried.txt",
    "matrix.json",
)


def _ahead(path: str | Path, now_s: float) -> bool:
    """Whether a file or link carries a time that is still to come."""
    try:
        return os.lstat(path).st_mtime > now_s
    except OSError:
        return False  # gone


def _outdated_times(results: Path) -> dict[str, float]:
    """Path -> an old time, of what rules have made and a clock that was ahead has dated.

    Nothing that is edited from now on is newer than those, so Snakemake would keep them whatever
    changes. Next to old files it looks at the content of their inputs instead. What is made from
    records gets times in the order against that of making, so that it looks at all of it.
    """
    latest_s = time.time() + SAME_TIME_S
    derived = list(dict.fromkeys(path for part in DERIVED for path in sorted(results.glob(part))))
    if not any(_ahead(path, latest_s) for path in derived):
        derived = []
    times = {path.as_posix(): float(LONG_AGO_S + place) for place, path in enumerate(derived)}
    data = (path.as_posix() for path in results.glob("data/*/*"))
    return times | {path: float(LONG_AGO_S) for path in data if _ahead(path, latest_s)}


def set_back(results: Path) -> None:
    """Date anew what carries a time of the future: records now, what is made of them long ago.

    A record has been asked by `settle_records`, whatever its time; tables that are older than it
    are compared with it.
    """
    now_s = time.time()
    folder = results / "records"
    names = (f"{folder}/{name}" for name in records.listed(folder))
    times = {name: now_s for name in names if _ahead(name, now_s + SAME_TIME_S)}
    for path, then_s in (_outdated_times(results) | times).items():
        with suppress(OSError):  # gone, or not ours to change
            os.utime(path, (then_s, then_s), follow_symlinks=False)


def show_set_back(results: Path) -> None:
    """Have Snakemake decide in a dry run, which changes no file, by the times of a real one."""
    from snakemake import io

    times, asked = _outdated_times(results), io._IOFile.mtime_uncached

    async def mtime_uncached(self: Any, skip_storage: bool = False) -> Any:
        then_s = times.get(str(self), times.get(f"{self}/.snakemake_timestamp"))
        return io.Mtime(local=then_s) if then_s else await asked(self, skip_storage)

    if times:
        io._IOFile.mtime_uncached = mtime_uncached


def bring_to_now(inputs: Iterable[str]) -> None:
    """Give inputs of the future the time of now; what is due has been decided already.

    Snakemake refuses what a job has made where it is older than an input ("clock skew"). An edit
    from now on makes them newer again, and content that has not changed is no reason to remake.

    Args:
        inputs: of the jobs that are about to run.

    Raises:
        UserError: some are not ours to change, one line each.
    """
    now_s = time.time()
    lines = []
    for path in sorted(inputs):
        carrier = f"{path}/.snakemake_timestamp"  # as Snakemake has it of a folder
        file = carrier if os.path.exists(carrier) else path
        for name in [file, os.path.realpath(file)] if os.path.islink(file) else [file]:
            if _ahead(name, now_s):
                try:
                    os.utime(name, (now_s, now_s), follow_symlinks=False)
                except OSError as error:
                    written = datetime.fromtimestamp(os.lstat(name).st_mtime)
                    lines.append(
                        f"{name}: is dated {written:%Y-%m-%d %H:%M}, ahead of this host's clock, and "
                        f"cannot be changed ({error.strerror}); set the clock, or have its owner "
                        "`touch` it"
                    )
    if lines:
        raise UserError("\n".join(lines))
