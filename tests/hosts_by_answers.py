"""Hosts that are not at hand: `siliconprof plan` on one, by what its commands and frameworks would say."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from conftest import ROOT, Checkout
from siliconprof.cells import plan
from siliconprof.hosts import detect, machine
from synthetic_results import command

GIB = 2**30
QUERY = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits"
DOCUMENTED = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")


class Mac(NamedTuple):
    """A Mac: its chip, cores of GPU and processor, memory, and what Metal recommends to use of it."""

    chip: str
    gpu_cores: int
    cores: int
    memory_gib: int
    recommended_gib: float

    def commands(self) -> dict[str, str]:
        """What the system's commands print on it, as sysctl(8) and ioreg(8) do."""
        return {
            "sysctl -n machdep.cpu.brand_string": self.chip,
            "sysctl -n hw.memsize": str(self.memory_gib * GIB),
            "sysctl -n hw.physicalcpu": str(self.cores),
            "sysctl -n hw.logicalcpu": str(self.cores),
            "sysctl -n kern.osproductversion": "15.5",
            "sysctl -n hw.optional.arm.FEAT_FP16": "1",
            "sysctl -n hw.optional.arm.FEAT_BF16": "0" if self.chip == "Apple M1" else "1",
            "ioreg -rd1 -c IOPlatformExpertDevice": '"IOPlatformUUID" = "11111111-2222"',
            "ioreg -rc AGXAccelerator -d1": f'"gpu-core-count" = {self.gpu_cores}',
        }

    def answers(self) -> dict[str, dict[str, Any]]:
        """What the frameworks say on it."""
        gpu = {"name": self.chip, "memory_bytes": self.memory_gib * GIB, "error": None}
        gpu["working_set_bytes"] = int(self.recommended_gib * GIB)
        accelerate = "Accelerate (macOS 15.5)"
        torch = {"blas": accelerate, "mps_built": True, "cuda_runtime": None, "rocm_runtime": None}
        return {
            "torch": torch,
            "torch-mps": {"devices": [gpu]},
            "mlx": {"blas": accelerate, "gpu": "metal"},
            "mlx-gpu": {"devices": [gpu]},
        }


def plan_of(
    project: Checkout,
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    system: tuple[str, str],
    commands: Mapping[str, str],
    probed: Mapping[str, Mapping[str, Any]],
    packages: Mapping[str, str | None] = {},
) -> Any:
    """`siliconprof plan --json`, of a host whose files say nothing.

    Args:
        system: its name and its processor's architecture.
        commands: what the system's commands print.
        probed: what the frameworks say.
        packages: versions that are others than here.
    """
    versions = detect.package_versions() | packages
    monkeypatch.setattr(platform, "system", lambda: system[0])
    monkeypatch.setattr(platform, "machine", lambda: system[1])
    monkeypatch.setattr(machine, "run", lambda asked, **_: commands.get(" ".join(asked), ""))
    monkeypatch.setattr(machine, "read_text", lambda path: "")
    monkeypatch.setattr(detect, "probe", lambda name: dict(probed[name]))
    monkeypatch.setattr(detect, "package_versions", lambda: versions)
    monkeypatch.setattr(plan, "due_files", lambda words: {})  # Snakemake would look at this host
    with patch("siliconprof.errors.require_this_checkout"):
        done = command("plan", "--json", *words, cwd=project.path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documented(label: str, made: Any) -> str:
    """The line of docs/developing.md on a plan: cells, how many in which state, minutes, a batch."""
    states = Counter(entry["state"] for entry in made["cells"])
    counts = [states[name] for name in ("to measure", "skipped", "unsupported")]
    assert sum(counts) == len(made["cells"])
    (batch,) = {
        entry["batch_size"]
        for entry in made["cells"]
        if entry["cell"]["workload"].startswith("gpt2-small") and entry["state"] != "unsupported"
    }
    minutes = round(made["totals"]["expected_s"] / 60)
    return f"| {' | '.join(map(str, [label, len(made['cells']), *counts, minutes, batch]))} |\n"
