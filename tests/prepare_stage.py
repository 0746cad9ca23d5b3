"""The prepare stage as a user runs it, and what all kinds of data set promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from siliconprof.datasets import dataset_spec, prepare

WORKFLOW = ROOT / "workflow"


def run_stage(
    dataset: dict[str, Any], output: Path, home: Path, pythonpath: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the stage with a hub home; offline unless there is a hub."""
    paths = [str(path) for path in (pythonpath, WORKFLOW) if path]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HOME": str(home),
        **({} if "HF_ENDPOINT" in env else {"HF_HUB_OFFLINE": "1"}),
        **env,
    }
    command = [sys.executable, "-m", "siliconprof.datasets.prepare"]
    command += ["--dataset", json.dumps(dataset), "--output-dir", str(output)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def prepare_here(dataset: dict[str, Any], output: Path, **more: str) -> dict[str, Any]:
    """The same in this process; the content of dataset.json."""
    return prepare.prepare(dataset_spec.parse(json.dumps(dataset)), output, **more)


def refused(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a run ended with exit code 2 and one line that holds every word."""
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    for word in words:
        assert word in run.stderr


def objection(dataset: dict[str, Any], output: Path) -> str:
    """The one line with which a data set is refused, and nothing is written."""
    with pytest.raises(dataset_spec.PrepareError) as error:
        prepare_here(dataset, output)
    assert "\n" not in str(error.value)
    assert not output.exists()
    return str(error.value)


def loaded_by(program: str, *arguments: str) -> set[str]:
    """The installed packages that a program imports, beside this one."""
    script = (
        f"import sys\nbefore = set(sys.modules)\n{program}\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": str(WORKFLOW), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split()) & set(packages_distributions()) - {"siliconprof"}
