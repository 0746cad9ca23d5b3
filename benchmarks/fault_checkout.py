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
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from siliconprof.errors import UserError  # noqa: E402
from siliconprof.store import record  # noqa: E402

PARTS = ("Snakefile", "workflow", "config", "profiles", "report")
LOCK_VARIABLE = "SILICONPROF_LOCK_FILE"
TABLES, PAGE = "results/tables/cells.csv", "results/report.html"
LIMIT_S = 180  # of one command; none of these takes that long
SHAPES = [[1, 8 * n, 16, 16] for n in range(1, 7)]
TIMING = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 3, "max_iterations": 3,
          "budget_s": 0, "time_limit_s": 120, "retries": 0, "energy_idle_s": 0,
          "energy_window_s": 0}  # fmt: skip


class Broken(AssertionError):
    """What was not to happen has happened; the message says what."""


def require(holds: Any, what: str) -> None:
    """Raise `Broken` unless something holds."""
    if not holds:
        raise Broken(what)


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for a condition; its value.

    Raises:
        Broken: not within that time.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        require(time.monotonic() < end, f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
    return value


def hear_ctrl_c() -> None:
    """A shell has what it runs in the background ignore Ctrl-C, and all that starts from there."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def experiment(cells: int, training: bool = False) -> dict[str, Any]:
    """A config with some very short cells, and one that reads a prepared text if wanted."""
    product = {"module": "matmul", "shapes": SHAPES, "device_kinds": ["cpu"]}
    workloads: dict[str, Any] = {f"product-{n}": dict(product) for n in range(1, cells + 1)}
    datasets = {}
    if training:
        datasets["words"] = {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}
        model = {"module": "gpt2", "trainer": "plain", "size": "nano"}
        data = {"batch_size": 2, "seq_len": 16, "dataset": "words", "device_kinds": ["cpu"]}
        workloads["nano"] = model | data
    return {
        "host": "desk",
        "backends": ["mlx"],
        "precisions": ["fp32"],
        "timing": TIMING,
        "datasets": datasets,
        "workloads": workloads,
    }


class Scratch:
    """A checkout of its own, with a host lock of its own unless one is given."""

    def __init__(self, folder: Path, lock: Path | None = None) -> None:
        self.path = folder / "project"
        self.output = folder / "output.txt"  # of all that ran here
        self.environment = {LOCK_VARIABLE: str(lock or folder / "host.lock")}
        self.config: dict[str, Any] = {"retry_contended_s": 0}

    @classmethod
    def new(cls, folder: Path, cells: int, training: bool = False) -> Scratch:
        """A fresh copy of this checkout, without results."""
        made = cls(folder)
        made.path.mkdir(parents=True)
        ignore = shutil.ignore_patterns("*.egg-info")
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, made.path / part, ignore=ignore)
            else:
                shutil.copy2(ROOT / part, made.path / part)
        (made.path / "results").mkdir()
        made.configure(**experiment(cells, training))
        return made

    def copy(self, folder: Path, lock: Path | None = None, products: int = 0) -> Scratch:
        """Another checkout as this one is now, with its results.

        Args:
            products: of its cells so many, and the one that trains left out; 0 = all.
        """
        made = Scratch(folder, lock)
        ignore = shutil.ignore_patterns("log", "locks", "siliconprof.*")
        shutil.copytree(self.path, made.path, ignore=ignore)
        made.config = dict(self.config)
        if products:
            named = {
                name: entry for name, entry in made.config["workloads"].items() if name != "nano"
            }
            made.configure(workloads=dict(list(named.items())[:products]), datasets={})
        return made

    def configure(self, **changes: Any) -> None:
        """Write config/config.yaml with some keys changed."""
        self.config |= changes
        text = yaml.safe_dump(self.config, sort_keys=False)
        (self.path / "config/config.yaml").write_text(text, encoding="utf-8")

    # -- commands ------------------------------------------------------------------------------

    def begin(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen:
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
                env=environment | self.environment | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begin_snakemake(self, target: str = TABLES, **more: Any) -> subprocess.Popen:
        return self.begin("snakemake", "--cores", "1", target, **more)

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run `python -m …` to its end: (status, what it said)."""
        before = self.said_so_far()
        process = self.begin(*command, env=env)
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Broken(f"{' '.join(command)}: still running after {LIMIT_S} s") from None
        return status, self.said(before)

    def snakemake(self, target: str = TABLES, *more: str, **env: Any) -> tuple[int, str]:
        return self.run("snakemake", "--cores", "1", target, *more, **env)

    def said_so_far(self) -> int:
        """To be given to `said` afterwards."""
        return self.output.stat().st_size if self.output.exists() else 0

    def said(self, since: int = 0) -> str:
        """What commands here have said since."""
        with open(self.output, "rb") as stream:
            stream.seek(since)
            return stream.read().decode(errors="replace")

    # -- processes -----------------------------------------------------------------------------

    def processes(self, word: str = "") -> list[psutil.Process]:
        """What runs for this checkout with a word in its command line, as `python -m WORD`."""
        found = []
        for process in psutil.process_iter():
            try:
                command = process.cmdline()  # a shell has its whole script as one word
                if (not word or word in command) and self._is_mine(process):
                    found.append(process)
            except psutil.Error:
                continue  # has ended, or is somebody else's
        return found

    def _is_mine(self, process: psutil.Process) -> bool:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        mark = process.environ().get(LOCK_VARIABLE)
        return mark == self.environment[LOCK_VARIABLE]

    def kill_all(self) -> None:
        """At the very end: nothing outlives the campaign."""
        for process in self.processes():
            process.kill()

    def no_orphans(self, seconds: float = 10) -> None:
        """Whatever ran has ended or ends soon.

        Raises:
            Broken: something goes on.
        """
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
                cell = record.read(path, check_schema=False)["cell"]
            except (UserError, FileNotFoundError):
                continue
            wanted = cell["workload"] in self.config["workloads"]
            if wanted and cell["seed"] == self.config.get("seed", 0):
                found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def intact(self, before: Mapping[Path, str], but: frozenset[Path] = frozenset()) -> None:
        """See that records that were finished are there, unchanged.

        Raises:
            Broken: one is not.
        """
        now = self.finished()
        for path, sha256 in before.items():
            if path not in but:
                what = "changed" if path in now else "gone"
                require(now.get(path) == sha256, f"a finished record is {what}: {path}")

    def tables(self, folder: Path | None = None) -> dict[str, bytes]:
        """Name -> content of the tables of records."""
        folder = folder or self.path / "results/tables"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}

    def rows(self) -> list[dict[str, str]]:
        with open(self.path / TABLES, newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def leftovers(self) -> list[Path]:
        """Files that were begun and not finished."""
        return list((self.path / "results").rglob(".*.tmp"))

    # -- the judgement -------------------------------------------------------------------------

    def complete(self, allowed: frozenset[str] = frozenset(), target: str = TABLES) -> None:
        """Run to the end without a fault, and see that all is as if there never had been one.

        Args:
            allowed: workloads whose process was killed, and whose record may say so.

        Raises:
            Broken: it is not.
        """
        self.no_orphans()
        before = self.finished()
        status, said = self.snakemake(target)
        require(status == 0, f"the rerun failed:\n{said[-3000:]}")
        self.intact(before)
        self.no_orphans()
        require(not self.leftovers(), f"left lying: {self.leftovers()}")
        self.sound(allowed)

    def sound(self, allowed: frozenset[str] = frozenset()) -> None:
        """See that records and tables are whole, agree, and count everything once.

        Raises:
            Broken: they do not.
        """
        wanted = set(self.config["workloads"])
        now = {path: record.read(path) for path in self.finished()}
        found = [data["cell"]["workload"] for data in now.values()]
        require(sorted(found) == sorted(wanted), f"records of {sorted(found)}")
        for data in now.values():
            name = data["cell"]["workload"]
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
        rows = {row["workload"]: row for row in self.rows()}
        require(sorted(row["workload"] for row in self.rows()) == sorted(wanted), f"rows {rows}")
        for path, data in now.items():
            row = rows[data["cell"]["workload"]]
            require(row["record_sha256"] == data["sha256"], f"{path}: the table has another one")
        self.same_tables()

    def same_tables(self) -> None:
        """See that the tables are those that the records give in a checkout that has only them.

        Raises:
            Broken: they are not.
        """
        clean = Scratch(self.path.parent / "clean", Path(self.environment[LOCK_VARIABLE]))
        shutil.rmtree(clean.path.parent, ignore_errors=True)
        for part in PARTS:
            clean.path.mkdir(parents=True, exist_ok=True)
            os.symlink(self.path / part, clean.path / part)
        for part in ("records", "history"):
            shutil.copytree(self.path / "results" / part, clean.path / "results" / part)
        shutil.copy2(self.path / "results/matrix.json", clean.path / "results/matrix.json")
        reference = sorted(map(str, (self.path / "results/reference").glob("*")))
        status, said = clean.run(
            "siliconprof.analyse.aggregate",
            "--matrix",
            "results/matrix.json",
            "--results",
            "results",
            "--reference",
            *reference,
            "--output-dir",
            "results/tables",
        )
        require(status == 0, f"aggregating the records alone failed:\n{said[-2000:]}")
        theirs, ours = clean.tables(), self.tables()
        for name, content in theirs.items():
            require(ours.get(name) == content, f"tables/{name} is not what the records say")


def kill(process: psutil.Process) -> bool:
    """kill -9; whether the process had not ended by itself."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


class Overlaps:
    """Watches in the background that no two cells of one host lock are measured at once."""

    def __init__(self, checkout: Scratch) -> None:
        self._checkout, self._end = checkout, threading.Event()
        self.seen: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Overlaps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.looks += 1
            outputs = set()
            for process in self._checkout.processes("siliconprof.measure.worker"):
                try:
                    command = process.cmdline()
                    outputs.add(command[command.index("--result") + 1])
                except (psutil.Error, ValueError, IndexError):
                    continue
            if len(outputs) > 1:
                self.seen.append(" and ".join(sorted(outputs)))

    def none(self) -> None:
        """Raises `Broken` where two were seen, or nobody has looked."""
        require(self.looks and self._thread.is_alive(), "nobody has watched for overlaps")
        require(not self.seen, f"measured at the same time: {self.seen[:3]}")
