"""The fault campaign of benchmarks/faults.py, much shorter: a fault or two of every kind.

What it asserts of each fault is in benchmarks/fault_checkout.py, `Scratch.complete` above all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, compile_package

sys.path.insert(0, str(ROOT / "benchmarks"))

import fault_checkout  # noqa: E402
import fault_kinds as kinds  # noqa: E402
import faults  # noqa: E402

SEED = 7  # benchmarks/faults.py takes another each time
KINDS = {
    "kill -9 of snakemake",
    "kill -9 of the supervisor",
    "kill -9 of the child",
    "SIGINT to the terminal's group",
    "daemons that a cell leaves",
    f"kill -9 of {kinds.PACK}",
    f"kill -9 of {kinds.IMPORT}",
    "two pipelines at once on a host",
}
DISKS = {"disk full during a run", "read-only: measure"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the checkouts lie; nothing that was started for one of them outlives the test."""
    try:
        yield tmp_path
    finally:
        for process in psutil.process_iter():
            try:
                mark = process.environ().get(fault_checkout.LOCK_VARIABLE, "")
            except psutil.Error:
                continue  # has ended, or is somebody else's
            if mark.startswith(f"{tmp_path}{os.sep}"):
                fault_checkout.kill(process)


@pytest.mark.slow
def test_nothing_is_lost_under_faults(folder):
    compile_package()  # checkouts of the campaign take the byte code along
    work: list[faults.Work] = [
        (kinds.kills, {"count": 8}),
        (kinds.stage_kills, {"stages": ("render.page",)}),
        (kinds.disk_full, {"count": 1}),
        (kinds.refusals, {"disks": ("read-only",)}),
        (kinds.two_pipelines, {"count": 1}),
        (kinds.carrying_kills, {"count": 1}),
    ]
    log = faults.campaign(folder, SEED, work)
    said = faults.summary(log)
    print(said)
    assert not log.problems and log.survived == log.injected, said
    wanted = KINDS | (DISKS if faults.MOUNTS else set())
    assert set(log.survived) >= wanted, said
    if not faults.MOUNTS:
        pytest.skip("all is well but for a full and a read-only disk, which need root on Linux")
