"""What a run would do on Macs that nobody had at hand, by what their commands and frameworks would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, Checkout
from golden import update
from hosts_by_answers import DOCUMENTED, GIB, Mac, documented, plan_of
from siliconprof import fingerprint
from siliconprof.cells import config, expected, matrix, plan
from siliconprof.measure import child, supervise
from siliconprof.memory import memory_model
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store import validation
from siliconprof.store.cell import Cell
from synthetic_results import H200, host_of

NO_CODE = fingerprint.Fingerprint({})


# Metal recommends two thirds of up to 32 GiB, and three quarters of more.
MACS = [
    Mac("Apple M1", 8, 8, 8, 16 / 3),
    Mac("Apple M2 Pro", 19, 12, 32, 64 / 3),
    Mac("Apple M3 Max", 30, 14, 36, 27),
    Mac("Apple M2 Ultra", 76, 24, 192, 144),
]


@pytest.fixture
def on(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`siliconprof plan --json` on a Mac, without DeepSpeed, which its pins leave out."""

    def answer(mac: Mac, *words: str, deepspeed: str | None = None) -> Any:
        own = {
            "commands": mac.commands(),
            "probed": mac.answers(),
            "packages": {"deepspeed": deepspeed},
        }
        return plan_of(project, monkeypatch, *words, system=("Darwin", "arm64"), **own)

    return answer


# -- a batch that fits -------------------------------------------------------------------------------

SMALL = ("gpt2-small-plain", "gpt2-small-hf")
PLAIN = {"module": "gpt2", "trainer": "plain", "size": "small", "seq_len": 512, "dataset": "words"}
CARD_24 = H200 | {"id": "rtx-4090", "memory_bytes": 24 * GIB}
CARD_8 = H200 | {"id": "rtx-4060", "memory_bytes": 8 * GIB}
CARD_1 = H200 | {"id": "gt-1030", "memory_bytes": GIB, "backends": ["torch-cuda"]}


def small_of(made: Any) -> list[dict[str, Any]]:
    """The cells of GPT-2 small."""
    cells = (entry for entry in made["cells"] if entry["cell"]["workload"] in SMALL)
    return [entry for entry in cells if entry["state"] != "unsupported"]  # MLX has no Trainer


def test_gpt2_small_trains_on_a_mac_of_8_gb(on: Callable[..., Any]) -> None:
    """At the largest batch that all of its cells hold, and two of them read energy in each precision."""
    made = on(MACS[0])
    cells = small_of(made)
    assert len(cells) == 6 and {entry["state"] for entry in cells} == {"to measure"}
    assert {(entry["batch_size"], entry["batch_size_asked"]) for entry in cells} == {(2, 8)}
    assert max(entry["predicted_memory_bytes"] for entry in cells) < 0.88 * 16 / 3 * GIB
    reads = [entry for entry in cells if entry["cell"]["timing"]["energy_window_s"] >= 10]
    assert {(c["cell"]["backend"], c["cell"]["precision"]) for c in reads} == {
        (backend, precision)
        for backend in ("torch-mps", "mlx")
        for precision in ("fp32", "amp-bf16")
    }
    assert "batch 2 in place of 8: the largest power of two that fits" in " ".join(
        plan.as_text(made).split()
    )
    assert {(c["batch_size"], c["smaller_batch"]) for c in small_of(on(MACS[2]))} == {(8, None)}


@pytest.mark.parametrize(
    ("cards", "own", "batches"),
    [
        ([CARD_24], {}, {"rtx-4090": 8}),
        ([CARD_8], {}, {"rtx-4060": 4}),
        ([CARD_8, CARD_24], {}, {"rtx-4060": 4, "rtx-4090": 4}),
        ([CARD_8], {"fit_batch": False}, {"rtx-4060": 8}),
        ([CARD_24], {"batch_size": 12}, {"rtx-4090": 12}),
        ([CARD_8], {"batch_size": 12}, {"rtx-4060": 4}),
        ([CARD_1, CARD_24], {}, {"gt-1030": 8, "rtx-4090": 8}),  # the one holds no batch at all
    ],
    ids=str,
)
def test_all_devices_of_a_host_train_one_batch(
    devices: Any, cards: list[dict[str, Any]], own: dict[str, Any], batches: dict[str, int]
) -> None:
    """Under every backend, trainer and precision; a card's context takes some of its memory."""
    entry = PLAIN | {"batch_size": 8, "fit_batch": True} | own
    experiment = config.resolve(
        {
            "precisions": ["fp32", "amp-bf16", "tf32"],
            "datasets": {"words": {"source": "builtin", "vocab_size": 8192}},
            "workloads": {
                "plain": entry | {"backends": ["torch-cuda", "mlx"]},
                "hf": entry | {"trainer": "hf", "backends": ["torch-cuda"]},
            },
        }
    )
    cells = matrix.Expansion(experiment, devices, host_of("desk", *cards)).cells
    found = {(p.cell.device, p.cell.parameters["batch_size"]) for p in cells}
    assert found == set(batches.items())
    for planned in cells:
        capacity, source = memory_model.capacity_of(planned.cell)
        assert capacity == planned.cell.device_memory_bytes - memory_model.CONTEXT_BYTES
        assert source == memory_model.CONTEXT_SOURCE
        if (
            entry["fit_batch"]
            and planned.cell.device != "gt-1030"
            and not planned.resolved.refusal()
        ):
            assert planned.resolved.scenario()["derived"] == "fits"


def test_a_cell_that_does_not_fit_names_a_batch_that_would(devices: Any) -> None:
    entry = PLAIN | {"batch_size": 64, "backends": ["mlx"], "precisions": ["fp32"]}
    data = {"words": {"source": "builtin", "vocab_size": 8192}}
    experiment = config.resolve({"datasets": data, "workloads": {"a": entry}})
    (planned,) = matrix.Expansion(experiment, devices, host_of("desk", CARD_8)).cells
    status, reason = planned.resolved.refusal() or ("", "")
    assert status == "skipped" and "; batch_size 4 would do; force: true measures it" in reason


# -- what a Mac leaves out ---------------------------------------------------------------------------


def test_what_takes_a_process_of_its_own_is_measured_where_it_adds_most(
    on: Callable[..., Any],
) -> None:
    """The rest is skipped with the reason, before a process is started."""
    made = on(MACS[2])
    left_out = {c["cell"]["workload"] for c in made["cells"] if c["why"] == matrix.NOT_FORKED}
    only_forked = validation.load_yaml(ROOT / "config" / "config.yaml")["only_forked"]
    assert left_out == {*only_forked} and len(left_out) > 5
    assert {c["state"] for c in made["cells"] if c["why"] == matrix.NOT_FORKED} == {"skipped"}
    trained = {c["cell"]["workload"] for c in made["cells"] if c["state"] == "to measure"}
    assert {*SMALL, "gpt2-tiny-plain", "gpt2-tiny-hf", "mlp", "whisper-nano-plain"} <= trained


def test_offloading_says_that_the_pins_of_a_mac_leave_deepspeed_out(
    on: Callable[..., Any],
) -> None:
    """Before a process is started; with DeepSpeed it is tried. On a GPU there is nothing to offload to."""
    for deepspeed, state in ((None, "skipped"), ("0.19.8", "to measure")):
        cells = [
            c
            for c in on(MACS[2], deepspeed=deepspeed)["cells"]
            if c["cell"]["scenario"] == "offload"
        ]
        by_backend = {c["cell"]["backend"]: c for c in cells if c["cell"]["device_kind"] == "cpu"}
        assert by_backend["torch-cpu"]["state"] == state
        assert by_backend["mlx"]["why"] == "DeepSpeed, which offloads, has no MLX"
        (mps,) = (c for c in cells if c["cell"]["backend"] == "torch-mps")
        assert mps["why"] == "the device's memory is the host's: there is nothing to offload to"
        if not deepspeed:
            assert by_backend["torch-cpu"]["why"] == matrix.NO_DEEPSPEED
            assert "in no pin of envs/apple.txt" in matrix.NO_DEEPSPEED
    pins = (ROOT / "envs" / "apple.txt").read_text(encoding="utf-8")
    assert "deepspeed" not in pins


def test_a_compiled_step_that_fails_on_mps_names_its_young_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: Callable[..., Any]
) -> None:
    """In the reason, from its supervisor; a flag says so of one that does not."""
    (entry,) = (
        c["cell"]
        for c in on(MACS[2], "--configfile", "config/full.yaml")["cells"]
        if (c["cell"]["workload"], c["cell"]["backend"]) == ("gpt2-nano-compiled", "torch-mps")
    )
    said = child.Output()
    said.add(b"SyntaxError: failed to compile\n")
    died = SimpleNamespace(
        progress={"doing": "first step, compile", "step": 1},
        output=said,
        points=[],
        killed=[],
        pid=0,
        started="",
        wait=lambda limit_s: (1, 0.1),
        end=lambda: None,
    )
    monkeypatch.setattr(supervise, "Child", lambda *_: died)
    resolved = supervise.resolved_cell_of(json.dumps(entry), None)
    report = supervise.run(resolved, tmp_path / "result.json", {}, [])
    assert report["reason"].endswith(f"failed to compile; {resolved.backend.compile_caveat}")
    assert "pytorch/issues/150121" in report["reason"]


# -- what the documentation says ---------------------------------------------------------------------

PAPER = ("--configfile", "config/paper.yaml", "--replace-workflow-config")


@pytest.mark.parametrize("mac", MACS, ids=lambda mac: f"{mac.chip} {mac.memory_gib}")
def test_the_default_run_on_a_mac_is_what_the_documentation_says(
    mac: Mac, on: Callable[..., Any]
) -> None:
    """Of cells, how many in which state, how long, and at which batch."""
    line = documented(f"{mac.chip}, {mac.memory_gib} GB", on(mac))
    assert line in DOCUMENTED, line


@pytest.mark.parametrize(
    "mac",
    [MACS[1], Mac("Apple M2 Max", 38, 12, 64, 48), MACS[3]],
    ids=lambda mac: str(mac.memory_gib),
)
def test_the_papers_rows_that_a_mac_runs_are_those_of_the_documentation(
    mac: Mac, on: Callable[..., Any]
) -> None:
    """Its trainings in fp32, under torch, by the plan of config/paper.yaml."""
    cells = [
        entry
        for entry in on(mac, *PAPER)["cells"]
        if entry["cell"]["trainer"]
        and (entry["cell"]["precision"], entry["cell"]["backend"]) == ("fp32", "torch-mps")
    ]
    assert {entry["state"] for entry in cells} <= {"to measure", "skipped"} and len(cells) == 11
    left_out = [e["cell"]["workload"] for e in cells if e["state"] == "skipped"]
    said = ", ".join(f"`{name}`" for name in left_out) or "none"
    line = f"| {mac.chip}, {mac.memory_gib} GB | {said} |\n"
    assert line in DOCUMENTED, line


# -- how long it takes -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", update.NAMES)
def test_a_plan_is_within_a_factor_of_what_frozen_runs_took(name: str, tmp_path: Path) -> None:
    """Of a run on a CPU, whose processes are forked, and of simulated GPUs, where each is its own."""
    folder = update.unpack(update.HERE / "records" / f"{name}.tar.xz", tmp_path)
    planned_s, took_s = 0.0, 0.0
    for path in folder.glob("results/records/**/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["status"] != "ok":
            continue
        cell = Cell(**record["cell"])
        own = {k: v for k, v in cell.parameters.items() if k != "repeats"}  # then of cold launches
        resolved = ResolvedCell(replace(cell, parameters=own))
        forked = record["method"]["process"] == child.FORKED_METHOD
        planned = matrix.PlannedCell(resolved.cell, "", {}, NO_CODE, resolved, [], forked=forked)
        one_s = expected.seconds(planned, None)
        if cell.module == "kernel_launch" and cell.backend.startswith("torch"):
            assert 2 / 3 < one_s / record["accounting"]["child_wall_s"] < 3 / 2  # ten processes
        planned_s += one_s
        took_s += record["accounting"]["child_wall_s"]
    assert 2 / 3 < planned_s / took_s < 3 / 2, (planned_s, took_s)


def test_a_plan_counts_imports_searches_windows_and_fresh_processes(
    on: Callable[..., Any],
) -> None:
    """Without forks each process imports for itself, ten of a cold launch among them."""
    cells = {
        tuple(e["cell"][key] for key in ("workload", "backend", "device_kind", "precision")): e
        for e in on(MACS[2])["cells"]
    }
    took = {key: entry["expected_s"] for key, entry in cells.items()}
    tiny = took["gpt2-tiny-plain", "torch-mps", "gpu", "fp32"]
    assert (
        tiny - took["gpt2-tiny-plain", "mlx", "gpu", "fp32"] > 4
    )  # torch's and transformers' imports
    assert took["gpt2-tiny-hf", "torch-mps", "gpu", "fp32"] > tiny + 1
    assert took["gpt2-small-plain", "torch-mps", "gpu", "fp32"] - tiny == pytest.approx(24)
    assert took["matmul-large", "mlx", "gpu", "fp32"] > 10
    assert took["kernel-launch", "torch-mps", "gpu", "fp32"] > 10 * expected.IMPORTS_S["torch"]
