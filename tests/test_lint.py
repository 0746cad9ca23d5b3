"""The code and its sentences are checked: `make lint` runs this file alone."""

from __future__ import annotations

import os
import re
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
}


def checked(check: str) -> tuple[int, str]:
    """The exit status of `python -m …` here, and all that it says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", *check.split()],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONPATH": "workflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, f"{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [*CHECKS, pytest.param("mypy --platform darwin", marks=pytest.mark.campaign)]
)
def test_nothing_is_found(check: str) -> None:
    status, said = checked(check)
    assert status == 0 and CHECKS.get(check, "Success") in said, said


@pytest.mark.slow
def test_snakemake_s_linter_misses_the_environment_of_local_rules_alone() -> None:
    """They run in Snakemake's own."""
    _, said = checked("snakemake --lint")
    lints = re.findall(r"^Lints for (\w+ \w+)|^    \* (.*)", said, re.M)
    assert {title for _, title in lints} - {""} == {
        "Specify a conda environment or container for each rule.:"
    }
    rules = {rule for rule, _ in lints} - {""}
    assert rules >= {"rule prepare_text", "rule render"} and "rule measure" not in rules


def test_conda_environments_have_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python envs/conda.py` makes them of envs/*.txt."""
    monkeypatch.syspath_prepend(ROOT / "envs")
    import conda

    made = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("envs/*.yaml")}
    assert made == {name: conda.text(name) for name in ("cpu", "cuda", "apple")}
