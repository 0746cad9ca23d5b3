"""What torch-cuda makes of a simulated card, line by line; test_simulated.py runs this beside one."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import conftest
import numpy as np
import pytest
import torch
from conftest import cpu_cell
from device import H200, KERNEL_S
from measuring import watched
from models import gpt2, tokens
from nvidia import UUID
from siliconprof.analyse import step_parts
from siliconprof.analyse.operator_rows import FRAMEWORK
from siliconprof.backends import _cuda_driver
from siliconprof.backends._step import Compilation, Operator
from siliconprof.backends._torch_stepper import on_device
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import PhaseClock, call_s
from siliconprof.store import model
from siliconprof.store.captions import flag_words
from siliconprof.store.point import Point
from siliconprof.trainers.base import StepSchedule

MIB = 2**20


def gpu() -> Any:
    """The simulated one of this process."""
    return sys.modules["simulated_cuda"].gpu


def opened(precision: str = "fp32") -> Any:
    backend = conftest.opened("torch-cuda", precision, kind="gpu")
    backend.memory.empty_cache()
    backend.memory.reset_peak()
    return backend


def test_simulated_card_is_waited_for() -> None:
    """A call lasts as long as the card works; marks agree with the clock, in seconds."""
    backend = opened()
    arrays, clock = backend.arrays, backend.clock
    a, b = arrays.normal((512, 512), 0), arrays.normal((512, 512), 1)
    arrays.matmul(a, b)  # its workspace
    needs = 2 * 512**3 / H200.flop_rates["fp32"]
    assert call_s(lambda: arrays.matmul(a, b), clock) == pytest.approx(needs, rel=0.2)
    began = time.perf_counter()
    arrays.matmul(a, b)
    assert time.perf_counter() - began < needs / 2  # handing over is no waiting
    clock.synchronize()
    begin = clock.mark()
    began = time.perf_counter()
    arrays.matmul(a, b)
    end = clock.mark()
    with pytest.raises(RuntimeError, match="not ready"):
        clock.seconds_between(begin, end)
    clock.synchronize()
    between, wall = clock.seconds_between(begin, end), time.perf_counter() - began
    assert between == pytest.approx(needs, rel=0.2) and between == pytest.approx(wall, rel=0.2)


def test_simulated_card_has_no_autotuning_in_the_peak_of_a_compiled_step() -> None:
    """Nor in what is reserved: the peak begins anew with every step that may compile."""
    backend, graphs = opened(), [0]
    timing = {"warmup_iterations": 1, "iterations": 1, "budget_s": 0, "energy_window_s": 0}
    cell = cpu_cell("torch-cuda", "gpt2", timing=timing)
    session = CellRun(cell, backend, gpt2(), lambda _: None)
    schedule = StepSchedule(session, lambda: Compilation(graphs[0], 0, 0))
    before, steps_bytes = torch.cuda.memory_reserved(), []
    while kind := schedule.next_kind():
        schedule.begin(kind)
        kept = backend.arrays.normal((MIB,), 0)
        if not graphs[0]:
            backend.arrays.normal((8 * MIB,), 0)
            graphs[0] = 1
        steps_bytes.append(backend.memory.peak_bytes() - backend.memory.allocated_bytes())
        del kept
        schedule.end(lambda: 0.0)
    assert steps_bytes[0] == 32 * MIB and set(steps_bytes[2:]) == {0}
    assert schedule.steps["kind"][:3] == ["compile", "compile", "warm-up"]
    reserved = torch.cuda.max_memory_reserved() - before
    assert reserved < 32 * MIB  # what compiling left was given back


def test_simulated_card_says_what_it_is() -> None:
    backend = opened("tf32")
    described = backend.describe()
    assert described["cudnn_allow_tf32"] and described["float32_matmul_precision"] == "high"
    assert not opened().describe()["cudnn_allow_tf32"]
    assert backend.memory.last_level_cache()[0] == H200.l2_bytes
    assert backend.gpu_address == ("nvidia", f"GPU-{UUID}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu(), "card", replace(H200, name=f"{H200.name} MIG 1g.18gb"))
        assert opened().gpu_address[1].startswith("MIG-fa4e")


@pytest.mark.parametrize("direction", ["host-to-device", "device-to-host"])
@pytest.mark.parametrize("pinned", [False, True])
def test_simulated_card_moves_what_was_sent(direction: str, pinned: bool) -> None:
    """From page-locked memory the copy runs on by itself; else it is over when it returns."""
    backend = opened()
    transfer, means = backend.kernels.transfer(direction, pinned, 2**16, 0)
    assert str(pinned) in means
    backend.clock.synchronize()
    needs = 2**18 / H200.link_rate
    began = time.perf_counter()
    received = transfer.launch()
    dispatch_s = time.perf_counter() - began
    assert (dispatch_s < needs / 2) == pinned
    backend.clock.synchronize()
    assert time.perf_counter() - began == pytest.approx(needs, rel=0.2)
    assert transfer.arrived(received)
    received.zero_()
    assert not transfer.arrived(received)


def test_simulated_card_gets_a_batch_without_a_wait() -> None:
    """A step that nobody times waits neither for the card nor for its data."""
    backend, line = opened(), gpu().line
    a = backend.arrays.normal((512, 512), 0)
    backend.arrays.matmul(a, a)
    moved = on_device(backend, {"images": np.ones((64, 28, 28), np.float32)})
    assert line.end > line.now()  # the product is still under way
    backend.clock.synchronize()
    assert moved["images"].device.type == "cuda" and float(moved["images"].sum()) == 64 * 28 * 28


def test_simulated_card_that_is_lost_does_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a kernel of one's own nor torch; without the driver's library there is no kernel."""
    backend = opened()
    kernel, means = backend.kernels.empty()
    assert kernel is not None and "PTX" in means
    kernel()
    with monkeypatch.context() as patch:
        patch.setattr(_cuda_driver, "DRIVER_LIBRARY", "libno-driver.so.1")
        assert "libno-driver.so.1" in backend.kernels.empty()[1]
    monkeypatch.setattr(gpu(), "lost_after", gpu().kernels)
    with pytest.raises(_cuda_driver.CudaError, match=r"CUDA_ERROR_LAUNCH_FAILED \(719\): unspec"):
        kernel()


def test_simulated_card_has_the_arrays_of_mlx_s_cpu_too() -> None:
    """Of a build for CUDA: every cell on that CPU is flagged, and none on the card."""
    cpu, card = (conftest.opened("mlx", kind=kind) for kind in ("cpu", "gpu"))
    assert cpu.caveat[0] in flag_words() and card.caveat is None


def test_simulated_card_says_which_attention_it_has_and_what_compiling_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("flash", "cudnn"):
        backend, allows = opened("bf16"), torch.backends.cuda
        backend.choose_attention(name)
        assert getattr(allows, f"{name}_sdp_enabled")() and not allows.math_sdp_enabled()
        backend._attention.__exit__(None, None, None)
    ran = Operator("aten::_scaled_dot_product_cudnn_attention", "h.*.attn", "forward_s", "", 1, 1)
    kernels = backend.profiler.implementations([ran])
    assert kernels["attention"] == "_scaled_dot_product_cudnn_attention"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("siliconprof.backends.torch_cuda.find_spec", lambda name: None)
    assert "Triton" in backend.features.cannot_compile("gpu")
    monkeypatch.setattr("siliconprof.backends.torch_cuda.find_spec", lambda name: name)
    with monkeypatch.context() as patch:
        patch.setattr("siliconprof.backends.torch_cuda.sysconfig.get_path", lambda name: "/nowhere")
        assert "/nowhere/Python.h is missing" in backend.features.cannot_compile("gpu")
    monkeypatch.setenv("PATH", "")
    assert "C compiler" in backend.features.cannot_compile("gpu")


def test_simulated_card_counts_what_a_step_launches_on_it() -> None:
    """AdamW's counts of steps, which lie in the host's memory, are no work of the card."""
    backend = opened()
    stepper, clock, batch = backend.stepper(gpt2(), 5), PhaseClock(backend.clock), tokens(1)
    clock.split = False
    stepper.step(batch, clock)
    before = gpu().kernels
    launches = backend.profiler.count_launches(lambda: stepper.step(batch, clock))
    assert launches == gpu().kernels - before


@pytest.mark.parametrize("bound_by", ["card", "host"])
def test_simulated_card_is_told_by_operator(bound_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator lasts as long as the card works for it, whether or not the card waits between."""
    faster = {"card": 0.1, "host": 1e6}[bound_by]
    rates = {name: rate * faster for name, rate in H200.flop_rates.items()}
    card = replace(H200, flop_rates=rates, bytes_rate=H200.bytes_rate * faster)
    monkeypatch.setattr(gpu(), "card", card)
    backend = opened()
    stepper, clock, batch = backend.stepper(gpt2(), 5), PhaseClock(backend.clock), tokens(1)
    stepper.step(batch, clock)
    taken = []
    for _ in range(5):
        clock.start(split=False)
        before_s = gpu().line.busy_s
        stepper.step(batch, clock)
        taken.append((clock.stop()[0], clock.dispatch_s, gpu().line.busy_s - before_s))
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
    needs_s = KERNEL_S + product["flops"] / card.flop_rates["fp32"]
    each_s = min(product["seconds"]) / product["count"]
    assert each_s == pytest.approx(needs_s, rel=0.1, abs=0.6e-6)  # events tell half microseconds
    times = {"dispatch_s": [dispatch_s], "whole_step_s": [step_s]}
    document = {"params": {}, "times": times, "memory": {}}
    document |= {"flops": None, "bytes": None, "operators": found}
    parts = step_parts.parts_of_point(model.validated(Point, document), "gpu")
    rest = next(part for part in parts if part["part"] == FRAMEWORK)
    assert ("launch-bound" in rest["how"]) == (bound_by == "host")
    assert rest["seconds"] > 0.5 * step_s if bound_by == "host" else rest["seconds"] < 0.2 * step_s
