"""What Apple's GPU asks of torch and MLX, on stand-ins for their calls; see also test_simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from siliconprof import plugins
from siliconprof.hosts import machine
from siliconprof.session.trial import Trial
from test_memory_model import cell, parameters

# -- MPS: the peak ------------------------------------------------------------------------------


def mps(accelerator: Any) -> Any:
    backend = plugins.load("backends", "torch-mps")()
    backend.torch = SimpleNamespace(accelerator=accelerator)
    return backend


def test_copies_of_operators_that_are_timed_are_in_no_peak() -> None:
    """A training's peak is that of its own steps; resetting it forgets those too."""
    stats = {"allocated_bytes.all.peak": 7}
    backend = mps(
        SimpleNamespace(
            memory_stats=lambda: stats,
            reset_peak_memory_stats=lambda: stats.update({"allocated_bytes.all.peak": 3}),
        )
    )
    with backend.operators_timed():
        stats["allocated_bytes.all.peak"] = 9
    assert backend.peak_memory_bytes() == 7
    backend.reset_peak_memory()
    assert backend.peak_memory_bytes() == 3


# -- macOS ----------------------------------------------------------------------------------------


def test_a_kernel_does_without_an_allocator_that_retains(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS's malloc cannot be asked to: a training that asks is refused, bandwidth is measured."""
    monkeypatch.setattr(machine, "is_mac", lambda: True)
    own = {"module": "bandwidth", "trainer": None, "parameters": parameters("bandwidth")}
    assert own["parameters"]["allocator"] == "retain"
    assert Trial(cell(**own)).refusal() is None
    refusal = Trial(cell(parameters=parameters(seq_len=64, allocator="retain"))).refusal()
    assert refusal is not None and "malloc" in refusal[1]
