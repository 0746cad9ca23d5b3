"""What the fault campaign does to processes and disks, kind by kind, and what must hold after each.

Each function takes a measured checkout to copy, a folder to work in, random numbers and a log;
it injects and then looks, and raises `Broken` where something was lost.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import cycle
from pathlib import Path
from random import Random
from subprocess import Popen

import psutil
import shared
from fault_checkout import PAGE, WORDS, Scratch, kill, no_overlaps, option, require, until

LINUX = sys.platform == "linux"  # elsewhere daemons that have left the cell's group are not found
SUPERVISOR, CHILD = "siliconprof.measure", "siliconprof.measure.worker"
PACK, IMPORT = "siliconprof.remote.bundle_pack", "siliconprof.remote.bundle_import"
# A cell that leaves one daemon by fork and setsid, one by two forks, one in a session of its own.
DAEMONS = """\
import os
import subprocess
import time

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    frameworks = ("torch", "mlx")
    REQUIRED = ()
    PARAMETERS = {}

    def measure(self, session):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        for n_forks in (1, 2):
            if os.fork() == 0:
                os.setsid()
                if n_forks == 2 and os.fork():
                    os._exit(0)
                while True:
                    time.sleep(60)
        time.sleep(0.5)
        times = {"step_s": [0.5, 0.5]}
        point = {"params": {"note": "daemons"}, "times": times, "flops": None, "bytes": None}
        session.add_point(point | {"memory": session.memory()})
"""
# How runs end, in turn, by chance one of these might never come; None is by itself.
# (what it is, how, whether Snakemake then deletes the output of the job that it breaks off)
Ending = tuple[str, Callable[[Popen], None], bool] | None
ENDINGS: tuple[Ending, ...] = (
    ("kill -9 of snakemake", Popen.kill, False),  # a record that is there is whole
    ("SIGINT to the terminal's group", lambda run: os.killpg(run.pid, signal.SIGINT), True),
    None,
)


@dataclass
class Log:
    """What was injected, what of it was survived, and how long that took."""

    injected: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _pending: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def inject(self, kind: str) -> None:
        """A fault is being injected."""
        self.injected[kind] += 1
        self._pending.append(kind)

    def settle(self) -> None:
        """All that was injected since the last time has been survived."""
        now = time.monotonic()
        self.survived.update(self._pending)
        for kind in self._pending:
            share_s = (now - self._since) / len(self._pending)
            self.seconds[kind] = self.seconds.get(kind, 0.0) + share_s
        self._pending, self._since = [], now

    def add(self, other: Log) -> None:
        """Take in another log."""
        self.injected += other.injected
        self.survived += other.survived
        for kind, seconds in other.seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.problems += other.problems


# -- kills ---------------------------------------------------------------------------------------


def workload_of(process: psutil.Process) -> str | None:
    """The cell of a supervisor or child, None when it has just ended."""
    cell = option(process, "--cell")
    return json.loads(cell)["workload"] if cell else None


def kills(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """Snakemake, supervisor and child are killed, several in one run, over and over again.

    One of the cells leaves daemons, which must end with it, and with whatever of it is killed.
    """
    scratch = base.copy(folder, products=6)
    (scratch.path / "workflow/siliconprof/workloads/daemons.py").write_text(DAEMONS)
    daemons = {"module": "daemons", "device_kinds": ["cpu"]}
    scratch.configure(workloads=scratch.config["workloads"] | {"daemons": daemons})
    seeds, endings = numbers(1), cycle(ENDINGS)
    with no_overlaps(scratch):
        while count > 0:
            scratch.configure(seed=next(seeds))  # all are due again, and the old records lie there
            log.inject("daemons that a cell leaves")
            allowed: set[str] = set()
            while count > 0 and len(scratch.finished()) < len(scratch.config["workloads"]):
                count -= _run_with_kills(scratch, rng, log, count, allowed, next(endings))
            scratch.complete(frozenset(allowed))
            (path,) = (path for path in scratch.finished() if "daemons" in path.parts)
            made = json.loads(path.read_text())
            codes = [flag["code"] for flag in made["flags"]]
            flagged = "left_processes" in codes or made["status"] != "ok" or not LINUX
            require(flagged, f"flags: {codes}")
            log.settle()


def _run_with_kills(
    scratch: Scratch, rng: Random, log: Log, most: int, allowed: set[str], ending: Ending
) -> int:
    """One run, to whose processes things happen at random moments; how many."""
    process = scratch.begin_snakemake()
    injected, end_at = 0, time.monotonic() + (rng.uniform(0.2, 5.0) if ending else math.inf)
    before, exempt = scratch.finished(), set()
    while process.poll() is None and injected < most:
        if ending and time.monotonic() > end_at:
            name, end, deletes = ending
            running = {workload_of(supervisor) for supervisor in scratch.processes(SUPERVISOR)}
            before |= scratch.finished()
            log.inject(name)
            end(process)
            injected += 1
            exempt |= {path for path in before if deletes and running & set(path.parts)}
            break
        word = rng.choice((SUPERVISOR, CHILD))
        look_until = time.monotonic() + 2
        while not scratch.processes(word) and time.monotonic() < look_until:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.7))
        found = scratch.processes(word)  # a supervisor, a child and its forks
        for victim in rng.sample(found, min(len(found), 1)):
            workload = workload_of(victim)
            if workload is None:
                continue
            before |= {p: s for p, s in scratch.finished().items() if workload not in p.parts}
            if not kill(victim):
                continue
            log.inject(f"kill -9 of the {'supervisor' if word == SUPERVISOR else 'child'}")
            injected += 1
            if word == CHILD:
                allowed.add(workload)
            exempt |= {path for path in before if workload in path.parts}
    scratch.ended(process, before, frozenset(exempt))
    return injected


STAGES = {  # module -> what it makes
    "datasets.prepare": "data/words/dataset.json",
    "cells.matrix": "matrix.json",
    "analyse.aggregate": "tables/cells.csv",
    "pipeline.analyse": "tables/claims.csv",
    "render.page": "report.html",
}


def stage_kills(
    base: Scratch, folder: Path, rng: Random, log: Log, stages: Sequence[str] = tuple(STAGES)
) -> None:
    """Every stage but the measuring is killed, or Snakemake while it runs."""
    scratch = base.copy(folder)
    for stage in stages:
        while not _stage_killed(scratch, stage, rng, log):
            pass  # it was quicker
    scratch.complete(target="report")
    text = (scratch.path / PAGE).read_text(encoding="utf-8")
    require(text.rstrip().endswith("</html>"), "the page is torn")
    log.settle()


def _stage_killed(scratch: Scratch, stage: str, rng: Random, log: Log) -> bool:
    """Run a stage and kill it, or Snakemake; whether it was still running."""
    # It is due when what it makes, and all that would do without, are gone.
    if stage == "datasets.prepare":  # nobody wants data whose cells are measured
        for path in (scratch.path / "results/records").rglob("nano/**/*.json"):
            path.unlink()
    for name in {STAGES[stage], "drawn", "report.html"}:
        path = scratch.path / "results" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    before = scratch.finished()
    process = scratch.begin_snakemake("report")
    word = f"siliconprof.{stage}"
    (victim,) = until(lambda: scratch.processes(word)[:1], f"{stage} starts")
    time.sleep(rng.uniform(0.0, 3.0 if stage == "render.page" else 0.5))
    itself = rng.random() < 0.5
    hit = kill(victim) if itself else victim.is_running()
    if hit:
        log.inject(f"kill -9 of {'a' if itself else 'snakemake in a'} later stage: {stage}")
    if not itself:
        process.kill()
    scratch.ended(process, before)
    return hit


def carrying_kills(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """`pack` and `import` are killed in the middle, and then run again."""
    scratch = base.copy(folder)
    before = scratch.finished()
    bundle = scratch.path / "all.zip"
    pack, add = (PACK, "--output", "all.zip", "--force"), (IMPORT, str(bundle))
    scratch.run(*pack)
    for n in range(count):
        there = scratch.linked(folder / "other" / str(n))  # a host that has measured nothing
        for checkout, command in ((scratch, pack), (there, add)):
            process = checkout.begin(*command)
            time.sleep(rng.uniform(0.1, 0.8))
            log.inject(f"kill -9 of {command[0]}")
            process.kill()
            checkout.ended(process, {})
            scratch.intact(before)
            torn = zipfile.ZipFile(io.BytesIO(bundle.read_bytes())).testzip()
            require(torn is None, f"the bundle is torn: {torn}")
            checkout.run(*command)
        for path in before:
            target = there.path / path.relative_to(scratch.path)
            require(target.is_file(), f"not imported: {target}")
            require(target.read_bytes() == path.read_bytes(), f"not the same: {target}")
        require(not list(scratch.path.glob(".*.tmp")) and not there.leftovers(), "left lying")
        log.settle()
    said = scratch.snakemake()
    require("Nothing to be done" in said, f"a run after them:\n{said[-2000:]}")
    scratch.complete()


# -- two at once ---------------------------------------------------------------------------------


def two_pipelines(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """Two pipelines are started at about the same time, in two checkouts of one host."""
    lock = folder / "host.lock"
    all_ = [base.copy(folder / str(n), lock, products=2) for n in range(2)]
    with no_overlaps(all_[0]):
        for seed in range(1, count + 1):
            since = all_[0].said_so_far()
            log.inject("two pipelines at once on a host")
            for scratch in all_:
                scratch.configure(seed=seed)
            first = all_[0].begin_snakemake()
            time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.3), rng.uniform(0.0, 4.0))))
            statuses = [all_[-1].wait(one) for one in (first, all_[-1].begin_snakemake())]
            said = all_[0].said(since)
            require(not any(statuses), f"failed:\n{said[-3000:]}")
            for scratch in all_:
                scratch.complete()
                for path in scratch.finished():
                    of_cell = path.parent.relative_to(scratch.path / "results/records")
                    kept = (scratch.path / "results/history" / of_cell).rglob("fp32/*.json")
                    seeds = [json.loads(path.read_text())["cell"]["seed"] for path in kept]
                    require(seeds.count(seed) == 1, f"measured {seeds.count(seed)} times: {path}")
            log.settle()


# -- a disk that is full or read-only ------------------------------------------------------------


@contextmanager
def own_disk(scratch: Scratch, spare_bytes: int) -> Iterator[Path]:
    """The `results/` of a checkout, on a disk of its own with so much room; needs root."""
    results, aside = scratch.path / "results", scratch.path.parent / "results"
    os.replace(results, aside)
    results.mkdir()
    used = sum(-(-path.stat().st_size // 4096) * 4096 + 4096 for path in aside.rglob("*"))
    mount = ("mount", "-t", "tmpfs", "-o", f"size={used + spare_bytes}", "results", str(results))
    subprocess.run(mount, check=True, capture_output=True)
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(results)], check=True)
        yield results
    finally:
        subprocess.run(["umount", "--lazy", str(results)], check=True, capture_output=True)


@contextmanager
def full(results: Path, leave_bytes: int = 0) -> Iterator[None]:
    """All room on a disk is taken but so much."""
    filler = results / "filler"
    with open(filler, "wb", buffering=0) as stream:  # a buffer would be written again at the end
        try:
            while True:
                stream.write(bytes(2**16))
        except OSError:
            pass
    os.truncate(filler, max(0, filler.stat().st_size - leave_bytes))
    yield
    filler.unlink()


@contextmanager
def read_only(results: Path) -> Iterator[None]:
    """A disk is mounted read-only; needs root."""
    subprocess.run(["mount", "-o", "remount,ro", str(results)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(results)], check=True)


# fault -> (how, what the system then says)
DISKS = {
    "read-only": (read_only, "Read-only file system"),
    "disk full": (full, "No space left on device"),
}


def disk_full(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """`results/` has no room left from some moment of a run on."""
    scratch = base.copy(folder, products=3)
    with own_disk(scratch, 6 * 2**20) as results:
        for seed in range(1, count + 1):
            scratch.configure(seed=seed)
            process = scratch.begin_snakemake()
            time.sleep(rng.uniform(0.0, 6.0))
            before = scratch.finished()
            log.inject("disk full during a run")
            with full(results, rng.choice((0, 0, 4096, 16384, 65536))):
                scratch.ended(process, before)
            scratch.complete()
            log.settle()


def refusals(
    base: Scratch, folder: Path, rng: Random, log: Log, disks: Sequence[str] = tuple(DISKS)
) -> None:
    """Every command that writes into `results/` says in a line that it cannot, and why."""
    scratch = base.copy(folder, products=3)
    scratch.run(PACK, "--output", "all.zip")
    cell = json.loads(scratch.record_files()[0].read_text(encoding="utf-8"))["cell"]
    words = json.dumps({"name": "other"} | WORDS)
    kept = "--output results/records/new.json --results results"
    stages = shared.stages().items()
    commands = {
        "prepare": [
            "siliconprof.datasets.prepare",
            "--dataset",
            words,
            "--output-dir",
            "results/data/new",
        ],
        "measure": [SUPERVISOR, "--cell", json.dumps(cell), *kept.split()],
        "pack": [PACK, "--output", "results/new.zip"],
        "import": [IMPORT, "all.zip", "--results", "results/elsewhere"],
    } | {name: [f"siliconprof.{name}", *options] for name, options in stages}
    with own_disk(scratch, 6 * 2**20) as results:
        (results / "elsewhere").mkdir()  # for the records of no run
        before = scratch.record_files()
        for name in disks:
            fault, why = DISKS[name]
            for what, command in commands.items():
                log.inject(f"{name}: {what}")
                with fault(results):
                    said = scratch.run(*command, fails=True)
                told = [line for line in said.splitlines() if why in line]
                require(told and "cannot" in told[0], f"{what}: not told:\n{said[-3000:]}")
                log.settle()
            require(scratch.record_files() == before, "records are gone")
            scratch.complete()
