"""The paper's section: built records of its own devices through the real stages to the page.

An RTX A6000 and an M2 Ultra of other hosts stand beside this host's CPU, all with known times.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from synthetic_cells import product, products, vjp
from synthetic_results import Page, make, of_the_paper, render, shown_table, training

A6000 = {"host": "gpu-box", "device": "rtx-a6000", "backend": "torch-cuda", "device_kind": "gpu"}
ULTRA = {"host": "mac", "device": "m2-ultra-76", "backend": "torch-mps", "device_kind": "gpu"}
FORWARD, BACKWARD = 0.3 * 1.02, 0.5 * 1.02  # of an unsplit step, by `training`
GRADIENTS = A6000 | {"workload": "vjp-paper"}
PAIR = (8, 2000, 2000, 2000)


def in_formats(backend: dict[str, Any], **formats: float) -> list[dict[str, Any]]:
    """The paper's batched product in some number formats, GFLOP/s."""
    paper = {"workload": "matmul-paper"} | backend
    return [
        products([product(PAIR, 1e9 * rate)], precision=name, **paper)
        for name, rate in formats.items()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mlx = ULTRA | {"backend": "mlx"}
    speech, large = partial(of_the_paper, "whisper", "medium", 4), partial(of_the_paper, "gpt2")
    plain = {"trainer": "plain", "workload": "gpt2-large-plain-8"}
    xl = {"workload": "gpt2-xl-hf-16"}
    lora = {"workload": "gpt2-large-hf-16", "parameters": {"lora_rank": 8}}
    offload = {"scenario": "offload", "parameters": {"zero_stage": 3}}
    foreign = [
        speech(joules=200.0, **A6000, step_s=0.4),
        speech(**ULTRA, step_s=1.2),
        large("large", 16, **lora, **A6000, step_s=1.0),
        large("large", 8, **plain, **A6000, step_s=2.0),
        large("large", 8, **plain, **mlx, step_s=3.0),
        large("large", 8, **plain, **ULTRA, step_s=4.5),
        large("xl", 16, **offload, **xl, **A6000, step_s=40.0),
        large("xl", 16, **xl, **ULTRA, step_s=16.0),
        *in_formats(A6000, fp32=20e3, fp16=80e3),
        *in_formats(mlx, fp32=16e3, fp16=20e3),
        *in_formats(ULTRA, fp32=15e3, fp16=15e3),
        vjp({(500, "without"): 1e12, (4000, "without"): 1e13}, **GRADIENTS),
        vjp({(500, "without"): 5e12, (4000, "without"): 5e13}, precision="fp16", **GRADIENTS),
    ]
    own = [
        training(0.010),
        training(0.012, trainer="hf"),
        training(0.030, backend="mlx"),
        *in_formats({}, fp32=200.0, bf16=400.0),
    ]
    return make(tmp_path_factory.mktemp("paper"), own, foreign)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Page:
    return render(folder, drawn=("paper-", "glance"))


def number_after(text: str, word: str) -> float:
    """`forward 12.3 ms …` -> 12.3."""
    found = re.search(rf"{word} ([\d.,\u2009]+)\s", text)
    assert found, text
    return float(found[1].replace("\u2009", ""))


def test_figure3_is_by_sample_and_names_the_papers_workloads(whole: Page) -> None:
    fast = whole.mark("whisper-medium, NVIDIA RTX A6000 [other host: gpu-box]", "forward")
    slow = whole.mark("whisper-medium, Apple M2 Ultra", "[other host: mac]", "forward")
    assert number_after(fast, "forward") == pytest.approx(400 / 4 * FORWARD, rel=0.01)
    assert number_after(slow, "backward") == pytest.approx(1200 / 4 * BACKWARD, rel=0.01)
    assert re.search(r"forward [\d.]+\sms \(95 % [\d.]+–[\d.]+\)", fast)
    texts = re.findall(r">([^<>]*(?:the paper(?:'|&#x27;)s|this run(?:'|&#x27;)s))<", whole.html)
    assert any(text.startswith("batch 4, 30 s clips") and "paper" in text for text in texts)
    assert any(text.startswith("batch 4, length") and "this run" in text for text in texts)


def test_printed_passes_stand_on_the_axis_of_equal_work(whole: Page) -> None:
    drawn = whole.markup["figure-glance"]
    shown = set(re.findall(r"<title>(published, Table 4[^<]*)</title>", drawn))
    ultra = "Apple M2 Ultra, 76 GPU cores"
    assert {text for text in shown if ultra in text} == {
        f"published, Table 4: GPT2-large, {ultra} · {backend}, {seconds} s one pass of batch 8; "
        "neither its length nor whether it has the optimizer is printed"
        for backend, seconds in (("mlx", "2.71"), ("torch-mps", "3.239"))
    }
    assert len(shown) == 3 and f"{ultra} · mlx" in drawn  # of batch 8, with names
    marks = re.findall(r"<g([^>]*)>\s*<title>([^<]*)</title>(.*?)</g>", drawn, re.S)
    hatched = {text.startswith("published"): "fill: url(#" in mark for _, text, mark in marks}
    assert hatched == {True: True, False: False}
    assert all(text.startswith("published") != ("data-of" in of) for of, text, _ in marks)


def test_table4_divides_by_the_batch_and_compares_alike(folder: Path, whole: Page) -> None:
    lines = shown_table(folder, "paper-table-4")
    heads = ("Compared", "Device", "Of what")
    gain = {}
    for line in lines:
        source = line["Compared: where from"].split(",")[0]
        gain[source, *(line[head] for head in heads)] = line["second / first (×)"]
    mps, ultra = "MLX against MPS", "Apple M2 Ultra, 76 GPU cores"
    stated = "published: “30%-40% speed advantage”", mps, "", "GPT2-large pre-training and kernels"
    assert gain[stated] == "1.3 to 1.4"
    printed = ("published: Table 4", mps, ultra, "GPT2-large")
    assert float(gain[printed]) == pytest.approx(3.239 / 2.710)
    mac = f"{ultra} [other host: mac]"
    for compared, device, what, expected in (
        ("MLX against torch-mps", mac, "gpt2-large", 1.5),
        ("MLX against torch-cpu", "Example CPU", "gpt2-nano", 1 / 3),
        ("plain against hf, torch-cpu", "Example CPU", "gpt2-nano", 1.2),
    ):
        found = float(gain["measured", compared, device, what])
        assert found == pytest.approx(expected, rel=0.01)


def test_energy_stands_beside_the_same_scope(folder: Path, whole: Page) -> None:
    lines = shown_table(folder, "published-5")
    (line,) = [line for line in lines if "A6000" in line["Device"]]
    assert line["energy per iteration (J)"] == "212.39"
    assert "200.0 J by nvml-counter" in line["measured: GPU alone"]
    assert not [line for line in lines if "rapl-package" in line["measured: GPU alone"]]


def test_pairs_are_compared_and_the_missing_ones_said_in_words(folder: Path, whole: Page) -> None:
    rows = {}
    for line in shown_table(folder, "paper-figure-5"):
        device = re.split(r"[,\[]", line["Device"])[0].strip()
        rows[line["Backend"], device, line["Format"]] = line

    def numbers(head: str, *which: tuple[str, ...]) -> list[float]:
        return [float(rows[row][head] or "nan") for row in which]

    card, ultra, mps = (
        [(backend, device, name) for name in ("fp32", "fp16")]
        for backend, device in (
            ("torch-cuda", "NVIDIA RTX A6000"),
            ("mlx", "Apple M2 Ultra"),
            ("torch-mps", "Apple M2 Ultra"),
        )
    )
    assert numbers("median (GFLOP/s)", *card) == pytest.approx([20e3, 80e3], rel=1e-3)
    over = numbers("over fp32 (×)", card[1], ultra[1], mps[1])
    assert over == pytest.approx([4, 1.25, 1])
    assert numbers("burst over fp32 (×)", card[1]) == pytest.approx([4])
    assert numbers("over first (×)", *ultra) == pytest.approx([0.8, 0.25])
    cpu = ("torch-cpu", "Example CPU")
    assert numbers("over fp32 (×)", (*cpu, "bf16")) == pytest.approx([2])
    assert (*cpu, "fp16") not in rows
    section = whole.of("paper")
    silent = "not measured on any host here; the paper shows its values only as a picture."
    assert f"RTX 2080 Ti / M2 Max and Quadro RTX 4000 / M2 Pro: {silent}" in section
    assert f"M2 Ultra, RTX 2080 Ti / M2 Max and Quadro RTX 4000 / M2 Pro: {silent}" in section
    gain = [line for line in shown_table(folder, "paper-figure-7") if line["Format"] == "fp16"]
    assert [float(line["over fp32 (×)"]) for line in gain] == pytest.approx([5, 5])
