"""The report, the first page: one answer for each model, and what it rests on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from siliconprof.render import chart, style
from synthetic_results import Page, flagged, make, matmul, render, training


def report(results: Path, *drawn: str) -> Page:
    """The page, with the figures drawn whose names begin so."""
    return render(results, drawn, "report")


def disturbed(made: dict[str, Any]) -> dict[str, Any]:
    """A record whose cell was not alone on the processor."""
    return flagged(made, contended="2.0 cores by other processes")


def test_the_fastest_way_is_the_answer_and_the_others_are_held_against_it(tmp_path: Path) -> None:
    own = [training(0.010), training(0.025, backend="mlx"), matmul()]
    own += [training(0.050, precision="amp-bf16")]
    made = report(make(tmp_path, own))
    text = made.of("answer")
    assert "400 samples/s" in text and "torch-cpu · plain · fp32" in text
    assert "2.50 × faster than mlx · plain · fp32" in text
    assert "5.00 × faster than torch-cpu · plain · amp-bf16" in text
    assert "Other processes" not in text and "fp16" not in text  # which no cell has
    labels = re.findall(r"<b>(Figure|Table) (\d+)\.</b>", made.html)
    for kind in ("Figure", "Table"):  # the study numbers the same ones otherwise
        numbers = [int(number) for name, number in labels if name == kind]
        assert numbers == [*range(1, len(numbers) + 1)] and numbers


def test_the_cause_is_that_of_the_way_which_is_named_first(tmp_path: Path) -> None:
    """Whatever drives the fastest way: the other backend has no counterpart of it here."""
    own = [training(0.010, trainer="hf"), training(0.012), training(0.025, backend="mlx")]
    text = report(make(tmp_path, own)).of("answer")
    assert "2.50 × faster than mlx · plain · fp32" in text
    assert "no gap beyond noise" not in text and "are not timed" in text


def test_no_answer_rests_on_what_other_processes_disturbed(tmp_path: Path) -> None:
    """Unless there is no other, and then it is marked; a command that mends it is named."""
    own = [disturbed(training(0.010)), training(0.020, backend="mlx")]
    made = report(make(tmp_path / "one", own), "training-")
    text = made.of("answer")
    assert "mlx · plain · fp32" in text and "200 samples/s" in text
    assert "no faster beyond noise than torch-cpu · plain · fp32 (disturbed)" in text
    assert "1 of 2 cells were measured" in text
    assert "siliconprof remeasure --flagged contended" in text
    study = (tmp_path / "one/results/study.html").read_text(encoding="utf-8")
    pointed = re.findall(r"<title>([^<]*)</title>", study)  # at a mark of a chart
    told = [text.endswith("; disturbed by other processes") for text in pointed if "ms" in text]
    assert True in told and False in told and "hollow: disturbed by other processes" in study

    alone = report(make(tmp_path / "other", [disturbed(training(0.010))]), "training-")
    assert "disturbed" in alone.of("answer") and "400 samples/s" in alone.of("answer")
    figure = alone.html[alone.html.index('id="figure-training-') :]
    words = dict(re.findall(r'<text class="(\w+)"[^>]*>(\d\d)</text>', figure))
    inks = {re.search(rf"\.{name}{{[^}}]*fill: ([^;}}]*)", alone.html)[1] for name in words}
    assert inks and "var(--paper)" not in inks  # on bars that are hollow


def test_a_disturbed_dot_is_seen_although_its_edge_is_paper_elsewhere() -> None:
    row = training(0.010)["cell"] | {"flags": "contended"}
    edge = {"markeredgecolor": style.PAPER, "markeredgewidth": 0.4}
    ax = Figure().subplots()
    chart.dot(1, 1, row, "10 ms", **edge).onto(ax)
    (dot,) = ax.lines
    assert dot.get_markerfacecolor() == style.PAPER != dot.get_markeredgecolor()


def test_devices_of_all_hosts_are_held_against_each_other(tmp_path: Path) -> None:
    """The fastest device stands first, the others say how much faster it is."""
    here = [training(0.100), training(0.200, backend="mlx")]
    server = [training(0.010, host="server", device="h200", backend="torch-cuda")]
    mac = [training(0.050, host="mac", device="m4", backend="torch-mps")]
    text = report(make(tmp_path, here, [*server, *mac])).of("answer")
    assert text.index("torch-cuda") < text.index("torch-mps") < text.index("torch-cpu")
    assert "5.00 × faster than m4" in text
    assert "h200 is 5.00 × faster" in text and "h200 is 10.0 × faster" in text
    assert "other host" in text
    assert "no gap beyond noise was taken apart" in text  # but to another device


def test_a_host_without_trainings_says_so(tmp_path: Path) -> None:
    made = report(make(tmp_path, [matmul()]))
    assert "No training was measured" in made.of("answer")
    assert "Precision and Drift: checked in no cell" in made.of("trust")  # its record has none
