"""The benchmarks start however they are called, and `make bench` comes to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NANO, ROOT, Checkout

OF_PIPELINE = 10  # figures, with one round, of a run that has ended
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


@pytest.mark.campaign
def test_what_the_pipeline_costs_is_asked_to_the_end(clone: Checkout) -> None:
    """Each figure beside its goal; one that misses it is called so, and fails nothing."""
    trained = {f"gpt2-nano-{trainer}": NANO | {"trainer": trainer} for trainer in ("plain", "hf")}
    clone.reconfigure(lambda config: config["workloads"].update(trained))
    clone.snakemake("report")
    command = [sys.executable, str(ROOT / "benchmarks/pipeline.py"), "--rounds", "1"]
    command += ["--cells", "100"]
    done = subprocess.run(
        [*command, "--finished", str(clone.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    (_, _, *figures) = lines
    assert len(figures) == OF_PIPELINE, done.stdout
    assert "0 failed" in done.stdout, done.stdout
