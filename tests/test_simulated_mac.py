"""The GPU of an M2 simulated over the CPU (tests/simulated), through the front door and by contract.

A simulated device computes on the CPU and keeps time, memory and limits as Metal does; its records say
so where the package reads the mark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Checkout

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "simulated"))
from experiment import GPT2, TIMING, prepared, record  # noqa: E402
from host import RECOMMENDED_BYTES, build_mac, contract_mac, paths, simulated_mac  # noqa: E402

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Python is on a Mac with an M2."""
    return simulated_mac(build_mac(tmp_path_factory.mktemp("mac")))


# -- through the front door ----------------------------------------------------------------------

WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": GPT2 | {"trainer": "plain", "memory_budget_gib": 1, "scenarios": ["fits"]},
    "matmul": {"module": "matmul", "shapes": [[1, 128, 128, 128]], "search_budget_s": 0.1},
    "bandwidth": {"module": "bandwidth", "working_sets_bytes": [2**20, 2**23], "caches": ["warm"]},
    # Its fresh processes have half of the limit; those that come later are said to be missing.
    "launch": {"module": "kernel_launch", "bursts": 10, "timing": TIMING | {"time_limit_s": 60}},
}


@pytest.fixture(scope="module")
def run(simulated: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small experiment on both frameworks, through the pipeline to its records."""
    copy = prepared(tmp_path_factory.mktemp("simulated"), simulated, WORKLOADS)
    copy.snakemake("measured")
    return copy


def test_an_experiment_on_a_simulated_mac_is_measured(run: Checkout) -> None:
    """Both frameworks measure everything; what is limited, wired and counted is in the records."""
    records = run.records()
    statuses = {key: (r["status"], r["reason"]) for key, r in records.items()}
    assert len(records) == 8 and {status for status, _ in statuses.values()} == {"ok"}, statuses
    host = json.loads((run.path / "results" / "hosts" / "desk.json").read_text(encoding="utf-8"))
    assert host["devices"][0]["name"] == "Apple M2"
    assert host["devices"][0]["backends"] == ["torch-mps", "mlx"]
    for backend in ("torch-mps", "mlx"):
        launches = record(run, backend=backend, workload="launch")["points"]
        assert [p["params"]["launch"] for p in launches] == ["dispatch", "empty kernel"]
        products = record(run, backend=backend, workload="matmul")["points"]
        assert products and all(product["result_error"] < 1e-5 for product in products)
        for point in record(run, backend=backend, workload="bandwidth")["points"]:
            assert point["bytes"] > 0 and min(point["times"]["step_s"]) > 0
        found = record(run, backend=backend, workload="plain")
        assert found["precision"]["effective"] == "fp32"
        (point,) = found["points"]
        assert point["operators"]["reason"] is None
        assert all(row["seconds"] for row in point["operators"]["rows"])
        held = found["scenario"]["predicted_bytes"]
        assert held / 2 < point["memory"]["device_peak_bytes"] < 2 * held
        assert found["probes"]["interference"]["power_mode"] == "automatic"
        assert found["probes"]["clocks"]["throttled"] is False
    torch, mlx = (
        record(run, backend=backend, workload="plain") for backend in ("torch-mps", "mlx")
    )
    assert "max_memory_allocated" in torch["points"][0]["memory"]["device_peak_means"]
    assert torch["scenario"]["limit"]["enforced"] and not mlx["scenario"]["limit"]["enforced"]
    assert mlx["environment"]["backend"]["wired_limit_bytes"] == RECOMMENDED_BYTES
    assert all(made["emulated"] for made in records.values())


# -- by contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch-mps", "mlx"])
def test_a_backend_keeps_its_contract_on_a_simulated_gpu(
    name: str, simulated: dict[str, str], tmp_path: Path
) -> None:
    """Precisions, memory, launches; and a wait that is missing shows in the times."""
    command = [sys.executable, *contract_mac(HERE, name, tmp_path)]
    environment = os.environ | simulated | paths(HERE)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_torch_mps_out_of_memory_is_a_record(run: Checkout) -> None:
    """Beyond its limit the allocator raises, as torch's does."""
    cell = json.loads(json.dumps(record(run, backend="torch-mps", workload="plain")["cell"]))
    cell["parameters"] |= {"batch_size": 12288, "memory_budget_gib": 0.05, "force": True}
    run.stage("measure", "--cell", json.dumps(cell), "--output", "over.json")
    made = json.loads((run.path / "over.json").read_text(encoding="utf-8"))
    assert made["status"] == "oom" and "MPS backend out of memory" in made["reason"]
