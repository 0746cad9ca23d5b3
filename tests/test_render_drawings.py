"""The drawings: stack, scenarios and roofline, from records through the real stages.

Numbers of the records are round, so that what a drawing must say can be worked out here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import cpu_cell, defaults
from siliconprof.render import (
    page,
    roofline,
    roofline_points,
    scenario_drawing,
    stack,
    style,
)
from siliconprof.render.book import Block, Book
from siliconprof.render.data import Data
from siliconprof.render.summary import efficiencies
from siliconprof.session.trial import Trial
from siliconprof.store.records import HERE
from synthetic_cells import GPU, bandwidth, matvec, product, products, vjp
from synthetic_results import CPU, H200, ROOT, load, make, training, without_result

MEMORY, CACHE, PRODUCTS = 1e10, 8e10, 2e11  # bytes/s, bytes/s and FLOP/s that were measured
DRAWINGS = {"stack": stack, "scenarios": scenario_drawing, "roofline": roofline}


class Outline(Book):
    """A book that notes its figures and draws none, since a whole page takes long."""

    def figure(self, name: str, key: str, draw: Any, **values: Any) -> None:
        self._add(Block("figure", self.words("figures", key, **values), f"figure-{name}"))


class Drawn:
    """What the drawings left in a book."""

    def __init__(self, results: Path, *names: str, outline: bool = False) -> None:
        self.data: Data = load(results)
        self.own = self.data.only(HERE)
        style.apply()
        kind = Outline if outline else Book
        self.book = kind(results / "figures")
        self.book.common["intervals"] = "within one process"
        self.book.section("setting")
        for name in names or DRAWINGS:
            DRAWINGS[name].add(self.data if name == "stack" else self.own, self.book)
        self.book.finish()
        page.read_template(ROOT / "report").captions.fill_in(self.book.sections)
        self.blocks = {block.anchor: block for block in self.book.sections[0].blocks}
        self.notes = [b.text for b in self.book.sections[0].blocks if b.kind == "note"]

    def said(self, name: str) -> list[str]:
        """What stands beside the pointer on the marks of a figure."""
        svg = str(self.blocks[f"figure-{name}"].svg)
        return [html.unescape(text) for text in re.findall(r"<title>(.*?)</title>", svg)]

    def texts(self, name: str) -> str:
        """All that is written in the wide form of a figure."""
        svg = (self.book.folder / f"{name}.svg").read_text(encoding="utf-8")
        words = re.findall(r"<text[^>]*>\s*(.*?)\s*</text>", svg, re.S)
        return " | ".join(html.unescape(word) for word in words)

    def table(self, name: str) -> list[dict[str, str]]:
        """Rows of a table by the heads of their columns."""
        block = self.blocks[f"table-{name}"]
        assert block.table is not None
        heads = [column.head for column in block.table.columns]
        return [dict(zip(heads, [value.text for value in row], strict=True)) for row in block.rows]


def one(found: Sequence[str] | Iterator[str], *parts: str) -> str:
    """The only text that has all of some parts."""
    fitting = [text for text in dict.fromkeys(found) if all(part in text for part in parts)]
    assert len(fitting) == 1, (parts, fitting)
    return fitting[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host with a CPU and a GPU, another host with a GPU."""
    slow = training(0.01, trainer="hf", backend="mlx")
    nano = training(0.001, precision="amp-bf16")
    nano["scenario"] |= {
        "predicted_bytes": 10 * 2**20, "capacity_bytes": 16 * 2**20, "derived": "fits",
        "predicted_parts_bytes": {"weights": 2**20, "gradients": 0, "optimizer": 2 * 2**20,
                                  "activations": 6 * 2**20, "temporary": 2**20},
    }  # fmt: skip
    gpu = training(0.002, **GPU)
    gpu["scenario"]["device_memory_bytes"] = 140 * 2**30
    gpu["points"][0]["flops"] = 67e12 * 0.002 / 4  # a quarter of an H200's fp32, by its data sheet
    other = products([product((1, 512, 512, 512), 4e13)], **GPU)
    other["scenario"]["device_memory_bytes"] = 140 * 2**30
    bundled = GPU | {"host": "box", "device": "rtx-4090"}
    return make(
        tmp_path_factory.mktemp("drawings"),
        [
            training(0.01),
            nano,
            without_result(slow, "unsupported", "this trainer supports only torch"),
            without_result(
                training(1, workload="w", backend="mlx", module="whisper"), "oom", "full"
            ),
            products([product((1, 512, 512, 512), PRODUCTS), product((1, 16, 16, 16), 1e9)]),
            bandwidth(MEMORY, CACHE),
            matvec({(4000, 4000, "cold"): MEMORY / 2, (64, 64, "warm"): CACHE / 4}),
            vjp({(512, "without"): 1.5 * PRODUCTS}),
            gpu,
            other,
        ],
        foreign=[training(0.001, **bundled)],
        devices=(CPU, H200),
    )


@pytest.fixture(scope="module")
def drawn(results: Path) -> Drawn:
    return Drawn(results)


# -- stack -------------------------------------------------------------------------------------


def test_a_line_of_the_stack_is_a_measured_cell(drawn: Drawn) -> None:
    said = drawn.said("stack")
    measured = [text for text in said if text.endswith("measured") and " to " in text]
    assert "GPT-2 to plain loop, torch-cpu: 2 cells measured" in measured
    assert "torch to torch-cuda, torch-cuda: 3 cells measured" in measured
    assert not any(", mlx: " in text for text in measured)
    one(said, "Hugging Face Trainer to MLX: 1 cell unsupported (this trainer supports only torch)")
    assert not any(text.startswith("Whisper to") for text in said)  # it ran out of memory
    assert "Whisper: 0 of 1 cell measured" in said


def test_boxes_of_the_stack_name_what_was_loaded(drawn: Drawn) -> None:
    texts = drawn.texts("stack")
    for text in (
        "2.13.0",
        "CPU, oneMKL 2024.2",
        "CUDA",
        "NVIDIA H200",
        "140\u2009GiB · desk",
        "NVIDIA RTX 4090",
        "other host",
    ):
        assert text in texts
    one(drawn.said("stack"), "NVIDIA RTX 4090, ", "· box, other host: 1 of 1 cell measured")


# -- scenarios ---------------------------------------------------------------------------------


def asked(module: str, gib: float, backend: str, **parameters: Any) -> Mapping[str, Any]:
    """What `measure` would write into the record of a cell about its scenario."""
    own = defaults(module, **{"zero_stage": 3, "dataset_vocab_size": 1024} | parameters)
    place = {"device_kind": "gpu", "device_memory_bytes": int(gib * 2**30), "trainer": "hf"}
    cell = cpu_cell(backend=backend, workload="w", module=module, parameters=own, **place)
    return Trial(cell).scenario()


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        (
            "GPT2-XL, batch 16",
            "NVIDIA GeForce RTX 4090",
            ("gpt2", 24, "torch-cuda", {"size": "xl", "batch_size": 16, "seq_len": 128}),
        ),
        (
            "Whisper-medium, batch 4",
            "NVIDIA RTX A6000",
            (
                "whisper",
                48,
                "torch-cuda",
                {"size": "medium", "batch_size": 4, "target_len": 128, "dataset_clip_seconds": 30},
            ),
        ),
        (
            "Whisper-large, batch 32, checkpointed",
            "Apple M2 Max, 38 GPU cores",
            (
                "whisper",
                48,
                "torch-mps",
                {
                    "size": "large",
                    "batch_size": 32,
                    "target_len": 128,
                    "dataset_clip_seconds": 30,
                    "gradient_checkpointing": True,
                },
            ),
        ),
    ],
)
def test_a_scenario_is_what_the_memory_model_derives(
    drawn: Drawn, name: str, device: str, expected: tuple[str, float, str, dict[str, Any]]
) -> None:
    module, gib, backend, parameters = expected
    truth = asked(module, gib, backend, **parameters)
    row = next(
        r for r in drawn.table("scenario-parts") if r["Training"] == name and r["Device"] == device
    )
    number = {"fits": "1", "offload": "2", "near-capacity": "3"}[truth["derived"]]
    assert row["Scenario"].startswith(number)
    assert row["Evidence"] == "predicted"
    share = truth["predicted_bytes"] / truth["capacity_bytes"]
    assert as_number(row["share"]) == pytest.approx(100 * share, rel=0.006)
    assert as_number(row["predicted"]) == pytest.approx(truth["predicted_bytes"] / 2**20, rel=0.006)
    for part, size in truth["predicted_parts_bytes"].items():
        assert as_number(row[part]) == pytest.approx(size / 2**20, rel=0.006)
    said = one(drawn.said("scenarios"), f"{name} on {device}")
    assert f", {number} " in said and ("offloaded, " in said) == (number == "2")


def as_number(text: str) -> float:
    return float(text.replace("\u2009", ""))


def test_own_trainings_are_drawn_as_their_records_hold_them(drawn: Drawn) -> None:
    said = drawn.said("scenarios")
    one(
        said,
        "gpt2-nano",
        "torch-cpu amp-bf16",
        "predicted 10.0\u2009MiB of 16.0\u2009MiB (62.5\u2009%), 1 fits",
    )
    one(said, "gpt2-nano: activations 6.00\u2009MiB, 60.0\u2009% of the prediction")
    whole = next(n for n in scenario_drawing.trainings(drawn.own) if n.precision == "amp-bf16")
    figure = scenario_drawing.draw([whole], [], [], False)
    ax = figure.axes[0]
    edges = [(box.get_x(), box.get_x() + box.get_width()) for box in ax.patches]
    assert (0, 1.0) in edges  # the capacity
    assert max(right for _, right in edges if right < 1) == pytest.approx(10 / 16)
    texts = drawn.texts("scenarios")
    assert "The paper’s devices: predicted, not measured" in texts


# -- roofline ----------------------------------------------------------------------------------


def test_a_dot_lies_where_its_numbers_say(drawn: Drawn) -> None:
    dots = [dot for dot in roofline_points.points(drawn.own) if dot.row["device"] == "cpu-x"]
    figure = roofline.draw(dots, False)
    places = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for ax in figure.axes
        for line in ax.lines
        if len(line.get_xdata()) == 1
    ]
    intensity = 2 * 512**3 / (3 * 4 * 512**2)  # operations over three fp32 matrices
    assert pytest.approx((intensity, PRODUCTS / 1e9), rel=1e-3) in places
    said = drawn.said("roofline-cpu-x")
    one(
        said,
        "matmul",
        "512×512×512",
        f"{intensity:.3g} FLOP/byte",
        "200\u2009GFLOP/s",
        "100\u2009% of the roof (products)",
    )
    cold = one(said, "matvec", "4000×4000×1, cold")
    assert "0.500 FLOP/byte" in cold  # two operations for each of four bytes
    # Half of what a triad, the best of the kernels, gets: MEMORY / 2 over 1.1 × MEMORY.
    assert "45.5\u2009% of the roof (memory)" in cold
    assert "(cache)" in one(said, "matvec", "64×64×1, warm")


def test_a_dot_above_the_roof_is_named(drawn: Drawn) -> None:
    caption = drawn.blocks["figure-roofline-cpu-x"].text
    assert " lies above the roof: vjp" in caption
    assert "1.50 times" in caption
    row = next(r for r in drawn.table("roofline") if r["Workload"] == "vjp")
    assert row["share of roof"] == "150"
    assert "products alone are the roof" in drawn.blocks["figure-roofline-h200"].text
    assert "Of 1 point none lies above its roof" in drawn.blocks["figure-roofline-h200"].text


def test_a_training_says_that_its_intensity_is_an_upper_bound() -> None:
    row = {
        "module": "gpt2",
        "precision": "fp32",
        "n_parameters": 1e6,
        "n_trainable_parameters": 1e5,
    }
    least = roofline_points.by_parts(row, 2e6)
    assert least is not None
    assert least.moved_bytes == 7 * 4 * 1e5 + 2 * 2e6  # AdamW's seven passes, activations twice
    assert roofline_points.by_parts(row, None) is None


# -- efficiency --------------------------------------------------------------------------------


def test_efficiency_is_of_the_data_sheet_and_of_the_best_product(drawn: Drawn) -> None:
    found = {
        (e.row["device"], e.row["precision"]): e
        for e in efficiencies(drawn.own, drawn.own.training())
    }
    gpu, cpu = found["h200", "fp32"], found["cpu-x", "fp32"]
    assert gpu.of_sheet == pytest.approx(0.25, rel=1e-3)
    assert gpu.of_product == pytest.approx(67e12 / 4 / 4e13, rel=1e-3)
    assert cpu.of_sheet is None
    assert cpu.of_product == pytest.approx(2e8 / 0.01 / PRODUCTS, rel=1e-3)
    assert ("cpu-x", "amp-bf16") not in found  # no product in bf16, no data sheet


# -- nothing -----------------------------------------------------------------------------------


def test_nothing_measured_says_what_is_missing(tmp_path: Path) -> None:
    cell = without_result(training(1), "failed", "no such luck")
    drawn = Drawn(make(tmp_path, [cell]), outline=True)
    assert any(text.startswith("No roofline: no matrix product") for text in drawn.notes)
    assert not stack.strands(stack.build(drawn.data), ["torch-cpu"])
    assert "predicted; failed" in {row["Evidence"] for row in drawn.table("scenario-parts")}
