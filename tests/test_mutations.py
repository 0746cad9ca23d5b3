"""Valid and odd records: the page is made of them, or the one to blame is named.

Some sets of what benchmarks/mutations.py makes by the hundred, from the records of the default
run; and what stands in the place of an exhibit that fails.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Checkout
from siliconprof import words
from siliconprof.analyse import ceilings, throughputs
from siliconprof.render import figures, hover, losses, memory, sections
from siliconprof.store import left_out
from synthetic_cells import whole_training
from synthetic_results import kernel_launch, make, render, training

sys.path.insert(0, str(ROOT / "benchmarks"))

import mutations  # noqa: E402

SEED = 15


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 4, 10])  # the last mostly has boxes
def test_a_mutated_set_is_rendered_or_its_record_is_named(
    number: int, default_run: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "publish", mutations.sketch)
    chance = random.Random(f"{SEED}-{number}")
    mutations.make(default_run.path / "results", tmp_path, chance)
    ended, why = mutations.outcome(tmp_path, with_files=True)
    assert ended in mutations.OUTCOMES[:3], why
    if ended == mutations.OUTCOMES[1]:
        page = (tmp_path / "results/study.html").read_text(encoding="utf-8")
        assert 'id="left-out"' in page


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


def test_a_value_is_in_the_unit_that_its_rounding_reaches() -> None:
    thin = words.THIN
    assert words.duration(0.9996e-3) == hover.seconds(0.9996e-3) == f"1.00{thin}ms"
    assert words.scaled(999.6e6, "B/s") == hover.rate(999.6e6, "B/s") == f"1.00{thin}GB/s"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn and leave no files."""
    monkeypatch.setattr(figures, "publish", mutations.sketch)


def failing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, when: str) -> None:
    """Have a function fail whenever its first argument has a cell of this workload."""
    right = getattr(module, name)

    def wrong(data: Any, *arguments: Any, **more: Any) -> Any:
        if any(row["workload"] == when for row in data.cells):
            raise ArithmeticError("on purpose")
        return right(data, *arguments, **more)

    monkeypatch.setattr(module, name, wrong)


def missing(results: Path) -> list[tuple[str, str]]:
    """(part, file name of the workload to blame) of what the page leaves out."""
    lines = left_out.read(results / left_out.FILE)
    return [(line.part, line.record.split("/")[-3] if line.record else "") for line in lines]


def cells() -> list[dict[str, Any]]:
    """Two trainings that are compared, another, and a kernel's launch."""
    return [
        training(0.01, workload="gpt2-a"),
        training(0.02, workload="gpt2-a", backend="mlx"),
        training(0.03, workload="gpt2-odd"),
        kernel_launch(),
    ]


@pytest.mark.slow
def test_one_exhibit_does_not_take_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = render(make(tmp_path / "whole", cells()))
    failing(monkeypatch, losses, "loss_groups", "gpt2-odd")
    failing(monkeypatch, memory, "draw_memory", "gpt2-odd")  # in a worker, when all else is written
    results = make(tmp_path / "odd", cells())
    page = render(results)
    name = "memory-gpt2-nano-4-256-cpu-x"
    figure = f"Memory, scenarios and page faults, figure {name}"
    assert missing(results) == [("Training", "gpt2-odd"), (figure, "gpt2-odd")]
    assert (results / f"figures/{name}.svg").stat().st_size > 1000
    assert page.html.count('class="box"') == len(missing(results)) + 1
    assert "ArithmeticError: on purpose (" in page.html
    assert whole.html.count('class="box"') == 0
    assert page.tables["table-kernel-launch"] == whole.tables["table-kernel-launch"]
    assert page.column("table-cells", "Status") == whole.column("table-cells", "Status")
    assert not list((tmp_path / "odd").rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_an_exhibit_that_fails_of_no_record_is_a_box_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> None:
        raise ZeroDivisionError("always")

    one_more = (sections.SECTIONS[-1][0], sections.ALL, (wrong,))
    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, one_more))
    results = make(tmp_path, cells())
    page = render(results)
    assert [record for _, record in missing(results)] == [""]
    assert "left out: ZeroDivisionError: always" in page.html


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_stage_before_the_page_goes_on_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = throughputs.cache_sizes

    def wrong(cells: Any) -> Any:
        if any(cell["workload"] == "gpt2-odd" for cell in cells):
            raise OverflowError("too odd")
        return right(cells)

    for module in (ceilings, throughputs):
        monkeypatch.setattr(module, "cache_sizes", wrong)
    results = make(tmp_path, cells())
    said = capsys.readouterr().err
    assert "gpt2-odd/auto/fp32.json is left out: OverflowError: too odd" in said
    assert (results / "tables/ceilings.csv").is_file()
    page = render(results)
    # These two use the same function.
    assert missing(results) == [(stage, "gpt2-odd") for stage in ("ceilings", "expected")]
    assert "too odd" in page.html


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 2])
def test_a_loss_that_is_not_finite_is_shown_as_divergence(tmp_path: Path, at: int) -> None:
    """A record has None for NaN and infinity; a baseline may diverge too, or it alone."""
    course = [6.0, 5.5, 5.25, 5.0]
    ended = [*course[:at], *[None] * (len(course) - at)]
    own = [training(0.01, ended), training(0.02, course if at else ended, backend="mlx")]
    results = make(tmp_path, own)
    page = render(results)
    assert missing(results) == []
    said = page.of("summary")
    assert said.count(f"diverged: NaN or infinite at step {at + 1}") == (1 if at else 2)
    assert ("2 trainings diverged: losses became NaN or infinite" in said) == (not at)
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
    assert missing(results) == []
    assert "lm-wide · torch-cpu diverged: NaN or infinite at step 2" in page.of("summary")
    (drawn,) = (results / "figures").glob("wide-deep-*.svg")
    assert "lm-wide · torch-cpu (diverged at step 2)" in drawn.read_text(encoding="utf-8")
