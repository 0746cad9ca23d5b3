"""Cells are forked from processes that have imported: the same numbers, and no harm when one dies."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from conftest import Checkout, codes, until
from faulty_cells import (
    begin_measure,
    cell,
    child_asleep,
    lock_is_free,
    measure,
    processes,
    workers,
)
from siliconprof import lifetime
from siliconprof.measure import child, fork_server
from siliconprof.session import resolved_cell
from siliconprof.store.record import read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cells are forked on Linux only")


@pytest.fixture
def forking(faulty: Checkout) -> Iterator[Checkout]:
    """A copy whose cells are forked; its pipeline is a process that sleeps."""
    pipeline = subprocess.Popen(["sleep", "600"])
    faulty.environment[fork_server.SERVER_VARIABLE] = f"siliconprof-{secrets.token_hex(8)}"
    faulty.environment[lifetime.PIPELINE_VARIABLE] = str(pipeline.pid)
    yield faulty
    pipeline.kill()
    pipeline.wait()
    until(lambda: not tree(faulty))


def tree(project: Checkout) -> list[psutil.Process]:
    """The processes that have imported and fork."""
    measure = {process.pid for process in workers(project)}
    return [p for p in processes(project, fork_server.MODULE) if p.pid not in measure]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_a_fork_measures_what_a_fresh_interpreter_measures(
    backend: str,
    forking: Checkout,
) -> None:
    """The same code in the process, the same arithmetic, the same memory; it is told apart."""
    made = {}
    for way in ("fork", "second", "fresh"):
        if way == "fresh":
            del forking.environment[fork_server.SERVER_VARIABLE]
        made[way] = measure(forking, cell("fine", backend=backend))
    fork, fresh = made["second"], made["fresh"]
    ways = [m["method"]["process"] for m in made.values()]
    assert ways == [child.FORKED_METHOD, child.FORKED_METHOD, child.FRESH]
    assert fork["status"] == fresh["status"] == "ok"
    for part in ("cell", "code", "modules_loaded", "precision"):
        assert fork[part] == fresh[part], part
    for part in ("backend", "variables", "python"):
        assert fork["environment"][part] == fresh["environment"][part], part
    assert not codes(fork) & {"left_processes", "crashed_at_exit"}
    accounts = [made[way]["accounting"] for way in ("fork", "second")]
    assert min(account["open_s"] - account["check_s"] for account in accounts) < 1
    rss = {way: max(s["rss_bytes"] for s in m["samples"]) for way, m in made.items()}
    assert rss["second"] == pytest.approx(rss["fresh"], rel=0.1)


def test_the_first_cell_starts_the_tree_and_the_next_ones_ask_it(forking: Checkout) -> None:
    """The same processes, whatever Snakemake adds to the environment; none is the cell's own."""
    one = cell("fine")
    assert not tree(forking)
    assert measure(forking, one)["method"]["process"] == child.FORKED_METHOD
    until(lambda: len(tree(forking)) == 3)  # the root, one for the environment, one that has MLX
    before = {process.pid for process in tree(forking)}
    forking.environment |= dict.fromkeys(resolved_cell.THREAD_VARIABLES, "1")
    forking.environment |= dict.fromkeys(fork_server.OF_A_JOB, "/tmp")
    assert measure(forking, one)["method"]["process"] == child.FORKED_METHOD
    assert {process.pid for process in tree(forking)} == before


@pytest.mark.slow
def test_what_is_not_forked_starts_no_tree(forking: Checkout) -> None:
    fresh = cell("fine", backend="torch-cpu", capture="env")
    assert measure(forking, fresh)["method"]["process"] == child.FRESH
    forking.environment[lifetime.FORKS_VARIABLE] = "0"
    assert measure(forking, cell("fine"))["method"]["process"] == child.FRESH
    assert not tree(forking)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["refused", "opens the device"])
def test_where_no_process_can_fork_the_cell_starts_afresh(forking: Checkout, why: str) -> None:
    """Where nobody answers; where an import asks the device, whose context is of no use in a fork."""
    if why == "refused":
        del forking.environment[lifetime.PIPELINE_VARIABLE]
    else:
        backend = forking.path / "workflow/siliconprof/backends/mlx.py"
        with backend.open("a", encoding="utf-8") as file:
            file.write("\nMlxFeatures.bad_fork = lambda self: True\n")
    made = measure(forking, cell("fine"))
    assert made["status"] == "ok"
    assert re.fullmatch(f"{child.FRESH}, since .*{why}.*", made["method"]["process"])


def test_a_cell_whose_parent_is_killed_has_failed(forking: Checkout) -> None:
    """How the fork ends nobody can tell, so it is ended as well."""
    supervisor = begin_measure(forking, cell("sleeps", seconds=600))
    worker = child_asleep(forking)
    worker.parent().kill()
    assert supervisor.wait(120) == 0
    made = read(forking.path / "faulty.json")
    assert made["status"] == "failed"
    assert made["reason"].startswith("killed by signal 9 (SIGKILL); while: asleep, step 8")
    assert lock_is_free(forking) and not workers(forking)


def test_a_fork_ends_with_its_supervisor(forking: Checkout) -> None:
    """So do the daemons that it has started; the process that forked it forks the next."""
    supervisor = begin_measure(forking, cell("leaves_daemons", seconds=60))
    forked_by = child_asleep(forking).parent()
    assert fork_server.MODULE in forked_by.cmdline()
    supervisor.kill()
    until(lambda: lock_is_free(forking))
    until(lambda: len(processes(forking)) == len(tree(forking)))
    assert forked_by in tree(forking)
    assert measure(forking, cell("fine"))["method"]["process"] == child.FORKED_METHOD
