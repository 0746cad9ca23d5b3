"""What the page's intervals rest on: the host's noise floor where it has one, and else they say so.

Records, floor and page are made by the real commands; the times of the processes are made here.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import siliconprof
from conftest import QUICK, Checkout
from scipy import stats
from siliconprof.compare import noise_floor
from synthetic_results import AWAY, Page, make, matmul, render, shown_table, training
from test_compare import process, put

FACTORS = (0.80, 0.95, 1.0, 1.05, 1.2, 1.1)  # of six processes of one cell
DRAWN = ("training-",)  # of the figures, whose legends are read
T_OF_5 = 2.5706  # Student's t, 97.5 %, five degrees of freedom (any table)


def reach() -> float:
    """By which factor an interval reaches either way, from the deviation of the six."""
    return math.exp(T_OF_5 * statistics.stdev(math.log(factor) for factor in FACTORS))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings 4 % apart and products; another host has none of its own floor."""
    folder = tmp_path_factory.mktemp("uncertain")
    own = [training(0.010), training(0.0104, backend="mlx"), matmul()]
    return make(folder, own, foreign=[training(0.001, **AWAY), matmul(**AWAY)])


@pytest.fixture(scope="module")
def floor(results: Path) -> Path:
    """What `siliconprof noise-floor --from` makes of six processes of two of the cells."""
    folder = results.parent / "again"
    for index, factor in enumerate(FACTORS):
        for made in (training(0.010), matmul()):
            put(folder, process(made, factor, 60.0 * index))
    noise_floor.main(["--from", str(folder), "--results", str(results)])
    return noise_floor.floor_path(results, "desk")


@pytest.fixture(scope="module")
def without(results: Path) -> tuple[Page, dict[str, list[dict[str, str]]]]:
    return render(results, DRAWN), {
        name: shown_table(results, name) for name in ("training-times", "matmul")
    }


@pytest.fixture(scope="module")
def beside(results: Path, floor: Path, without: Any) -> tuple[Page, dict]:
    """The same tables with the noise floor; made after the page without it."""
    made = render(results, DRAWN, "study", "--noise-floors", str(floor))
    return made, {name: shown_table(results, name) for name in ("training-times", "matmul")}


def test_several_processes_of_a_cell_make_its_interval(tmp_path: Path) -> None:
    one = matmul()
    for point in one["points"]:
        times = point["times"]["step_s"]
        point["repeats"] = [{"times": {"step_s": [f * t for t in times]}} for f in FACTORS]
    points = siliconprof.load(make(tmp_path, [one])).points
    for line, point in zip(points.to_dict("records"), one["points"], strict=True):
        medians = [statistics.median(point["times"]["step_s"]) * f for f in (1.0, *FACTORS)]
        logs = [math.log(median) for median in medians]
        ends = stats.t.interval(0.95, len(logs) - 1, statistics.fmean(logs), stats.sem(logs))
        assert line["step_median_s"] == pytest.approx(statistics.geometric_mean(medians))
        assert [line["step_low_s"], line["step_high_s"]] == pytest.approx(list(map(math.exp, ends)))
        assert (line["processes"], line["interval"]) == (7, "between processes")


@pytest.mark.slow
def test_without_a_floor_intervals_are_those_of_one_process(without: Any) -> None:
    made, tables = without
    for lines in tables.values():
        assert {line["95 % interval"] for line in lines} == {"within one process"}
    assert "95 % interval, all rows: within one process." in made.of("matmul")
    assert "its middle half (IQR), within one process" in made.of("training")
    assert "between processes" not in made.of("summary", "training", "matmul")
    assert "4.00 %" not in made.of("summary") and "torch-cpu is " in made.of("summary")
    assert made.of("setting").count("siliconprof noise-floor") == 1
    assert "may differ by far more" in made.of("setting")


@pytest.mark.slow
def test_with_a_floor_they_rest_on_the_processes(without: Any, beside: Any) -> None:
    made, tables = beside
    before = {name: lines for name, lines in without[1].items()}
    torch, mlx = tables["training-times"]
    low, high = map(float, torch["unsplit, 95 % (ms)"].split("–"))
    assert low == pytest.approx(10 / reach(), rel=0.01) and high == pytest.approx(
        10 * reach(), rel=0.01
    )
    own_low, own_high = map(float, before["training-times"][0]["unsplit, 95 % (ms)"].split("–"))
    assert 9.9 < own_low < 10 <= own_high < 10.1  # of the series alone
    # nobody knows how processes of MLX differ: its interval stays its own, and says so
    assert torch["95 % interval"] == "between processes"
    assert mlx["95 % interval"] == "within one process"
    assert mlx | {"95 % interval": ""} == before["training-times"][1] | {"95 % interval": ""}
    for line, old in zip(tables["matmul"], before["matmul"], strict=True):
        assert line["95 % interval"] == "between processes"
        rate = float(line["median (GFLOP/s)"])
        ends = [float(end) for end in line["median (GFLOP/s): range"].split("–")]
        assert ends == pytest.approx([rate / reach(), rate * reach()], rel=0.02)
        assert line["median (GFLOP/s)"] == old["median (GFLOP/s)"]


def test_a_difference_within_the_floor_is_none(without: Any, beside: Any) -> None:
    """Four per cent are far more than either series varies, and far less than processes do."""
    assert "no difference beyond noise between torch-cpu and mlx" in beside[0].of("summary")
    assert "no difference beyond noise" not in without[0].of("summary")


def test_the_page_names_the_origin_in_legends_and_captions(beside: Any) -> None:
    made, _ = beside
    for line in (
        "its 95 % interval, between processes",
        "its middle half (IQR), within one process",
    ):
        assert line in made.of("training")
    mixed = "between processes where a noise floor is known, within one process elsewhere"
    assert mixed in made.of("summary") and mixed in made.of("matmul")
    assert "between processes for 3 of 4 points" in made.of("setting")
    assert "results/noise-floor/desk.json" in made.of("setting")
    # the other host has no floor of its own, and gets nobody else's
    elsewhere = made.of("others")
    assert "95 %, within one process" in elsewhere


@pytest.mark.slow
def test_a_new_floor_makes_tables_and_page_again(checkout: Checkout) -> None:
    """It is an input of both rules, and given to their commands; so are claims and their code."""
    checkout.configure(
        experiment="floor",
        precisions=["fp32"],
        timing=QUICK,
        workloads={"product": {"module": "matmul", "shapes": [[1, 8, 8, 8]]}},
    )
    kept = checkout.path / "results" / "noise-floor"
    kept.mkdir()
    (kept / "desk.json").write_text('{"floor_version": 1, "host": "desk", "runs": []}')
    text = checkout.snakemake("-n", "-p", "report").stdout
    rules = {}
    for name in ("analyse", "draw"):
        inputs, _, rest = text.partition(f"rule {name}:")[2].partition("output:")
        assert "results/noise-floor/desk.json" in inputs
        assert "--noise-floors results/noise-floor/desk.json" in rest.partition("rule ")[0]
        rules[name] = inputs
    claims = ("config/claims.yaml", "claims.schema.yaml", "siliconprof/claims/cases.py")
    for path in (*claims, "config/published/daniel2023_speedups.csv", "results/tables/curves.csv"):
        assert path in rules["analyse"]
    assert "results/tables/claims.csv" in rules["draw"]
