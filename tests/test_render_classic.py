"""Daniel 2023's section of the report: from records of networks to the finished page.

Every ratio that is looked for here was divided by hand from the epochs below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from siliconprof import words
from synthetic_cells import CPU_STEPS, GPU_STEPS, cells, fastest, network
from synthetic_results import CPU, GPU, H200, Page, make, render, shown_table

MLX = {"backend": "mlx"}
# GPU against CPU: 0.5, 2, 10 and 20 × as fast. Geometric mean 200^(1/4), arithmetic 32.5 / 4.
RATIOS = {("MLP", 32): 0.5, ("MLP", 128): 2.0, ("LSTM", 32): 10.0, ("LSTM", 128): 20.0}


def page(folder: Path, own: Sequence[dict[str, Any]], **more: Any) -> tuple[Page, Path]:
    """From records through every stage to the page, and the folder of results."""
    drawn = more.pop("drawn", ())
    results = make(folder, own, **more)
    return render(results, drawn), results


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path]:
    """A GPU and the CPU of one host; products say 100 ×, epochs 0.5 to 20 ×."""
    own = [*cells(CPU_STEPS), *cells(GPU_STEPS, **GPU), fastest(1e11), fastest(1e13, **GPU)]
    return page(tmp_path_factory.mktemp("both"), own, devices=(H200, CPU))


def test_ratios_are_those_of_the_epochs_gpu_against_cpu(both: tuple[Page, Path]) -> None:
    found = shown_table(both[1], "classic-ratios")
    assert {(r["Side a"], r["Side b"]) for r in found} == {
        ("h200 (torch-cuda)", "cpu-x (torch-cpu)")
    }
    ratio = {(r["Network"], int(float(r["batch size"]))): r for r in found}
    assert list(ratio) == list(RATIOS)  # the article's order, small batches first
    for case, expected_ratio in RATIOS.items():
        row = ratio[case]
        assert float(row["a over b (×)"]) == pytest.approx(expected_ratio, rel=1e-6)
        assert float(row["by steps alone (×)"]) == pytest.approx(expected_ratio, rel=1e-6)
        low, high = map(float, row["a over b (×): interval"].split("–"))
        assert low <= expected_ratio <= high and 1 < high / low < 1.02
    # the article's epoch: 1000 steps of 4 ms, and a quarter of that for validation
    assert float(ratio["MLP", 32]["epoch of a (s)"]) == pytest.approx(5.0)


def test_large_counts_are_whole_and_grouped(both: tuple[Page, Path]) -> None:
    shown = both[0].column("table-classic-times", "parameters")
    assert {cell.strip() for cell in shown.values()} == {"435 402", "81 674"}
    written = {row["parameters"] for row in shown_table(both[1], "classic-times")}
    assert written == {"435402.0", "81674.0"}


def test_whole_epochs_are_not_called_extrapolated(both: tuple[Page, Path]) -> None:
    said, folder = both
    assert {row["Epoch is"] for row in shown_table(folder, "classic-times")} == {"measured"}
    drawn = {name for name in said.figures if name.startswith("classic-")}
    assert drawn == {"classic-phases-mlp", "classic-phases-lstm"}


@pytest.mark.slow
def test_extrapolated_epochs_are_marked_everywhere(tmp_path: Path) -> None:
    steps = {"mlp": CPU_STEPS["mlp"]}
    slow = {"mlp": {batch: 3 * seconds for batch, seconds in steps["mlp"].items()}}
    own = [*cells(steps, means="extrapolated"), *cells(slow, **MLX)]
    own += [fastest(9e10), fastest(3e10, **MLX)]
    said, folder = page(tmp_path, own)
    rows = shown_table(folder, "classic-times")
    known = {(row["Backend"], row["batch size"]): row["Epoch is"] for row in rows}
    assert known["torch-cpu", "32.0"] == "extrapolated: 40 of 1000 steps"
    assert known["mlx", "128.0"] == "measured"
    assert rows[0]["Epoch is: validation"] == "4 of 10 validation batches"
    section = said.of("classic")
    ratios = {row["Epochs are"] for row in shown_table(folder, "classic-ratios")}
    assert ratios == {"extrapolated"}
    # no GPU: backend against backend, the faster one first, and products that agree with epochs
    (pair,) = {(r["Side a"], r["Side b"]) for r in shown_table(folder, "classic-ratios")}
    assert pair == ("cpu-x (torch-cpu)", "cpu-x (mlx)")
    assert "3.00 × as fast, which agrees within both intervals or 5 %" in section


@pytest.mark.slow
def test_one_backend_alone_has_no_ratios(tmp_path: Path) -> None:
    said, folder = page(tmp_path, cells(CPU_STEPS))
    section = said.of("classic")
    assert "No device ratios: cpu-x (torch-cpu) alone trained these networks here." in section
    assert "classic-phases-mlp" in said.figures
    assert not list((folder / "figures").glob("*classic-ratios*"))


def test_nothing_measured_is_said_with_its_reason(tmp_path: Path) -> None:
    lost = cells(CPU_STEPS)
    for made in lost:
        made |= {"status": "failed", "reason": "no such data", "points": []}
    partly = network("cnn", {32: 0.01})
    partly["points"][0] |= {"status": "oom", "reason": "cannot allocate 3 GiB", "times": {}}
    for name in ("epoch", "test", "loss"):
        del partly["points"][0][name]
    said, _ = page(tmp_path, [*lost, partly])
    section = said.of("classic")
    assert "No figure: no network was measured (failed: no such data)." in section
    reasons = said.column("table-classic-times", "epoch")
    assert len(reasons) == 3 and all(cell.startswith("–") for cell in reasons.values())
    assert "oom: cannot allocate 3 GiB" in section and "failed: no such data" in section
    assert not [name for name in said.figures if name.startswith("classic-")]
    shown = {" ".join(text).strip() for _, _, text in said.cells}
    assert not shown & {"nan", "None", "inf", "NaN"}


@pytest.mark.slow
def test_published_ratios_are_marked_and_get_ours_beside_them(tmp_path: Path) -> None:
    m2 = {"device": "m2-max-30", "backend": "torch-mps", "device_kind": "gpu"}
    p100 = {"device": "p100-pcie-16gb", "backend": "torch-cuda", "device_kind": "gpu"}
    own = cells({"lstm": {1024: 0.020}}) + cells({"lstm": {1024: 0.004}}, **m2)
    elsewhere = cells({"lstm": {1024: 0.006}}, **p100 | {"host": "lab"})
    device = H200 | {"id": "m2-max-30", "registry_id": "m2-max-30", "name": "Apple M2 Max"}
    said, _ = page(tmp_path, own, reference=elsewhere, devices=(device, CPU))
    rows = said.tables["table-classic-published"]
    published = [line[3].strip() for line in rows[1:]]
    assert len(published) == 23 and all(cell.endswith("P") for cell in published)
    line = {
        (row[1].strip(), row[2].strip(), row[0].partition("against")[2].strip()): row
        for row in rows
    }
    assert not [cell for row in rows[1:] for cell in row if "“" in cell]  # some are not verbatim
    beside = line["LSTM", "1024P", "NVIDIA Tesla P100 PCIe 16 GB"]
    assert beside[3].strip() == "1.43P" and beside[4].startswith("1.50 × [1.50, 1.50]")
    assert "m2-max-30 (torch-mps) [here: desk]" in beside[4]
    assert "p100-pcie-16gb (torch-cuda) [reference: lab]" in beside[4]
    assert line["LSTM", "1024P", "its own CPU"][4].startswith("5.00 × [4.9")
    assert line["CNN", "1024P", "NVIDIA Tesla P100 PCIe 16 GB"][4].startswith(words.DASH)
    assert "reference: lab" in str(said.tables["table-classic-times"])
    # no ratio between hosts is among our own
    own = said.html.partition('id="table-classic-ratios"')[2]
    assert "p100" not in own.partition('id="table-classic-published"')[0]
