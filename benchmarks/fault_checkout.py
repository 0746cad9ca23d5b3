"""A scratch checkout for the fault campaign: how it is made, run, looked at and judged.

Every process that is started for a checkout carries the path of its lock file in the environment:
that is how orphans are found, and how two cells that are measured at once are.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import shared
from siliconprof.errors import UserError
from siliconprof.store import record

LOCK_VARIABLE = "SILICONPROF_LOCK_FILE"
TABLES, PAGE = "results/tables/cells.csv", "results/report.html"
LIMIT_S = 900  # of one command; none of these takes that long
SHAPES = [[1, 8 * n, 16, 16] for n in range(1, 7)]
TIMING = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 3, "max_iterations": 3,
          "budget_s": 0, "time_limit_s": 120, "retries": 0, "energy_idle_s": 0,
          "energy_window_s": 0}  # fmt: skip
PRODUCT = {"module": "matmul", "shapes": SHAPES, "device_kinds": ["cpu"]}
TRAINING = {"module": "gpt2", "trainer": "plain", "size": "nano", "batch_size": 2, "seq_len": 16,
            "dataset": "words", "device_kinds": ["cpu"]}  # fmt: skip
WORDS = {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}


class Broken(AssertionError):
    """What was not to happen has happened; the message says what."""


def require(holds: Any, what: str) -> None:
    """Raise `Broken` unless something holds."""
    if not holds:
        raise Broken(what)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; its value.

    Raises:
        Broken: not within the limit of a command.
    """
    end = time.monotonic() + LIMIT_S
    while not (value := condition()):
        require(time.monotonic() < end, f"not within {LIMIT_S} s: {what}")
        time.sleep(0.02)
    return value


def kill(process: psutil.Process) -> bool:
    """kill -9; whether the process had not ended by itself."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def option(process: psutil.Process, name: str) -> str:
    """The value of an option of a process; empty when it has just ended."""
    try:
        command = process.cmdline()
        return command[command.index(name) + 1]
    except (psutil.Error, ValueError, IndexError):
        return ""


class Scratch:
    """A checkout of its own, with a host lock of its own unless one is given.

    What sees to something, or waits for it, raises `Broken` where it is not so.
    """

    def __init__(self, folder: Path, lock: Path | None = None) -> None:
        self.path = folder / "project"
        self.output = folder / "output.txt"  # of all that ran here
        self.environment = {LOCK_VARIABLE: str(lock or folder / "host.lock")}
        self.config: dict[str, Any] = {"retry_contended_s": 0}

    @classmethod
    def new(cls, folder: Path, products: int) -> Scratch:
        """A fresh copy of this checkout: some very short cells, one reads a prepared text."""
        made = cls(folder)
        shared.copied(made.path)
        workloads = {f"product-{n}": PRODUCT for n in range(1, products + 1)} | {"nano": TRAINING}
        made.configure(
            host="desk",
            backends=["mlx"],
            precisions=["fp32"],
            timing=TIMING,
            datasets={"words": WORDS},
            workloads=workloads,
        )
        return made

    def linked(self, folder: Path) -> Scratch:
        """A checkout with this one's code, config and lock, without results."""
        made = Scratch(folder, Path(self.environment[LOCK_VARIABLE]))
        made.config = dict(self.config)
        (made.path / "results").mkdir(parents=True)
        for part in shared.PARTS:
            os.symlink(self.path / part, made.path / part)
        return made

    def copy(self, folder: Path, lock: Path | None = None, products: int = 0) -> Scratch:
        """Another checkout as this one is now, with its results.

        Args:
            products: of its cells so many, and the one that trains left out; 0 = all.
        """
        made = Scratch(folder, lock)
        ignore = shutil.ignore_patterns("log", "locks")
        shutil.copytree(self.path, made.path, ignore=ignore)
        made.config = dict(self.config)
        if products:
            some = list(made.config["workloads"].items())[:products]
            made.configure(workloads=dict(some), datasets={})
        return made

    def configure(self, **changes: Any) -> None:
        """Write config/config.yaml with some keys changed."""
        self.config |= changes
        text = json.dumps(self.config)  # YAML, with no anchors
        (self.path / "config/config.yaml").write_text(text, encoding="utf-8")

    # -- commands ------------------------------------------------------------------------------

    def begin(self, *command: str) -> subprocess.Popen:
        """Start `python -m …` in a session of its own, and go on."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SILICONPROF_")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "workflow"}
        with open(self.output, "a", encoding="utf-8") as output:
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.path,
                env=environment | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begin_snakemake(self, target: str = TABLES) -> subprocess.Popen:
        """Start the pipeline as after `snakemake --unlock`, and go on."""
        shutil.rmtree(self.path / ".snakemake/locks", ignore_errors=True)
        return self.begin("snakemake", "--cores", "1", target)

    def ended(
        self,
        process: subprocess.Popen,
        before: Mapping[Path, str],
        but: frozenset[Path] = frozenset(),
    ) -> int:
        """The status of what was begun, at its end: nothing goes on, what was finished is there."""
        status = self.wait(process)
        self.no_orphans()
        self.intact(before, but)
        return status

    def wait(self, process: subprocess.Popen) -> int:
        """The status of what was begun, at its end."""
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Broken(f"{process.args}: still running after {LIMIT_S} s") from None

    def run(self, *command: str, fails: bool = False) -> str:
        """What `python -m …` says, run to its end.

        Raises:
            Broken: it does not end as it should, or fails with a traceback.
        """
        since = self.said_so_far()
        status = self.wait(self.begin(*command))
        said = self.said(since)
        what = f"{' '.join(command)}: exit {status}\n{said[-3000:]}"
        require(bool(status) == fails and not (fails and "Traceback" in said), what)
        return said

    def snakemake(self, target: str = TABLES, *more: str, fails: bool = False) -> str:
        """The same of the pipeline."""
        shutil.rmtree(self.path / ".snakemake/locks", ignore_errors=True)
        return self.run("snakemake", "--cores", "1", target, *more, fails=fails)

    def said_so_far(self) -> int:
        """To be given to `said` afterwards."""
        return self.output.stat().st_size if self.output.exists() else 0

    def said(self, since: int = 0) -> str:
        """What commands here have said since."""
        return self.output.read_bytes()[since:].decode(errors="replace")

    # -- processes -----------------------------------------------------------------------------

    def processes(self, word: str = "") -> list[psutil.Process]:
        """What runs for this checkout with a word in its command line, as `python -m WORD`."""
        found, mark = [], self.environment[LOCK_VARIABLE]
        for process in psutil.process_iter():
            try:
                named = not word or word in process.cmdline()  # a shell has its script as one word
                ended = not named or process.status() == psutil.STATUS_ZOMBIE
                if not ended and process.environ().get(LOCK_VARIABLE) == mark:
                    found.append(process)
            except psutil.Error:
                continue  # has ended, or is somebody else's
        return found

    def no_orphans(self, seconds: float = 60) -> None:
        """Whatever ran has ended or ends soon."""
        end = time.monotonic() + seconds
        while left := self.processes():
            if time.monotonic() > end:
                said = "; ".join(" ".join(process.cmdline())[:120] for process in left)
                raise Broken(f"orphans after {seconds:g} s: {said}")
            time.sleep(0.1)

    # -- what lies here ------------------------------------------------------------------------

    def record_files(self) -> list[Path]:
        """Those that are there, while a run may take folders away."""
        walk = os.walk(self.path / "results/records")
        files = (Path(folder, name) for folder, _, names in walk for name in names)
        return sorted(path for path in files if path.suffix == ".json")

    def finished(self) -> dict[Path, str]:
        """Records of today's config that are whole -> SHA-256 of the file."""
        found = {}
        for path in self.record_files():
            try:
                cell = record.read(path)["cell"]
            except (UserError, FileNotFoundError):
                continue
            wanted = cell["workload"] in self.config["workloads"]
            if wanted and cell["seed"] == self.config.get("seed", 0):
                found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def intact(self, before: Mapping[Path, str], but: frozenset[Path] = frozenset()) -> None:
        """See that records that were finished are there, unchanged."""
        now = self.finished()
        for path, sha256 in before.items():
            if path not in but:
                what = "changed" if path in now else "gone"
                require(now.get(path) == sha256, f"a finished record is {what}: {path}")

    def tables(self) -> dict[str, bytes]:
        """Name -> content of the tables of records."""
        files = (self.path / "results/tables").glob("*.csv")
        return {path.name: path.read_bytes() for path in files}

    def leftovers(self) -> list[Path]:
        """Files that were begun and not finished."""
        return list((self.path / "results").rglob(".*.tmp"))

    # -- the judgement -------------------------------------------------------------------------

    def complete(self, allowed: frozenset[str] = frozenset(), target: str = TABLES) -> None:
        """Run to the end without a fault, and see that all is as if there never had been one.

        Args:
            allowed: workloads whose process was killed, and whose record may say so.
        """
        self.no_orphans()
        before = self.finished()
        self.snakemake(target)
        self.intact(before)
        self.no_orphans()
        require(not self.leftovers(), f"left lying: {self.leftovers()}")
        self.sound(allowed)
        self.same_tables()

    def sound(self, allowed: frozenset[str]) -> None:
        """See that records and the table of cells are whole, agree, and count everything once."""
        wanted = sorted(self.config["workloads"])
        now = {path: record.read(path) for path in self.finished()}
        with open(self.path / TABLES, newline="", encoding="utf-8") as stream:
            rows = [(row["workload"], row["record_sha256"]) for row in csv.DictReader(stream)]
        require(sorted(name for name, _ in rows) == wanted, f"rows {rows}")
        found = [data["cell"]["workload"] for data in now.values()]
        require(sorted(found) == wanted, f"records of {sorted(found)}")
        for path, data in now.items():
            name = data["cell"]["workload"]
            require((name, data["sha256"]) in rows, f"{path}: the table has another one")
            if data["status"] != "ok":
                killed = "killed by signal 9" in (data["reason"] or "")
                require(name in allowed and killed, f"{name}: {data['status']}: {data['reason']}")
                continue
            names = [json.dumps(point["params"], sort_keys=True) for point in data["points"]]
            require(len(set(names)) == len(names), f"{name}: points twice: {names}")
            if name.startswith("product"):
                of_shape = {point["params"]["m"] for point in data["points"]}
                require(of_shape == {shape[1] for shape in SHAPES}, f"{name}: points {names}")
            walls = data["accounting"]
            require(0 < walls["child_wall_s"] <= walls["wall_s"] < LIMIT_S, f"{name}: {walls}")

    def same_tables(self) -> None:
        """See that the tables are those that the records give in a checkout that has only them."""
        shutil.rmtree(self.path.parent / "clean", ignore_errors=True)
        clean = self.linked(self.path.parent / "clean")
        for part in ("records", "history"):
            shutil.copytree(self.path / "results" / part, clean.path / "results" / part)
        shutil.copy2(self.path / "results/matrix.json", clean.path / "results/matrix.json")
        reference = map(str, (self.path / "results/reference").glob("*"))
        options = (*shared.stages()["analyse.aggregate"], "--reference", *sorted(reference))
        clean.run("siliconprof.analyse.aggregate", *options)
        ours = self.tables()
        for name, content in clean.tables().items():
            require(ours.get(name) == content, f"tables/{name} is not what the records say")


@contextmanager
def no_overlaps(checkout: Scratch) -> Iterator[None]:
    """Watch in the background that no two cells of one host lock are measured at once.

    Raises:
        Broken: two were, or nobody has looked.
    """
    end, seen = threading.Event(), list[set[str]]()

    def watch() -> None:
        while not end.wait(0.1):
            workers = checkout.processes("siliconprof.measure.worker")
            seen.append({option(process, "--result") for process in workers} - {""})

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
        require(seen and thread.is_alive(), "nobody has watched for overlaps")
        most = max(seen, key=len)
        require(len(most) < 2, f"measured at the same time: {' and '.join(sorted(most))}")
    finally:
        end.set()
        thread.join()
