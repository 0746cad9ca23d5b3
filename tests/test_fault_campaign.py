"""The fault campaign of benchmarks/faults.py, one fault of every kind; what must hold stands there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, compile_package
from started_processes import started_with

sys.path.insert(0, str(ROOT / "benchmarks"))

import faults  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the checkout lies; nothing that was started for it outlives the test."""
    try:
        yield tmp_path
    finally:
        for process in started_with(faults.LOCK_VARIABLE, str(tmp_path / "host.lock")):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.campaign
def test_nothing_is_lost_under_faults(folder):
    compile_package()  # the campaign's checkout takes the byte code along
    survived = faults.campaign(folder, seed=7, rounds=1)
    assert set(survived) == {*faults.KINDS, *([faults.FULL] if faults.MOUNTS else [])}
    if not faults.MOUNTS:
        pytest.skip("all is well but for a full disk, which needs root on Linux")
