"""Ceilings and checks: from records over the real stages to the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import csv_rows
from siliconprof.analyse import ceilings
from siliconprof.render.exhibits.answer.limits import under_roofs
from siliconprof.render.exhibits.paper.devices import fastest_products
from synthetic_cells import bandwidth, matvec, product, products, vjp
from synthetic_results import CPU, GPU, H200, load, make, table, training


def verdicts(results: Path, module: str, quantity: str, **wanted: str) -> list[str]:
    """Those of a module's points, in their order."""
    return [
        line["verdict"]
        for line in table(results, "checks")
        if (line["module"], line["quantity"]) == (module, quantity)
        and all(line[k] == v for k, v in wanted.items())
    ]


PRODUCTS = [product((1, 256, 256, 256), 60e9), product((8, 64, 64, 64), 110e9)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU with two backends and a GPU; one throughput of each operation lies too high."""
    matvecs = {(256, 256, "warm"): 55e9, (256, 256, "cold"): 11e9}
    matvecs |= {(4096, 4096, "warm"): 12e9, (4096, 4096, "cold"): 40e9}
    large = [product((1, 4096, 4096, 4096), 60e12), product((1, 64, 64, 64), 70e12)]
    own = [
        products(PRODUCTS),
        bandwidth(12e9, 60e9),
        bandwidth(6e9, 20e9, backend="mlx"),
        matvec({(256, 256, "cold"): 14e9}, backend="mlx"),
        matvec(matvecs),
        vjp({(256, "without"): 80e9, (512, "with"): 130e9, (512, "without"): 330e9}),
        training(0.010),
        products(large, workload="matmul-large", **GPU),
    ]
    too_fast = products([product((1, 4096, 4096, 4096), 68e12)], host="lab", **GPU)
    folder = tmp_path_factory.mktemp("ceilings")
    return make(
        folder, own, foreign=[too_fast], reference=[too_fast], devices=(H200, CPU), last=ceilings
    )


def test_a_throughput_above_the_peak_is_caught_wherever_it_is_from(results: Path) -> None:
    above = "above the datasheet's peak"
    own = verdicts(results, "matmul", "flop_per_s", device="h200", source="this host")
    assert own == ["ok", above]
    for source in ("another host", "reference"):
        assert verdicts(results, "matmul", "flop_per_s", source=source) == [above]
    checks = [c for c in table(results, "checks") if c["source"] == "reference"]
    (reason,) = (c["reason"] for c in checks if c["quantity"] == "flop_per_s")
    assert reason.startswith("1×4096×4096×4096: 68.0\u202fTFLOP/s is 1.02 times the data sheet")


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
    assert reason == "its data fit the last-level cache, so memory is no limit to it"
    assert set(verdicts(results, "gpt2", "flop_per_s")) == {"ok"}


def test_what_was_disturbed_has_a_mark_and_is_in_no_ceiling_and_no_ratio(tmp_path: Path) -> None:
    """The fastest product and all of a backend's launches: their rows are there, and no more."""
    why = {"disturbed": "a thread waited 80% of the time for a core"}
    slow, fast = PRODUCTS
    own = [
        products([slow, fast | why]),
        products([slow | why], backend="mlx"),
        training(0.010),
    ]
    made = make(tmp_path, own, last=ceilings)
    (line,) = [x for x in table(made, "ceilings") if x["quantity"] == "matmul"]
    assert (line["backend"], float(line["value"])) == ("torch-cpu", pytest.approx(60e9, rel=0.01))
    assert verdicts(made, "matmul", "flop_per_s") == ["ok"]
    rows = [x for x in csv_rows(made / "results.csv") if x["workload"] == "matmul-small"]
    marked = [x for x in rows if x["point_disturbed"]]
    assert len(rows) == 3 and len(marked) == 2
    assert all(x["gflop_per_s"] and not x["share_of_ceiling"] for x in marked)
    points = load(made).points
    assert points["disturbed"].tolist() == points["point_disturbed"].notna().tolist()
    roofs = under_roofs(load(made))
    assert len(roofs[roofs["module"] == "matmul"]) == 1
    assert fastest_products(load(made))["measured"].tolist() == pytest.approx([60e9], rel=0.01)


def test_a_gpu_s_ceiling_says_for_how_long_at_what_clock_and_power(tmp_path: Path) -> None:
    """As far as the GPU tells; a processor's says none of it."""
    told = {"measured_s": 0.42, "sm_clock_mhz": 1410, "power_w": 698.4, "limits": ["power cap"]}
    shape = (1, 4096, 4096, 4096)
    fast = product(shape, 60e12) | {"gpu": told}
    silent = product(shape, 50e12) | {"gpu": {"measured_s": 2.0}}
    own = [
        products([fast], **GPU),
        products([silent], **GPU | {"backend": "mlx"}),
        products(PRODUCTS),
    ]
    made = make(tmp_path, own, devices=(H200, CPU), last=ceilings)
    how = {x["backend"]: x["how"] for x in table(made, "ceilings") if x["quantity"] == "matmul"}
    size = "1×4096×4096×4096"
    assert how["torch-cuda"] == f"{size}; 420\u202fms at 1,410 MHz and 698 W (power cap)"
    assert how["mlx"] == f"{size}; 2.00\u202fs" and ";" not in how["torch-cpu"]


def test_mixed_precision_is_held_against_the_faster_of_its_formats(tmp_path: Path) -> None:
    slow = products([product((1, 256, 256, 256), 0.005e9)], precision="bf16")
    mixed = training(0.010, precision="amp-bf16")  # 0.02 GFLOP/s, four times what bf16 does
    made = make(tmp_path / "both", [products(PRODUCTS), slow, mixed], last=ceilings)
    assert verdicts(made, "gpt2", "flop_per_s") == ["ok"]
    made = make(tmp_path / "one", [slow, mixed], last=ceilings)
    assert verdicts(made, "gpt2", "flop_per_s") == ["not compared"]  # fp32 may be faster
