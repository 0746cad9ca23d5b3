"""Every exhibit of the page, drawn from small records of every kind, and what all must hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic_cells as cells
import synthetic_results as made
import yaml
from conftest import csv_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from parsed_page import Page
from siliconprof.claims import judge
from siliconprof.render import exhibit, style, svg, tables
from siliconprof.store.captions import flag_words
from synthetic_results import A6000, AWAY, CPU, GPU, H200, ULTRA, shown_table, training

PACKAGE = made.ROOT / "workflow/siliconprof"
LEAST_PT = 5.5  # of words in a drawing
LEGIBLE = 4.5  # WCAG 2.2, success criterion 1.4.3
TOLERANCE_IN = 0.15  # a figure has a margin on the page and in its files
MLX = {"backend": "mlx"}
DRAWN: dict[int, Figure] = {}
AXES = ("device", "backend", "workload", "precision")
# What is about published numbers, models and devices of the registry, measured or not.
OF_NO_CELL = re.compile(r"(table-)?(paper-.*|claims.*)|network-ratios|checks|records")


def records() -> list[dict[str, Any]]:
    """Cells of this host with all that is measured anywhere; a later one replaces an earlier."""
    oom = training(0.01, precision="bf16", **MLX)
    deep = cells.whole_training("deep", 0.1, **MLX)
    steps_s, places = {32: 0.002, 128: 0.004}, ({}, GPU)
    own = [
        *cells.everything(),
        cells.fastest(cells.PEAK),
        training(0.01),
        cells.grid(cells.small_grid(tool=False), workload="grid", **MLX),
        cells.whole_training("deep", 0.020),
        cells.whole_training("wide", 0.030, **MLX),
        made.without_result(deep, "timeout", "ran past 60 s at step 70"),
        *(cells.network(name, steps_s, **axes) for name in ("mlp", "lstm") for axes in places),
        cells.matvec({(256, 256, "warm"): 5e9, (256, 256, "cold"): 1e9}),
        cells.vjp({(256, "without"): 8e9}),
        cells.first_touch(),
        cells.transfers(5e10, **GPU),
        cells.fastest(4e13, **GPU),
        training(0.002, **GPU),
        training(0.03, **MLX),
        made.flagged(training(0.011, trainer="hf"), contended="others used 0.50 cores"),
        training(0.0101, precision="amp-bf16"),
        training(0.02, workload="lora", parameters={"lora_rank": 8}, trained=8192),
        made.without_result(oom, "oom", "Unable to <GB>"),
    ]
    axes = ("device", "backend", "workload", "scenario", "precision")
    return list({tuple(one["cell"][axis] for axis in axes): one for one in own}.values())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables; two other hosts have devices of the paper, one is a reference."""
    plain = ULTRA | {"trainer": "plain", "workload": "gpt2-large-plain-8"}
    batched = [cells.product((8, 2000, 2000, 2000), 2e13)]
    foreign = [
        made.of_the_paper("gpt2", "large", 8, **plain),
        made.of_the_paper("gpt2", "large", 8, **plain | {"backend": "mlx"}),
        made.of_the_paper("whisper", "medium", 4, joules=200.0, **A6000),
        cells.products(batched, workload="matmul-paper", **A6000),
        made.matmul(**AWAY),
        made.kernel_launch(**AWAY),
    ]
    lab = [training(0.002, **AWAY | {"host": "lab"})]
    folder = tmp_path_factory.mktemp("exhibits")
    return made.make(folder, records(), foreign, lab, devices=(H200, CPU), last=judge)


@pytest.fixture(scope="module")
def page(results: Path) -> Page:
    """The page; its figures are kept as they were drawn."""
    real = svg.drawn

    def kept(figure: Figure) -> Any:
        DRAWN[id(figure)] = figure
        return real(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "drawn", kept)
        return made.render(results)


def test_every_exhibit_stands_on_the_page(results: Path, page: Page) -> None:
    ids = [one.id for _, module in exhibit.modules() for one in exhibit.load(module)]
    assert len(set(ids)) == len(ids) and set(ids) <= page.ids
    files = {path.name for path in (results / "figures").iterdir()}
    assert {f"{name}.svg" for name, block in page.markup.items() if "<svg" in block} <= files


def test_every_drawing_is_legible_and_fits_its_frame(page: Page) -> None:
    assert len(DRAWN) == page.html.count("<svg") > 15
    for figure in DRAWN.values():
        renderer = FigureCanvasAgg(figure).get_renderer()
        words = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        assert words and min(text.get_fontsize() for text in words) >= LEAST_PT
        frame, drawn = figure.get_size_inches(), figure.get_tightbbox(renderer)
        outside = [-drawn.x0, -drawn.y0, drawn.x1 - frame[0], drawn.y1 - frame[1]]
        assert max(outside) < TOLERANCE_IN, [text.get_text() for text in words[:3]]
    assert ">0.03</text>" in page.markup["bandwidth"]
    assert any("0.0312" in said for said in page.hover("bandwidth"))


def test_every_link_arrives_and_nothing_is_loaded(page: Page) -> None:
    wanted = {values["href"] for _, values in page.tags if values.get("href")}
    wanted |= set(re.findall(r"url\((#[^)]*)\)", page.html))
    local = {name.removeprefix("#") for name in wanted if name.startswith("#")}
    assert local and local <= page.ids
    assert not [href for href in wanted if "//" in href]
    loading = {"link", "img", "iframe", "object", "embed", "base", "image"}
    assert not loading & {tag for tag, _ in page.tags} and "default-src 'none'" in page.html
    assert not [values for _, values in page.tags if {"src", "srcset", "data"} & values.keys()]
    assert not re.search(
        r"url\((?!#)|@import|\b(fetch|XMLHttpRequest|WebSocket|import\()", page.html
    )


def test_figures_follow_the_theme(page: Page) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", page.html, re.S))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn)
    names = set(re.findall(r"var\(--([a-z0-9-]+)\)", drawn))
    assert len(names) > 10 and names <= {*style.VARIABLE_OF.values(), "sans"}


def light(colour: str) -> float:
    """Its relative luminance by WCAG 2.2."""
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_in_drawings_stand_out_from_the_paper(page: Page, theme: int) -> None:
    """No word stands on a bar."""
    colours = style._variables(theme)
    texts = {text for figure in DRAWN.values() for text in figure.findobj(Text) if text.get_text()}
    names = {style.VARIABLE_OF[to_hex(text.get_color())] for text in texts}
    for name in names:
        low, high = sorted(light(colours[of]) for of in (name, "paper"))
        assert (high + 0.05) / (low + 0.05) >= LEGIBLE, name


def test_every_mark_and_row_leads_to_its_cell(results: Path, page: Page) -> None:
    values = {axis: [v["value"] for _, v in page.tags if v.get("name") == axis] for axis in AXES}
    script = re.search(r'<script type="application/json" id="cells">(.*?)</script>', page.html)
    assert script
    known = [  # the cells that the filter knows, by number; the last of each is its trainer
        tuple(values[axis][index] for axis, index in zip(AXES, cell, strict=False))
        for cell in json.loads(script[1])
    ]
    every = {tuple(row[axis] for axis in AXES) for row in made.table(results, "cells")}
    assert set(known) == every  # every cell can be chosen, and no other
    numbers = [n for of in re.findall(r' data-of="([^"]*)"', page.html) for n in of.split()]
    assert numbers and {int(n) for n in numbers} == set(range(len(known)))
    for name, block in page.markup.items():
        if not OF_NO_CELL.fullmatch(name):
            assert "data-of" in block if "<svg" in block else all(page.rows(name)), name
    lines, rows = shown_table(results, "every-cell"), page.rows("every-cell")
    assert len(lines) == len(rows) == len(every)
    for line, of in zip(lines, rows, strict=True):
        cell = dict(zip(AXES, known[int(of)], strict=True))
        assert (line["workload"], line["precision"]) == (cell["workload"], cell["precision"])


PRINTED = {
    "table1_devices": ("memory_gb", "compute_tflops", "launch_price_usd"),
    "table2_workloads": ("parameters_m", "theoretical_memory_gib"),
    "table4_pass_time": ("pass_time_s",),
    "table5_energy": ("energy_per_iteration_j",),
    "table6_kernel_launch": ("cold_launch_ms", "followup_launch_ms"),
}


def test_published_numbers_carry_their_mark(page: Page) -> None:
    marked = {text for css, text in page.cells if "published" in css.split()}
    assert marked and all("P" in text for text in marked)
    shown = {float(text.partition("P")[0].replace("\u202f", "")) for text in marked}
    for name, columns in PRINTED.items():
        for row in csv_rows(made.ROOT / f"config/published/{name}.csv"):
            for number in (float(row[column]) for column in columns if row[column]):
                # In the unit in which it was printed, or a thousandth.
                assert {number, round(1e3 * number, 6)} & shown, (name, number)
    assert any("computed" in css.split() and text.endswith("C") for css, text in page.cells)


def test_a_missing_number_is_a_dash_with_its_reason(page: Page) -> None:
    missing = [text for css, text in page.cells if {"num", "missing"} <= set(css.split())]
    assert missing and all(re.fullmatch(r"–[a-z]?", text) for text in missing)
    assert not {text for _, text in page.cells} & {"nan", "None", "inf", "NaN", "<NA>"}
    assert "Unable to &lt;GB&gt;" in page.markup["every-cell"]
    assert re.search(r"<span><sup>[a-z]</sup>[^<]{9,}</span>", page.html)


def test_a_misspelt_column_of_a_table_is_an_error() -> None:
    frame = pd.DataFrame({"speed": [1.0]})
    with pytest.raises(LookupError, match="did you mean 'speed'"):
        tables.html(frame, [exhibit.Num("sped", "Speed")], svg.Cells(), "")


def test_other_hosts_are_badged_beside_this_one(page: Page) -> None:
    for name in ("every-cell", "paper-table-6", "limits"):
        assert "other host: gpu-box" in page.markup[name], name
    assert "reference: lab" in page.markup["every-cell"]
    assert any("[reference: lab]" in said for said in page.hover("all-devices"))


def test_a_caption_has_thirty_words_at_most_and_a_section_sixty() -> None:
    texts = yaml.safe_load((made.ROOT / "report/captions.yaml").read_text(encoding="utf-8"))
    for kind, most in (("exhibits", 30), ("sections", 60)):
        counts = {key: len((one.get("caption") or "").split()) for key, one in texts[kind].items()}
        assert {key: n for key, n in counts.items() if n > most} == {}, kind
    ids = {one.id for _, module in exhibit.modules() for one in exhibit.load(module)}
    assert set(texts["exhibits"]) == ids


def test_every_flag_that_the_code_raises_is_explained() -> None:
    sources = (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    raised = {code for text in sources for code in re.findall(r"\.flag\(\s*\"(\w+)\"", text)}
    assert len(raised) > 10 and raised - flag_words().keys() == set()
