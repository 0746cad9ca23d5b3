"""The code and its sentences are checked: `make lint` runs this file alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

CHECKS = (
    "ruff check .",
    "ruff format --check .",
    "snakefmt --check Snakefile workflow/rules",
    "mypy",
    "siliconprof.pipeline.lint",
)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found(check: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *check.split()],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONPATH": "workflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
