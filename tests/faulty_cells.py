"""Cells of a workload that goes wrong on purpose, faulty_workload.py, and the processes that they start.

Every process that a test starts carries the copy's lock file in its environment: that is how orphans
are found.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Checkout, cpu_cell, until
from siliconprof.measure import fork_server
from siliconprof.store import record
from siliconprof.store.cell import Cell
from started_processes import started_with

LOCK_VARIABLE = "SILICONPROF_LOCK_FILE"


@pytest.fixture
def faulty(checkout: Checkout) -> Iterator[Checkout]:
    """A copy with the faulty workload in it; nothing that it starts outlives the test."""
    checkout.environment.pop(fork_server.SERVER_VARIABLE, None)  # it knows no workload of this copy
    plugin = checkout.path / "workflow/siliconprof/workloads/faulty.py"
    shutil.copyfile(Path(__file__).with_name("faulty_workload.py"), plugin)
    try:
        yield checkout
    finally:
        for process in processes(checkout):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def processes(project: Checkout, *words: str) -> list[psutil.Process]:
    """What runs for this copy, with one of the words in its command line or as its name."""
    found = []
    for process in started_with(LOCK_VARIABLE, project.environment[LOCK_VARIABLE]):
        with suppress(psutil.Error):  # has ended
            if not words or {*words} & {*process.cmdline(), process.name()}:
                found.append(process)
    return found


def workers(project: Checkout) -> list[psutil.Process]:
    """The measuring processes of a copy, and their forks."""
    return processes(project, fork_server.WORKER, fork_server.PROCESS_NAME)


def cell(mode: str, workload: str = "faulty", backend: str = "mlx", **more: Any) -> Cell:
    """A cell of the faulty workload, as `measure` takes it by hand."""
    timing = {"time_limit_s": more.pop("time_limit_s", 600)}
    parameters = {"seconds": 0, "mib": 16, "folder": ""} | more | {"mode": mode}
    known = cpu_cell(backend, "matmul", host="desk", device="cpu", workload=workload, timing=timing)
    return replace(known, module="faulty", parameters=parameters)


def arguments(cell: Cell) -> list[str]:
    """What `measure` is told about a cell; its record goes to `{workload}.json`."""
    return ["--cell", cell.to_json(), "--output", f"{cell.workload}.json"]


def measure(project: Checkout, cell: Cell, **more: Any) -> dict[str, Any]:
    """Measure a cell by hand; its record, checked."""
    project.stage("measure", *arguments(cell), **more)
    return record.read(project.path / f"{cell.workload}.json")


def begin_measure(project: Checkout, cell: Cell) -> subprocess.Popen:
    """Start to measure a cell, in a process group of its own, and go on."""
    command = ("siliconprof.measure", *arguments(cell))
    with open(project.path.parent / "output.txt", "a") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        return project.begin(*command, start_new_session=True, **streams)


def child_asleep(project: Checkout) -> psutil.Process:
    """The one measuring process of a copy, once its workload sleeps."""
    until((project.path.parent / "asleep").exists)
    return min(workers(project), key=lambda process: process.create_time())


def lock_is_free(project: Checkout) -> bool:
    with open(project.environment[LOCK_VARIABLE], "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
