"""The contract of backends (test_plugins.py) on the GPU of a played Mac, in a process that is on it.

python tests/played/contract_mac.py torch-mps FOLDER
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import numpy as np  # noqa: E402
import sitecustomize  # noqa: E402
import test_plugins as contract  # noqa: E402
from siliconprof import plugins  # noqa: E402
from siliconprof.backends.base import Unsupported  # noqa: E402
from siliconprof.session import timing  # noqa: E402


def opened(name: str, precision: str = "fp32") -> Any:
    """The backend on the GPU."""
    backend = plugins.load("backends", name)()
    can, why = backend.available()
    assert can, why
    backend.open("gpu", 0, 2, precision)
    return backend


def numpy_of(value: Any) -> np.ndarray:
    """A framework's array as numpy's: torch's comes to the host first."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.array(value)


def usable(name: str) -> list[str]:
    """Precisions that are not refused, less what a CPU cannot play."""
    return [p for p in real_usable(name) if p != "tf32"]


PLAYED = sitecustomize.PLAYED
real_usable = contract.usable
contract.opened, contract.numpy_of, contract.usable = opened, numpy_of, usable
CONTRACT = (
    contract.test_a_backend_computes_in_the_precision_asked_for,
    contract.test_a_wrong_product_is_in_no_band,
    contract.test_arrays_are_the_same_for_a_seed,
    contract.test_the_trivial_operator_adds_one,
    contract.test_a_copy_has_memory_of_its_own,
    contract.test_an_error_of_our_own_loses_no_device,
    contract.test_a_stepper_clips_and_follows_its_schedule,
    contract.test_memory_is_counted_or_said_to_be_unknown,
    contract.test_an_empty_kernel_is_launched_or_said_to_be_missing,
)


def product_s(backend: Any) -> float:
    """The fastest of some products, as the package times them."""
    a, b = backend.normal((512, 512), 0), backend.normal((512, 512), 1)
    plan = timing.Plan(warmup_iterations=2, warmup_budget_s=0, iterations=5, budget_s=0)
    return min(timing.repeat(lambda: backend.matmul(a, b), backend, plan, lambda *_: None).times_s)


def waiting_counts(name: str) -> None:
    """A wait that is missing shows as a time that is too short."""
    backend = opened(name)
    waited_s = product_s(backend)
    assert waited_s > 5e-4  # 0.27 GFLOP on a CPU
    real, type(backend).synchronize = type(backend).synchronize, lambda self: None
    try:
        assert product_s(backend) < waited_s / 3
    finally:
        type(backend).synchronize = real


def what_only_a_gpu_has(name: str, folder: Path) -> None:
    """Identity, limits, transfers, captures: none of it is reached on a CPU."""
    backend = opened(name)
    assert backend.gpu_address() == ("apple", "")
    assert backend.memory_limit_bytes() == PLAYED["recommended_bytes"]
    assert backend.identity("gpu", 0)["memory_bytes"] == PLAYED["memory_bytes"]
    assert backend.last_level_cache()[0] is None
    assert backend.describe()["framework"] == backend.framework
    assert set(backend.launch_means()) == {"enqueue", "cold"}
    for direction in ("host-to-device", "device-to-host"):
        assert backend.transfer(direction, True, 1000, 0)[0] is None
        transfer, means = backend.transfer(direction, False, 1000, 0)
        assert means and transfer.arrived(transfer.launch())
    with backend.capture_range("metal", str(folder / "steps.gputrace")):
        kernel, _ = backend.empty_kernel()
        kernel()
    assert len(list(folder.glob("*.gputrace"))) == 1
    kept = backend.normal((1000, 1000), 0)
    held = backend.memory_counters()
    del kept
    backend.release_memory()
    backend.reset_peak_memory()
    after = backend.memory_counters()
    kept_for_reuse = "driver_bytes" if name == "torch-mps" else "cache_bytes"
    assert after[kept_for_reuse] < max(held[kept_for_reuse], 1)
    assert backend.memory_bytes() < 4e6
    assert "limit" in backend.limit_memory(2**30) or "fraction" in backend.limit_memory(2**30)


def what_an_older_mac_lacks() -> None:
    """No Metal GPU, bf16 before macOS 14, no compiler for a kernel: a reason each."""
    import torch

    backend = opened("torch-mps")
    with patch.object(torch.backends.mps, "is_available", lambda: False):
        assert "no Metal GPU" in backend.available()[1]
    with patch.object(torch.backends.mps, "is_macos_or_newer", lambda *release: False):
        for precision in ("bf16", "amp-bf16"):
            try:
                opened("torch-mps", precision)
            except Unsupported as refused:
                assert "macOS 14" in str(refused)
            else:
                raise AssertionError(precision)
    with patch.object(torch.mps, "compile_shader", side_effect=RuntimeError("no compiler")):
        kernel, why = backend.empty_kernel()
        assert kernel is None and "no compiler" in why


def main(name: str, folder: str) -> None:
    """Check one backend."""
    for test in CONTRACT:
        test(name)
    contract.test_a_training_goes_on_from_a_checkpoint(name, Path(folder))
    gc.collect()  # models are full of reference cycles
    waiting_counts(name)
    what_only_a_gpu_has(name, Path(folder))
    if name == "torch-mps":
        what_an_older_mac_lacks()


if __name__ == "__main__":
    main(*sys.argv[1:])
