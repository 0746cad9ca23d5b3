"""What the fault campaign does to a checkout, kind by kind, and what must hold after each.

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
import traceback
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random

import psutil
from fault_checkout import PAGE, Broken, Overlaps, Scratch, kill, require, until

ELSEWHERE = "results/elsewhere"  # the records of no run, on the same disk
LINUX = sys.platform == "linux"  # elsewhere daemons that have left the cell's group are not found
SUPERVISOR, CHILD = "siliconprof.measure", "siliconprof.measure.worker"
# A cell that leaves one daemon by fork and setsid, one by two forks, one in a session of its own.
DAEMONS = '''\
"""A workload that leaves processes behind."""

from __future__ import annotations

import os
import subprocess
import time

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """daemons"""

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
'''
# How runs end, in turn: by chance one of these might never come. None is by itself.
ENDINGS = (signal.SIGKILL, signal.SIGINT, None, signal.SIGTERM, None)


@dataclass
class Log:
    """What was injected, what of it was survived, and how long that took."""

    injected: dict[str, int] = field(default_factory=dict)
    survived: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _pending: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def inject(self, kind: str) -> None:
        """A fault is being injected."""
        self.injected[kind] = self.injected.get(kind, 0) + 1
        self._pending.append(kind)

    def settle(self) -> None:
        """All that was injected since the last time has been survived."""
        now = time.monotonic()
        for kind in self._pending:
            self.survived[kind] = self.survived.get(kind, 0) + 1
            share_s = (now - self._since) / len(self._pending)
            self.seconds[kind] = self.seconds.get(kind, 0.0) + share_s
        self._pending, self._since = [], now

    def add(self, other: Log) -> None:
        """Take in another log."""
        for own, theirs in (
            (self.injected, other.injected),
            (self.survived, other.survived),
            (self.seconds, other.seconds),
        ):
            for kind, value in theirs.items():
                own[kind] = own.get(kind, 0) + value  # type: ignore[operator]
        self.problems += other.problems


# -- kills ---------------------------------------------------------------------------------------


def workload_of(process: psutil.Process) -> str | None:
    """The cell of a supervisor or child, None when it has just ended."""
    try:
        command = process.cmdline()
        return json.loads(command[command.index("--cell") + 1])["workload"]
    except (psutil.Error, ValueError, IndexError):
        return None


def kills(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """Snakemake, supervisor and child are killed, several in one run, over and over again.

    One of the cells leaves daemons, which must end with it, and with whatever of it is killed.
    """
    scratch = base.copy(folder, products=6)
    (scratch.path / "workflow/siliconprof/workloads/daemons.py").write_text(DAEMONS)
    daemons = {"module": "daemons", "device_kinds": ["cpu"]}
    scratch.configure(workloads=scratch.config["workloads"] | {"daemons": daemons})
    left, seed = count, 0
    endings = cycle(ENDINGS)
    with Overlaps(scratch) as overlaps:
        while left > 0:
            seed += 1
            scratch.configure(seed=seed)  # all cells are due again, and the old records lie there
            log.inject("daemons that a cell leaves")
            allowed: set[str] = set()
            while left > 0 and len(scratch.finished()) < len(scratch.config["workloads"]):
                left -= _run_with_kills(scratch, rng, log, left, allowed, next(endings))
            scratch.complete(frozenset(allowed))
            overlaps.none()
            _daemons_flagged(scratch)
            log.settle()


def _daemons_flagged(scratch: Scratch) -> None:
    """See that the record of the cell that leaves daemons says so; that none lives has been seen.

    Raises:
        Broken: it does not.
    """
    (path,) = (path for path in scratch.finished() if "daemons" in path.parts)
    made = json.loads(path.read_text())
    codes = [flag["code"] for flag in made["flags"]]
    require("left_processes" in codes or made["status"] != "ok" or not LINUX, f"flags: {codes}")


def _run_with_kills(
    scratch: Scratch,
    rng: Random,
    log: Log,
    most: int,
    allowed: set[str],
    ending: signal.Signals | None,
) -> int:
    """One run, to whose processes things happen at random moments; how many."""
    process = scratch.begin_snakemake()
    began, injected = time.monotonic(), 0
    end_after_s = rng.uniform(0.2, 5.0) if ending else math.inf
    before, exempt = scratch.finished(), set()
    while process.poll() is None and injected < most:
        if ending and time.monotonic() - began > end_after_s:
            exempt |= _end_snakemake(scratch, process, ending, log, before)
            injected += 1
            break
        word = rng.choice((SUPERVISOR, CHILD))
        look_until = time.monotonic() + 2
        while not scratch.processes(word) and time.monotonic() < look_until:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.7))
        found = scratch.processes(word)  # a supervisor and its guard, a child and its forks
        for victim in rng.sample(found, min(len(found), 1)):
            workload = workload_of(victim)
            if workload is None:
                continue
            before |= {p: s for p, s in scratch.finished().items() if workload not in p.parts}
            if not kill(victim):
                continue
            name = "supervisor" if word == SUPERVISOR else "child"
            log.inject(f"kill -9 of the {name}")
            injected += 1
            if word == CHILD:
                allowed.add(workload)
            exempt |= {path for path in before if workload in path.parts}
    until(lambda: process.poll() is not None, 60, "the end of a pipeline")
    scratch.no_orphans()
    scratch.intact(before, frozenset(exempt))
    return injected


def _end_snakemake(
    scratch: Scratch,
    process: subprocess.Popen,
    how: signal.Signals,
    log: Log,
    before: dict[Path, str],
) -> set[Path]:
    """Kill or interrupt it; records that need not be there afterwards."""
    running = [workload_of(supervisor) for supervisor in scratch.processes(SUPERVISOR)]
    before |= scratch.finished()
    if how == signal.SIGKILL:
        log.inject("kill -9 of snakemake")
        process.kill()
        return set()  # a record that is there is whole, whether Snakemake has noted it or not
    if how == signal.SIGINT:
        log.inject("SIGINT to the terminal's group")
        os.killpg(process.pid, signal.SIGINT)
    else:
        log.inject("SIGTERM to snakemake")
        process.terminate()
    # Snakemake itself deletes the output of a job that it has been told to break off.
    return {path for path in before if set(running) & set(path.parts)}


STAGES = {  # module -> what it makes
    "datasets.prepare": "data/words/dataset.json",
    "cells.matrix": "matrix.json",
    "analyse.aggregate": "tables/cells.csv",
    "pipeline.analyse": "tables/claims.csv",
    "render.draw": "drawn",
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
    _make_due(scratch, stage)
    before = scratch.finished()
    process = scratch.begin_snakemake("report")
    word = f"siliconprof.{stage}"
    (victim,) = until(lambda: scratch.processes(word)[:1], 120, f"{stage} starts")
    time.sleep(rng.uniform(0.0, 3.0 if stage == "render.draw" else 0.5))
    itself = rng.random() < 0.5
    hit = kill(victim) if itself else victim.is_running()
    if hit:
        log.inject(f"kill -9 of {'a' if itself else 'snakemake in a'} later stage: {stage}")
    if not itself:
        process.kill()
    until(lambda: process.poll() is not None, 120, "the end of a pipeline")
    scratch.no_orphans()
    scratch.intact(before)
    return hit


def _make_due(scratch: Scratch, stage: str) -> None:
    """Have a stage run again: what it makes, and all that would do without, are gone."""
    if stage == "datasets.prepare":  # nobody wants data whose cells are measured
        for path in (scratch.path / "results/records").rglob("nano/**/*.json"):
            path.unlink()
    for name in {STAGES[stage], "drawn", "report.html"}:
        path = scratch.path / "results" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def carrying_kills(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """`pack` and `import` are killed in the middle, and then run again."""
    scratch = base.copy(folder)
    before = scratch.finished()
    bundle, other = scratch.path / "all.zip", folder / "other"
    pack = ("siliconprof.remote.bundle", "pack", "--output", "all.zip", "--force")
    add = ("siliconprof.remote.bundle", "import", str(bundle))
    status, said = scratch.run(*pack)
    require(status == 0, said)
    there = Scratch(other, Path(scratch.environment["SILICONPROF_LOCK_FILE"]))
    for n in range(count):
        # Another host's checkout: its own label differs, or its own records would be refused.
        there = _empty_checkout(base, other / str(n))
        for checkout, command, longest_s in ((scratch, pack, 0.8), (there, add, 0.8)):
            name = command[1]
            process = checkout.begin(*command)
            time.sleep(rng.uniform(0.1, longest_s))
            log.inject(f"kill -9 of `siliconprof {name}`")
            process.kill()
            process.wait()
            checkout.no_orphans()
            scratch.intact(before)
            torn = zipfile.ZipFile(io.BytesIO(bundle.read_bytes())).testzip()
            require(torn is None, f"the bundle is torn: {torn}")
            status, said = checkout.run(*command)
            require(status == 0, f"{name} after it was killed:\n{said[-2000:]}")
        for path in before:
            target = there.path / path.relative_to(scratch.path)
            require(target.is_file(), f"not imported: {target}")
            require(target.read_bytes() == path.read_bytes(), f"not the same: {target}")
        require(not list(scratch.path.glob(".*.tmp")) and not there.leftovers(), "left lying")
        log.settle()
    status, said = scratch.snakemake()
    require(status == 0 and "Nothing to be done" in said, f"a run after them:\n{said[-2000:]}")
    scratch.complete()


def _empty_checkout(base: Scratch, folder: Path) -> Scratch:
    """A checkout of a host that has measured nothing and is not the one that the base is of."""
    made = Scratch(folder)
    made.path.mkdir(parents=True)
    for part in ("Snakefile", "workflow", "config", "profiles", "report"):
        os.symlink(base.path / part, made.path / part)
    (made.path / "results").mkdir()
    return made


# -- two at once ---------------------------------------------------------------------------------


def two_in_one_checkout(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """Two pipelines are started at about the same time in one checkout."""
    scratch = base.copy(folder, products=2)
    with Overlaps(scratch) as overlaps:
        for seed in range(1, count + 1):
            scratch.configure(seed=seed)
            since = scratch.said_so_far()
            log.inject("two pipelines at once in one checkout")
            first = scratch.begin_snakemake()
            time.sleep(rng.choice((0.0, rng.uniform(0.0, 0.3), rng.uniform(0.0, 4.0))))
            second = scratch.begin_snakemake()
            statuses = [
                until(lambda p=p: p.poll() is not None and [p.poll()], 120, "the end")[0]
                for p in (first, second)
            ]
            said = scratch.said(since)
            require(0 in statuses, f"neither went well:\n{said[-3000:]}")
            if any(statuses):
                require("cannot be locked" in said, f"not told why:\n{said[-3000:]}")
            scratch.complete()
            overlaps.none()
            for folder_of_cell in {path.parent for path in scratch.finished()}:
                kept = (
                    scratch.path
                    / "results/history"
                    / folder_of_cell.relative_to(scratch.path / "results/records")
                )
                files = list(kept.rglob("fp32/*.json"))
                seeds = [json.loads(path.read_text())["cell"]["seed"] for path in files]
                require(seeds.count(seed) == 1, f"measured {seeds.count(seed)} times: {kept}")
            log.settle()


def two_checkouts(base: Scratch, folder: Path, rng: Random, log: Log, count: int) -> None:
    """Two pipelines are started at about the same time in two checkouts of one host."""
    lock = folder / "host.lock"
    both = [base.copy(folder / name, lock, products=2) for name in ("one", "two")]
    with Overlaps(both[0]) as overlaps:
        for seed in range(1, count + 1):
            running = []
            log.inject("two pipelines at once in two checkouts of a host")
            for scratch in both:
                scratch.configure(seed=seed)
                running.append(scratch.begin_snakemake())
                time.sleep(rng.choice((0.0, rng.uniform(0.0, 3.0))))
            for scratch, process in zip(both, running, strict=True):
                until(lambda p=process: p.poll() is not None, 120, "the end of a pipeline")
                require(process.returncode == 0, f"failed:\n{scratch.said()[-3000:]}")
            for scratch in both:
                scratch.complete()
            overlaps.none()
            log.settle()


def attempt(kind: Callable, base: Scratch, folder: Path, rng: Random, **more: object) -> Log:
    """Run one of the above; what came of it, `Broken` included."""
    log = Log()
    try:
        kind(base, folder, rng, log, **more)
    except Broken as broken:
        log.problems.append(f"{kind.__name__}: {broken}")
    except Exception:  # the campaign goes on, and does not end well
        log.problems.append(f"{kind.__name__}: {traceback.format_exc()}")
    return log
