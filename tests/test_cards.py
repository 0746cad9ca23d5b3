"""What a run would do on NVIDIA's cards that nobody had at hand, by what their driver and frameworks say."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import QUICK, Checkout, cpu_cell, defaults, own_project, record_problems
from hosts_by_answers import GIB, plan_of
from measuring import session_of
from siliconprof.backends.torch_cuda import Plugin as TorchCuda
from siliconprof.hosts import machine
from siliconprof.trainers.base import MOST_SKIPPED, StepSchedule
from test_plugins import tokens


class Card(NamedTuple):
    """An NVIDIA card: as torch calls it, its memory and its compute capability."""

    name: str
    memory_gib: int
    capability: str


TURING = Card("Quadro RTX 4000", 8, "7.5")
RTX_2080_TI = Card("NVIDIA GeForce RTX 2080 Ti", 11, "7.5")
ADA_8 = Card("NVIDIA GeForce RTX 4060", 8, "8.9")
ADA = Card("NVIDIA GeForce RTX 4090", 24, "8.9")
CARDS = [TURING, RTX_2080_TI, ADA_8, ADA]
# A processor without instructions for 16 bit, as beside most of them.
CPU: dict[str, Any] = {
    "model": "Intel(R) Core(TM) i7-10700K CPU @ 3.80GHz",
    "physical_cores": 8,
    "logical_cores": 16,
    "usable_cores": 16,
    "threads": 16,
    "threads_rule": "all processors that this process may use",
    "memory_bytes": 32 * GIB,
    "features": ["avx2"],
}


def commands(*cards: Card) -> dict[str, str]:
    """What the driver's tool prints."""
    query = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits"
    lines = (f"{card.name}, {card.memory_gib * 1024}, 580.65.06\n" for card in cards)
    return {query: "".join(lines)}


def answers(*cards: Card, mlx: bool = True) -> dict[str, dict[str, Any]]:
    """What the frameworks say."""
    gpus = [
        {"name": card.name, "memory_bytes": card.memory_gib * GIB, "error": None}
        | {"compute_capability": card.capability}
        for card in cards
    ]
    cuda = {"cuda_runtime": "13.0", "rocm_runtime": None, "mps_built": False}
    return {
        "torch": {"blas": "oneMKL 2024.2 (in torch)"} | cuda,
        "torch-cuda": {"devices": gpus},
        "mlx": {"blas": "OpenBLAS 0.3.29", "gpu": "cuda"}
        if mlx
        else {"error": "no module named mlx"},
        "mlx-gpu": {"devices": gpus},
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project that has measured nothing."""
    return own_project(tmp_path_factory.mktemp("cards"), shared=False)


@pytest.fixture
def on(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`siliconprof plan --json` on Linux with these cards, set up with the pins of envs/cuda.txt."""

    def answer(*cards: Card, words: tuple[str, ...] = (), mlx: bool = True) -> Any:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(machine, "cpu", lambda: CPU)
        monkeypatch.setattr(TorchCuda, "cannot_compile", lambda device_kind: None)
        own = {"commands": commands(*cards), "probed": answers(*cards, mlx=mlx)}
        return plan_of(project, monkeypatch, *words, system=("Linux", "x86_64"), **own)

    return answer


def cells_of(made: Any, **axes: Any) -> list[dict[str, Any]]:
    """The plan's cells that are there by these axes."""
    return [
        e for e in made["cells"] if all(e["cell"][axis] == value for axis, value in axes.items())
    ]


# -- what a card cannot do, before a process starts ------------------------------------------------


def test_an_older_card_is_not_asked_for_what_it_has_no_arithmetic_for(
    on: Callable[..., Any],
) -> None:
    """By its compute capability, under both frameworks."""
    for card in (TURING, RTX_2080_TI):
        of_gpu = cells_of(on(card), device_kind="gpu")
        for precision in ("bf16", "tf32", "amp-bf16"):
            cells = [e for e in of_gpu if e["cell"]["precision"] == precision]
            assert {e["cell"]["backend"] for e in cells} == {"torch-cuda", "mlx"}
            assert {(e["state"], e["expected_s"]) for e in cells} == {("unsupported", 0)}
            assert {e["why"] for e in cells if not e["cell"]["trainer"] == "hf"} == {
                f"{precision} needs compute capability 8.0, this GPU has 7.5"
            }
        states = {e["state"] for e in of_gpu if e["cell"]["precision"] in ("fp32", "fp16")}
        assert "to measure" in states
    newer = [e for e in cells_of(on(ADA), backend="torch-cuda") if "16" in e["cell"]["precision"]]
    assert newer and {e["state"] for e in newer} == {"to measure"}


def test_an_attention_is_refused_where_the_card_or_the_precision_lacks_it(
    on: Callable[..., Any], tmp_path: Path
) -> None:
    """Before a process starts, as by sdp_utils.cpp it would be when the first step runs."""
    own = {"module": "gpt2", "trainer": "plain", "size": "nano", "batch_size": 4, "seq_len": 64}
    own |= {"dataset": "python-docs-1024", "backends": ["torch-cuda"]}
    names = ("math", "efficient", "flash", "cudnn")
    entries = {
        name: own | {"attention": name, "precisions": ["fp32", "amp-fp16"]} for name in names
    }
    file = tmp_path / "attention.yaml"
    file.write_text(json.dumps({"workloads": entries}), encoding="utf-8")
    for card, older in ((TURING, True), (ADA, False)):
        made = on(card, words=("--configfile", str(file)))
        for name in names:
            for precision in ("fp32", "amp-fp16"):
                (entry,) = cells_of(made, workload=name, precision=precision)
                why = None
                if name in ("flash", "cudnn"):
                    why = f"attention: {name} needs compute capability 8.0, this GPU has 7.5"
                    why = (
                        f"attention: {name} has no kernel for fp32 on CUDA"
                        if precision == "fp32"
                        else why
                    )
                    why = why if older or precision == "fp32" else None
                assert (entry["state"] == "unsupported") == (why is not None)
                assert why is None or entry["why"] == why


# -- fp16 with a gradient scaler -------------------------------------------------------------------


@pytest.mark.parametrize("overflowing", [3, 100])
def test_a_step_that_a_gradient_scaler_skips_is_not_timed(
    overflowing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It updates no weights; how many there were is recorded, and steps that all do end the cell."""
    import torch

    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=1.0))
    timing = QUICK | {"iterations": 4, "max_iterations": 4, "energy_window_s": 0}
    own = {"backend": "torch-cpu", "workload": "nano", "module": "gpt2", "trainer": "plain"}
    sizes = defaults("gpt2", size="nano", batch_size=2, seq_len=16, dataset_vocab_size=512)
    cell = cpu_cell(precision="amp-fp16", parameters=sizes, timing=timing, **own)
    session = session_of(cell)
    stepper = session.backend.stepper(session.workload, 5)
    loss, calls = stepper.training_loss, count()
    # by far too large for fp16 in the second step and those that follow
    stepper.training_loss = lambda *given: (
        loss(*given) * (1e30 if 0 < next(calls) <= overflowing else 1.0)
    )
    schedule, batch = StepSchedule(session), tokens(1, columns=16)
    if overflowing > MOST_SKIPPED:
        with pytest.raises(ArithmeticError, match="64 steps in a row are not finite"):
            schedule.follow(stepper, repeat(batch))
        return
    schedule.follow(stepper, repeat(batch))
    kinds = schedule.steps["kind"]
    assert kinds[:6] == ["warm-up", *["skipped"] * 3, "split", "whole"]
    assert len(schedule.times.whole_step_s) == len(schedule.times.step_s) == kinds.count("whole")
    point = schedule.point()
    assert point["skipped_steps"] == 3 and record_problems([point], "points") == []
    assert point["trained"]["unchanged"] == []
