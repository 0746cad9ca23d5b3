"""The drawings: stack, scenarios and roofline, from records through the real stages.

Numbers of the records are round, so that what a drawing must say can be worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import cpu_cell, defaults
from siliconprof import words
from siliconprof.render import roofline, roofline_points
from siliconprof.session.trial import Trial
from siliconprof.store.records import HERE
from synthetic_cells import bandwidth, fastest, matvec, product, products, vjp
from synthetic_results import (
    CPU,
    GPU,
    H200,
    Page,
    load,
    make,
    render,
    training,
    without_result,
)

MEMORY, CACHE, PRODUCTS = 1e10, 8e10, 2e11  # bytes/s, bytes/s and FLOP/s that were measured


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
    other = fastest(4e13, **GPU)
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
def page(results: Path) -> Page:
    return render(results, ("stack", "scenarios", "roofline"))


def test_a_line_of_the_stack_is_a_measured_cell(page: Page) -> None:
    said = page.hover("figure-stack")
    measured = [text for text in said if text.endswith("measured") and " to " in text]
    assert "GPT-2 to plain loop, torch-cpu: 2 cells measured" in measured
    assert "torch to torch-cuda, torch-cuda: 3 cells measured" in measured
    assert not any(", mlx: " in text for text in measured)
    lost = "Hugging Face Trainer to MLX: 1 cell unsupported (this trainer supports only torch)"
    assert lost in said
    assert not any(text.startswith("Whisper to") for text in said)  # it ran out of memory
    assert "Whisper: 0 of 1 cell measured" in said


def asked(module: str, gib: float, backend: str, **parameters: Any) -> Mapping[str, Any]:
    """What `measure` would write into the record of a cell about its scenario."""
    own = defaults(module, **{"zero_stage": 3, "dataset_vocab_size": 1024} | parameters)
    place = {"device_kind": "gpu", "device_memory_bytes": int(gib * 2**30), "trainer": "hf"}
    cell = cpu_cell(backend=backend, workload="w", module=module, parameters=own, **place)
    return Trial(cell).scenario()


XL = {"size": "xl", "batch_size": 16, "seq_len": 128}
MEDIUM = {"size": "medium", "batch_size": 4, "target_len": 128, "dataset_clip_seconds": 30}
LARGE = MEDIUM | {"size": "large", "batch_size": 32, "gradient_checkpointing": True}
SCENARIOS = [  # training and device; module, memory in GiB, backend and parameters
    ("GPT2-XL, batch 16", "NVIDIA GeForce RTX 4090", ("gpt2", 24, "torch-cuda"), XL),
    ("Whisper-medium, batch 4", "NVIDIA RTX A6000", ("whisper", 48, "torch-cuda"), MEDIUM),
    ("Whisper-large, batch 32, checkpointed", "Apple M2 Max", ("whisper", 48, "torch-mps"), LARGE),
]


@pytest.mark.parametrize(("name", "device", "place", "parameters"), SCENARIOS)
def test_a_scenario_is_what_the_memory_model_derives(
    page: Page, name: str, device: str, place: Any, parameters: dict[str, Any]
) -> None:
    truth = asked(*place, **parameters)
    number = {"fits": "1", "offload": "2", "near-capacity": "3"}[truth["derived"]]
    share = words.percent(truth["predicted_bytes"] / truth["capacity_bytes"])
    said = page.mark(f"{name} on {device},", of="figure-scenarios")  # and not another host's
    assert f"({share}), {number} " in said and ("offloaded, " in said) == (number == "2")


def test_a_dot_lies_where_its_numbers_say(results: Path, page: Page) -> None:
    own = list(roofline_points.points(load(results).only(HERE)))
    figure = roofline.draw([dot for dot in own if dot.row["device"] == "cpu-x"])
    places = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for ax in figure.axes
        for line in ax.lines
        if len(line.get_xdata()) == 1
    ]
    intensity = 2 * 512**3 / (3 * 4 * 512**2)  # operations over three fp32 matrices
    assert pytest.approx((intensity, PRODUCTS / 1e9), rel=1e-3) in places
    of = "figure-roofline-cpu-x"
    product_ = page.mark("matmul", "512×512×512", of=of)
    for said in (
        f"{intensity:.3g} FLOP/byte",
        "200\u2009GFLOP/s",
        "100\u2009% of the roof (products)",
    ):
        assert said in product_
    cold = page.mark("matvec", "4000×4000×1, cold", of=of)
    assert "0.500 FLOP/byte" in cold  # two operations for each of four bytes
    # Half of what a triad, the best of the kernels, gets: MEMORY / 2 over 1.1 × MEMORY.
    assert "45.5\u2009% of the roof (memory)" in cold
    assert "(cache)" in page.mark("matvec", "64×64×1, warm", of=of)
    # Where no product ends the slope, the frame does, with what stands beside it.
    dot = next(dot for dot in own if dot.kind == "matvec")
    dot = replace(dot, flop_per_s=MEMORY / 10, limits=dot.limits._replace(product=None))
    (ax,) = roofline.draw([dot, replace(dot, intensity=10.0)]).axes
    heights = [text.get_position()[1] for text in ax.texts]
    assert heights and max(heights) < ax.get_ylim()[1]


def test_a_dot_above_the_roof_is_named(page: Page) -> None:
    caption = page.markup["figure-roofline-cpu-x"]
    assert " lies above the roof: vjp" in caption and "1.50 times" in caption
    assert "products alone are the roof" in page.markup["figure-roofline-h200"]
    assert "Of 1 point none lies above its roof" in page.markup["figure-roofline-h200"]


def test_nothing_measured_says_what_is_missing(tmp_path: Path) -> None:
    results = make(tmp_path, [without_result(training(1), "failed", "no such luck")])
    page = render(results, ("stack",))
    assert "No roofline: no matrix product" in page.of("ceilings")
    assert not [said for said in page.hover("figure-stack") if " to " in said]
