"""What the fault campaign does to files and clocks: cut off, dated ahead, turned."""

from __future__ import annotations

import mmap
import os
import re
import struct
import subprocess
import time
from pathlib import Path
from random import Random

from fault_checkout import PAGE, TABLES, Scratch, require, until
from fault_kinds import CHILD, Log
from siliconprof.errors import UserError
from siliconprof.store import record

ZEROED_LENGTHS = 40  # of a record, sampled
DAY_S = 86400
# What carries a time of the future -> its files
AHEAD = {
    "the host": ("results/hosts/*.json",),
    "the config": ("config/*.yaml", "config/*/*"),
    "the code": ("workflow/**/*.py", "workflow/**/*.yaml", "workflow/rules/*"),
    "the page's template": ("report/*",),
    "records": ("results/records/**/*.json",),
    "tables": ("results/tables/*.csv", "results/matrix.json"),
    "data": ("results/data/*/*",),
}


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


# -- files of the future -------------------------------------------------------------------------


def dated_ahead(base: Scratch, folder: Path, rng: Random, log: Log, count: int = 1) -> None:
    """Files carry a time of the future: nothing stops, an edit counts, nothing else is remade."""
    scratch = base.copy(folder)
    registry = scratch.path / "config/devices.yaml"
    for number in range(count):
        for kinds in (list(AHEAD), rng.sample(sorted(AHEAD), 3)):
            for kind in kinds:
                log.inject(f"dated ahead: {kind}")
                ahead_s = time.time() + rng.uniform(60, 400 * DAY_S)
                for pattern in AHEAD[kind]:
                    for path in scratch.path.glob(pattern):
                        os.utime(path, (ahead_s, ahead_s))
            before = scratch.finished()
            said = scratch.snakemake()
            require("Nothing to be done" in said, f"remade:\n{said[-3000:]}")
            registry.write_text(registry.read_text(encoding="utf-8") + f"# {number}\n")
            os.utime(registry, (time.time() + DAY_S,) * 2)
            planned, said = scratch.snakemake(TABLES, "-n"), scratch.snakemake()
            missed = "rule aggregate:" not in planned or "Nothing to be done" in said
            require(not missed, f"an edit was missed:\n{planned[-3000:]}{said[-3000:]}")
            anew = "rule measure:" in planned or re.search(r"^ *\d+/\d+  ", said, re.M)
            require(not anew, f"measured anew:\n{planned[-3000:]}{said[-3000:]}")
            scratch.intact(before)
            scratch.complete()
            log.settle()


# -- the clock -----------------------------------------------------------------------------------


class Clock:
    """The wall clock of what runs in a checkout; see `clock_shim.c`."""

    def __init__(self, scratch: Scratch, folder: Path) -> None:
        shim, path = folder / "clock_shim.so", folder / "offset"
        source = Path(__file__).with_name("clock_shim.c")
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        path.write_bytes(struct.pack("q", 0))
        with open(path, "r+b") as stream:
            self._offset = mmap.mmap(stream.fileno(), 8)
        self._scratch = scratch
        self._since_s = 0.0
        self.offset_s = 0
        scratch.environment |= {"LD_PRELOAD": str(shim), "FAULTS_CLOCK_OFFSET_FILE": str(path)}

    def set(self, offset_s: int) -> None:
        """The clock is so far off from now on."""
        self._since_s, self.offset_s = time.time(), offset_s
        self._offset[:] = struct.pack("q", offset_s)

    def age_files(self) -> None:
        """What was written since then would carry the clock's time: the kernel's is as it was."""
        for path in self._scratch.path.rglob("*"):
            if path.is_file() and not path.is_symlink():
                written_s = path.stat().st_mtime
                if self._since_s <= written_s <= time.time():
                    os.utime(path, (written_s + self.offset_s,) * 2)


def clock_jumps(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """The wall clock jumps a day ahead, or back, in the middle of a cell."""
    scratch = base.copy(folder, products=1)
    clock = Clock(scratch, folder)
    order: dict[Path, list[str]] = {path: [] for path in scratch.finished()}
    for seed in range(1, count + 1):
        scratch.configure(seed=seed)
        process = scratch.begin_snakemake()
        until(lambda: scratch.processes(CHILD), "a cell starts")
        time.sleep(rng.uniform(0.0, 0.5))
        ahead = seed % 2 == 1
        log.inject(f"clock a day {'ahead' if ahead else 'back'}")
        clock.set(DAY_S if ahead else -DAY_S)
        require(scratch.ended(process, {}) == 0, f"failed:\n{scratch.said()[-3000:]}")
        clock.age_files()
        before = scratch.finished()
        scratch.snakemake()  # with the clock as it is now
        scratch.intact(before)
        clock.age_files()
        clock.set(0)  # and set right again
        scratch.complete()
        scratch.intact(before)
        for path in scratch.finished():
            data = record.read(path)
            order[path].append(data["sha256"])
            history = scratch.path / "results/history" / record.cell_path(data)
            earlier = record.earlier(history, data["sha256"])
            found = [other.stem for other in earlier][: len(order[path]) - 1]
            require(found == order[path][-2::-1], f"not in the order of measuring: {path}")
            times = [sample["t_s"] for sample in data["samples"]]
            require(times == sorted(times), f"times of samples go back: {path}")
        log.settle()
    log.inject("an edit after a clock that was ahead")
    clock.set(DAY_S)
    scratch.configure(seed=count + 1)
    scratch.snakemake()
    clock.age_files()
    clock.set(0)
    before = scratch.finished()
    module = scratch.path / "workflow/siliconprof/workloads/matmul.py"
    module.write_text(module.read_text(encoding="utf-8") + "\nANOTHER = 1\n", encoding="utf-8")
    scratch.snakemake()
    unchanged = [path for path, sha256 in scratch.finished().items() if before[path] == sha256]
    require(not unchanged, f"edited, and not measured again: {unchanged}")
    scratch.complete()
    log.settle()
