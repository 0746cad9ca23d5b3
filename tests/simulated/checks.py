"""What torch-cuda makes of a simulated card, line by line; test_simulated.py runs this beside one."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import cpu_cell
from device import CARDS, KERNEL_S
from siliconprof import plugins, words
from siliconprof.analyse import step_parts
from siliconprof.analyse.operator_rows import FRAMEWORK
from siliconprof.backends import _cuda_driver
from siliconprof.backends.base import Compilation, Operator, Unsupported
from siliconprof.session.session import Session
from siliconprof.session.timing import PhaseClock, call_s
from siliconprof.store import model
from siliconprof.store.point import Point
from siliconprof.trainers.base import StepSchedule
from test_operators import watched
from test_plugins import gpt2, tokens

CARD = CARDS["NVIDIA H200"]
WITHOUT_CACHE = replace(CARD, l2_bytes=0)
MIB = 2**20


def opened(precision: str = "fp32") -> Any:
    backend = plugins.load("backends", "torch-cuda")()
    backend.open("gpu", 0, 2, precision)
    backend.release_memory()
    backend.reset_peak_memory()
    return backend


def test_simulated_card_is_waited_for() -> None:
    """A call lasts as long as the card works; marks agree with the clock, in seconds."""
    backend = opened()
    a, b = backend.normal((512, 512), 0), backend.normal((512, 512), 1)
    backend.matmul(a, b)  # its workspace
    needs = 2 * 512**3 / CARD.flop_rates["fp32"]
    assert call_s(lambda: backend.matmul(a, b), backend) == pytest.approx(needs, rel=0.2)
    began = time.perf_counter()
    backend.matmul(a, b)
    assert time.perf_counter() - began < needs / 2  # handing over is no waiting
    backend.synchronize()
    begin = backend.mark()
    began = time.perf_counter()
    backend.matmul(a, b)
    end = backend.mark()
    with pytest.raises(RuntimeError, match="not ready"):
        backend.seconds_between(begin, end)
    backend.synchronize()
    between, wall = backend.seconds_between(begin, end), time.perf_counter() - began
    assert between == pytest.approx(needs, rel=0.2) and between == pytest.approx(wall, rel=0.2)


def test_simulated_card_counts_its_memory() -> None:
    """Live and reserved bytes, peaks, what the driver gave, the limit and what is beyond it."""
    backend = opened()
    before = backend.memory_counters()
    kept = backend.normal((1024, 1024), 0)
    during = backend.memory_counters()
    assert during["allocated_bytes"] - before["allocated_bytes"] == 4 * MIB
    assert backend.memory_bytes() == during["allocated_bytes"]
    assert during["reserved_bytes"] >= before["reserved_bytes"] + 4 * MIB
    assert during["driver_bytes"] == during["reserved_bytes"] + CARD.context_bytes
    del kept
    assert backend.peak_memory_bytes() == during["allocated_bytes"]
    assert backend.memory_counters()["reserved_bytes"] == during["reserved_bytes"]
    backend.reset_peak_memory()
    backend.release_memory()
    assert backend.memory_counters() == before
    assert backend.peak_memory_bytes() == before["allocated_bytes"]
    assert backend.memory_limit_bytes() == CARD.memory_bytes
    assert "own memory" in backend.limit_memory(CARD.memory_bytes)
    said = backend.limit_memory(128 * MIB)
    assert f"({128 * MIB / CARD.memory_bytes:.4f})" in said
    room = 128 * MIB - before["reserved_bytes"] - 4 * MIB
    backend.normal((room // 4,), 0)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        backend.normal((room // 2,), 0)
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_simulated_card_has_no_autotuning_in_the_peak_of_a_compiled_step() -> None:
    """Nor in what is reserved: the peak begins anew with every step that may compile."""
    backend, graphs = opened(), [0]
    timing = {"warmup_iterations": 1, "iterations": 1, "budget_s": 0, "energy_window_s": 0}
    names = {"backend": "torch-cuda", "workload": "gpt2-nano-plain", "module": "gpt2"}
    cell = cpu_cell(**names, timing=timing)
    session = Session(cell, backend, gpt2("nano"), lambda _: None)
    schedule = StepSchedule(session, lambda: Compilation(graphs[0], 0, 0))
    before, steps_bytes = torch.cuda.memory_reserved(), []
    while kind := schedule.next_kind():
        schedule.begin(kind)
        kept = backend.normal((MIB,), 0)
        if not graphs[0]:
            backend.normal((8 * MIB,), 0)
            graphs[0] = 1
        steps_bytes.append(backend.peak_memory_bytes() - backend.memory_bytes())
        del kept
        schedule.end(0.0)
    assert steps_bytes[0] == 32 * MIB and set(steps_bytes[2:]) == {0}
    assert schedule.steps["kind"][:3] == ["compile", "compile", "warm-up"]
    reserved = torch.cuda.max_memory_reserved() - before
    assert reserved < 32 * MIB  # what compiling left was given back


def test_simulated_card_says_what_it_is() -> None:
    backend = opened("tf32")
    facts = {"name": CARD.name, "memory_bytes": CARD.memory_bytes, "compute_capability": "9.0"}
    assert backend.identity("gpu", 0) == facts
    described = backend.describe()
    assert described["compute_capability"] == "9.0" and described["device_name"] == CARD.name
    assert described["multiprocessors"] == CARD.multiprocessors
    assert described["cudnn_allow_tf32"] and described["float32_matmul_precision"] == "high"
    assert not opened().describe()["cudnn_allow_tf32"]
    assert backend.last_level_cache()[0] == CARD.l2_bytes
    vendor, uuid = backend.gpu_address()
    assert vendor == "nvidia" and uuid.startswith("GPU-fa4e")
    assert torch.cuda.get_device_properties(0).uuid in uuid
    with pytest.MonkeyPatch.context() as patch:
        gpu = sys.modules["simulated_cuda"].driver.gpus[0]
        patch.setattr(gpu, "card", CARDS[f"{CARD.name} MIG 1g.18gb"])
        assert backend.gpu_address()[1].startswith("MIG-fa4e")
        patch.setattr(gpu, "card", WITHOUT_CACHE)
        assert backend.last_level_cache() == (
            None,
            "this torch does not tell the GPU's L2_cache_size",
        )


def test_simulated_card_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = plugins.load("backends", "torch-cuda")()
    assert plugin.available()[0]
    # DeepSpeed sets it as it is imported, and whoever started this process may have imported it.
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
    assert plugin.available() == (
        False,
        "torch finds no CUDA device (driver missing, too old, or no GPU)",
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    assert plugin.available() == (False, f"torch {torch.__version__} is built without CUDA")


def test_simulated_card_that_is_old_refuses_new_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["simulated_cuda"].driver.gpus[0], "card", CARDS["NVIDIA GeForce RTX 2080 Ti"]
    )
    for precision in ("tf32", "bf16", "amp-bf16"):
        with pytest.raises(Unsupported, match=f"{precision}: .* 8.0, this GPU has 7.5"):
            opened(precision)
    opened("fp16")
    new, old = (
        opened().memory_profile_on(capability).workspace_bytes for capability in ("9.0", "7.5")
    )
    workspaces = sys.modules["simulated_cuda"]
    assert new == 2 * workspaces.HOPPER_WORKSPACE and old == 2 * workspaces.WORKSPACE


@pytest.mark.parametrize("direction", ["host-to-device", "device-to-host"])
@pytest.mark.parametrize("pinned", [False, True])
def test_simulated_card_moves_what_was_sent(direction: str, pinned: bool) -> None:
    """From page-locked memory the copy runs on by itself; else it is over when it returns."""
    backend = opened()
    transfer, means = backend.transfer(direction, pinned, 2**16, 0)
    assert str(pinned) in means
    backend.synchronize()
    needs = 2**18 / CARD.link_rate
    began = time.perf_counter()
    received = transfer.launch()
    dispatch_s = time.perf_counter() - began
    assert (dispatch_s < needs / 2) == pinned
    backend.synchronize()
    assert time.perf_counter() - began == pytest.approx(needs, rel=0.2)
    assert transfer.arrived(received)
    received.zero_()
    assert not transfer.arrived(received)


def test_simulated_card_gets_a_batch_without_a_wait() -> None:
    """A step that nobody times waits neither for the card nor for its data."""
    backend, line = opened(), sys.modules["simulated_cuda"].driver.line
    a = backend.normal((512, 512), 0)
    backend.matmul(a, a)
    moved = backend.on_device({"images": np.ones((64, 28, 28), np.float32)})
    assert line.end > line.now()  # the product is still under way
    backend.synchronize()
    assert moved["images"].device.type == "cuda" and float(moved["images"].sum()) == 64 * 28 * 28


def test_simulated_card_that_is_lost_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of one's own raises in CUDA's words; an error before that leaves it as it was."""
    backend = opened()
    kernel, means = backend.empty_kernel()
    assert kernel is not None and "PTX" in means
    kernel()
    monkeypatch.setattr(_cuda_driver, "LIBRARY", "libno-driver.so.1")
    assert "libno-driver.so.1" in backend.empty_kernel()[1]
    driver = sys.modules["simulated_cuda"].driver
    monkeypatch.setattr(driver, "lost_after", driver.kernels)
    with pytest.raises(_cuda_driver.CudaError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\): unspec"):
        kernel()


def test_simulated_card_has_the_arrays_of_mlx_s_cpu_too() -> None:
    """Of a build for CUDA: every cell on that CPU is flagged, and none on the card."""
    of_mlx = [plugins.load("backends", "mlx")() for _ in range(2)]
    for backend, kind in zip(of_mlx, ("cpu", "gpu"), strict=True):
        assert backend.available()[0]
        backend.open(kind, 0, 2, "fp32")
    assert of_mlx[0].caveat[0] in words.FLAG_WORDS and of_mlx[1].caveat is None


def test_simulated_card_says_which_attention_it_has_and_what_compiling_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("flash", "cudnn"):
        with pytest.raises(Unsupported, match=f"{name} has no kernel for fp32 on CUDA"):
            opened().choose_attention(name)
        backend, allows = opened("bf16"), torch.backends.cuda
        backend.choose_attention(name)
        assert getattr(allows, f"{name}_sdp_enabled")() and not allows.math_sdp_enabled()
        backend._attention.__exit__(None, None, None)
        assert allows.math_sdp_enabled()
    ran = Operator("aten::_scaled_dot_product_cudnn_attention", "h.*.attn", "forward_s", "", 1, 1)
    assert backend.kernels([ran])["attention"] == "_scaled_dot_product_cudnn_attention"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("siliconprof.backends.torch_cuda.find_spec", lambda name: None)
    assert "Triton" in backend.cannot_compile("gpu")
    monkeypatch.setattr("siliconprof.backends.torch_cuda.find_spec", lambda name: name)
    assert backend.cannot_compile("gpu") is None  # these tests need a compiler
    with monkeypatch.context() as patch:
        patch.setattr("siliconprof.backends.torch_cuda.sysconfig.get_path", lambda name: "/nowhere")
        assert "/nowhere/Python.h is missing" in backend.cannot_compile("gpu")
    monkeypatch.setenv("PATH", "")
    assert "C compiler" in backend.cannot_compile("gpu")


def test_simulated_card_counts_what_a_step_launches_on_it() -> None:
    """AdamW's counts of steps, which lie in the host's memory, are no work of the card."""
    backend, driver = opened(), sys.modules["simulated_cuda"].driver
    stepper, clock, batch = backend.stepper(gpt2("nano"), 5), PhaseClock(backend), tokens(1)
    clock.split = False
    stepper.step(batch, clock)
    before = driver.kernels
    launches = backend.launches_of(lambda: stepper.step(batch, clock))
    assert launches == driver.kernels - before


@pytest.mark.parametrize("bound_by", ["card", "host"])
def test_simulated_card_is_told_by_operator(bound_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator lasts as long as the card works for it, whether or not the card waits between."""
    driver = sys.modules["simulated_cuda"].driver
    faster = {"card": 0.1, "host": 1e6}[bound_by]
    rates = {name: rate * faster for name, rate in CARD.flop_rates.items()}
    card = replace(CARD, flop_rates=rates, bytes_rate=CARD.bytes_rate * faster)
    monkeypatch.setattr(driver.gpus[0], "card", card)
    backend = opened()
    stepper, clock, batch = backend.stepper(gpt2("nano"), 5), PhaseClock(backend), tokens(1)
    stepper.step(batch, clock)
    taken = []
    for _ in range(5):
        clock.start(split=False)
        before_s = driver.line.busy_s
        stepper.step(batch, clock)
        taken.append((clock.stop()[0], clock.dispatch_s, driver.line.busy_s - before_s))
    step_s, dispatch_s, works_s = min(taken)  # on a host that others use, too
    assert (works_s > 0.9 * step_s) == (bound_by == "card") and works_s <= step_s
    assert (dispatch_s > 0.9 * step_s) == (bound_by == "host")
    found = watched(backend, lambda: stepper.step(batch, clock), clock)
    assert found["reason"] is None
    of_kinds = {row["kind"]: row for row in found["rows"]}
    of_data = {row["kind"] for row in found["rows"] if row["phase"] == "data_s"}
    assert of_data == {"aten::_to_copy"}  # what made the batch ready was no work of the card
    together_s = sum(min(row["seconds"]) for row in found["rows"])
    assert together_s == pytest.approx(works_s, rel=0.1)
    product = of_kinds["aten::mm"]
    needs_s = KERNEL_S + product["flops"] / driver.gpus[0].card.flop_rates["fp32"]
    each_s = min(product["seconds"]) / product["count"]
    assert each_s == pytest.approx(needs_s, rel=0.1, abs=0.6e-6)  # events tell half microseconds
    times = {"dispatch_s": [dispatch_s], "whole_step_s": [step_s]}
    document = {"params": {}, "times": times, "memory": {}}
    document |= {"flops": None, "bytes": None, "operators": found}
    parts = step_parts.of_point(model.made(Point, document), "gpu")
    rest = next(part for part in parts if part["part"] == FRAMEWORK)
    assert ("launch-bound" in rest["how"]) == (bound_by == "host")
    assert rest["seconds"] > 0.5 * step_s if bound_by == "host" else rest["seconds"] < 0.2 * step_s
