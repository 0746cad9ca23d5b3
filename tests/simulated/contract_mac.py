"""The contract of backends (test_plugins.py) on the GPU of a simulated Mac, in a process that is on it.

python tests/simulated/contract_mac.py torch-mps FOLDER
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest  # noqa: E402
import models  # noqa: E402
import pytest  # noqa: E402
import sitecustomize  # noqa: E402
import test_plugins as contract  # noqa: E402
from siliconprof.session import timing  # noqa: E402
from siliconprof.session.operators import Operators  # noqa: E402


def usable(name: str) -> list[str]:
    """Precisions that are not refused, less what a CPU cannot play."""
    return [p for p in real_usable(name) if p != "tf32"]


PLAYED = sitecustomize.PLAYED
opened = partial(conftest.opened, kind="gpu")
real_usable = contract.usable
contract.opened, contract.usable = opened, usable
CONTRACT = (
    contract.test_a_backend_computes_in_the_precision_asked_for,
    contract.test_a_backend_makes_arrays_and_launches,
    contract.test_memory_is_counted_or_said_to_be_unknown,
    contract.test_a_stepper_marks_every_phase_in_order,
    contract.test_dropout_is_of_training_alone,
)


def product_s(backend: Any) -> float:
    """The fastest of some products, as the package times them."""
    arrays, clock = backend.arrays, backend.clock
    a, b = arrays.normal((512, 512), 0), arrays.normal((512, 512), 1)
    plan = timing.Plan(warmup_iterations=2, warmup_budget_s=0, iterations=5, budget_s=0)
    return min(timing.repeat(lambda: arrays.matmul(a, b), clock, plan, lambda *_: None).times_s)


def waiting_counts(name: str) -> None:
    """A wait that is missing shows as a time that is too short."""
    backend = opened(name)
    waited_s = product_s(backend)
    assert waited_s > 5e-4  # 0.27 GFLOP on a CPU
    real, type(backend.clock).synchronize = type(backend.clock).synchronize, lambda self: None
    try:
        assert product_s(backend) < waited_s / 3
    finally:
        type(backend.clock).synchronize = real


def what_only_a_gpu_has(name: str) -> None:
    """Limits, transfers, a kernel of one's own: none of it is reached on a CPU."""
    backend = opened(name)
    assert backend.gpu_address == ("apple", "")
    assert backend.memory.recommended_bytes() == PLAYED["recommended_bytes"]
    assert backend.memory.last_level_cache()[0] is None
    for direction in ("host-to-device", "device-to-host"):
        assert backend.kernels.transfer(direction, True, 1000, 0)[0] is None
        transfer, means = backend.kernels.transfer(direction, False, 1000, 0)
        assert means and transfer.arrived(transfer.launch())
    kernel, _ = backend.kernels.empty()
    kernel()
    kept = backend.arrays.normal((1000, 1000), 0)
    held = backend.memory.counters()
    del kept
    backend.memory.empty_cache()
    after = backend.memory.counters()
    kept_for_reuse = "driver_bytes" if name == "torch-mps" else "cache_bytes"
    assert after[kept_for_reuse] < max(held[kept_for_reuse], 1)


def operators_are_told(workload: Any, batch: Any) -> None:
    """In bursts beside the steps, which train as steps that nobody watches do."""
    backend = opened("torch-mps")
    watched, clock = backend.stepper(workload, 5), timing.PhaseClock(backend.clock)
    operators, losses = Operators(backend.profiler, clock, {}), []
    for step in range(6):
        clock.start(split=True)
        watches = operators.due(step)
        if watches:
            operators.begin(step)
        loss = watched.step(batch, clock)
        clock.stop()
        if watches:
            operators.end()
        losses.append(loss())
    found = operators.of_point({"forward_s": [1.0]})["operators"]
    assert found["reason"] is None
    assert all(len(row["seconds"]) == 2 for row in found["rows"])  # of the steps after the listing
    alone = backend.stepper(workload, 5)
    same = [alone.step(batch, conftest.NoClock(split=True))() for _ in losses]
    assert losses == pytest.approx(same, rel=1e-5)
    no_clock = conftest.NoClock(split=True)
    launches = backend.profiler.count_launches(lambda: alone.step(batch, no_clock))
    assert 0 < launches <= sum(row["count"] for row in found["rows"])


class Evaluated(conftest.NoClock):
    """Which phases of a step computed arrays: MLX counts memory as it is taken."""

    def __init__(self, backend: Any, split: bool) -> None:
        super().__init__(split)
        self.backend = backend
        self.phases: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """A phase begins."""
        self.backend.memory.reset_peak()
        self.held = self.backend.memory.allocated_bytes()

    def edge(self, phase: str) -> None:
        """A phase ends."""
        if self.backend.memory.peak_bytes() > self.held + 2**16:  # constants of a graph are less
            self.phases.add(phase)
        self.begin()


def what_an_mlx_step_computes() -> None:
    """Each phase of a split step computes its own; a whole one computes all at its end."""
    backend = opened("mlx")
    workload = models.gpt2(learning_rate=0.003)
    workload.parameters = {**workload.parameters, "max_gradient_norm": 0.1}
    stepper = backend.stepper(workload, 5)
    for split, expected in (
        (True, {"forward_s", "backward_s", "other_s", "optimizer_s"}),
        (False, {"optimizer_s"}),
    ):
        clock = Evaluated(backend, split)
        stepper.step(models.tokens(3), clock)()
        assert clock.phases == expected


def main(name: str, folder: str) -> None:
    """Check one backend."""
    for test in CONTRACT:
        test(name)
    contract.test_a_training_goes_on_from_a_checkpoint(name, Path(folder))
    gc.collect()  # models are full of reference cycles
    waiting_counts(name)
    what_only_a_gpu_has(name)
    if name == "torch-mps":  # test_operators.py has MLX's, which are the same on a CPU
        operators_are_told(models.gpt2(), models.tokens(3))
        operators_are_told(models.model("mlp", dropout=0.5), models.images())
    else:
        what_an_mlx_step_computes()


if __name__ == "__main__":
    main(*sys.argv[1:])
