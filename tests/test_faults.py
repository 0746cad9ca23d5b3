"""Cells that die, hang or run out of memory, pipelines that are killed, and the host's lock."""

from __future__ import annotations

import html
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import QUICK, can_limit, codes, csv_rows, until
from faulty_cells import (
    LOCK_VARIABLE,
    arguments,
    begin_measure,
    cell,
    child_asleep,
    lock_is_free,
    measure,
    processes,
)
from siliconprof.backends import torch_mps
from siliconprof.hosts import cgroups
from siliconprof.measure import lock
from siliconprof.measure.child import Output, aborted
from siliconprof.store import record
from synthetic_results import training

REACHED = "while: before the fault, step 7"


# -- each way to go wrong ----------------------------------------------------------------------

FAULTS = {
    "fine": ("ok", None),
    "diverges": ("ok", None),
    "raises": ("failed", rf"RuntimeError: wrong on purpose; {REACHED}"),
    "aborts": ("failed", "the GPU gave up work .* no step is sure to have trained; its output: .*"),
    "stutters": ("failed", r"RuntimeError: \[METAL\] .*; macOS's GPU watchdog .* display sleeps.*"),
    "segfaults": ("failed", rf"killed by signal 11 \(SIGSEGV\); {REACHED}.*"),
    "exits": ("failed", rf"exit status 3; {REACHED}; cannot go on"),
    "measures_nothing": ("failed", "it came to its end without a point: nothing was measured"),
    "leaves_daemons": ("ok", None),
    "hangs": ("timeout", rf"still running after its limit of 10 s; {REACHED}"),
    "hangs_at_exit": ("ok", None),
}


@pytest.mark.slow
def test_every_fault_leaves_a_record_and_the_report_is_made(faulty):
    common = {"module": "faulty", "backends": ["mlx"], "device_kinds": ["cpu"]}
    entries: dict[str, Any] = {mode: common | {"mode": mode} for mode in FAULTS}
    for mode in ("hangs", "hangs_at_exit"):
        entries[mode]["timing"] = {"time_limit_s": 10}
    entries["fine"]["backends"] = ["torch-cpu"]
    faulty.configure(host="desk", timing=QUICK, workloads=entries, cpu_threads=2)
    # Snakemake exports such variables under --cores 1, and so does many a cluster.
    faulty.snakemake("report", env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

    made = {r["cell"]["workload"]: r for r in faulty.records().values()}
    assert set(made) == set(FAULTS)
    for mode, (status, reason) in FAULTS.items():
        assert made[mode]["status"] == status, (mode, made[mode]["reason"])
        if reason is None:
            assert made[mode]["reason"] is None
        else:
            assert re.fullmatch(reason, made[mode]["reason"]), (mode, made[mode]["reason"])
            assert made[mode]["progress"] == {"doing": "before the fault", "step": 7}
        assert bool(made[mode]["points"]) == (status == "ok")
    assert made["fine"]["environment"]["backend"]["threads"] == 2
    assert made["fine"]["points"][0]["params"]["omp_num_threads"] == "2"
    assert made["diverges"]["points"][0]["loss"] == [1.0, None]
    assert "loss_not_finite" in codes(made["diverges"])
    assert 10 <= made["hangs"]["accounting"]["child_wall_s"] < 300
    assert "crashed_at_exit" in codes(made["hangs_at_exit"])
    flagged = {mode: flag["detail"] for mode, r in made.items() for flag in r["flags"]
               if flag["code"] == "left_processes"}  # fmt: skip
    assert flagged.keys() == {"leaves_daemons"}
    assert re.fullmatch(
        r"3 killed: \S+ \(PID \d+\)((,| and) \S+ \(PID \d+\)){2}", flagged["leaves_daemons"]
    )
    folder = faulty.path / "results"
    for path in (folder / "records").rglob("*.json"):
        sha256 = record.load(path).sha256  # typed, and with its own hash
        kept = folder / "history" / path.relative_to(folder / "records").with_suffix("")
        assert [p.name for p in kept.glob("*.json")] == [f"{sha256}.json"]

    rows = {row["workload"]: row for row in csv_rows(folder / "tables" / "cells.csv")}
    assert rows.keys() == made.keys()
    for name, row in rows.items():
        assert (row["status"], row["reason"]) == (made[name]["status"], made[name]["reason"] or "")
    page = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    for mode in FAULTS:
        assert mode in page
        assert made[mode]["reason"] is None or made[mode]["reason"] in page

    _, left = psutil.wait_procs(processes(faulty), 10)  # a last one may be at its end
    assert not left and not list(folder.rglob("*.tmp"))
    # A cell that failed is finished: it is not tried again unasked.
    before = faulty.stamps()
    assert "Nothing to be done" in faulty.snakemake("report").stderr
    assert faulty.stamps() == before


def test_what_a_killed_process_left_beside_a_record_goes_with_the_next(tmp_path: Path) -> None:
    made, history = training(0.01), tmp_path / "history"
    beside = [tmp_path / "fp32.json", history / record.cell_path(made) / "0.json"]
    for path in beside:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.99999.tmp").write_text("{", encoding="utf-8")
    others = tmp_path / ".bf16.json.99999.tmp"
    others.touch()  # may be written just now
    record.write(made, beside[0], history)
    assert [*tmp_path.rglob("*.tmp")] == [others] and beside[0].exists()


# -- output ------------------------------------------------------------------------------------


def test_a_sign_is_found_wherever_it_is_in_the_output() -> None:
    """Cut in two by the pipe; out of memory is told apart, and a cell that has failed has the remedy."""
    aborts = torch_mps.Plugin.aborts
    said = (
        "Error: command buffer exited with error status.\n\tError: Insufficient Memory (00000008)\n"
    )
    for cut in (0, 9, 30, len(said)):
        output = Output(aborts)
        for part in (said[:cut], said[cut:]):
            output.add(part.encode())
        assert output.found == {"command buffer exited with error status"}, cut
    report = {"status": "ok", "reason": None, "points": [{}]}
    found = aborted(report, aborts, output)
    assert (found["status"], found["points"]) == ("oom", []) and "Insufficient" in found["reason"]
    output.add(b"Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)")
    late = aborted(report | {"status": "timeout", "reason": "late"}, aborts, output)
    assert late["reason"].startswith("late; macOS aborted") and late["points"]
    assert aborted(report, aborts, Output(aborts)) is report
    assert aborted(report, {}, output) is report


@pytest.mark.slow
def test_output_is_bounded_in_the_log(faulty):
    """Of 50 MB a beginning and an end, and how much is left out; the end is in the reason."""
    log = faulty.stage("measure", *arguments(cell("floods"))).stderr
    assert log.startswith("the beginning") and " the end\n" in log
    assert 2.0e6 < len(log.encode()) < 2.1e6
    before, n_bytes, after = re.split(r"\n\[siliconprof: (\d+) bytes of .* left out.*\]\n", log)
    end = after.rpartition(" the end\n")[0]  # what follows is the supervisor's own
    assert 50e6 < len(f"{before}{end} the end\n".encode()) + int(n_bytes) < 51e6
    assert f"line {0:44}" in before and f"line {999:44}" in end
    made = record.read(faulty.path / "faulty.json")
    assert made["reason"] == f"exit status 3; {REACHED}; {'x' * 200}"


# -- memory ------------------------------------------------------------------------------------

# Without a limit that holds, a test that takes all memory would take all of the machine's.
only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="macOS has no cgroups and ignores RLIMIT_AS"
)


@only_linux
@pytest.mark.slow
def test_an_allocation_that_is_refused_is_oom(faulty):
    """In the framework's words, under a limit that all processes of the cell inherit."""
    limit = (2**31, 2**31)
    made = measure(
        faulty,
        cell("exhausts", backend="torch-cpu", mib=64),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert made["status"] == "oom"
    asked = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes"
    assert re.fullmatch(rf".*{asked}.*{REACHED}", made["reason"]), made["reason"]


GROUP = f"{cgroups.PREFIX}{os.getpid()}"


@pytest.fixture
def cgroup() -> Iterator[Callable[[], Any] | None]:
    """To be called in a new process: it and all it starts have 300 MiB; None without the right."""
    try:
        yield (lambda: cgroups.enter(300 * 2**20, os.getpid())) if can_limit() else None
    finally:
        for parent, version in cgroups.parents():
            cgroups.Group(parent / GROUP, version).remove()


@only_linux
@pytest.mark.slow
def test_the_kernels_killer_leaves_evidence(faulty, cgroup):
    if cgroup is None:
        return
    made = measure(faulty, cell("exhausts"), preexec_fn=cgroup)
    assert made["status"] == "oom", made["reason"]
    evidence = "(the cgroup's oom_kill counter rose from 0 to 1|kernel log: .*)"
    assert re.fullmatch(rf"killed by signal 9 \(SIGKILL\); {REACHED}; {evidence}", made["reason"])


def test_a_plain_kill_is_never_oom(faulty):
    """Whatever the cell has printed before."""
    supervisor = begin_measure(faulty, cell("complains", seconds=600))
    child = child_asleep(faulty)
    child.send_signal(signal.SIGKILL)
    assert supervisor.wait(120) == 0
    made = record.read(faulty.path / "faulty.json")
    assert made["status"] == "failed"
    assert made["reason"].startswith("killed by signal 9 (SIGKILL); while: asleep, step 8")
    assert "oom_kill" not in made["reason"] and "kernel log" not in made["reason"]


@pytest.mark.parametrize("child_first", [False, True])
def test_a_supervisor_that_is_told_to_end_ends_its_child(faulty, child_first):
    """Also where its child was told first, as a scheduler does that cancels a job."""
    supervisor = begin_measure(faulty, cell("sleeps", seconds=600))
    child = child_asleep(faulty)
    if child_first:
        child.terminate()
        until(lambda: not child.is_running())  # its supervisor knows
        time.sleep(0.5)
    supervisor.terminate()
    assert supervisor.wait(120) == 130
    assert processes(faulty) == [] and lock_is_free(faulty)
    assert not (faulty.path / "faulty.json").exists()


# -- what a cell leaves ------------------------------------------------------------------------


def test_a_killed_supervisor_ends_its_cell_and_lets_the_next_begin(faulty):
    first = begin_measure(faulty, cell("sleeps", "first", seconds=600))
    child_asleep(faulty)
    second = begin_measure(faulty, cell("fine", "second"))
    until(lambda: "waiting for" in (faulty.path.parent / "output.txt").read_text())
    first.kill()
    assert second.wait(120) == 0 and first.wait(120) != 0
    assert processes(faulty) == []
    assert record.read(faulty.path / "second.json")["status"] == "ok"
    assert not (faulty.path / "first.json").exists()


# -- the lock ----------------------------------------------------------------------------------


def test_who_waits_says_for_whom(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "host.lock"))
    with lock.exclusive_host(lambda: None, "desk/cpu"), pytest.raises(ZeroDivisionError):
        with lock.exclusive_host(lambda: 1 / 0, "another"):  # its check ends the wait
            raise AssertionError("two hold it")
    said = rf"waiting for PID {os.getpid()}, desk/cpu of .+, since [\d:]{{8}}\n"
    assert all(re.fullmatch(said, stream) for stream in capsys.readouterr())


@pytest.mark.slow
def test_cells_of_one_host_never_overlap(faulty, tmp_path):
    """The second waits until the first has ended, and says so."""
    hold = tmp_path / "hold"
    hold.touch()
    first = begin_measure(faulty, cell("sleeps", "first", folder=str(tmp_path)))
    child_asleep(faulty)
    second = begin_measure(faulty, cell("sleeps", "second", folder=str(tmp_path)))
    waits = r"waiting for PID \d+, desk/cpu/mlx/first/auto/fp32 of \S+, since \d\d:\d\d:\d\d"
    until(lambda: re.search(waits, (faulty.path.parent / "output.txt").read_text()))
    hold.unlink()
    assert first.wait(120) == 0 and second.wait(120) == 0
    made = {n: record.read(faulty.path / f"{n}.json") for n in ("first", "second")}
    assert {n: r["status"] for n, r in made.items()} == {"first": "ok", "second": "ok"}
    waited_s = {n: r["accounting"]["waited_for_lock_s"] for n, r in made.items()}
    assert waited_s["second"] > waited_s["first"]
    (_, ended), (began, _) = (
        map(float, line.split()) for line in (tmp_path / "spans").read_text().splitlines()
    )
    assert ended <= began
