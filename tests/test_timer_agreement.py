"""Our timing loop beside torch.utils.benchmark.Timer: same product, same process, in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT
from siliconprof.backends._torch import TorchBackend

sys.path.insert(0, str(ROOT / "benchmarks"))

import torch_timer  # noqa: E402

pytestmark = pytest.mark.alone

# One thread, because a second one waits for whoever else has its core; some milliseconds a call,
# so that the Timer's block is one call and both are medians of the same thing; short turns and many
# pairs, because what disturbs a host lasts longer than a turn and then meets both sides. Where that
# is allowed, it runs before other processes: beside five of them it differed by 20 % without.
PRODUCT = {"shape": (1, 640, 640, 640), "precision": "fp32", "threads": 1, "seconds": 0.03}


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Before other processes, and afterwards as many threads as there were."""
    import torch

    before = torch.get_num_threads()
    with torch_timer.first_in_line():
        yield
    torch.set_num_threads(before)


def agreement(**more: Any) -> torch_timer.Agreement:
    return torch_timer.agreement("torch-cpu", **PRODUCT, **more)


def test_our_median_is_that_of_torch_s_own_timer() -> None:
    found = agreement(pairs=25, most_pairs=200)
    assert found.holds, torch_timer.line(found)


def test_a_tenth_more_work_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: our side multiplies a second, ten times narrower matrix."""
    product = TorchBackend.matmul

    def more(self: Any, a: Any, b: Any) -> Any:
        product(self, a, b[..., : b.shape[-1] // 10])
        return product(self, a, b)

    monkeypatch.setattr(TorchBackend, "matmul", more)
    found = agreement(pairs=15, most_pairs=100)
    assert not found.holds and found.low > 1, torch_timer.line(found)
    assert "missed" in torch_timer.line(found)
