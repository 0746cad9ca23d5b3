"""What the fault campaign does to files: cut off, ending in zeros."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from fault_checkout import PAGE, Scratch, require
from fault_kinds import Log
from siliconprof.errors import UserError
from siliconprof.store import record

ZEROED_LENGTHS = 40  # of a record, sampled


# -- files cut off -------------------------------------------------------------------------------


def refuses(path: Path) -> bool:
    """Whether a record is refused."""
    try:
        record.read(path)
    except UserError:
        return True
    return False


def record_lengths(base: Scratch, folder: Path, rng: Random, log: Log, step: int = 1) -> None:
    """One real record cut off at every length, and its end filled with zeros at some."""
    whole = min((path.read_bytes() for path in base.record_files()), key=len)
    path = folder / "cut.json"
    path.write_bytes(whole)
    require(not refuses(path), "the whole record is refused")
    text_end = len(whole.rstrip())  # without its last line's end a record is still whole
    for length in range(text_end - 1, -1, -step):
        log.inject("record cut off (reader)")
        os.truncate(path, length)
        require(refuses(path), f"read though it was cut off at byte {length} of {len(whole)}")
    for length in rng.sample(range(text_end), ZEROED_LENGTHS):
        log.inject("record with a tail of zeros (reader)")
        path.write_bytes(whole[:length] + bytes(len(whole) - length))
        require(refuses(path), f"read though it is zero from byte {length}")
    log.settle()


def cut_off_files(base: Scratch, folder: Path, rng: Random, log: Log, records: bool = True) -> None:
    """A host file and records are cut off or end in zeros; the pipeline tells how to mend it."""
    scratch = base.copy(folder)
    before = scratch.finished()
    log.inject("cut off: the host file")
    host = scratch.path / "results/hosts/desk.json"
    _damage(host, rng, zeros=False)
    said = scratch.snakemake(fails=True)
    told = [line for line in said.splitlines() if "hosts/desk.json: damaged" in line]
    require(told and "delete it" in told[0], f"not told:\n{said[-2000:]}")
    host.unlink()  # as the line says
    scratch.snakemake(PAGE)
    scratch.intact(before)
    log.settle()
    if not records:
        return

    damaged = rng.sample(sorted(before), 3)
    for number, path in enumerate(damaged):
        log.inject("record cut off (pipeline)")
        _damage(path, rng, zeros=number % 2 == 1)
    said = scratch.snakemake(PAGE)
    for path in damaged:
        name = path.relative_to(scratch.path).as_posix()
        lines = [line for line in said.splitlines() if line.startswith(f"{name}: damaged record")]
        require(len(lines) == 1 and "delete it" in lines[0], f"not named: {name}\n{said}")
        path.unlink()  # as the line says
    scratch.complete(target="report")  # a table alone does not miss what it was made from
    scratch.intact(before, but=frozenset(damaged))
    log.settle()


def _damage(path: Path, rng: Random, zeros: bool) -> None:
    """Cut a file off somewhere, or fill its end with zeros."""
    size = path.stat().st_size
    os.truncate(path, rng.randrange(size - 2))
    if zeros:
        os.truncate(path, size)
