"""An H200 and the GPU of an M2 simulated over the CPU, through the front door and by contract.

A simulated device computes on the CPU and keeps time, memory, limits and errors as a GPU does; its
records say so, and nothing but these tests accepts them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import Checkout, cpu_cell
from models import parameters_of
from siliconprof.errors import UserError
from siliconprof.hosts import detect
from siliconprof.session import timing
from siliconprof.store import record as store

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "simulated"))
from device import H200, KERNEL_S  # noqa: E402
from host import ACCEPT, GPT2, RECOMMENDED_BYTES, TIMING, h200, m2, measured, record  # noqa: E402

pytestmark = pytest.mark.campaign
# Of test_plugins.py what it asks of every backend but for two kernels whose simulated seconds are many;
# and all of checks.py.
SELECTED = "torch-cuda and not copy and not bandwidth or simulated_card"


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which frameworks find an H200."""
    return h200(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which Python is on a Mac with an M2."""
    return m2(tmp_path_factory.mktemp("mac"))


# -- NVIDIA's through the front door -----------------------------------------------------------

PLAIN = GPT2 | {"trainer": "plain"}
NEAR = {"batch_size": "auto", "memory_budget_gib": 0.25, "near_capacity_share": 0.9}
OVER = {"batch_size": 256, "memory_budget_gib": 0.1, "force": True}
BANDWIDTH = {"module": "bandwidth", "working_sets_bytes": [2**18, 2**24], "caches": ["warm"]}
LAUNCH = {"module": "kernel_launch", "bursts": 10, "timing": TIMING | {"time_limit_s": 300}}
BOTH = {"backends": ["torch-cuda", "mlx"]}
WORKLOADS: dict[str, dict[str, Any]] = {
    "plain": PLAIN | {"precisions": ["tf32"]},
    "hf": GPT2 | {"trainer": "hf", "precisions": ["fp32", "amp-fp16"]},
    "near": PLAIN | NEAR | {"scenarios": ["near-capacity"]},
    "over": PLAIN | OVER | {"scenarios": ["fits"]},
    "matmul": {"module": "matmul", "shapes": [[1, 256, 256, 256]]}
    | {"search_budget_s": 0.1, "burst_budget_s": 0.05},
    "bandwidth": BANDWIDTH | BOTH,
    "launch": LAUNCH | BOTH,
    "copy": {"module": "copy", "transfer_bytes": [2**16, 2**18]},
}


@pytest.fixture(scope="module")
def run(card: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small experiment on a simulated H200, through the pipeline to the page."""
    workloads = {name: {"backends": ["torch-cuda"]} | own for name, own in WORKLOADS.items()}
    return measured(tmp_path_factory.mktemp("simulated"), card, "report", workloads)


@pytest.mark.alone  # as all of `run`, which is then made once
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
        assert made["simulated"] and "simulated" in {flag["code"] for flag in made["flags"]}
    (gpu,) = (
        device
        for device in json.loads((run.path / "results/hosts/desk.json").read_text())["devices"]
        if device["kind"] == "gpu"
    )
    assert (
        gpu["name"] == H200.name and gpu["simulated"] and gpu["backends"] == ["torch-cuda", "mlx"]
    )
    assert f"{H200.name} (simulated)" in (run.path / "results/report.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.flaky(reruns=1)  # it compares measured times
@pytest.mark.alone  # it looks at times
def test_times_on_a_simulated_gpu_are_those_of_its_work(run: Checkout) -> None:
    """Nothing lasts less than the card needs; phases, and operators, add up to the step."""
    for workload, precision in (("plain", "tf32"), ("hf", "fp32")):
        (point,) = record(run, workload=workload, precision=precision)["points"]
        times = point["times"]
        phases = [name for name in times if name in timing.PHASES]
        for index, whole in enumerate(times["step_s"]):
            assert sum(times[name][index] for name in phases) == pytest.approx(whole)
        flops = point["flops"]
        assert min(times["whole_step_s"]) > flops / H200.flop_rates["half"]
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


@pytest.mark.flaky(reruns=1)  # it compares measured rates
@pytest.mark.alone
def test_bytes_and_launches_on_a_simulated_gpu_are_those_of_its_work(run: Checkout) -> None:
    """The memory's bandwidth is the card's; both frameworks launch an empty kernel."""
    for backend in ("torch-cuda", "mlx"):
        launches = record(run, backend=backend, workload="launch")["points"]
        assert [point["params"]["launch"] for point in launches] == ["dispatch", "empty kernel"]
        kinds = record(run, backend=backend, workload="launch")["environment"]["backend"]
        assert kinds["device_name"] == H200.name
    dispatch, empty = record(run, backend="torch-cuda", workload="launch")["points"]
    for point in (dispatch, empty):
        # What Python adds on a busy host is its own time, and never a millisecond.
        assert KERNEL_S <= min(point["times"]["amortised_s"]) < 1e-3
    for point in record(run, backend="torch-cuda", workload="bandwidth")["points"]:
        rate = point["bytes"] / min(point["times"]["step_s"])
        assert rate == pytest.approx(H200.bytes_rate, rel=0.15), point["params"]
        assert point["gpu"]["measured_s"] > 0 and "sm_clock_mhz" in point["gpu"]


@pytest.mark.alone
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


# -- a Mac through the front door --------------------------------------------------------------

ON_MAC: dict[str, dict[str, Any]] = {
    "plain": PLAIN | {"memory_budget_gib": 1, "scenarios": ["fits"]},
    "matmul": {"module": "matmul", "shapes": [[1, 128, 128, 128]], "search_budget_s": 0.1},
    "bandwidth": BANDWIDTH,
    "launch": LAUNCH,
}


@pytest.fixture(scope="module")
def on_mac(mac: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A small experiment on both frameworks, through the pipeline to its records."""
    return measured(tmp_path_factory.mktemp("mac"), mac, "measured", ON_MAC)


def test_an_experiment_on_a_simulated_mac_is_measured(on_mac: Checkout) -> None:
    """Both frameworks measure everything; what is limited, wired and counted is in the records."""
    records = on_mac.records()
    statuses = {key: (r["status"], r["reason"]) for key, r in records.items()}
    assert len(records) == 8 and {status for status, _ in statuses.values()} == {"ok"}, statuses
    host = json.loads((on_mac.path / "results" / "hosts" / "desk.json").read_text(encoding="utf-8"))
    assert host["devices"][0]["name"] == "Apple M2"
    assert host["devices"][0]["backends"] == ["torch-mps", "mlx"]
    for backend in ("torch-mps", "mlx"):
        launches = record(on_mac, backend=backend, workload="launch")["points"]
        assert [p["params"]["launch"] for p in launches] == ["dispatch", "empty kernel"]
        products = record(on_mac, backend=backend, workload="matmul")["points"]
        assert products and all(product["result_error"] < 1e-5 for product in products)
        for point in record(on_mac, backend=backend, workload="bandwidth")["points"]:
            assert point["bytes"] > 0 and min(point["times"]["step_s"]) > 0
        found = record(on_mac, backend=backend, workload="plain")
        (point,) = found["points"]
        assert point["operators"]["reason"] is None
        assert all(row["seconds"] for row in point["operators"]["rows"])
        held = found["scenario"]["predicted_bytes"]
        assert held / 2 < point["memory"]["device_peak_bytes"] < 2 * held
        assert found["probes"]["interference"]["power_mode"] == "automatic"
        assert found["probes"]["clocks"]["throttled"] is False
    torch, mlx = (
        record(on_mac, backend=backend, workload="plain") for backend in ("torch-mps", "mlx")
    )
    assert "max_memory_allocated" in torch["points"][0]["memory"]["device_peak_means"]
    assert torch["scenario"]["limit"]["enforced"] and not mlx["scenario"]["limit"]["enforced"]
    assert mlx["environment"]["backend"]["wired_limit_bytes"] == RECOMMENDED_BYTES
    assert all(made["simulated"] for made in records.values())
    assert {made["cell"]["threads"] for made in records.values()} == {4}
    rule = "the performance cores (hw.perflevel0.logicalcpu), as torch itself does"
    assert {made["environment"]["threads_rule"] for made in records.values()} == {rule}
    assert (on_mac.path / "results" / ".metadata_never_index").is_file()


def test_a_torch_mps_out_of_memory_is_a_record(on_mac: Checkout) -> None:
    """Beyond its limit the allocator raises, as torch's does."""
    cell = json.loads(json.dumps(record(on_mac, backend="torch-mps", workload="plain")["cell"]))
    cell["parameters"] |= {"batch_size": 12288, "memory_budget_gib": 0.05, "force": True}
    on_mac.stage("measure", "--cell", json.dumps(cell), "--output", "over.json")
    made = json.loads((on_mac.path / "over.json").read_text(encoding="utf-8"))
    assert made["status"] == "oom" and "MPS backend out of memory" in made["reason"]


# -- by contract -----------------------------------------------------------------------------------


def python(arguments: list[str], environment: dict[str, str]) -> str:
    """What Python prints beside a simulated device; it must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_contract_of_backends_holds_on_a_simulated_gpu(
    card: dict[str, str], tmp_path: Path
) -> None:
    """What test_plugins.py asks of every backend, and what torch-cuda makes of the card."""
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SELECTED]
    command += [f"--basetemp={tmp_path / 't'}", str(HERE / "test_plugins.py")]
    said = python([*command, str(HERE / "simulated" / "checks.py")], card)
    assert int(re.search(r"(\d+) passed", said)[1]) >= 20, said


@pytest.mark.flaky(reruns=1)  # it compares measured times
@pytest.mark.alone  # it looks at times
@pytest.mark.parametrize("name", ["torch-mps", "mlx"])
def test_a_backend_keeps_its_contract_on_a_simulated_mac(
    name: str, mac: dict[str, str], tmp_path: Path
) -> None:
    """Precisions, memory, launches; and a wait that is missing shows in the times."""
    python([str(HERE / "simulated" / "contract_mac.py"), name, str(tmp_path)], mac)


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_driver_without_a_gpu_is_one_line(
    card: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where CUDA_VISIBLE_DEVICES hides it; MLX's build for CUDA is no fault then."""
    for name, value in card.items():
        monkeypatch.setenv(name, value)
    (device,) = detect.probe("torch-cuda")["devices"]
    assert device["name"] == H200.name and detect.probe("mlx")["gpu"] == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect.probe("torch-cuda") == {"error": "RuntimeError: No CUDA GPUs are available"}
    assert detect.probe("mlx")["gpu"] is None


def test_a_gpu_that_is_lost_is_one_line(
    card: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell fails with CUDA's own error, and where it came."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ACCEPT, "1")
    sizes = {"n_layer": [1, 2], "n_embd": [32], "seq_len": [16], "min_run_time_s": 0.2}
    own = parameters_of("transformer_grid", **sizes)
    gpu = {"device_kind": "gpu", "device_memory_bytes": H200.memory_bytes, "timing": TIMING}
    cell = cpu_cell("torch-cuda", "transformer_grid", own, **gpu)
    spec = json.loads(card["SILICONPROF_SIMULATED"]) | {"lost_after": 600}
    lost = {"SILICONPROF_SIMULATED": json.dumps(spec), "SILICONPROF_LOCK_FILE": "host.lock"}
    command = ["-m", "siliconprof.measure", "--cell", cell.to_json(), "--output", "record.json"]
    python(command, card | lost)
    made = store.read(tmp_path / "record.json")
    assert made["status"] == "failed" and "\n" not in made["reason"]
    assert "CUDA error: unspecified launch failure" in made["reason"]
    assert re.search("; while: (n_layer=1|point 1 of 2)", made["reason"])
