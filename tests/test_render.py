"""The report, from records over the real aggregation to the finished page.

The records are made by `synthetic_results`; everything after them is the code under test.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from siliconprof.analyse import aggregate
from siliconprof.claims import judge
from siliconprof.errors import UserError
from siliconprof.render import draw, page, paper, published
from siliconprof.render import summary as summary_
from siliconprof.render import svg as svg_
from siliconprof.store import record
from synthetic_results import (
    AWAY,
    CPU,
    GPU,
    H200,
    ROOT,
    Page,
    base_record,
    course,
    drawing,
    flagged,
    kernel_launch,
    load,
    make,
    matmul,
    metered,
    of_the_paper,
    probed,
    render,
    shown_table,
    table,
    training,
    without_result,
    writing,
)
from synthetic_results import words as options

MLX, HF = {"backend": "mlx"}, {"trainer": "hf"}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backends, two trainers, a failed cell, another host and a reference bundle."""
    folder = tmp_path_factory.mktemp("full")
    mlx = training(0.030, **MLX)
    mlx["points"][0]["times"]["trace_s"] = [0.0005] * 30
    noisy = "step_s has an IQR of 15% of its median; odd"
    odd = flagged(training(0.011, **HF), noisy=noisy, contended="others used 0.50 cores")
    unable = without_result(training(1, **MLX, **HF), "unsupported", "this trainer: only torch")
    oom = training(0.01, precision="amp-bf16", **MLX)
    record.write(dict(oom), folder / "before.json", folder / "results/history")
    own = [training(0.010), training(0.0101, precision="amp-bf16"), mlx, odd, unable]
    own += [without_result(oom, "oom", "Unable to allocate <8 GB>"), matmul(), kernel_launch()]
    away = [training(0.001, (6.0, 5.5, 5.2501), **AWAY), matmul(**AWAY), kernel_launch(**AWAY)]
    lab = training(0.002, **AWAY | {"host": "lab"})
    absent = [{"device": "m2-max-38", "reason": "host 'desk' has no such device"}]
    return make(folder, own, away, [lab], not_measured=absent, last=judge)


@pytest.fixture(scope="module")
def full_page(full: Path) -> Page:
    return render(full, drawn=("training-", "paper-table-4"))


# -- the page as a document ---------------------------------------------------------------------


def test_figures_keep_the_numbers_in_their_labels() -> None:
    svg = '<svg width="9pt" viewBox="0 0 9 9"><text x="1.2345">1.70 ms, 0.0512</text></svg>'
    for made in (svg_.inline(svg), svg_.standalone(svg, 7.2)):
        assert "1.70 ms, 0.0512" in made and 'x="1.2"' in made


# -- what it says ---------------------------------------------------------------------------------


def test_findings_give_ratios_with_their_intervals(full_page: Page) -> None:
    said = full_page.of("summary")
    found = re.search(r"torch-cpu is ([\d.]+) × \[([\d.]+), ([\d.]+)\] faster than mlx", said)
    assert found
    ratio, low, high = map(float, found.groups())
    assert low < ratio < high and ratio == pytest.approx(3.0, rel=0.01)
    assert low == pytest.approx(3.0 * 0.998 / 1.002, rel=0.01)  # ends of both intervals
    assert re.search(r"torch-cpu, fp32\): plain is 1\.10 × \[\S+ \S+\] faster than hf", said)
    assert "fp32 is 1.01 ×" in said and "faster than amp-bf16" in said


@pytest.mark.slow
def test_records_that_are_used_in_nothing_are_listed(tmp_path: Path) -> None:
    results = make(tmp_path, [training(0.01)])
    stray = results / "records/desk/cpu-x/torch-cpu/old/auto/fp32.json"
    stray.parent.mkdir(parents=True)
    stray.write_text("{}", encoding="utf-8")
    damaged = results / "records/far/cpu-x/torch-cpu/old/auto/fp32.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{", encoding="utf-8")
    gathered = {"results": results, "output-dir": results / "tables"}
    aggregate.main(options(matrix=results / "matrix.json", **gathered))
    page = render(results, drawn=())
    assert "1 of 1 cell measured, 1 record could not be read" in page.html
    quality = page.of("quality")
    assert f"{stray.as_posix()}: not in this experiment" in quality
    assert f"1 record could not be read: {damaged.as_posix()}: damaged record: " in quality


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("summary", "1 cell oom: Unable to allocate <8 GB>"),
        ("summary", "Backend torch-cuda: no NVIDIA GPU or driver. To mend: install a driver."),
        ("summary", "Apple M2 Max, 38 GPU cores: host 'desk' has no such device"),
        ("training", "oom: Unable to allocate"),  # in the figure itself
        ("quality", "Other processes used the processor while this was measured"),
        ("energy", "No energy was measured: no training cell of these results reads any."),
    ],
)
def test_what_is_absent_or_odd_is_said(full_page: Page, section: str, said: str) -> None:
    assert said in full_page.of(section)


def test_a_missing_number_is_a_dash_with_its_reason(full_page: Page) -> None:
    lines = full_page.lines("table-training-times")
    trace = {(line["Workload"], line["Backend"], line["Precision"]): line for line in lines}
    assert trace["gpt2-nano-plain", "mlx", "fp32"]["tracems"].startswith("0.500")
    assert trace["gpt2-nano-plain", "torch-cpu", "fp32"]["tracems"] == "–a"
    assert trace["gpt2-nano-plain", "mlx", "fp32"]["MFU%"].startswith("–")
    assert "peak unknown: the registry has no sourced figure" in full_page.of("training")
    said = {" ".join(text).strip() for _, _, text in full_page.cells}
    assert not said & {"nan", "None", "inf", "NaN"}


def printed_numbers() -> Iterator[str]:
    for name, columns in (
        ("table1_devices", ("memory_gb", "compute_tflops", "launch_price_usd")),
        ("table2_workloads", ("parameters_m", "theoretical_memory_gib")),
        ("table3_configurations", ("scenario", "batch_size")),
        ("table4_pass_time", ("batch_size", "pass_time_s")),
        ("table5_energy", ("energy_per_iteration_j", "batch_size")),
        ("table6_kernel_launch", ("cold_launch_ms", "followup_launch_ms")),
    ):
        text = (ROOT / f"config/published/{name}.csv").read_text(encoding="utf-8")
        for row in csv.DictReader(text.splitlines()):
            yield from (row[column] for column in columns)


def test_published_numbers_carry_their_mark(full_page: Page) -> None:
    marked = [
        (section, "".join(text))
        for section, css, text in full_page.cells
        if "published" in css.split()
    ]
    # Table 2 twice; the statements of the texts among the claims
    where = {"paper", "memory", "published", "claims"}
    assert {section for section, _ in marked} == where
    # the mark; a claim has its range below it
    assert all(
        text.endswith("P") or (section == "claims" and "P" in text) for section, text in marked
    )
    shown = [text.removesuffix("P") for section, text in marked if section == "published"]
    for number in printed_numbers():
        assert number in shown
        shown.remove(number)
    assert shown == []
    assert len([text for section, text in marked if section == "claims"]) >= 30  # statements
    assert "(transcription 1) says 2" in full_page.of("published")  # where the two differ
    computed = [text for _, css, text in full_page.cells if "computed" in css.split()]
    assert ["11.533", "C"] in computed  # 774 M parameters × 16 bytes / 2³⁰


def test_other_hosts_are_badged_beside_this_one(full: Path, full_page: Page) -> None:
    assert "gpu-box" not in full_page.of("summary")
    for name in ("cells", "training-times", "kernel-launch", "ceilings"):
        text = str(full_page.tables[f"table-{name}"])
        assert "other host: gpu-box" in text, name
        assert ("reference: lab" in text) == (name != "kernel-launch"), name  # it trained alone
    times = shown_table(full, "training-times")
    away = [line for line in times if "[other host: gpu-box]" in line["Workload"]]
    assert [float(line["unsplit step (ms)"]) for line in away] == pytest.approx([1.0], rel=0.01)
    drawn = full_page.markup["figure-training-gpt2-nano-4-256"]
    assert "[other host: gpu-box]" in drawn and "[reference: lab]" in drawn


# -- the training study ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters, offloading, near capacity, energy, clocks, allocators and a cell without probes."""
    steady = {"throttled": False, "limits_means": "a count of throttlings"}
    steady |= {"cpu_clock_min_mhz": 2900.0, "cpu_clock_max_mhz": 3100.0}
    plain = probed(
        training(0.030),
        memory={"rss_at_start_bytes": 2**28, "rss_peak_sampled_bytes": 2**29},
        page_faults={"page_size_bytes": 4096, "minor_faults": 9000, "major_faults": 0},
        clocks=steady | {"cpu_clock_median_mhz": 3000.0, "power_capped": None},
        interference={"foreign_load_cores": 0.03, "power_source": "mains"},
    )
    plain["samples"] = [
        sample | {"cpu_clock_mhz": 3000.0 - i} for i, sample in enumerate(plain["samples"])
    ]
    metered(plain, {"nvml-counter": 20.0, "rapl-package": None})
    peak(plain, 1.1)
    clocks = {"throttled": True, "limits_means": "a count of throttlings"}
    hot = probed(training(0.031, trainer="hf"), clocks=clocks)
    peak(hot, 0.5)
    lora = training(0.020, workload="gpt2-lora-plain", parameters={"lora_rank": 8}, trained=8192)
    phases = lora["points"][0]["times"]
    phases["optimizer_s"] = [value / 10 for value in phases["optimizer_s"]]
    place = {"workload": "gpt2-offload", "scenario": "offload", "parameters": {"zero_stage": 2}}
    offload = training(0.007, **place)
    offload = flagged(offload, offload_on_cpu="one memory", split_differs="sums to +9 %")
    offload["method"] = {"offload": {"library": "DeepSpeed", "zero_stage": 2}}
    offload["scenario"] |= {"applied": "offload"}
    retain = training(0.028, workload="gpt2-retain", parameters={"allocator": "retain"})
    retain["points"][0]["steps"] = course(0.028, faults=0)
    bare = probed(
        training(0.0299, workload="gpt2-bare"),
        memory={"available": False, "means": "switched off for this cell"},
    )
    bare["samples"] = []
    enforced = near_capacity("torch-cpu", enforced=True, how="a cgroup's limit", reason=None)
    model_only = near_capacity("mlx", enforced=False, how="model only", reason="no cgroup")
    too_large = without_result(
        training(1, workload="gpt2-large-plain"),
        "skipped",
        "predicted 17.2 GiB, the device has 16 GiB",
    )
    too_large["scenario"] |= {"derived": "offload", "predicted_bytes": 18_500_000_000}
    own = [plain, hot, lora, offload, retain, bare, enforced, model_only, too_large]
    return make(tmp_path_factory.mktemp("study"), own)


def peak(made: dict[str, Any], predicted_over_measured: float) -> None:
    """Give a cell a measured peak."""
    made["points"][0]["memory"] = {
        "device_bytes": None,
        "device_peak_bytes": int(1e6 / predicted_over_measured),
        "device_peak_means": "all tensors",
    }


def near_capacity(backend: str, **limit: Any) -> dict[str, Any]:
    """A cell whose batch the memory model found."""
    scenario = "near-capacity"
    axes = {"workload": "gpt2-near", "scenario": scenario, "backend": backend, "samples": 87}
    made = training(0.5, **axes)
    made["scenario"] |= {"derived": scenario, "applied": scenario}
    made["scenario"] |= {"batch_size": 87, "batch_size_found": True}
    made["scenario"] |= {"predicted_bytes": 120 * 2**20, "confirmed_peak_bytes": 110 * 2**20}
    made["scenario"] |= {"capacity_source": "memory_budget_gib of the workload"}
    made["scenario"] |= {"capacity_bytes": 2**27, "limit": limit | {"limit_bytes": 2**27}}
    return made


@pytest.fixture(scope="module")
def study_page(study: Path) -> Page:
    return render(study, drawn=())


def test_offloading_on_a_cpu_is_in_no_statement_about_speed(study_page: Page) -> None:
    assert "mechanism check, not a cost of offloading" in study_page.of("training")
    summary = study_page.of("summary").partition("Losses")[0]
    assert "offload" not in summary and "7.00 ms" not in summary
    (line,) = (x for x in study_page.lines("table-training-times") if "offload" in x["Workload"])
    assert line["MFU%"].startswith("–") and line["of best matmul%"].startswith("–")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("summary", "predicted with a typical error of 30 % (2 checks)"),
    ],
)
def test_what_the_study_says(study_page: Page, section: str, said: str) -> None:
    assert said in study_page.of(section)


PLAIN, ON_CPU = "gpt2-nano-plain/torch-cpu/fp32", "gpt2-nano-plain/cpu-x/torch-cpu"


def test_the_papers_energy_is_compared_with_the_same_training_and_scope_only(
    tmp_path: Path,
) -> None:
    whisper = partial(of_the_paper, "whisper", "medium", 4)
    own = [
        whisper(joules=111.0),
        whisper(joules=222.0, trainer="plain", workload="whisper-medium-plain"),
        whisper(joules=333.0, scenario="offload", parameters={"zero_stage": 3}),
        whisper(joules=444.0, precision="bf16"),
    ]
    found = load(make(tmp_path, own, devices=(H200 | {"id": "rtx-4090"}, CPU)))
    table = published.table5(found)
    (line,) = [[value.text for value in row] for row in table.rows if row[1].text == "108.58"]
    measured = "111.0 J by nvml-counter, counter (torch-cuda · hf · fp32; 30 s clips, 32 tokens)"
    assert line[6] == f"{measured} [here: desk]"
    assert table.notes[-1].startswith("The paper tells neither the tokens of a sequence nor")
    assert table.notes[-1] == published.table3(found).notes[-1]
    assert table.notes[-1] not in published.table4(found).notes  # nothing of ours is shown there


def test_the_papers_configurations_stand_beside_what_is_like_them(tmp_path: Path) -> None:
    large, xl = partial(of_the_paper, "gpt2", "large", 16), partial(of_the_paper, "gpt2", "xl", 16)
    skipped = of_the_paper("whisper", "large", 32, device="m2-max-38", backend="torch-mps")
    skipped = without_result(skipped, "skipped", "predicted 217 GiB, the device has 48 GiB")
    own = [
        large(),
        large(workload="gpt2-lora", parameters={"lora_rank": 8, "seq_len": 96}),
        large(trainer="plain", workload="gpt2-large-plain"),
        large(scenario="offload", workload="gpt2-large-offload"),
        xl(precision="bf16"),
        xl(scenario="offload", parameters={"zero_stage": 3}),
        skipped,
        of_the_paper("gpt2", "large", 8, device="rtx-a6000", trainer="plain"),
        of_the_paper("gpt2", "large", 8, device="rtx-a6000", workload="gpt2-large-hf"),
    ]
    for made in (*own[4:6], skipped):
        made["scenario"] |= {"derived": "offload"}
    names = ("rtx-4090", "rtx-a6000", "m2-max-38")
    devices = [CPU, *(H200 | {"id": name, "registry_id": name} for name in names)]
    results = load(make(tmp_path, own, devices=devices))
    table = published.table3(results)
    heads = [column.head.partition(":")[0] for column in table.columns]
    derived, measured = heads.index("derived here"), heads.index("measured")
    rows = {}
    for line in table.rows:
        key = (line[0].text, line[2].text, line[4].text.split(",")[0])
        texts = (" ".join(line[index].text.split()) for index in (derived, measured))
        rows[key] = (*texts, line[measured].reason)

    assert rows["1", "GPT2-large", "NVIDIA GeForce RTX 4090"][:2] == (
        "1 fits (fp32; 128 tokens) [here: desk]",
        "400 ms (torch-cuda · hf · fp32; 128 tokens) [here: desk]",
    )
    told = rows["2", "GPT2-XL", "NVIDIA GeForce RTX 4090"]
    assert told[0].startswith("2 offload (") and "offload stage 3" in told[1]
    assert told[1].count("400 ms") == 1
    bf16 = "400 ms (torch-cuda · hf · bf16; 128 tokens) [here: desk]"
    assert rows["3", "GPT2-XL", "NVIDIA GeForce RTX 4090"][1] == bf16
    assert rows["3", "Whisper-large", "Apple M2 Max"] == (
        "2 offload (fp32; 30 s clips, 32 tokens) [here: desk]",
        "–",
        "skipped: predicted 217 GiB, the device has 48 GiB",
    )
    which = {(row[0].text, row[1].text): row for row in paper.devices(results).rows}
    shown = {name: [value.text for value in row[2:6]] for name, row in which.items()}
    assert shown["GPT2-large", "NVIDIA GeForce RTX 4090"] == ["torch-cuda", "fits", "40.0", "25.0"]
    assert shown["GPT2-large", "Apple M2 Ultra, 76 GPU cores"] == ["mlx", "fits", "2.95", "0.447"]
    bold = [
        name for name, row in which.items() if "best" in row[4].mark and name[0] == "GPT2-large"
    ]
    assert bold == [("GPT2-large", "NVIDIA GeForce RTX 4090")]
    printed = which["Whisper-medium", "NVIDIA GeForce RTX 4090"][6]
    assert (printed.text, printed.mark) == ("27.1", "computed best")
    passes = [" ".join(line[5].text.split()) for line in published.table4(results).rows]
    assert [said for said in passes if said != "–"] == ["400 ms (128 tokens) [here: desk]"]


def test_the_assumed_host_is_that_of_an_nvidia_gpu_only(tmp_path: Path) -> None:
    joules = {"nvml-counter": 20.0, "nvml-power": 21.0}
    joules |= {"apple-gpu": 4.0, "apple-soc": 5.0, "another-gpu": 6.0}
    results = make(tmp_path, [metered(training(0.1), joules)], last=aggregate)
    rows = {row["name"]: row for row in table(results, "energy")}
    assert {name for name in rows if rows[name]["assumed_host_w"]} == {"nvml-counter", "nvml-power"}
    with_host = {name: row["energy_per_step_plus_assumed_host_j"] for name, row in rows.items()}
    assert with_host["nvml-counter"] == pytest.approx(27.0)
    assert {with_host[name] for name in ("apple-gpu", "apple-soc", "another-gpu")} == {None}


def test_what_is_offloaded_is_compared_like_with_like(tmp_path: Path) -> None:
    """On a GPU with what was to stay on it; on a CPU with nothing, in memory and in energy."""
    place = {"scenario": "offload", "parameters": {"zero_stage": 2}}
    check = flagged(training(0.01, workload="check", **place), offload_on_cpu="one memory")
    gpu = training(0.02, workload="away", **GPU, **place)
    for made, weights in ((check, 500_000), (gpu, 600_000)):
        parts = {"offloaded_parts_bytes": {"weights": weights}}
        made["scenario"] |= {"applied": "offload", "derived": "offload"} | parts
        peak = {"device_peak_bytes": 590_000, "device_peak_means": "all tensors"}
        made["points"][0]["memory"] |= peak
    plain = training(0.01, workload="kept")
    for made, joules in ((check, 20.0), (gpu, 30.0), (plain, 40.0)):
        metered(made, {"nvml-counter": joules})
    said = render(make(tmp_path, [check, gpu, plain], devices=(H200, CPU)), drawn=())

    def row(name: str, workload: str) -> dict[str, str]:
        (line,) = [line for line in said.lines(name) if line["Workload"].startswith(workload)]
        return line

    memory = row("table-memory", "away")
    assert memory["predictedMiB"] == "0.572" and memory["predicted / measured"] == "1.02"
    assert memory["Verdict"].startswith("within")
    memory = row("table-memory", "check")
    assert memory["predictedMiB"] == "0.477"
    assert memory["predicted / measured"][0] == memory["Verdict"][0] == "–"
    assert row("table-scenarios", "away")["predicted, offloadedMiB"] == "0.572"
    energy = row("table-energy", "check")
    joules = [value for name, value in energy.items() if name.endswith(("per step", "per sample"))]
    assert [value[0] for value in joules] == ["–"] * 4
    energy = row("table-energy", "away")
    assert energy["above idleJ per step"] == "24.50"
    assert energy["with 70 W assumedJ per step"] == "37.00"


WHISPER, OFFLOADED = {"module": "whisper"}, GPU | {"scenario": "offload"}
CPU_PLACE = {"device": "cpu-x", "backend": "torch-cpu"}
TARGET, AGAIN = "target_len", "gradient_checkpointing"
NOISE = "torch-cpu is no faster beyond noise than mlx"
FASTER, LOSSES, OF_HF = "faster than mlx,", "differ by at most", "faster than hf"
DEVICES = "h200 (torch-cuda) is 3.00 × "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "alike", "other", "axes", "twin"),
    [
        ([FASTER, LOSSES], {TARGET: 32}, {TARGET: 448}, WHISPER, MLX),
        ([OF_HF], {"zero_stage": 2}, {"zero_stage": 3}, OFFLOADED, HF),
        ([LOSSES], {"learning_rate": 1e-3}, {"learning_rate": 3e-4}, {}, MLX),
        ([LOSSES], {"lora_alpha": 16}, {"lora_alpha": 32}, {}, MLX),
        ([FASTER], {AGAIN: False}, {AGAIN: True}, {}, MLX),
        ([DEVICES], {AGAIN: False}, {AGAIN: True}, GPU, CPU_PLACE),
    ],
    ids=str,
)
def test_only_equal_work_is_compared(
    tmp_path: Path, said: list[str], alike: Any, other: Any, axes: Any, twin: Any
) -> None:
    """Statements that two cells give, and do not give once they differ in a parameter."""
    rank = {"lora_rank": 8 if "lora_alpha" in alike else 0}
    for folder, theirs in (("alike", alike), ("other", other)):
        own = [
            training(0.010, parameters=alike | rank, **axes),
            training(0.030, (6.0, 5.5, 5.2505), parameters=theirs | rank, **axes | twin),
        ]
        for made in own:
            made["scenario"]["applied"] = axes.get("scenario", "fits")
        findings = found(make(tmp_path / folder, own, devices=(H200, CPU)))
        assert {part in findings for part in said} == {folder == "alike"}


def found(results: Path) -> str:
    """All findings of the summary."""
    return " ".join(finding.sentence for finding in summary_.findings(load(results)))


@pytest.mark.slow
def test_neither_noise_nor_what_failed_nor_other_data_is_a_difference(tmp_path: Path) -> None:
    same = found(make(tmp_path / "same", [training(0.0100), training(0.010002, **MLX)]))
    assert NOISE in same and "×" not in same
    wrong = training(0.001, **MLX)
    wrong |= {"status": "failed", "reason": "asked for fp32, but the arithmetic was tf32"}
    assert "mlx" not in found(make(tmp_path / "failed", [training(0.010), wrong]))
    others = training(0.02, **MLX)
    others["dataset"]["data_sha256"] = "cd" * 32
    assert "losses" not in found(make(tmp_path / "unequal", [training(0.01), others]))


# -- other machines -------------------------------------------------------------------------------


def test_what_is_not_part_of_the_results_is_said(tmp_path: Path) -> None:
    refused = base_record("bandwidth", "bandwidth") | {"status": "unsupported", "reason": "no way"}
    nothing = {
        "setting": "The experiment has no cell on this host.",
        "ceilings": "No ceilings: no cell is part of these results.",
        "classic": "No MLP, CNN or LSTM is part of these results.",
        "grid": "no whole training and no optimizer sweep is part of the experiment",
        "paper": "No figure: no GPT-2 or Whisper training",
        "why": "Nothing to explain",
    }
    one = {
        "summary": "There is nothing to compare",
        "ceilings": "no memory bandwidth was measured (unsupported: no way)",
        "operations": "no vjp cell is part of these results",
        "why": "Nothing to explain",
    }
    for name, own, expected in (("nothing", [], nothing), ("one", [refused, training(0.01)], one)):
        said = render(make(tmp_path / name, own), drawn=())
        for section, words_ in expected.items():
            assert words_ in said.of(section), section


# -- mistakes -------------------------------------------------------------------------------------


def test_damaged_input_is_one_line(tmp_path: Path) -> None:
    results, template = make(tmp_path, [matmul()]), tmp_path / "report"
    render(results, drawn=())
    shutil.copytree(ROOT / "report", template)
    captions = (template / "captions.yaml").read_text(encoding="utf-8")
    renamed = captions.replace("  cells: >-", "  cells_: >-")
    for path, text, said in (
        (results / "matrix.json", None, "matrix.json: no such file"),
        (results / "matrix.json", "{", "matrix.json: damaged"),
        (results / "matrix.json", "{}", "matrix.json: damaged (no "),
        (results / "tables/points.csv", None, "points.csv: no such file"),
        (results / "tables/cells.csv", "a,b\n1,2\n", "cells.csv: no column source"),
        (template / "page.html.j2", "{% for %}", "page.html.j2: line 1"),
        (template / "captions.yaml", renamed, "captions.yaml: no text tables.cells"),
    ):
        whole = path.read_bytes()
        path.unlink()
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError) as stopped:
            if template in path.parents:
                page.main(writing(results, template))
            draw.main(drawing(results))
        assert said in str(stopped.value) and "\n" not in str(stopped.value)
        path.write_bytes(whole)


# -- words, numbers, drawing ----------------------------------------------------------------------


# -- which cells marks and rows show ---------------------------------------------------------------
