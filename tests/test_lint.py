"""The code and its sentences are checked: `make lint` runs this file alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

CHECKS = {
    "ruff check .": "All checks passed!",
    "ruff format --check .": "already formatted",
    "snakefmt --check Snakefile workflow": "",
    "mypy": "Success",
    "snakemake --lint": "Congratulations",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [*CHECKS, pytest.param("mypy --platform darwin", marks=pytest.mark.campaign)]
)
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
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 and CHECKS.get(check, "Success") in said, said


def test_conda_environments_have_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python envs/conda.py` makes them of envs/*.txt."""
    monkeypatch.syspath_prepend(ROOT / "envs")
    import conda

    made = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("envs/*.yaml")}
    assert made == {name: conda.text(name) for name in ("base", "cpu", "cuda", "apple")}
