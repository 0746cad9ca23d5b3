"""Is anything lost under faults? `python benchmarks/faults.py [--rounds 10] [--seed N]`.

A scratch checkout with very short cells runs again and again, each time with another seed in its
config, so that all is due. Into each run comes a fault at a random moment: kill -9 of Snakemake, of
a supervisor, of a measuring process or of a stage after them; Ctrl-C; a full disk (Linux, as
root). After each: nothing goes on running, records that were finished are as they were
(by hash), and the next run completes, with whole records, a row for each cell by its record's hash, and
no file that was begun and not finished. At the end the table made anew is the one that lies there.

Prints its seed and how many faults of each kind were survived; ends at the first that was not.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import pandas as pd
import psutil
import shared
from siliconprof.errors import UserError
from siliconprof.measure.fork_server import PROCESS_NAME
from siliconprof.store import record
from started_processes import started_with

LOCK_VARIABLE = "SILICONPROF_LOCK_FILE"  # in every process of a checkout: so orphans are found
TABLE = "results/tables/cells.csv"
# What a person asks for: each names the records as well. A table alone is up to date for Snakemake where
# all records of a run were deleted by their failing jobs.
TABLES, PAGE = ("measured", TABLE), ("report",)
CELLS = 4
LIMIT_S = 900  # of one command; none of these takes that long
SUPERVISOR, CHILD = "siliconprof.measure", "siliconprof.measure.worker"
STAGES = (
    "siliconprof.analyse.aggregate",
    "siliconprof.pipeline.analyse",
    "siliconprof.render.page",
)
KINDS, FULL = ("snakemake", "Ctrl-C", SUPERVISOR, CHILD, *STAGES), "disk full"
MOUNTS = sys.platform == "linux" and os.geteuid() == 0


class Scratch:
    """A checkout of its own, with a host lock of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = shared.copied(folder / "project")
        self.output = folder / "output.txt"
        self.lock = str(folder / "host.lock")
        self.seed = 0

    def make_due(self) -> None:
        """Have every cell due again, beside the records of before."""
        self.seed += 1
        shared.configure(self.path, shared.experiment(CELLS, host="desk", seed=self.seed))

    def begin(self, *arguments: str) -> subprocess.Popen:
        """Start `snakemake --cores 1 …` as after `--unlock`, in a session of its own, and go on."""
        shutil.rmtree(self.path / ".snakemake/locks", ignore_errors=True)
        own = {"PYTHONDONTWRITEBYTECODE": "1", LOCK_VARIABLE: self.lock}
        with open(self.output, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *shared.SNAKEMAKE, *arguments],
                cwd=self.path,
                env=shared.environment(self.path, **own),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """The end of what the last run wrote."""
        return self.output.read_text(encoding="utf-8", errors="replace")[-4000:]

    def run(self, *arguments: str) -> None:
        """Run Snakemake to its end, which must be a good one."""
        status = self.begin(*arguments).wait(LIMIT_S)
        assert not status, f"snakemake {' '.join(arguments)}: exit {status}\n{self.said()}"

    def processes(self, word: str = "") -> list[psutil.Process]:
        """What runs for this checkout with a word in its command line."""
        found = []
        for process in started_with(LOCK_VARIABLE, self.lock):
            with suppress(psutil.Error):  # has ended
                named = not word or word in process.cmdline()
                if named or (word == CHILD and process.name() == PROCESS_NAME):
                    found.append(process)
        return found

    def finished(self) -> dict[Path, str]:
        """Records of today's config that are whole -> SHA-256 of the file."""
        found = {}
        for path in (self.path / "results/records").rglob("*.json"):
            with suppress(UserError, FileNotFoundError):
                if record.read(path)["cell"]["seed"] == self.seed:
                    found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def intact(self, before: Mapping[Path, str], but: int = 0) -> None:
        """Check that nothing still runs and that finished records are unchanged.

        Args:
            but: so many of them may be gone.
        """
        _, alive = psutil.wait_procs(self.processes(), timeout=60)
        left = [" ".join(process.cmdline())[:120] for process in alive]
        assert not left, f"orphans: {'; '.join(left)}"
        now = self.finished()
        lost = [str(path) for path in before if path not in now]
        assert len(lost) <= but, f"finished records are gone: {lost}"
        changed = [str(path) for path, sha256 in now.items() if before.get(path, sha256) != sha256]
        assert not changed, f"finished records changed: {changed}"

    def complete(self, targets: Iterable[str], may_be_killed: bool) -> None:
        """Run to the end without a fault, and check that nothing is left of earlier ones.

        Args:
            may_be_killed: whether the record of one cell may say that its process was killed.
        """
        before = self.finished()
        self.run(*targets)
        self.intact(before)
        leftovers = list((self.path / "results").rglob(".*.tmp"))
        assert not leftovers, f"left lying: {leftovers}"
        table = pd.read_csv(self.path / TABLE, dtype=str)[["workload", "record_sha256"]]
        rows = sorted(table.itertuples(index=False, name=None))
        found = [record.read(path) for path in self.finished()]
        here = sorted((data["cell"]["workload"], data["sha256"]) for data in found)
        assert rows == here and len(rows) == CELLS, f"rows {rows}, records {here}"
        failed = [data["reason"] for data in found if data["status"] != "ok"]
        killed = [reason for reason in failed if "killed by signal 9" in reason]
        assert failed == killed and len(killed) <= may_be_killed, failed

    def see_table(self) -> None:
        """Check that the table made again equals the one on disk."""
        table = (self.path / TABLE).read_bytes()
        self.run("--forcerun", "aggregate", "--", TABLE)
        assert (self.path / TABLE).read_bytes() == table, "the table is not what the records say"


# -- faults ------------------------------------------------------------------------------------------


@contextmanager
def full(results: Path) -> Iterator[None]:
    """Fill a disk while the context is open."""
    filler = results / "filler"
    with open(filler, "wb", buffering=0) as stream:  # a buffer would be written again at the end
        with suppress(OSError):
            while True:
                stream.write(bytes(2**16))
    yield
    filler.unlink()


@contextmanager
def small_disk(results: Path) -> Iterator[None]:
    """Mount a small disk on a folder, if this user may."""
    if MOUNTS:
        command = ["mount", "-t", "tmpfs", "-o", "size=64M", "results", str(results)]
        subprocess.run(command, check=True)
    try:
        yield
    finally:
        if MOUNTS:
            subprocess.run(["umount", "--lazy", str(results)], check=True)


def killed(scratch: Scratch, run: subprocess.Popen, draw: random.Random, word: str) -> bool:
    """Kill a process with this word in its command line; whether there still was one."""
    while run.poll() is None:
        if found := scratch.processes(word):
            time.sleep(draw.uniform(0.0, 0.7))
            try:
                draw.choice(found).kill()
            except psutil.NoSuchProcess:
                continue
            return True
        time.sleep(0.02)
    return False


def inject(scratch: Scratch, draw: random.Random, fault: str) -> None:
    """Run with one fault at a random moment, see what it left, and run to the end."""
    targets = PAGE if fault in STAGES[1:] else TABLES
    while True:
        scratch.make_due()
        run = scratch.begin(*targets)
        if fault not in STAGES:
            time.sleep(draw.uniform(0.0, 8.0))
        before = scratch.finished()
        if fault == FULL:
            with full(scratch.path / "results"):
                status = run.wait(LIMIT_S)
            told = "No space left on device" in scratch.said()
            assert told or not status, f"not said why it failed\n{scratch.said()}"
            break
        if fault == "Ctrl-C" and run.poll() is None:
            os.killpg(run.pid, signal.SIGINT)
            break
        if fault == "snakemake" and run.poll() is None:
            run.kill()
            break
        if fault in (SUPERVISOR, CHILD, *STAGES) and killed(scratch, run, draw, fault):
            break
        run.wait(LIMIT_S)  # it was quicker
    run.wait(LIMIT_S)
    # Snakemake deletes the output of the one job that it breaks off, or that fails.
    scratch.intact(before, but=fault in ("Ctrl-C", SUPERVISOR, CHILD))
    scratch.complete(targets, may_be_killed=fault == CHILD)


def campaign(folder: Path, seed: int, rounds: int) -> Counter[str]:
    """Inject every fault that is possible here so many times, in an order that is drawn.

    Returns:
        How many of each were survived.

    Raises:
        AssertionError: one was not, or a run fails without a fault.
    """
    # A shell has what it runs in the background ignore Ctrl-C, and all that starts from there.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    draw, scratch, survived = random.Random(seed), Scratch(folder), Counter[str]()
    faults = (*KINDS, FULL) if MOUNTS else KINDS
    with small_disk(scratch.path / "results"):
        scratch.make_due()
        scratch.run(*PAGE)
        for fault in [fault for _ in range(rounds) for fault in draw.sample(faults, len(faults))]:
            inject(scratch, draw, fault)
            survived[fault] += 1
            print(f"survived: {fault}", flush=True)
        scratch.see_table()
    return survived


def main() -> None:
    """Run and print."""
    asked = shared.arguments(__doc__, rounds=10, seed=time.time_ns() % 10**9)
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        survived = campaign(Path(folder), asked.seed, asked.rounds)
    for fault, count in sorted(survived.items()):
        print(f"{count:6} {fault}")
    if not MOUNTS:
        print("not injected: a full disk (it needs root on Linux)")


if __name__ == "__main__":
    main()
