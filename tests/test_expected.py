"""Expected against actual time, and what bounds a grid: from records over the real stages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_results
from siliconprof.analyse import ceilings, step_work
from siliconprof.stats import line_fit
from siliconprof.workloads import transformer_lm
from synthetic_cells import bandwidth, fastest, grid
from synthetic_results import CPU, GPU, H200, kernel_launch, make, table

PEAK = 67e12  # of an H200 in fp32, outside tensor cores, by the registry
PRODUCTS, MEMORY = 1e12, 1e11  # FLOP/s and bytes/s that were measured
SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "d_ff": 168}
LARGE = {"n_layer": 2, "n_embd": 2048, "n_head": 16, "d_ff": 5464}


def point(shape: Mapping[str, int], batch_size: int, seconds: float) -> dict[str, Any]:
    """A point of a grid, as `transformer_grid` leaves it."""
    sizes = {"seq_len": 64, "vocab_size": 512, "batch_size": batch_size}
    model = transformer_lm.Plugin(dict(shape) | sizes)
    own: dict[str, Any] = {"times": {"step_s": [seconds * (0.99 + 0.01 * i) for i in range(3)]}}
    own |= {"flops": model.flops_per_step()[0], "burst_mean_s": None}
    own |= {"memory": {"predicted_bytes": 20 * model.weights.n_parameters()}}
    return synthetic_results.point(model.sizes(), seconds, **own)


def beside(launch_s: float | None = 2e-6, memory: float = MEMORY, **axes: Any) -> list[Any]:
    """The cells that ceilings are made of."""
    cells = [fastest(PRODUCTS, **axes), bandwidth(memory, 4 * memory, **axes)]
    if launch_s:
        launches = kernel_launch(**axes)
        launches["points"][0]["times"]["amortised_s"] = [launch_s] * 9
        cells.append(launches)
    return cells


analysed, grid = partial(make, last=ceilings), partial(grid, workload="grid")


# -- expected against actual ---------------------------------------------------------------------


def test_expected_is_operations_over_peak_and_over_the_measured_ceiling(tmp_path: Path) -> None:
    on_gpu = point(SMALL, 4, 5e-3)
    cells = [*beside(**GPU), grid([on_gpu], **GPU), grid([point(SMALL, 4, 2e-3)])]
    results = analysed(tmp_path, cells, devices=(CPU, H200))
    gpu, cpu = table(results, "expected")
    flops = on_gpu["flops"]
    assert gpu["expected_datasheet_s"] == pytest.approx(flops / PEAK)
    assert gpu["expected_ceiling_s"] == pytest.approx(flops / PRODUCTS, rel=0.01)
    assert gpu["actual_s"] == pytest.approx(5e-3)
    assert gpu["tokens_per_s"] == pytest.approx(4 * 64 / 5e-3)
    # A CPU's data sheet has no peak, and nobody multiplied on it: None.
    assert cpu["expected_datasheet_s"] is cpu["expected_ceiling_s"] is None


# -- verdicts ------------------------------------------------------------------------------------


def steps(shape: Mapping[str, int], fixed_s: float, per_sample_s: float) -> list[dict[str, Any]]:
    """A shape at three batch sizes, on a straight line."""
    return [point(shape, b, fixed_s + per_sample_s * b) for b in (1, 4, 16)]


FEW = 2e-6 * step_work.launches("torch-cpu", 2, "fp32", False)
# Of the large shape: what its step moves at least, all but what the cache of 32 MiB holds.
MOVED_S = 3.8e9 / MEMORY
VERDICTS: list[tuple[list[Any], dict[str, Any], str]] = [
    # points, what is known of launches and memory, the verdict
    (steps(SMALL, 1.5 * FEW, 1e-5), {}, "launch-bound"),
    # The same steps, and launches that cost next to nothing.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 1e-8}, "neither"),
    # A quarter of the cost, and bytes cannot explain the rest; then a memory that can.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 5e-7}, "launch-bound"),
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 5e-7, "memory": MEMORY / 3}, "inconclusive"),
    # The same launches, in steps that grow with the batch.
    (steps(SMALL, FEW / 50, FEW), {}, "neither"),
    # Launches dearer than the step: they say nothing.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 2e-5}, "inconclusive"),
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": None}, "inconclusive"),
    ([point(SMALL, 4, 1.5 * FEW)], {}, "inconclusive"),
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {}, "memory-bound"),
    # The same steps on a memory a hundred times as fast.
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": 100 * MEMORY}, "neither"),
    # Four times as fast: too little to be sure, too much to deny it.
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": 4 * MEMORY}, "inconclusive"),
    ([*steps(SMALL, 1.5 * FEW, 1e-5), *steps(LARGE, 1.5 * MOVED_S, 1e-2)], {}, "both"),
]


def test_verdict_follows_the_numbers(tmp_path: Path) -> None:
    """Of each of those, which are devices of one host."""
    cells, devices = [], []
    for index, (points, known, _) in enumerate(VERDICTS):
        device = {"device": f"cpu-{index:02}"}
        devices.append(CPU | {"id": device["device"]})
        cells += [grid(points, **device), *beside(**known, **device)]
    lines = table(analysed(tmp_path, cells, devices=devices), "scaling")
    backends = {line["device"]: line["verdict"] for line in lines if line["about"] == "backend"}
    assert [backends[name] for name in sorted(backends)] == [verdict for *_, verdict in VERDICTS]


def test_launches_are_those_of_the_device_where_it_counts_them(tmp_path: Path) -> None:
    counted = [point(SMALL, 1, 2e-3) | {"quantities": {"device_launches": 77}}]
    (shape,) = (
        line
        for line in table(analysed(tmp_path, [*beside(), grid(counted)]), "scaling")
        if line["about"] == "model shape"
    )
    assert shape["launches"] == 77


def test_error_of_the_line_is_that_of_repeated_draws() -> None:
    """The spread of fits through noisy steps is what one fit says of itself."""
    batches, noise = [1.0, 2.0, 4.0, 8.0], 0.05
    true = [2.0 + 0.5 * b for b in batches]
    draws = np.random.Generator(np.random.PCG64(0)).normal(1, noise, (2000, 4)) * true
    lines = [line_fit.fit(batches, list(times), [noise * t for t in true]) for times in draws]
    told = line_fit.fit(batches, true, [noise * t for t in true])
    assert told is not None
    assert np.std([line.fixed_s for line in lines if line]) == pytest.approx(
        np.sqrt(told.covariance[1, 1]), rel=0.1
    )
    share = told.fixed_share(2)
    shares = np.array([line.fixed_share(2).value for line in lines if line])
    assert np.mean((share.low <= shares) & (shares <= share.high)) > 0.92
