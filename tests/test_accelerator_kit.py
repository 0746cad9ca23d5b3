"""The kit of benchmarks/accelerator, both calls one after the other, on this host's processor."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, SMALL_ARRAYS, own_project

KIT = ROOT / "benchmarks" / "accelerator"
PHASES = ("SMOKE", "CHECKS", "CONTRACT")
TINY: dict[str, Any] = {
    "gpt2": {"size": "nano", "batch_size": 2, "seq_len": 32},
    "whisper": {"size": "nano", "batch_size": 2, "target_len": 16},
    "matmul": {"shapes": [[1, 64, 64, 64]], "search_budget_s": 0},
    "vjp": {"shapes": [[1, 64, 64, 64]]},
    "matvec": {"shapes": [[64, 64]]},
    "copy": {"transfer_bytes": [65536]},
    "bandwidth": SMALL_ARRAYS,
    "kernel_launch": {},
    "lstm": {"batch_sizes": [8], "max_steps": 4},
}


def tiny(source: Path, target: Path) -> None:
    """The same workloads on torch's CPU, as small as they can be."""
    config = yaml.safe_load(source.read_text(encoding="utf-8"))
    for name, entry in config["workloads"].items():
        entry |= TINY[entry["module"]]
        entry |= {"backends": ["torch-cpu"], "device_kinds": ["cpu"], "precisions": ["fp32"]}
        entry["timing"] = {"budget_s": 0.1, "warmup_budget_s": 0.05, "energy_window_s": 0}
        if name == "gpt2-small-near-capacity":
            entry |= {"batch_size": "auto", "memory_budget_gib": {"cpu": 0.03}}
    config["workloads"].pop("gpt2-small-compiled", None)  # half a minute of compiling on a CPU
    target.write_text(yaml.safe_dump(config), encoding="utf-8")


@pytest.mark.flaky(reruns=1)  # its phases have time limits
@pytest.mark.slow
@pytest.mark.campaign
def test_the_kit_brings_back_records_and_checks(tmp_path: Path) -> None:
    """What its own phases could not do, such as a copy to a device that is none, stays a record."""
    project = own_project(tmp_path, shared=False)
    for name in ("gpu.yaml", "smoke.yaml"):
        tiny(KIT / name, tmp_path / name)
    out = tmp_path / "out"
    project.environment |= {
        "OUT": str(out),
        "WORK": str(tmp_path / "work"),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),  # else other tests' host has one more
        "CONFIG": str(tmp_path / "gpu.yaml"),
        "SMOKE": str(tmp_path / "smoke.yaml"),
        "CHECKS": "--backend torch-cpu --small --seconds 600",
        "BUDGET_S": "3000",  # beside other tests a phase may take several times its limit there
        **{f"{phase}_S": "900" for phase in PHASES},
    }
    for number, call in enumerate(("on_device.sh", "on_device_missing.sh"), 1):
        done = project.run("bash", str(KIT / call))
        stages = (out / "stages.txt").read_text(encoding="utf-8")
        assert stages.split().count("end") == number and "forked" in stages, done.stdout
        with zipfile.ZipFile(out / "bundle.zip") as bundle:
            packed = [name for name in bundle.namelist() if "/gpt2-" in name]
        assert len(packed) >= 10, done.stdout
    records = project.records()
    trained = [record for path, record in records.items() if "/gpt2-" in path]
    assert len(trained) >= 10 and {record["status"] for record in trained} == {"ok"}
    assert "ok   marks" in (out / "checks.txt").read_text(encoding="utf-8")
