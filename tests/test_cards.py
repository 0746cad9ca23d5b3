"""What a run would do on NVIDIA's cards that nobody had at hand, by what their driver and frameworks say."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count, repeat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from conftest import PRODUCT, Checkout, cpu_cell, record_problems
from hosts_by_answers import DOCUMENTED, GIB, QUERY, documented, plan_of
from measuring import session_of
from models import tokens
from siliconprof import packages
from siliconprof.backends.torch_cuda import Plugin as TorchCuda
from siliconprof.cells import plan
from siliconprof.errors import EXCLUSIVE, UserError
from siliconprof.hosts import machine, offload_ops
from siliconprof.measure import worker
from siliconprof.session import cold_launch
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.cell import Cell
from siliconprof.trainers.base import MOST_SKIPPED, StepSchedule
from siliconprof.workloads import kernel_launch


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
CPU: dict[str, Any] = {"model": "Intel(R) Core(TM) i7-10700K CPU @ 3.80GHz", "features": ["avx2"]}
CPU |= {"physical_cores": 8, "memory_bytes": 32 * GIB, "threads_rule": "all processors"}
CPU |= dict.fromkeys(("logical_cores", "usable_cores", "threads"), 16)


def commands(*cards: Card) -> dict[str, str]:
    """What the driver's tool prints."""
    lines = (f"{card.name}, {card.memory_gib * 1024}, 580.65.06\n" for card in cards)
    return {QUERY: "".join(lines)}


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


@pytest.fixture
def on(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`siliconprof plan --json` on Linux with these cards, set up with the pins of envs/cuda.txt."""

    def answer(
        *cards: Card,
        words: tuple[str, ...] = (),
        mlx: bool = True,
        visible: str | None = None,
        probed: Mapping[str, Any] | None = None,
    ) -> Any:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(machine, "cpu", lambda: CPU)
        monkeypatch.setattr(TorchCuda.features, "cannot_compile", lambda device_kind: None)
        own = {"commands": commands(*cards), "probed": probed or answers(*cards, mlx=mlx)}
        return plan_of(project, monkeypatch, *words, system=("Linux", "x86_64"), **own)

    return answer


@pytest.fixture
def one_product(tmp_path: Path) -> tuple[str, ...]:
    """The words of a command by which its experiment is a product, which plans faster than the default."""
    file = tmp_path / "product.yaml"
    file.write_text(json.dumps({"workloads": {"product": PRODUCT}}), encoding="utf-8")
    return ("--configfile", str(file), "--replace-workflow-config")


def cells_of(made: Any, **axes: Any) -> list[dict[str, Any]]:
    """The plan's cells that are there by these axes."""
    return [
        e for e in made["cells"] if all(e["cell"][axis] == value for axis, value in axes.items())
    ]


# -- what a default run measures -------------------------------------------------------------------


@pytest.mark.parametrize("mlx", [True, False])
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_default_run_on_a_card_is_what_the_documentation_says(
    card: Card, mlx: bool, on: Callable[..., Any]
) -> None:
    """Under torch and MLX, and under torch alone."""
    label = f"{card.name.removeprefix('NVIDIA ')}, {card.memory_gib} GB"
    line = documented(label if mlx else f"{label}, torch alone", on(card, mlx=mlx))
    assert line in DOCUMENTED, line


# -- what a card cannot do, before a process starts ------------------------------------------------


def test_an_older_card_is_not_asked_for_what_it_has_no_arithmetic_for(
    on: Callable[..., Any],
) -> None:
    """By its compute capability, under both frameworks; what a newer one does is documented above."""
    made = on(TURING)
    for precision in ("bf16", "tf32", "amp-bf16"):
        cells = cells_of(made, device_kind="gpu", precision=precision)
        assert {e["cell"]["backend"] for e in cells} == {"torch-cuda", "mlx"}
        assert {(e["state"], e["expected_s"]) for e in cells} == {("unsupported", 0)}
        assert {e["why"] for e in cells if not e["cell"]["trainer"] == "hf"} == {
            f"{precision} needs compute capability 8.0, this GPU has 7.5"
        }


def test_an_attention_is_refused_where_the_card_or_the_precision_lacks_it(
    on: Callable[..., Any], tmp_path: Path
) -> None:
    """Before a process starts, as by sdp_utils.cpp it would be when the first step runs."""
    own = {"module": "gpt2", "trainer": "plain", "size": "nano", "batch_size": 4, "seq_len": 64}
    own |= {"dataset": "python-docs-1024", "backends": ["torch-cuda"]}
    own["precisions"] = ["fp32", "amp-fp16"]
    entries = {name: own | {"attention": name} for name in ("math", "efficient", "flash", "cudnn")}
    file = tmp_path / "attention.yaml"
    file.write_text(json.dumps({"workloads": entries}), encoding="utf-8")
    lacks = {(name, "fp32"): "has no kernel for fp32 on CUDA" for name in ("flash", "cudnn")}
    older = "needs compute capability 8.0, this GPU has 7.5"
    for card, more in (
        (TURING, {("flash", "amp-fp16"): older, ("cudnn", "amp-fp16"): older}),
        (ADA, {}),
    ):
        refused = {
            (e["cell"]["workload"], e["cell"]["precision"]): e["why"]
            for e in on(card, words=("--configfile", str(file)))["cells"]
            if e["cell"]["workload"] in entries and e["state"] == "unsupported"
        }
        expected = {key: f"attention: {key[0]} {why}" for key, why in (lacks | more).items()}
        assert refused == expected


# -- fp16 with a gradient scaler -------------------------------------------------------------------


@pytest.mark.parametrize("overflowing", [3, 100])
def test_a_step_that_a_gradient_scaler_skips_is_not_timed(
    overflowing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It updates no weights; how many there were is recorded, and steps that all do end the cell."""
    import torch

    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=1.0))
    timing = {"iterations": 4, "max_iterations": 4, "energy_window_s": 0}
    sizes = {"size": "nano", "batch_size": 2, "seq_len": 16, "dataset_vocab_size": 512}
    how = {"precision": "amp-fp16", "trainer": "plain", "timing": timing}
    session = session_of(cpu_cell("torch-cpu", "gpt2", sizes, **how))
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


# -- several GPUs, and parts of one -----------------------------------------------------------------

FIRST, SECOND = (f"GPU-{digits}-d72c-4106-c12f-20bd9faed9f6" for digits in ("8932f937", "3a1e0b5c"))


@pytest.mark.parametrize(
    ("visible", "own"),
    [
        (None, ("0", "1")),
        ("1,0", ("1", "0")),
        ("3, 5", ("3", "5")),
        (f"{SECOND},{FIRST}", (SECOND, FIRST)),
        ("GPU-89,GPU-3a", ("GPU-89", "GPU-3a")),  # as many digits as tell them apart
    ],
)
def test_each_of_two_equal_cards_is_seen_by_its_own_cells_alone(
    visible: str | None,
    own: tuple[str, str],
    on: Callable[..., Any],
    one_product: tuple[str, ...],
) -> None:
    """Under both frameworks, in whichever form the shell names the cards; their ids differ."""
    made = on(ADA, ADA, visible=visible, words=one_product)
    shell = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for device, name in zip(("rtx-4090", "rtx-4090-2"), own, strict=True):
        cells = [Cell(**entry["cell"]) for entry in cells_of(made, device=device)]
        assert {cell.backend for cell in cells} == {"torch-cuda", "mlx"}
        seen = {ResolvedCell(cell).environment(shell)["CUDA_VISIBLE_DEVICES"] for cell in cells}
        assert seen == {name}
    assert [*made["backends_unavailable"]] == ["torch-mps"]
    assert len(cells_of(made, device="rtx-4090")) == len(cells_of(made, device="rtx-4090-2"))


def test_a_slice_of_a_card_is_a_device_by_its_own_name(
    on: Callable[..., Any], one_product: tuple[str, ...]
) -> None:
    """A process sees one, and its name is not taken for the whole card's."""
    part = Card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5, "8.0")
    names = [f"MIG-c7384736-a75d-5afc-978f-d2f1294409f{digit}" for digit in (1, 2)]
    made = on(part, visible=",".join(names), words=one_product)
    (device,) = {e["cell"]["device"] for e in cells_of(made, device_kind="gpu")}
    assert device == "gpu-nvidia-a100-sxm4-40gb-mig-1g-5gb"
    for entry in cells_of(made, device=device):
        shell = {"CUDA_VISIBLE_DEVICES": ",".join(names)}
        environment = ResolvedCell(Cell(**entry["cell"])).environment(shell)
        assert environment["CUDA_VISIBLE_DEVICES"] == names[0]
    reason = made["backends_unavailable"]["torch-cuda"]["reason"]
    assert reason.startswith("CUDA_VISIBLE_DEVICES names 2 GPUs, of which CUDA finds 1")
    assert reason.endswith("and one slice (MIG) for a process")


def test_a_card_that_is_not_there_is_one_line(
    on: Callable[..., Any], one_product: tuple[str, ...], tmp_path: Path
) -> None:
    """Named by CUDA_VISIBLE_DEVICES, or by the config's `devices`."""
    made = on(ADA, visible=f"{FIRST},GPU-typo", words=one_product)
    assert "backend torch-cuda: CUDA_VISIBLE_DEVICES names 2 GPUs, of which" in plan.as_text(made)
    state = made["backends_unavailable"]["torch-cuda"]
    assert "\n" not in state["reason"] and state["fix"] == "name those that `nvidia-smi -L` lists"
    file = tmp_path / "devices.yaml"
    file.write_text("devices: [rtx-4090, rtx-3090]", encoding="utf-8")
    made = on(ADA, words=("--configfile", str(file)))
    (missing,) = made["not_measured"]
    assert missing["device"] == "rtx-3090" and "has no such device" in missing["reason"]


# -- a card that one process alone may use ---------------------------------------------------------

BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def test_a_card_that_one_process_may_use_is_asked_by_one_after_the_other(
    on: Callable[..., Any], one_product: tuple[str, ...]
) -> None:
    """torch's and MLX's look at it at once, and the later finds it busy."""

    class Busy(dict[str, Any]):
        """MLX's first look fails."""

        looks = count()

        def __getitem__(self, name: str) -> Any:
            is_busy = name == "mlx-gpu" and not next(self.looks)
            return {"error": f"RuntimeError: {BUSY}"} if is_busy else super().__getitem__(name)

    made = on(ADA, probed=Busy(answers(ADA)), words=one_product)
    assert [*made["backends_unavailable"]] == ["torch-mps"]
    used = {e["cell"]["backend"] for e in cells_of(made, device_kind="gpu")}
    assert used == {"torch-cuda", "mlx"}
    held = answers(ADA) | {"torch-cuda": {"error": f"RuntimeError: {BUSY}"}}
    fix = on(ADA, probed=held, words=one_product)["backends_unavailable"]["torch-cuda"]["fix"]
    assert fix == EXCLUSIVE and "`sudo nvidia-smi -c 0`" in fix


def test_a_cell_on_a_card_that_another_process_holds_says_how_to_share_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(*_: Any) -> Any:
        raise RuntimeError(f"{BUSY}\nCompile with `TORCH_USE_CUDA_DSA`")

    monkeypatch.setattr(worker, "end_with", lambda pid: None)
    monkeypatch.setattr(worker.packages, "hide_as_told", lambda: None)
    monkeypatch.setattr(worker.measurement, "measure", measure)
    cell = cpu_cell("torch-cuda", "kernel_launch", device_kind="gpu")
    job = {"cell": vars(cell), "supervisor": 0, "checkpoints": None, "expect": None}
    worker.main(job | {name: str(tmp_path / name) for name in ("result", "progress")})
    result = json.loads((tmp_path / "result").read_text(encoding="utf-8"))
    assert result["status"] == "failed" and "\n" not in result["reason"]
    assert result["reason"].endswith(f"; while: start, step 0; {EXCLUSIVE}")


def test_cold_launches_on_a_card_that_the_cell_holds_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cell's own launches are measured; fresh processes come while it has the card."""
    mark, error = cold_launch.LAUNCH_MARK, f"Traceback\ntorch.AcceleratorError: {BUSY}\n"
    one = [f'{mark}{{"doing": "open the device"}}', error, f'{mark}{{"ended": 1}}']
    printed = "\n".join(kernel_launch.PROCESSES * one).encode()
    done = SimpleNamespace(stdout=printed, returncode=0)
    monkeypatch.setattr(cold_launch.subprocess, "run", lambda *_, **__: done)
    session = session_of(cpu_cell("torch-cpu", "kernel_launch"))
    assert session.workload.cold(session) == ({}, [kernel_launch.HELD_BY_CELL])
    (flag,) = session.flags
    assert flag == {"code": "fresh_process_failed", "detail": kernel_launch.HELD_BY_CELL}


# -- DeepSpeed without a compiler for CUDA ----------------------------------------------------------

NO_NVCC = "CUDA_HOME does not exist, unable to compile CUDA op(s)"


def test_a_deepspeed_that_looks_for_nvcc_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is imported, and where its Adam is built."""

    def missing(*_: Any) -> Any:
        raise RuntimeError(NO_NVCC)

    remedy = "pip install deepspeed==0.19.8, which does without, or install NVIDIA's compiler nvcc"
    monkeypatch.setattr(packages, "_import", lambda name: {"deepspeed": NO_NVCC}.get(name))
    assert f"deepspeed does not load ({NO_NVCC}): {remedy}" in str(packages.failure(["deepspeed"]))
    builder = ModuleType("deepspeed.ops.op_builder.cpu")
    builder.CPUAdamBuilder = missing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder.cpu", builder)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(UserError, match=re.escape(f"cpu_adam was not built: {NO_NVCC}: {remedy}")):
        offload_ops.build()
