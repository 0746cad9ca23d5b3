"""The paper's section: built records of its own devices through the real stages to the page.

An RTX A6000 and an M2 Ultra of other hosts stand beside this host's CPU, all with known times.
"""

from __future__ import annotations

import re
from html import unescape
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


def paced(made: dict[str, Any], step_s: float) -> dict[str, Any]:
    """The same training with another step time."""
    times = made["points"][0]["times"]
    faster = step_s / sorted(times["unsplit_step_s"])[15]
    made["points"][0]["times"] = {name: [t * faster for t in v] for name, v in times.items()}
    return made


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
    foreign = [
        paced(of_the_paper("whisper", "medium", 4, joules=200.0, **A6000), 0.4),
        paced(of_the_paper("whisper", "medium", 4, **ULTRA), 1.2),
        paced(
            of_the_paper(
                "gpt2",
                "large",
                16,
                workload="gpt2-large-hf-16",
                parameters={"lora_rank": 8},
                **A6000,
            ),
            1.0,
        ),
        paced(
            of_the_paper(
                "gpt2", "large", 8, trainer="plain", workload="gpt2-large-plain-8", **A6000
            ),
            2.0,
        ),
        paced(
            of_the_paper("gpt2", "large", 8, trainer="plain", workload="gpt2-large-plain-8", **mlx),
            3.0,
        ),
        paced(
            of_the_paper(
                "gpt2", "large", 8, trainer="plain", workload="gpt2-large-plain-8", **ULTRA
            ),
            4.5,
        ),
        paced(
            of_the_paper(
                "gpt2",
                "xl",
                16,
                scenario="offload",
                parameters={"zero_stage": 3},
                workload="gpt2-xl-hf-16",
                **A6000,
            ),
            40.0,
        ),
        paced(of_the_paper("gpt2", "xl", 16, workload="gpt2-xl-hf-16", **ULTRA), 16.0),
        *in_formats(A6000, fp32=20e3, fp16=80e3),
        *in_formats(mlx, fp32=16e3, fp16=20e3),
        *in_formats(ULTRA, fp32=15e3, fp16=15e3),
        vjp({(500, "without"): 1e12, (4000, "without"): 1e13}, **GRADIENTS),
        vjp({(500, "without"): 5e12, (4000, "without"): 5e13}, precision="fp16", **GRADIENTS),
    ]
    own = [
        paced(training(0.010), 0.010),
        paced(training(0.012, trainer="hf"), 0.012),
        paced(training(0.030, backend="mlx"), 0.030),
        *in_formats({}, fp32=200.0, bf16=400.0),
    ]
    return make(tmp_path_factory.mktemp("paper"), own, foreign)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Page:
    return render(folder, drawn=("paper-", "across-gpt2-large"))


def hover(made: Page) -> list[str]:
    """What is said at each mark of the page's charts."""
    return [unescape(said) for said in re.findall(r"<title>([^<]*)</title>", made.html)]


def said_at(made: Page, *parts: str) -> str:
    """The words of the one mark that has all of these in them."""
    (found,) = {said for said in hover(made) if all(part in said for part in parts)}
    return found


def number_after(text: str, word: str) -> float:
    """`forward 12.3 ms …` -> 12.3."""
    found = re.search(rf"{word} ([\d.,\u2009]+)\s", text)
    assert found, text
    return float(found[1].replace("\u2009", ""))


def test_figure3_is_by_sample_and_names_the_papers_workloads(folder: Path, whole: Page) -> None:
    fast = said_at(whole, "whisper-medium, NVIDIA RTX A6000 [other host: gpu-box]", "forward")
    slow = said_at(whole, "whisper-medium, Apple M2 Ultra", "[other host: mac]", "forward")
    assert number_after(fast, "forward") == pytest.approx(400 / 4 * FORWARD, rel=0.01)
    assert number_after(slow, "backward") == pytest.approx(1200 / 4 * BACKWARD, rel=0.01)
    assert re.search(r"forward [\d.]+\sms \(95 % [\d.]+–[\d.]+\)", fast)
    lines = shown_table(folder, "paper-figure-3")
    by_panel = {
        (line["Panel"], line["Device"].split(",")[0], line["Ran as"]): line
        for line in lines
        if line["Model"].startswith("gpt2-xl")
    }
    assert set(by_panel) == {
        ("(b)(2)", "NVIDIA RTX A6000", "offload"),
        ("(b)(2)", "Apple M2 Ultra", "fits"),
    }
    offloaded = by_panel["(b)(2)", "NVIDIA RTX A6000", "offload"]
    assert float(offloaded["forward (ms per sample)"]) == pytest.approx(
        40e3 / 16 * FORWARD, rel=0.01
    )
    assert {line["published"] for line in lines} == {""}
    texts = re.findall(r">([^<>]*(?:the paper(?:'|&#x27;)s|this run(?:'|&#x27;)s))<", whole.html)
    assert any(text.startswith("batch 4, 30 s clips") and "paper" in text for text in texts)
    assert any(text.startswith("batch 4, length") and "this run" in text for text in texts)


def test_printed_passes_stand_on_the_axis_of_equal_work(whole: Page) -> None:
    figures = re.findall(r'<figure id="figure-across-[^"]*">.*?</figure>', whole.html, re.S)
    (drawn,) = [figure for figure in figures if "published" in figure]
    shown = set(re.findall(r"<title>(published, Table 4[^<]*)</title>", drawn))
    ultra = "Apple M2 Ultra, 76 GPU cores"
    assert {text for text in shown if ultra in text} == {
        f"published, Table 4: GPT2-large, {ultra} · {backend}, {seconds} s one pass of batch 8; "
        "neither its length nor whether it has the optimizer is printed"
        for backend, seconds in (("mlx", "2.71"), ("torch-mps", "3.239"))
    }
    assert len(shown) == 3 and f"{ultra} · mlx" in drawn  # of batch 8, with names
    marks = re.findall(r"<g([^>]*)>\s*<title>([^<]*)</title>(.*?)</g>", drawn, re.S)
    assert {text.startswith("published"): "fill: url(#" in mark for _, text, mark in marks} == {
        True: True,
        False: False,
    }
    assert all(text.startswith("published") != ("data-of" in of) for of, text, _ in marks)


def test_table4_divides_by_the_batch_and_compares_alike(folder: Path, whole: Page) -> None:
    lines = shown_table(folder, "paper-table-4")
    gain = {
        (
            line["Compared: where from"].split(",")[0],
            line["Compared"],
            line["Device"],
            line["Of what"],
        ): line["second / first (×)"]
        for line in lines
    }
    name = "Apple M2 Ultra, 76 GPU cores"
    assert (
        gain[
            "published: “30%-40% speed advantage”",
            "MLX against MPS",
            "",
            "GPT2-large pre-training and kernels",
        ]
        == "1.3 to 1.4"
    )
    assert float(gain["published: Table 4", "MLX against MPS", name, "GPT2-large"]) == (
        pytest.approx(3.239 / 2.710)
    )
    assert float(
        gain["measured", "MLX against torch-mps", f"{name} [other host: mac]", "gpt2-large"]
    ) == pytest.approx(1.5, rel=0.01)
    assert float(gain["measured", "MLX against torch-cpu", "Example CPU", "gpt2-nano"]) == (
        pytest.approx(1 / 3, rel=0.01)
    )
    assert float(gain["measured", "plain against hf, torch-cpu", "Example CPU", "gpt2-nano"]) == (
        pytest.approx(1.2, rel=0.01)
    )


def test_energy_stands_beside_the_same_scope(folder: Path, whole: Page) -> None:
    lines = shown_table(folder, "published-5")
    (line,) = [line for line in lines if "A6000" in line["Device"]]
    assert line["energy per iteration (J)"] == "212.39"
    assert "200.0 J by nvml-counter" in line["measured: GPU alone"]
    assert not [line for line in lines if "rapl-package" in line["measured: GPU alone"]]


def test_pairs_are_compared_and_the_missing_ones_said_in_words(folder: Path, whole: Page) -> None:
    lines = {
        (line["Backend"], line["Device"].split(",")[0].split(" [")[0], line["Format"]): line
        for line in shown_table(folder, "paper-figure-5")
    }

    def number(name: str, *which: str) -> float:
        return float(lines[which][name] or "nan")

    card, ultra = ("torch-cuda", "NVIDIA RTX A6000"), ("mlx", "Apple M2 Ultra")
    assert [number("median (GFLOP/s)", *card, f) for f in ("fp32", "fp16")] == pytest.approx(
        [20e3, 80e3], rel=1e-3
    )
    mps = ("torch-mps", "Apple M2 Ultra")
    over = [number("over fp32 (×)", *which, "fp16") for which in (card, ultra, mps)]
    assert over == pytest.approx([4, 1.25, 1])
    assert number("burst over fp32 (×)", *card, "fp16") == pytest.approx(4)
    assert [number("over first (×)", *ultra, f) for f in ("fp32", "fp16")] == pytest.approx(
        [0.8, 0.25]
    )
    cpu = ("torch-cpu", "Example CPU", "bf16")
    assert number("over fp32 (×)", *cpu) == pytest.approx(2) and (*cpu[:2], "fp16") not in lines
    section = whole.of("paper")
    silent = "not measured on any host here; the paper shows its values only as a picture."
    assert f"RTX 2080 Ti / M2 Max and Quadro RTX 4000 / M2 Pro: {silent}" in section
    assert f"M2 Ultra, RTX 2080 Ti / M2 Max and Quadro RTX 4000 / M2 Pro: {silent}" in section
    gain = [line for line in shown_table(folder, "paper-figure-7") if line["Format"] == "fp16"]
    assert [float(line["over fp32 (×)"]) for line in gain] == pytest.approx([5, 5])


def test_index_leads_to_what_is_there(whole: Page) -> None:
    ids = {values.get("id") for _, values in whole.tags}
    links = {
        values["href"] for _, values in whole.tags if (values.get("href") or "").startswith("#")
    }
    assert {"#paper-figure-3", "#paper-table-4", "#table-published-6"} <= links
    assert {link.removeprefix("#") for link in links} <= ids
    table = {line[0] + line[2]: line for line in whole.tables["table-paper-index"]}
    figure5 = next(link for link in links if link.startswith("#figure-matmul-matmul-paper-"))
    shown = re.search(r'<figure [^>]*id="table-paper-index">.*?</figure>', whole.html, re.S)
    assert shown and f'href="{figure5}"' in shown[0]
    assert table["Figure 7vector-Jacobian product"][1].startswith("–")  # on other hosts alone
    launch = next(line for name, line in table.items() if name.startswith("Table 6"))
    assert launch[1].startswith("–")


def test_the_papers_gaps_are_bounded_beside_table_4(whole: Page) -> None:
    """From printed numbers alone: what was measured on these devices changes nothing."""
    head, *lines = whole.tables["table-paper-gaps"]
    assert len(lines) == 11 and len(head) <= 7
    against_mlx = next(
        line
        for line in lines
        if line[0] == "M2 Pro, torch-mps, batch 2against M2 Pro, mlx, batch 2"
    )
    assert against_mlx[4].startswith("none") and "something else" in against_mlx[6]
    text = whole.of("paper")
    assert re.search(r"explain \d+ of 11 gaps of Table 4 whole", text)
    assert "17 pairs of devices" in text
