"""The page of records that lack things, of hardly any record, of too many, and of hostile ones.

Through the real stages, from records that are valid by the record's schema.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from siliconprof import words
from siliconprof.errors import UserError
from siliconprof.pipeline import ending
from siliconprof.render import book, hover, losses, memory
from synthetic_cells import everything, grid, named, small_grid, whole_training
from synthetic_results import (
    H200,
    kernel_launch,
    make,
    matmul,
    render,
    shown_table,
    training,
    without_result,
)

Made = dict[str, Any]
# What is about published numbers, models and devices of the registry, measured or not.
OF_NO_CELL = re.compile(
    r"(figure-(stack|scenarios|paper-.*)"
    r"|table-(published-.*|models|claims.*|classic-published|paper-.*))"
)


@pytest.mark.slow
def test_a_section_or_figure_that_raises_is_a_box_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any, **__: Any) -> None:
        raise ArithmeticError("on purpose")

    own = [training(0.01), training(0.02, backend="mlx"), kernel_launch()]
    whole = render(make(tmp_path, own))
    errors = tmp_path / "results" / ending.ERRORS
    assert ending.main([str(errors)]) == 0
    monkeypatch.setattr(losses, "loss_groups", wrong)
    monkeypatch.setattr(memory, "draw_memory", wrong)  # in a worker, when all else is written
    page = render(tmp_path / "results")
    section, figure = errors.read_text(encoding="utf-8").splitlines()
    assert section.startswith("Training: ArithmeticError: on purpose")
    name = "memory-gpt2-nano-4-256-cpu-x"
    assert figure.startswith(f"Memory, scenarios and page faults, figure {name}: ArithmeticError")
    assert (page.html.count('class="box"'), whole.html.count('class="box"')) == (2, 0)
    assert page.tables["table-kernel-launch"] == whole.tables["table-kernel-launch"]
    assert page.column("table-cells", "Status") == whole.column("table-cells", "Status")
    assert not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(UserError, match="the page stands, but") as error:
        ending.main([str(errors)])
    assert figure in str(error.value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 0.0, -0.0, -3.0, 5e-324, 1e-320, 1e308, -1e308]
)
def test_every_formatter_takes_every_float(value: float) -> None:
    plain = (words.significant, words.whole, words.grouped, words.scientific, words.percent)
    physical = (words.whole_percent, words.duration, words.mebibytes)
    texts = [formatted(value) for formatted in (*plain, *physical)]
    texts += [words.scaled(value, "B/s"), hover.seconds(value, value, value)]
    texts += [hover.rate(value, "FLOP/s")]
    if abs(value) not in (0.0, 3.0) and not abs(value) < 1:
        assert all("NaN" in text or "∞" in text or "10" in text for text in texts), texts
    assert all(0 < len(text) < 60 for text in texts), texts


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 2])
def test_a_loss_that_is_not_finite_is_shown_as_divergence(tmp_path: Path, at: int) -> None:
    """A record has None for NaN and infinity; a baseline may diverge too, or it alone."""
    course = [6.0, 5.5, 5.25, 5.0]
    ended = [*course[:at], *[None] * (len(course) - at)]
    own = [training(0.01, ended), training(0.02, course if at else ended, backend="mlx")]
    results = make(tmp_path, own)
    page = render(results)
    assert 'class="box"' not in page.html
    said = page.of("summary")
    assert f"diverged: NaN or infinite at step {at + 1}" in said
    (drawn,) = (results / "figures").glob("loss-*.svg")
    assert f"diverged at step {at + 1}" in drawn.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_whole_training_that_diverges_is_shown_so(tmp_path: Path) -> None:
    whole = whole_training("wide", 0.01)
    point = whole["points"][0]
    for values in (point["loss"], point["curve"]["loss"], point["curve"]["gradient_norm"]):
        values[1:] = [None] * (len(values) - 1)
    results = make(tmp_path, [whole])
    page = render(results)
    assert 'class="box"' not in page.html
    assert "lm-wide · torch-cpu diverged: NaN or infinite at step 2" in page.of("summary")
    (drawn,) = (results / "figures").glob("wide-deep-*.svg")
    assert "lm-wide · torch-cpu (diverged at step 2)" in drawn.read_text(encoding="utf-8")


def test_no_cell_came_to_be_measured(tmp_path: Path) -> None:
    statuses = ("oom", "failed", "timeout", "unsupported", "skipped")
    own = [
        without_result(named(made, f"lost-{i}-{made['cell']['module']}"), status, f"{status}, alas")
        for i, (made, status) in enumerate(zip(everything(), statuses * 2, strict=False))
    ]
    page = render(make(tmp_path, own))
    assert "There is nothing to compare" in page.of("summary")
    drawn = {path.stem for path in (tmp_path / "results/figures").glob("*.svg")}
    assert not {name for name in drawn if not OF_NO_CELL.fullmatch(f"figure-{name}")}
    assert "0 of 8 cells measured" in page.html
    for status in statuses:
        assert f"{status}, alas" in page.html, status
    assert "Not measured, and why" in page.of("summary")
    assert shown_table(tmp_path / "results", "cells")


# -- many -------------------------------------------------------------------------------------------


def many(devices: int) -> tuple[list[Made], list[Made], list[Mapping[str, Any]]]:
    """Cells of so many devices, two a host; this host has the first two."""
    own, foreign = [], []
    here = [H200 | {"id": f"gpu-{i:02}", "name": f"Example GPU {i}"} for i in (0, 1)]
    for i in range(devices):
        axes = {
            "host": "desk" if i < 2 else f"host-{i // 2:02}",
            "device": f"gpu-{i:02}",
            "backend": ("torch-cuda", "torch-mps", "mlx")[i % 3],
            "device_kind": "gpu",
        }
        cells = [
            training(0.001 * (i + 5), **axes),
            training(0.002 * (i + 5), precision="bf16", **axes),
            matmul(**axes),
            kernel_launch(**axes),
            grid(small_grid(), **axes),
        ]
        (own if i < 2 else foreign).extend(cells)
    return own, foreign, here


@pytest.mark.slow
def test_forty_devices_over_several_hosts(tmp_path: Path) -> None:
    own, foreign, devices = many(40)
    page = render(make(tmp_path, own, foreign, devices=devices))
    views = re.findall(r'<svg viewBox="0 0 (\d+(?:\.\d+)?) (\d+(?:\.\d+)?)"', page.html)
    assert len(views) > 20
    assert max(float(height) for _, height in views) < 72 * 20


def test_long_tables_are_cut_on_the_page_and_whole_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "MOST_ROWS", 10)
    monkeypatch.setattr(book, "FOLD_ABOVE", 5)
    own = [named(kernel_launch(), f"launch-{i:02}") for i in range(14)]
    page = render(make(tmp_path, own), drawn=())
    assert len(page.tables["table-kernel-launch"]) == 1 + 10
    assert "The first 10 of 14 rows; the files have all" in page.html
    assert "<summary>14 rows</summary>" in page.html
    assert len(shown_table(tmp_path / "results", "kernel-launch")) == 14


# -- hostile words ----------------------------------------------------------------------------------


FORMULAS = ("=cmd|'/c calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", '=HYPERLINK("x")')


def test_a_spreadsheet_computes_nothing_of_a_record(tmp_path: Path) -> None:
    own: Sequence[Made] = [
        without_result(training(0.01, workload=f"gpt2-{i}"), "failed", formula)
        for i, formula in enumerate(FORMULAS)
    ]
    results = make(tmp_path, [*own, training(0.01)])
    render(results, drawn=())
    seen = 0
    for path in (results / "figures").glob("*.csv"):
        for line in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))):
            for cell in line:
                seen += "calc" in cell or "HYPERLINK" in cell
                number = re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", cell)
                assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
    assert seen
