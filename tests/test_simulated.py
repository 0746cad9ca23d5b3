"""NVIDIA GPUs simulated over CPU tensors (tests/simulated), through the front door and by contract.

A simulated device computes on the CPU and keeps time, memory and errors as a GPU does; its records
say so, and nothing but these tests accepts them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import Checkout, cpu_cell
from siliconprof import plugins
from siliconprof.errors import UserError
from siliconprof.hosts import detect
from siliconprof.session import timing
from siliconprof.store import record as store

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "simulated"))
from device import CARDS, KERNEL_S  # noqa: E402
from experiment import GPT2, TIMING, prepared, record  # noqa: E402
from host import ACCEPT, build, contract, paths, simulated  # noqa: E402

H200 = "NVIDIA H200"
RATES = CARDS[H200].flop_rates
pytestmark = pytest.mark.campaign


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a driver brings."""
    return build(tmp_path_factory.mktemp("driver"))


WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": GPT2 | {"trainer": "plain", "precisions": ["tf32"]},
    "hf": GPT2 | {"trainer": "hf", "precisions": ["fp32", "amp-fp16"]},
    "near": GPT2
    | {"trainer": "plain", "batch_size": "auto"}
    | {"memory_budget_gib": 0.25, "near_capacity_share": 0.9, "scenarios": ["near-capacity"]},
    "over": GPT2
    | {"trainer": "plain", "batch_size": 256}
    | {"memory_budget_gib": 0.1, "scenarios": ["fits"], "force": True},
    "matmul": {"module": "matmul", "shapes": [[1, 256, 256, 256]]}
    | {"search_budget_s": 0.1, "burst_budget_s": 0.05},
    "bandwidth": {"module": "bandwidth", "caches": ["warm"]}
    | {"working_sets_bytes": [2**18, 2**24], "backends": ["torch-cuda", "mlx"]},
    # Its fresh processes have half of the limit; those that come later are said to be missing.
    "launch": {"module": "kernel_launch", "bursts": 10, "backends": ["torch-cuda", "mlx"]}
    | {"timing": TIMING | {"time_limit_s": 60}},
    "copy": {"module": "copy", "transfer_bytes": [2**16, 2**18]},
}


@pytest.fixture(scope="module")
def run(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small experiment on a simulated H200, through the pipeline to the page."""
    workloads = {name: {"backends": ["torch-cuda"]} | own for name, own in WORKLOADS.items()}
    copy = prepared(tmp_path_factory.mktemp("simulated"), simulated(driver, H200), workloads)
    copy.snakemake("report")
    return copy


def test_an_experiment_on_a_simulated_gpu_reaches_the_page(run: Checkout) -> None:
    """Every status is the one that the card's memory and the precision call for."""
    statuses = {
        (r["cell"]["workload"], r["cell"]["precision"]): r["status"] for r in run.records().values()
    }
    assert statuses.pop(("over", "fp32")) == "oom", record(run, workload="over")["reason"]
    assert set(statuses.values()) == {"ok"}, statuses
    assert "CUDA out of memory" in record(run, workload="over")["reason"]
    near = record(run, workload="near")["scenario"]
    assert near["limit"]["enforced"] and "set_per_process_memory_fraction" in near["limit"]["how"]
    for made in run.records().values():
        assert made["emulated"] and "emulated" in {flag["code"] for flag in made["flags"]}
    (gpu,) = (
        device
        for device in json.loads((run.path / "results/hosts/desk.json").read_text())["devices"]
        if device["kind"] == "gpu"
    )
    assert gpu["name"] == H200 and gpu["emulated"] and gpu["backends"] == ["torch-cuda", "mlx"]
    assert f"{H200} (simulated)" in (run.path / "results/report.html").read_text(encoding="utf-8")


def test_times_on_a_simulated_gpu_are_those_of_its_work(run: Checkout) -> None:
    """Nothing lasts less than the card needs; phases, and operators, add up to the step."""
    for workload, precision in (("plain", "tf32"), ("hf", "fp32")):
        (point,) = record(run, workload=workload, precision=precision)["points"]
        times = point["times"]
        phases = [name for name in times if name in timing.PHASES]
        for index, whole in enumerate(times["step_s"]):
            assert sum(times[name][index] for name in phases) == pytest.approx(whole)
        flops = point["flops"]
        assert min(times["whole_step_s"]) > flops / RATES["half"]
        assert min(times["whole_step_s"]) == pytest.approx(min(times["step_s"]), rel=0.1)
        assert max(times["dispatch_s"]) <= max(times["whole_step_s"])
        operators = point["operators"]
        assert operators["reason"] is None
        of_operators = sum(min(row["seconds"]) for row in operators["rows"])
        assert of_operators == pytest.approx(min(times["whole_step_s"]), rel=0.1)
        for name in ("backward_s", "optimizer_s"):  # the card's own clock, whatever the host does
            assert median(times[name]) == pytest.approx(min(times[name]), rel=0.1)
    tf32, fp32 = (
        record(run, workload=workload, precision=precision)["points"][0]["times"]
        for workload, precision in (("plain", "tf32"), ("hf", "fp32"))
    )
    assert median(tf32["backward_s"]) < median(fp32["backward_s"])
    for checked in ("twice_the_work", "synchronisation"):
        for made in run.records().values():
            verdict = made["checks"].get(checked, {"verdict": "ok"})["verdict"]
            # MLX's clock is the real one (simulated_mlx.py), on a host that others use.
            assert verdict == "ok" or made["cell"]["backend"] == "mlx", made["cell"]


def test_bytes_and_launches_on_a_simulated_gpu_are_those_of_its_work(run: Checkout) -> None:
    """The memory's bandwidth is the card's; both frameworks launch an empty kernel."""
    for backend in ("torch-cuda", "mlx"):
        launches = record(run, backend=backend, workload="launch")["points"]
        assert [point["params"]["launch"] for point in launches] == ["dispatch", "empty kernel"]
        kinds = record(run, backend=backend, workload="launch")["environment"]["backend"]
        assert kinds["device_name"] == H200
    dispatch, empty = record(run, backend="torch-cuda", workload="launch")["points"]
    for point in (dispatch, empty):
        # What Python adds on a busy host is its own time, and never a millisecond.
        assert KERNEL_S <= min(point["times"]["amortised_s"]) < 1e-3
    for point in record(run, backend="torch-cuda", workload="bandwidth")["points"]:
        rate = point["bytes"] / min(point["times"]["step_s"])
        assert rate == pytest.approx(CARDS[H200].bytes_rate, rel=0.15), point["params"]


def test_nothing_but_a_test_accepts_the_record_of_a_simulated_gpu(
    run: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read where a test asks for it, and refused by name anywhere else: bundles, pages."""
    path = next((run.path / "results" / "records").rglob("hf/auto/fp32.json"))
    monkeypatch.setenv(ACCEPT, "1")
    assert store.read(path)["status"] == "ok"
    monkeypatch.delenv(ACCEPT)
    with pytest.raises(UserError, match=r"fp32.json: record of a device that is simulated"):
        store.read(path)


# -- by contract -----------------------------------------------------------------------------------


def test_the_contract_of_backends_holds_on_a_simulated_gpu(driver: Path, tmp_path: Path) -> None:
    """What test_plugins.py asks of every backend, and the same training as on the CPU."""
    done = subprocess.run(
        [sys.executable, *contract(HERE, tmp_path / "t")],
        env=dict(os.environ) | simulated(driver, H200) | paths(HERE),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 20, done.stdout


# -- bad input -------------------------------------------------------------------------------------


@pytest.fixture
def probed(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What the detection of torch's GPUs answers on a host with these."""

    def answer(*gpus: str, visible: str | None = None, **more: Any) -> dict[str, Any]:
        for name, value in simulated(driver, *gpus, **more).items():
            monkeypatch.setenv(name, value)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return detect.probe("torch-cuda")

    return answer


def test_a_driver_without_a_gpu_is_one_line(probed: Callable[..., dict[str, Any]]) -> None:
    assert probed() == {"error": "RuntimeError: No CUDA GPUs are available"}


def test_gpus_of_two_kinds_and_slices_are_devices_of_their_own(
    probed: Callable[..., dict[str, Any]],
) -> None:
    """Each has its name and memory, in CUDA's order, and is said to be simulated."""
    names = (H200, "NVIDIA GeForce RTX 2080 Ti", f"{H200} MIG 1g.18gb")
    answer = probed(*names)
    devices = answer["devices"]
    assert [device["name"] for device in devices] == list(names)
    assert [d["memory_bytes"] for d in devices] == [CARDS[name].memory_bytes for name in names]
    assert answer["emulated"] and all(device["error"] is None for device in devices)


def test_hidden_gpus_stay_hidden(probed: Callable[..., dict[str, Any]]) -> None:
    names = (H200, "NVIDIA GeForce RTX 2080 Ti")
    (device,) = probed(*names, visible="1")["devices"]
    assert device["name"] == names[1]
    assert detect.probe("mlx")["gpu"] == "cuda"
    probed(*names, visible="")
    assert detect.probe("mlx")["gpu"] is None


def test_a_gpu_that_is_lost_is_one_line(driver: Path, tmp_path: Path) -> None:
    """The cell fails with CUDA's own error and where; the command that measured it does not."""
    cell = cpu_cell(
        host="desk",
        device="gpu-x",
        backend="torch-cuda",
        workload="product",
        module="matmul",
        device_kind="gpu",
        device_memory_bytes=CARDS[H200].memory_bytes,
        threads=1,
        parameters={
            key: schema["default"]
            for key, schema in plugins.load("workloads", "matmul").PARAMETERS.items()
            if "default" in schema
        }
        | {"shapes": [[1, 32, 32, 32]]},
        timing=TIMING,
    )
    command = ["-m", "siliconprof.measure", "--cell", cell.to_json(), "--output", "record.json"]
    more = paths(HERE) | {"SILICONPROF_LOCK_FILE": str(tmp_path / "host.lock")}
    subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | simulated(driver, H200, lost_after=5) | more,
        check=True,
    )
    made = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert made["status"] == "failed" and made["emulated"]
    assert "CUDA error: unspecified launch failure; while:" in made["reason"]
    assert "\n" not in made["reason"]
