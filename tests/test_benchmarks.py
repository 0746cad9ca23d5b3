"""The benchmarks start however they are called, and `make bench` comes to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

BENCHMARKS = sorted({*ROOT.glob("benchmarks/*.py"), *ROOT.glob("benchmarks/accelerator/*.py")})


@pytest.mark.slow
def test_every_benchmark_starts(tmp_path: Path) -> None:
    """From any folder, also where a script's own is on no search path, as in what a run starts."""
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    environment.pop("PYTHONPATH", None)
    for path in BENCHMARKS:
        command = [sys.executable, str(path), "--help"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
