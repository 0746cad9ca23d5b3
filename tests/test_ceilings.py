"""Ceilings and checks: from records over the real stages to the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from siliconprof.analyse import ceilings
from synthetic_cells import (
    bandwidth,
    matvec,
    product,
    products,
    vjp,
)
from synthetic_results import (
    CPU,
    GPU,
    H200,
    kernel_launch,
    make,
    table,
    training,
)


def ceiling(results: Path, quantity: str, **wanted: str) -> dict[str, Any]:
    """The one line of a quantity."""
    (line,) = [
        line
        for line in table(results, "ceilings")
        if line["quantity"] == quantity and all(line[k] == v for k, v in wanted.items())
    ]
    return line


def verdicts(results: Path, module: str, quantity: str, **wanted: str) -> list[str]:
    """Those of a module's points, in their order."""
    return [
        line["verdict"]
        for line in table(results, "checks")
        if (line["module"], line["quantity"]) == (module, quantity)
        and all(line[k] == v for k, v in wanted.items())
    ]


PRODUCTS = [product((1, 256, 256, 256), 60e9), product((1, 1024, 1024, 1024), 100e9)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU with two backends and a GPU; one throughput of each operation lies too high."""
    slow = products([product((1, 256, 256, 256), 4.9e9)], backend="mlx")
    wrong = products([product((1, 64, 64, 64), 900e9)], workload="broken")
    matvecs = {(256, 256, "warm"): 55e9, (256, 256, "cold"): 11e9}
    matvecs |= {(4096, 4096, "warm"): 12e9, (4096, 4096, "cold"): 40e9}
    large = [product((1, 4096, 4096, 4096), 60e12), product((1, 64, 64, 64), 70e12)]
    own = [
        products(PRODUCTS),
        products([product((8, 64, 64, 64), 110e9)], workload="matmul-batched"),
        wrong | {"status": "failed", "reason": "asked for fp32, but the arithmetic was tf32"},
        slow,
        bandwidth(12e9, 60e9),
        bandwidth(6e9, 20e9, backend="mlx"),
        matvec({(256, 256, "cold"): 14e9}, backend="mlx"),
        matvec(matvecs),
        vjp({(256, "without"): 80e9, (512, "with"): 130e9, (512, "without"): 330e9}),
        kernel_launch(),
        training(0.010),
        products(large, workload="matmul-large", **GPU),
        bandwidth(4.0e12, 9e12, **GPU),
    ]
    too_fast = products([product((1, 4096, 4096, 4096), 68e12)], host="lab", **GPU)
    folder = tmp_path_factory.mktemp("ceilings")
    return make(
        folder, own, foreign=[too_fast], reference=[too_fast], devices=(H200, CPU), last=ceilings
    )


def test_a_ceiling_is_the_best_that_was_measured_and_says_where(results: Path) -> None:
    best = ceiling(results, "matmul", backend="torch-cpu", precision="fp32")
    assert best["value"] == pytest.approx(110e9, rel=1e-3)  # a step's shape counts
    assert best["burst_value"] == pytest.approx(110e9 / 0.98, rel=1e-3)
    assert best["record"].endswith("cpu-x/torch-cpu/matmul-batched/auto/fp32.json")
    assert (best["how"], best["n"]) == ("8×64×64×64", 30)
    assert best["error"] < 0.01 and best["interval"] == "within one process"
    assert best["share"] is None and best["datasheet_reason"].startswith("cpu-x is not in the reg")
    memory = ceiling(results, "memory_bandwidth", backend="torch-cpu", precision="fp32")
    assert memory["value"] == pytest.approx(13.2e9, rel=1e-2)  # triad, beyond the cache
    assert memory["how"] == "triad, 128 MiB, warm"
    cache = ceiling(results, "cache_bandwidth", backend="torch-cpu", precision="fp32")
    assert cache["value"] == pytest.approx(66e9, rel=1e-2)
    assert "launch" not in cache["how"]
    bound = ceiling(results, "cache_bandwidth", device="h200", source="this host")
    assert bound["how"].endswith("warm; launch-bound: at least this")
    sheet = ceiling(results, "memory_bandwidth", source="this host", device="h200")
    assert sheet["datasheet_value"] == 4.8e12
    assert sheet["share"] == pytest.approx(4.4 / 4.8, rel=1e-2)
    assert ceiling(results, "host_to_device", backend="mlx")["reason"]


def test_a_throughput_above_the_peak_is_caught_wherever_it_is_from(results: Path) -> None:
    above = "above the datasheet's peak"
    own = verdicts(results, "matmul", "flop_per_s", device="h200", source="this host")
    assert own == ["ok", above]
    for source in ("another host", "reference"):
        assert verdicts(results, "matmul", "flop_per_s", source=source) == [above]
    checks = [c for c in table(results, "checks") if c["source"] == "reference"]
    (reason,) = (c["reason"] for c in checks if c["quantity"] == "flop_per_s")
    assert reason.startswith("1×4096×4096×4096: 68034 GFLOP/s is 1.02 times the data sheet")


def test_a_throughput_above_our_ceiling_is_caught(results: Path) -> None:
    above = "above our own ceiling"
    # 130 of 110 GFLOP/s is within the quarter that a ceiling may be too low; 330 is not
    assert verdicts(results, "vjp", "flop_per_s") == ["ok", "ok", above]
    # 55 GB/s from a cache are fine, 40 GB/s from memory are not where it gives 13
    ours = {"module": "matvec", "backend": "torch-cpu"}
    assert verdicts(results, quantity="bytes_per_s", **ours) == ["not compared", "ok", "ok", above]
    # MLX's own kernels get 6.6 GB/s here, but torch shows that the memory gives 13
    assert verdicts(results, "matvec", "bytes_per_s", backend="mlx") == ["ok"]
    checks = [c for c in table(results, "checks") if c["how"] == "1×256×256×1, warm"]
    (reason,) = (c["reason"] for c in checks if c["quantity"] == "bytes_per_s")
    fits = "its 258 KiB fit the last-level cache of 32 MiB, so memory is no limit to it"
    assert reason == fits
    assert set(verdicts(results, "gpt2", "flop_per_s")) == {"ok"}


def test_mixed_precision_is_held_against_the_faster_of_its_formats(tmp_path: Path) -> None:
    slow = products([product((1, 256, 256, 256), 0.005e9)], precision="bf16")
    mixed = training(0.010, precision="amp-bf16")  # 0.02 GFLOP/s, four times what bf16 does
    made = make(tmp_path / "both", [products(PRODUCTS), slow, mixed], last=ceilings)
    assert verdicts(made, "gpt2", "flop_per_s") == ["ok"]
    made = make(tmp_path / "one", [slow, mixed], last=ceilings)
    assert verdicts(made, "gpt2", "flop_per_s") == ["not compared"]  # fp32 may be faster
