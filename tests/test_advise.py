"""Advice and money: the command on an empty checkout and beside results, costs by hand, refusals.

Predictions by operators are tested in `test_prediction.py`.

Records are made by synthetic_results and go through the real aggregation; what is asked of them is
asked by the command that people type, or read off the finished page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from siliconprof.analyse import money
from siliconprof.cells import config
from siliconprof.hosts import registry
from siliconprof.store.table_files import point_key
from synthetic_results import (
    CPU,
    ROOT,
    Page,
    command,
    make,
    make_page,
    metered,
    of_the_paper,
    table,
    training,
)

LARGE = ("--model", "gpt2-large", "--batch", "16")
SMALLEST = ("--model", "gpt2-large", "--batch", "1")
TARIFF = 0.25
NOWHERE = Path(__file__).parent / "no-results"
run = partial(command, "advise")


def asked(*words: str, results: Path = NOWHERE) -> dict[str, Any]:
    """The same as JSON; under `by`, its devices by id."""
    done = run(*words, "--results", results, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found | {"by": {line["device"]: line for line in found["devices"]}}


def prices(**usd: float) -> dict[str, Any]:
    return {"title": "A test", "price_per_kwh": TARIFF, "prices": usd, "advice": []}


# -- without any results -------------------------------------------------------------------------


def test_without_results_there_is_published_evidence_only() -> None:
    """Table 4 for the very model, nothing for what nobody measured or published."""
    found = asked(*LARGE)
    assert {line["step_s"]["evidence"] for line in found["devices"]} == {"published", None}
    a6000 = found["by"]["rtx-a6000"]
    assert a6000["scenario"] == "fits"
    assert a6000["step_s"]["value"] == pytest.approx(2.771 * 16 / 8)
    assert "Table 4" in a6000["step_s"]["basis"] and "not printed" in a6000["step_s"]["basis"]
    unknown = found["by"]["rtx-3090"]["step_s"]
    assert (unknown["low"], unknown["value"], unknown["high"]) == (None, None, None)
    assert "not measured, not published" in unknown["basis"]


def test_a_device_that_no_backend_can_use_is_named() -> None:
    found = asked(*LARGE)
    assert found["unsupported"].keys() == {"mi300x"} and "mi300x" not in found["by"]
    for more in ((), ("--device", "mi300x")):
        said = run(*LARGE, "--results", NOWHERE, *more)
        assert said.returncode == 0 and "Not supported: mi300x: no backend" in said.stdout
    assert asked(*LARGE, "--device", "rtx-3090")["unsupported"] == {}


def test_what_does_not_fit_is_said_and_comes_last() -> None:
    found = asked("--model", "gpt2-xl", "--batch", "12")
    scenarios = [line["scenario"] for line in found["devices"]]
    first = scenarios.index("cannot")
    assert set(scenarios[first:]) == {"cannot"} and "fits" in scenarios[:first]
    assert found["by"]["m2-pro-19"]["scenario"] == "cannot"
    assert "nothing to offload to" in found["by"]["m2-pro-19"]["why"]
    rtx = found["by"]["rtx-4090"]
    assert rtx["scenario"] == "offload" and rtx["step_s"]["evidence"] is None
    assert rtx["electricity_per_1000_steps_usd"] is None
    assert rtx["offloaded_bytes"] < rtx["capacity_bytes"] < rtx["need_bytes"]


def test_energy_has_one_scope_and_a_bound_says_that_it_is_one() -> None:
    """Table 5's joules are the GPU's; elsewhere the board's power, only as an upper bound."""
    found = asked("--model", "whisper-medium", "--batch", "4")
    energy = found["by"]["rtx-4090"]["energy_per_1000_steps_j"]
    assert set(energy) == {"gpu"} and energy["gpu"]["value"] == pytest.approx(108580.0)
    cost = found["by"]["rtx-4090"]["electricity_per_1000_steps_usd"]
    assert cost["value"] == pytest.approx(108580 / 3.6e6 * found["price_per_kwh"])
    large = asked(*LARGE)
    bound = large["by"]["rtx-a6000"]
    (scope,) = bound["energy_per_1000_steps_j"]
    joules = bound["energy_per_1000_steps_j"][scope]
    assert scope == "at most" and joules["value"] is None
    assert joules["high"] == pytest.approx(300 * bound["step_s"]["value"] * 1000)
    assert found["by"]["m2-max-30"]["energy_per_1000_steps_j"] == {}


def test_a_budget_excludes_and_the_conclusion_follows_it() -> None:
    within = asked("--model", "gpt2-xl", "--batch", "16", "--budget", "3000")
    assert within["by"]["rtx-a6000"]["within_budget"] == "no"
    assert within["by"]["m2-max-38"]["within_budget"] == "yes"
    assert within["by"]["h200"]["within_budget"] == "unknown"
    assert within["devices"][0]["device"] == "m2-max-38"
    assert "no NVIDIA card" in within["conclusion"][0] and "M2 Max" in within["conclusion"][0]
    free = asked("--model", "gpt2-xl", "--batch", "16")
    assert "RTX A6000" in free["conclusion"][0]
    assert free["by"]["rtx-a6000"]["within_budget"] is None


def test_the_table_is_readable_on_a_terminal() -> None:
    for words in (LARGE, ("--parameters", "1.5e9", "--batch", "8", "--seq-len", "512")):
        done = run(*words, "--budget", "5000", "--results", NOWHERE)
        assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 100
        assert "rtx-a6000" in done.stdout  # of a known price
        assert "h100" not in done.stdout  # of neither a price nor a speed
    assert "48 layers of width 1600, an assumption" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "gpt2-lrge", "--batch", "16"), "did you mean 'gpt2-large'?"),
        (("--model", "gpt2-large", "--batch", "-3"), "--batch: is -3; expected at least 1"),
        (("--model", "gpt2-large", "--batch", "many"), "--batch: is 'many'; expected a whole"),
        ((*SMALLEST, "--precision", "fp23"), "--precision: is 'fp23'"),
        ((*SMALLEST, "--seq-len", "4096"), "at most 1024 positions"),
        (("--model", "whisper-tiny", "--batch", "1", "--lora", "8"), "--lora: whisper has no LoRA"),
        ((*SMALLEST, "--budget", "0"), "--budget: is 0.0; expected more"),
        ((*SMALLEST, "--device", "rtx-490"), "mean 'rtx-4090'?"),
        (("--parameters", "big", "--batch", "1"), "--parameters: is 'big'; expected a number"),
        (("--batch", "3"), "--model: is missing"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_bad_question_of_the_config_is_found_with_the_others() -> None:
    """Beside what the schema finds, a model that nobody knows."""
    report = {
        "advice": [{"model": "gpt2-lrge", "batch_size": 1}, {"batch_size": 0}],
        "prices": {"rtx-4090": -1},
    }
    workloads = {"a": {"module": "matmul"}}
    experiment = {"experiment": "x", "devices": ["local"], "workloads": workloads}
    found = config.check(experiment | {"report": report})
    lines = "\n".join(found)
    assert "report.advice.0.model: is 'gpt2-lrge'" in lines
    assert "report.advice.1.batch_size: is 0" in lines and "report.prices.rtx-4090: is -1" in lines


# -- beside results ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of other hosts: GPT2-large on two priced devices, with energy of two scopes."""
    large = partial(of_the_paper, "gpt2", "large", 16, trainer="plain", parameters={"seq_len": 128})
    card = large(device="rtx-a6000", host="tower", joules=90.0)
    mac = large(device="m2-ultra-76", host="mac", backend="mlx")
    for made, seconds in ((card, 0.5), (mac, 2.0)):
        made["points"][0]["flops"] = 9.64e12
        made["points"][0]["times"]["unsplit_step_s"] = [seconds] * 30
    own = metered(training(0.1), {"nvml-counter": 20.0, "rapl-package": 7.0})
    experiment = {"experiment": "test", "report": prices(**{"cpu-x": 500.0})}
    return make(tmp_path_factory.mktemp("measured"), [own], [card, mac], experiment=experiment)


@pytest.mark.slow
def test_what_was_measured_wins(measured: Path) -> None:
    """The very cell goes before Table 4."""
    found = asked(*LARGE, results=measured)
    step = found["by"]["rtx-a6000"]["step_s"]
    assert step["evidence"] == "measured" and step["value"] == pytest.approx(0.5)
    assert "another host: tower/rtx-a6000/torch-cuda/gpt2-large" in step["basis"]
    mac = found["by"]["m2-ultra-76"]
    assert mac["step_s"]["evidence"] == "measured" and mac["backend"] == "mlx"
    assert "0.25 times the speed" in "\n".join(found["conclusion"])
    assert found["by"]["rtx-4090"]["step_s"]["evidence"] is None
    smaller = asked("--model", "gpt2-large", "--batch", "8", results=measured)
    assert smaller["by"]["rtx-a6000"]["step_s"]["evidence"] == "published"
    assert found["by"]["cpu-x"]["this_host"] and found["by"]["cpu-x"]["scenario"] == "cannot"


def test_scopes_of_energy_stay_apart(measured: Path) -> None:
    """The card's cell has joules of the GPU and of the CPU package; neither is in the other."""
    found = asked(*LARGE, "--device", "rtx-a6000", results=measured)
    assert [line["device"] for line in found["devices"]] == ["rtx-a6000"]
    (line,) = found["devices"]
    energy = {scope: one["value"] for scope, one in line["energy_per_1000_steps_j"].items()}
    assert energy == {"gpu": 90000.0, "cpu-package": 55000.0}
    cost = line["electricity_per_1000_steps_usd"]
    assert cost["scope"] == "gpu"
    assert cost["value"] == pytest.approx(90000 / 3.6e6 * found["price_per_kwh"])


def test_costs_are_those_of_the_tables_by_hand(measured: Path) -> None:
    points, energy = (table(measured, name) for name in ("points", "energy"))
    priced = {point_key(point): money.Price(4649.0, money.CARD) for point in points}
    rows = list(money.rows(points, energy, priced, TARIFF))
    lines = {(row["device"], row["scope"]): row for row in rows}
    metered_ = {(device, s) for device in ("cpu-x", "rtx-a6000") for s in ("gpu", "cpu-package")}
    assert set(lines) == metered_ | {("m2-ultra-76", None)}
    card = lines["rtx-a6000", "gpu"]
    assert card["seconds_per_1000_steps"] == pytest.approx(500)
    assert card["kwh_per_1000_steps"] == pytest.approx(90 * 1000 / 3.6e6)
    assert card["usd_per_1000_steps"] == pytest.approx(0.025 * TARIFF)
    assert card["usd_per_million_samples"] == pytest.approx(0.025 * TARIFF / 16 * 1000)
    assert card["samples_per_s_per_1000_usd"] == pytest.approx(32 / 4.649)
    # 10 s of 25 steps at 70 W: 28 J a step beside the GPU's, and none beside the package's.
    assert card["usd_per_1000_steps_with_host"] == pytest.approx((90 + 28) / 3600 * TARIFF)
    assert lines["rtx-a6000", "cpu-package"]["usd_per_1000_steps_with_host"] is None
    assert lines["rtx-a6000", "cpu-package"]["kwh_per_1000_steps"] == pytest.approx(55 / 3600)
    nothing = lines["m2-ultra-76", None]
    assert nothing["usd_per_1000_steps"] is None and nothing["energy_reason"]
    free = next(iter(money.rows(points, energy, priced, None)))
    assert free["kwh_per_1000_steps"] and free["usd_per_1000_steps"] is None


def test_prices_are_as_paid_else_as_listed_else_unknown() -> None:
    devices = registry.load(ROOT / "config/devices.yaml")["devices"]
    listed = money.price_of(devices["m2-ultra-76"], ["m2-ultra-76"], {})
    assert (listed.usd, listed.of) == (6599, money.COMPUTER) and "feng2025" in listed.said
    paid = money.price_of(devices["rtx-4090"], ["rtx-4090"], {"rtx-4090": 900.0})
    assert (paid.usd, paid.of) == (900.0, money.CARD) and "as paid" in paid.said
    none = money.price_of(None, ["cpu-x"], {})
    assert none.usd is None and "report.prices" in none.said


@pytest.mark.parametrize(
    ("slower", "word"), [(0.98, "not that slow"), (3.5, "as stated"), (9.0, "slower than stated")]
)
def test_the_statement_about_similar_prices_has_three_ends(slower: float, word: str) -> None:
    assert money.verdict(slower) == word


# -- the page ------------------------------------------------------------------------------------


def rendered(results: Path, report: Mapping[str, Any]) -> Page:
    """The page of these results under another `report`."""
    matrix = results / "matrix.json"
    document = json.loads(matrix.read_text())
    document["experiment"]["report"] = dict(report)
    matrix.write_text(json.dumps(document))
    make_page(results)
    return Page((results / "study.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_answers_and_counts(measured: Path) -> None:
    """What is measured and what is unknown, the pair of similar price, a CPU's own price."""
    question = {"model": "gpt2-large", "batch_size": 16, "budget_usd": 7000}
    shown = rendered(measured, prices(**{"cpu-x": 500.0}) | {"advice": [question]})
    evidence = shown.column("table-advice-1", "Evidence")
    by_device = {line.split("/")[0]: word for line, word in evidence.items()}
    assert by_device["NVIDIA RTX A6000"].startswith("measured")
    assert by_device["NVIDIA GeForce RTX 3090"].startswith("unknown")
    assert "by what was measured" in shown.of("advice").lower()
    pairs = [line for line in shown.tables["table-price-pairs"][1:]]
    told = {(line[4], line[-1]) for line in pairs}
    assert ("measured", "as stated") in told  # 2.0 s against 0.5 s
    assert {word for kind, word in told if kind.startswith("published")} == {"not that slow"}
    assert "500" in " ".join(shown.column("table-money", "price").values())


@pytest.mark.slow
def test_the_page_says_what_is_missing(tmp_path: Path) -> None:
    """No question, no tariff, no price of a CPU: each is said, with how to mend it."""
    results = make(tmp_path, [training(0.1)], devices=(CPU,))
    shown = rendered(results, {"title": "A test", "prices": {"rtx-490": 3.0}})
    assert "report.advice is empty" in shown.of("advice")
    money_ = shown.of("money")
    assert "report.price_per_kwh is not set" in money_ and "cpu-x: 1200" in money_
    assert "report.prices names rtx-490" in money_
