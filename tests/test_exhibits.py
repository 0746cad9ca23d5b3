"""Every exhibit of the page, drawn from small records of every kind, and what all must hold."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import test_render_paper as printed
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from siliconprof.render import figures, style
from synthetic_cells import (
    CPU_STEPS,
    GPU_STEPS,
    cells,
    everything,
    fastest,
    first_touch,
    matvec,
    transfers,
    vjp,
    whole_study,
)
from synthetic_results import (
    CPU,
    GPU,
    H200,
    ROOT,
    Page,
    make,
    of_the_paper,
    render,
    shown_table,
    training,
)
from synthetic_results import table as table_rows
from test_render_robust import OF_NO_CELL

LEAST_PT = 5.5  # of words in a drawing
TOLERANCE_IN = 0.15  # a figure has a margin on the page and in its files
DRAWN: list[Figure] = []
PUBLISH = figures.publish
AXES = ("device", "backend", "workload", "precision")


def records() -> list[dict[str, Any]]:
    """Cells of this host with all that is measured anywhere; a later one replaces an earlier."""
    own = [
        *everything(),
        *whole_study(),
        *cells(CPU_STEPS),
        *cells(GPU_STEPS, **GPU),
        matvec({(256, 256, "warm"): 5e9, (256, 256, "cold"): 1e9}),
        vjp({(256, "without"): 8e9}),
        first_touch(),
        transfers(5e10, **GPU),
        fastest(4e13, **GPU),
        training(0.002, **GPU),
        training(0.03, backend="mlx"),
        training(0.011, trainer="hf"),
        training(0.0101, precision="amp-bf16"),
        training(0.02, workload="lora", parameters={"lora_rank": 8}, trained=8192),
    ]
    axes = ("device", "backend", "workload", "scenario", "precision")
    return list({tuple(made["cell"][axis] for axis in axes): made for made in own}.values())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables; two other hosts have devices of the paper."""
    large = of_the_paper(
        "gpt2", "large", 8, trainer="plain", workload="gpt2-large-plain-8", **printed.ULTRA
    )
    speech = of_the_paper("whisper", "medium", 4, joules=200.0, **printed.A6000)
    foreign = [large, speech, *printed.in_formats(printed.A6000, fp32=2e4, fp16=8e4)]
    folder = tmp_path_factory.mktemp("exhibits")
    return make(folder, records(), foreign, devices=(H200, CPU))


@pytest.fixture(scope="module")
def page(results: Path) -> Page:
    """The page; its figures are kept as they were drawn."""
    real = figures._svg

    def kept(figure: Figure) -> str:
        DRAWN.append(figure)
        return real(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_svg", kept)
        patch.setattr(figures, "publish", lambda *rest: PUBLISH(*rest))  # in this process
        return render(results)


def test_every_drawing_is_legible_and_fits_its_frame(page: Page) -> None:
    assert len(DRAWN) == len(page.figures) > 25
    for figure in DRAWN:
        renderer = FigureCanvasAgg(figure).get_renderer()
        words = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        assert words and min(text.get_fontsize() for text in words) >= LEAST_PT
        frame, drawn = figure.get_size_inches(), figure.get_tightbbox(renderer)
        outside = [-drawn.x0, -drawn.y0, drawn.x1 - frame[0], drawn.y1 - frame[1]]
        assert max(outside) < TOLERANCE_IN, [text.get_text() for text in words[:3]]


def test_every_link_arrives(page: Page) -> None:
    links = [values for _, values in page.tags if values.get("href")]
    wanted = {values["href"] for values in links}
    wanted |= set(re.findall(r"url\((#[^)]*)\)", page.html))
    wanted.remove("report.html")  # the page that this one belongs to
    assert wanted and {name.removeprefix("#") for name in wanted if name} <= page.ids


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    for tag, values in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "image"), tag
        for name in ("src", "srcset", "data", "action", "poster"):
            assert name not in values, (tag, values)
        for name in ("href", "xlink:href"):
            assert (values.get(name) or "#").startswith(("#", "report.html")), (tag, values)
    assert not re.search(r"url\((?!#)", page.html)
    assert "@import" not in page.html
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import\()", page.html)
    assert "default-src 'none'" in page.html


def test_figures_follow_the_theme(page: Page) -> None:
    drawn = re.findall(r"<svg.*?</svg>", page.html, re.S)
    assert len(drawn) >= 10
    assert not [c for svg in drawn for c in re.findall(r"#[0-9a-f]{6}\b", svg)]
    styles = dict(re.findall(r"\.(s[0-9a-z]+)\{([^}]*)\}", page.html))
    classes = {c for part in drawn for c in re.findall(r' class="(s[0-9a-z]+)"', part)}
    assert len(classes) > 20 and classes <= set(styles)
    names = set(re.findall(r"var\(--([a-z0-9-]+)\)", "".join([*drawn, *styles.values()])))
    assert names and names <= set(style.VARIABLE_OF.values())


def facet_cells(html_: str) -> list[tuple[str, ...]]:
    """The cells that the page's filter knows, by number."""
    values = {
        axis: [
            html.unescape(value)
            for value in re.findall(rf'<input type="checkbox" name="{axis}" value="([^"]*)"', html_)
        ]
        for axis in AXES
    }
    found = re.search(r'<script type="application/json" id="cells">(.*?)</script>', html_)
    assert found
    return [
        tuple(values[axis][index] for axis, index in zip(AXES, cell, strict=False))  # and a trainer
        for cell in json.loads(found[1])
    ]


def rows_of(table: str) -> list[str]:
    """The `data-of` of each row of a table; empty where it has none."""
    body = table.split("<tbody>")[1]
    return [
        (re.findall(r'data-of="([^"]*)"', row) or [""])[0]
        for row in re.findall(r"<tr([^>]*)>", body)
    ]


def test_every_mark_and_row_leads_to_its_cells(results: Path, page: Page) -> None:
    known = facet_cells(page.html)
    cells = {tuple(row[axis] for axis in AXES) for row in table_rows(results, "cells")}
    assert set(known) == cells  # every cell can be chosen, and no other
    numbers = [n for of in re.findall(r' data-of="([^"]*)"', page.html) for n in of.split()]
    assert numbers and {int(n) for n in numbers} == set(range(len(known)))
    for name, block in page.markup.items():
        if OF_NO_CELL.fullmatch(name):
            continue
        if name.startswith("figure-"):
            assert "data-of" in block, name
        else:
            assert all(rows_of(block)), name
    for table in ("cells", "training-times", "kernel-launch"):
        lines, rows = shown_table(results, table), rows_of(page.markup[f"table-{table}"])
        assert len(lines) == len(rows) > 0
        for line, of in zip(lines, rows, strict=True):
            (cell,) = {known[int(n)] for n in of.split()}
            said = {
                axis: re.split(r" [(\[]", line[axis.capitalize()])[0]  # (manual), [other host: …]
                for axis in AXES
                if axis.capitalize() in line
            }
            assert said.items() <= dict(zip(AXES, cell, strict=True)).items(), table


def test_a_caption_has_thirty_words_at_most_and_an_intro_ninety() -> None:
    """A value that is filled in counts as one word."""
    texts = yaml.safe_load((ROOT / "report/captions.yaml").read_text(encoding="utf-8"))
    for kind, most in (("figures", 30), ("tables", 30), ("intros", 90)):
        counts = {
            key: len(re.sub(r"(\{\w+\})", r" \1", text).split())
            for key, text in texts[kind].items()
        }
        assert {key: n for key, n in counts.items() if n > most} == {}, kind
