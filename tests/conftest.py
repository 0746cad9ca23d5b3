"""What tests share: a copy of the checkout, the commands run in it, the default run made once."""

from __future__ import annotations

import atexit
import compileall
import csv
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import snakemake_fork
import yaml
from filelock import FileLock
from project_copy import ROOT, copy_parts

pytest_plugins = (
    "scheduling",
    "faulty_cells",
    "fake_sensors",
    "shared_fixtures",
)  # hooks, and fixtures of several files
sys.path.insert(0, str(ROOT / "workflow"))
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
# A core for each worker: a cell takes as many threads as it finds cores, and two cells of two threads
# on two cores wait for one another at every barrier; tiny steps then take many times as long.
if WORKER and CORES:
    os.sched_setaffinity(0, {CORES[int(WORKER.removeprefix("gw")) % len(CORES)]})
# A job in a shell's background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What a test writes need not outlive a power cut, and waiting for the disk takes longer than most.
os.fsync = lambda descriptor: None  # type: ignore[assignment]

from siliconprof import fingerprint, plugins  # noqa: E402
from siliconprof.hosts import cgroups  # noqa: E402
from siliconprof.lifetime import PIPELINE_VARIABLE  # noqa: E402
from siliconprof.measure import fork_server, scratch  # noqa: E402
from siliconprof.store import record  # noqa: E402
from siliconprof.store.cell import Cell  # noqa: E402

# One iteration or two of everything: tests look at behaviour, not at numbers.
QUICK = {
    "warmup_iterations": 1,
    "warmup_budget_s": 0,
    "iterations": 2,
    "max_iterations": 2,
    "budget_s": 0,
    "retry_budget_s": 0,  # the tests disturb each other
    "time_limit_s": 120,
}

# An entry of a config: the smallest training.
NANO = {"module": "gpt2", "trainer": "plain", "size": "nano"}
NANO |= {"batch_size": 2, "seq_len": 16, "dataset": "words"}
PRODUCT = {"module": "matmul", "shapes": [[1, 16, 16, 16]]}
# Of workload bandwidth: its arrays outgrow the cache else, and a server's takes a minute.
SMALL_ARRAYS = {"working_sets_bytes": [2**18, 2**22], "caches": ["warm"]}
# The experiment of `tiny`: a training, and what most of the pipeline is shown with.
TINY: dict[str, Any] = {
    "host": "desk",
    "backends": ["mlx", "torch-cpu"],
    "precisions": ["fp32"],
    "timing": QUICK,
    "datasets": {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}},
    "workloads": {
        "product": PRODUCT | {"backends": ["mlx"]},
        "product-torch": PRODUCT | {"backends": ["torch-cpu"]},
        "launch": {"module": "kernel_launch", "backends": ["mlx"], "bursts": 10},
        "nano-2": NANO | {"backends": ["mlx"]},
    },
}
TABLE = "results/tables/cells.csv"  # what comes right after the records


def codes(record: Mapping[str, Any]) -> set[str]:
    """The codes of a record's flags."""
    return {flag["code"] for flag in record["flags"]}


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table as texts."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def named(keys: Iterable[str]) -> set[str]:
    """Return `backend/workload/precision` for the keys of cells."""
    parts = (key.split("/") for key in keys)
    return {f"{part[2]}/{part[3]}/{part[5]}" for part in parts}


def cpu_cell(backend: str, module: str, parameters: Mapping[str, Any] = {}, **fields: Any) -> Cell:
    """A cell on this machine's CPU, in fp32, without trainer and data unless told otherwise.

    Args:
        parameters: of the workload, beside the defaults that a config would fill in.
        fields: of the cell; a number in `timing` takes the place of one of `QUICK`.
    """
    usual = {
        "host": "here",
        "device": "cpu-x",
        "workload": module,
        "scenario": "auto",
        "precision": "fp32",
        "trainer": None,
        "device_kind": "cpu",
        "device_index": 0,
        "device_memory_bytes": 2**34,
        "threads": 1,  # which is what a worker has cores
        "seed": 0,
        "dataset": None,
        "parameters": defaults(module, **parameters),
    }
    timing = QUICK | fields.pop("timing", {})
    return Cell(backend=backend, module=module, timing=timing, **(usual | fields))


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return a finished command; fail with what it printed if its exit status is not 0."""
    if done.returncode:
        said = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        raise AssertionError(f"{' '.join(done.args)}: {said}")
    return done


@dataclass
class Checkout:
    """A copy of the project in a folder of its own, and how to run things in it."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a command in the copy, without variables of the tests themselves."""
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("SILICONPROF_", "PYTEST_"))
        }
        # The rules say `python`: it must be the one that runs the tests.
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        return environment | {"PYTHONDONTWRITEBYTECODE": "1"} | self.environment | dict(own)

    def begin(self, module: str, *arguments: str, **more: Any) -> subprocess.Popen:
        """Start `python -m {module} …` in the copy, with its code, without waiting for its end."""
        environment = self.variables({"PYTHONPATH": "workflow"} | more.pop("env", {}))
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, cwd=self.path, env=environment, **more)

    def run(self, *command: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess:
        """Run a command in the copy, as a user would."""
        environment = self.variables(more.pop("env", {}))
        done = subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, **more
        )
        return checked(done) if check else done

    def share_imports(self) -> Checkout:
        """Have cells forked from processes that all tests of this worker share.

        Not where a test looks at processes, or at what the first cell of a run does.
        """
        if address := fork_server_of_the_tests():
            self.environment[fork_server.SERVER_VARIABLE] = address
        return self

    def snakemake(self, *arguments: str, check: bool = True, **more: Any) -> Any:
        """`snakemake --cores 1 …` with this interpreter.

        In a fork of a process that has imported it, unless variables are for the interpreter.
        """
        arguments = ("--cores", "1", *arguments)
        own = self.environment | more.get("env", {})
        for_python = any(name.startswith("PYTHON") for name in own)
        if for_python or more.keys() - {"env"} or sys.platform != "linux":
            command = [sys.executable, "-m", "snakemake", *arguments]
            return self.run(*command, check=check, **more)
        done = snakemake_fork.run(arguments, self.path, self.variables(own))
        return checked(done) if check else done

    def stage(self, module: str, *arguments: str, check: bool = True, **more: Any) -> Any:
        """`python -m siliconprof.{module} …` with this copy's code."""
        environment = {"PYTHONPATH": "workflow"} | more.pop("env", {})
        command = [sys.executable, "-m", f"siliconprof.{module}", *arguments]
        return self.run(*command, check=check, env=environment, **more)

    def measure(self, cell: Cell, output: str = "record.json", *more: str) -> dict[str, Any]:
        """The record that the measuring command leaves of a cell, checked."""
        self.stage("measure", "--cell", cell.to_json(), "--output", output, *more)
        return record.read(self.path / output)

    def configure(self, **config: Any) -> None:
        """Write config/config.yaml; nothing is measured twice because of other tests."""
        text = yaml.safe_dump({"remeasure_contended_s": 0} | config, sort_keys=False)
        (self.path / "config" / "config.yaml").write_text(text, encoding="utf-8")

    def reconfigure(self, change: Callable[[dict[str, Any]], Any]) -> None:
        """Write `TINY` with a change."""
        config = json.loads(json.dumps(TINY))
        change(config)
        self.configure(**config)

    def records(self) -> dict[str, dict[str, Any]]:
        """Every record here: path below results/records without suffix -> content."""
        folder = self.path / "results" / "records"
        return {
            path.relative_to(folder).with_suffix("").as_posix(): json.loads(path.read_text())
            for path in sorted(folder.rglob("*.json"))
        }

    def stamps(self) -> dict[str, tuple[str, str]]:
        """Path -> (hash, start) of every record: a re-measured one differs."""
        return {key: (r["sha256"], r["started_at"]) for key, r in self.records().items()}


def defaults(module: str, **own: Any) -> dict[str, Any]:
    """A workload's parameters, as a config fills them in."""
    return plugins.load("workloads", module).defaults() | own


def opened(name: str, precision: str = "fp32", threads: int = 1, kind: str = "cpu") -> Any:
    """Open a backend on this machine's CPU.

    A worker of pytest has one core, on which two threads would wait for each other.
    """
    backend = plugins.load("backends", name)()
    can, found = backend.available()
    assert can, f"{found}; install envs/cpu.txt"
    backend.open(kind, 0, threads, precision)
    return backend


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """Wait until a condition holds and return its value; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
    return value


def rounding(terms: int, steps: int = 1) -> float:
    """How far fp32 may be from what it computes, relatively, on any processor and in any order.

    A sum of n terms is wrong by λ √n times the unit roundoff, 2^-24, but with a probability of
    2 exp(-λ²/2), which is 3e-14 for 8 (Higham and Mary 2019, SIAM J. Sci. Comput. 41(5), A2815), and
    steps in a row add up. Kernels differ in how much of it they use, so that no tolerance may be what
    one host's BLAS showed.

    Args:
        terms: of the longest sum.
        steps: of a training, each from the weights of the one before.
    """
    return 8 * math.sqrt(terms) * steps * 2.0**-24


class NoClock:
    """A clock for steps that are not timed; with `split` a lazy framework still computes phase by phase."""

    waits = True

    def __init__(self, split: bool = False) -> None:
        self.split = split

    def edge(self, phase: str) -> None:
        """A phase ends."""


def can_limit() -> bool:
    """Whether this user can make a memory cgroup here."""
    return any(os.access(parent, os.W_OK | os.X_OK) for parent, _ in cgroups.parents())


def record_problems(value: Any, part: str) -> list[str]:
    """What is wrong with one part of a record, such as its `points`."""
    from siliconprof.store import contents, model

    return model.problems(contents.Record.model_fields[part].annotation, value)


@cache
def fork_server_of_the_tests() -> str | None:
    """The address of this worker's fork server, whose processes have imported the frameworks.

    It is started once and ends with the worker; None off Linux.
    """
    address = f"siliconprof-tests-{secrets.token_hex(8)}"
    try:
        fork_server.start(address, os.getpid())
    except (AttributeError, OSError):
        return None
    return address


@cache
def code_of_the_tests() -> str:
    """The folder of the code that this worker's cells compile; deleted when the worker ends."""
    folder = tempfile.mkdtemp(prefix="siliconprof-tests-")
    atexit.register(shutil.rmtree, folder)
    return f"{folder}/code"


@cache
def compile_package() -> str:
    """Compile and hash the package once, so that the processes in its copies need not.

    Copies keep the times of the files, by which Python knows that the byte code is theirs; a file
    that a test edits has another time, and is compiled by each process that imports it.

    Returns:
        what `fingerprint` knows of the files, which it finds by their content.
    """
    compileall.compile_dir(ROOT / "workflow", quiet=2)
    fingerprint.hash_of_package()
    return fingerprint.cache_text() or ""


def copy_project(target: Path, bundles: bool = False) -> Checkout:
    """The project's files and its byte code, without anything a run has made.

    Args:
        bundles: those of `config/measured/` too.
    """
    read = compile_package()
    copy_parts(target, *([] if bundles else ["*.zip"]))
    (target / "results/history").mkdir(parents=True)
    (target / "results/history" / fingerprint.CACHE_FILE).write_text(read, encoding="utf-8")
    shutil.copy2(ROOT / "results" / "README.md", target / "results" / "README.md")
    return Checkout(target)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh copy of the project with a lock of its own, so that tests do not queue."""
    return own_project(tmp_path)


def own_project(folder: Path, shared: bool = True) -> Checkout:
    """Make a fresh copy of the project in a folder, with a lock of its own.

    Args:
        shared: see `Checkout.share_imports`.
    """
    return with_own_lock(copy_project(folder / "project"), shared)


def with_own_lock(copy: Checkout, shared: bool = True) -> Checkout:
    """Give a copy a lock and compiled code of its own, so that its cells wait for no other copy's."""
    if shared:
        copy.share_imports()
    copy.environment["SILICONPROF_LOCK_FILE"] = str(copy.path.parent / "host.lock")
    # Cells of this worker take over checks and compiled code from each other, as in a run.
    copy.environment[PIPELINE_VARIABLE] = str(os.getpid())
    copy.environment[scratch.CODE_VARIABLE] = code_of_the_tests()
    return copy


@contextmanager
def once(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """Yield (a folder that all workers share, whether the caller must fill it)."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if WORKER else base) / name
    made = folder.with_suffix(".made")
    with FileLock(f"{folder}.lock"):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, not made.exists()
        made.touch()


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small prepared text; tests must not change it."""
    from siliconprof.datasets import dataset_spec, prepare

    entry = {"name": "words", "source": "builtin", "vocab_size": 300, "max_bytes": 100_000}
    with once(tmp_path_factory, "words") as (folder, missing):
        if missing:
            prepare.prepare(dataset_spec.parse(json.dumps(entry)), folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which `TINY` was run up to the page and its printed figures; tests must not change it."""
    with once(tmp_path_factory, "tiny") as (folder, missing):
        if missing:
            copy = own_project(folder)
            copy.configure(**TINY)
            done = copy.snakemake("report", "figures")
            (folder / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return with_own_lock(Checkout(folder / "project"))


@pytest.fixture
def clone(tiny: Checkout, tmp_path: Path) -> Checkout:
    """A copy of `tiny` that a test may change, with its results and Snakemake's metadata."""
    target = tmp_path / "clone"
    ignore = shutil.ignore_patterns("log", "locks")
    shutil.copytree(tiny.path, target, symlinks=True, ignore=ignore)
    return with_own_lock(Checkout(target))


@pytest.fixture(scope="session")
def golden_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the golden default run, up to the page; tests must not change it."""
    from golden import update

    with once(tmp_path_factory, "golden") as (folder, missing):
        if missing:
            update.make_tables("default", folder)
    return folder


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The checkout of the README's default run; tests must not change it. Its output is in output.txt.

    `SILICONPROF_DEFAULT_RUN` is the checkout, on this machine, where it was made; its output lies beside it.
    """
    copy = copy_project(tmp_path_factory.mktemp("default-run") / "project", bundles=True)
    output = copy.path.parent / "output.txt"
    if name := os.environ.get("SILICONPROF_DEFAULT_RUN"):
        made = Path(name).resolve()
        for part in ("results", ".snakemake"):
            shutil.copytree(made / part, copy.path / part, symlinks=True, dirs_exist_ok=True)
        shutil.copy(made.parent / output.name, output)
        return copy
    # Two threads that others keep from their cores took 28 times as long for a cell.
    done = copy.snakemake("report", "--set-resources", "measure:time_limit_s=3000")
    output.write_text(done.stdout + done.stderr, encoding="utf-8")
    return copy
