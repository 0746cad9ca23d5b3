"""What the page says of records that are alike, unlike, disturbed, lacking, too many or hostile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import siliconprof
import synthetic_cells as cells
import synthetic_results as made
from siliconprof.analyse import aggregate
from siliconprof.render import tables
from siliconprof.store import record
from synthetic_results import A6000, ULTRA, make, matmul, shown_table, table, training

MLX = {"backend": "mlx"}


def test_the_fastest_setup_of_all_hosts_is_the_answer(tmp_path: Path) -> None:
    own = [training(0.100), training(0.200, **MLX), matmul(), training(0.080, precision="bf16")]
    wrong = training(0.001, precision="bf16", **MLX)
    own += [wrong | {"status": "failed", "reason": "asked for bf16, but the arithmetic was fp32"}]
    server = [training(0.010, host="server", device="h200", backend="torch-cuda")]
    results = make(tmp_path, own, [*server, training(0.050, **ULTRA)])
    page = made.render(results)
    (line,) = shown_table(results, "fastest")
    assert line["place"].endswith("[other host: server]") and "torch-cuda" in line["setup"]
    assert float(line["samples_per_s"]) == pytest.approx(400, rel=0.01)
    assert line["against"].startswith("5.00 × faster than") and "torch-mps" in line["against"]
    assert "5.00 ×" in (results / "summary.txt").read_text(encoding="utf-8")
    here = [said for said in page.hover("all-devices") if "Example CPU" in said]
    assert any("mlx · plain · fp32" in said and "20.0" in said for said in here)
    gaps = [
        line[side] for line in shown_table(results, "gaps") for side in ("slow_name", "fast_name")
    ]
    assert {"torch-cpu · plain · fp32", "server · torch-cuda · plain · fp32"} <= set(gaps)


def test_what_failed_stands_before_what_was_fastest(tmp_path: Path) -> None:
    """In summary and page, where a training of a backend failed; one setup alone is not the fastest."""
    lost = {
        "status": "failed",
        "reason": "soundfile does not load (OSError): pip install soundfile",
    }
    torch = [training(0.1, precision="bf16") | lost, training(0.1, trainer="hf") | lost, matmul()]
    results = make(tmp_path / "lost", [training(0.200, **MLX), *torch])
    page = made.render(results)
    said = f"torch-cpu: 2 of 3 cells failed: {lost['reason']}"
    summary = (results / "summary.txt").read_text(encoding="utf-8")
    assert summary.startswith(f"{said}\ntraining  ")
    text = unescape(page.html)
    assert text.index(said) < text.index('id="fastest"')
    (line,) = shown_table(results, "fastest")
    assert line["setup"] == "mlx · plain · fp32 (the only one)" and not line["against"]
    assert "(the only one)" in summary
    # an operation that failed turns no ranking of trainings round
    results = make(tmp_path / "other", [training(0.200, **MLX), training(0.1), matmul() | lost])
    made.render(results)
    assert (results / "summary.txt").read_text(encoding="utf-8").startswith("training  ")


WORK: tuple[Mapping[str, Any], ...] = (  # sets two trainings apart
    {"parameters": {"target_len": 448}, "module": "whisper"},
    {"trained": 8192},
    {"seed": 1},
    {"samples": 2},
    {"parameters": {"weights": "pretrained"}},
)
SETTINGS = ({"learning_rate": 3e-4}, {"lora_alpha": 32})  # set their losses apart


def test_only_equal_work_is_compared(tmp_path: Path) -> None:
    """Of two trainings that differ in work nothing is said together; losses need equal settings."""
    page = made.render(
        make(tmp_path / "alike", [training(0.010), training(0.030, (6.0, 5.5), **MLX)])
    )
    (gap,) = shown_table(tmp_path / "alike/results", "gaps")
    assert float(gap["ratio"]) == pytest.approx(3, rel=0.01) and float(gap["gap"]) > 19
    (line,) = shown_table(tmp_path / "alike/results", "fastest")
    assert line["against"].startswith("3.00 × faster than mlx")
    assert any("differs from torch-cpu · plain · fp32 by" in said for said in page.hover("losses"))

    unlike = [training(0.03, workload="data", **MLX)]
    unlike[0]["dataset"]["data_sha256"] = "cd" * 32
    for i, apart in enumerate(WORK):
        module = {"module": apart.get("module", "gpt2"), "workload": f"w{i}"}
        unlike += [training(0.01, **module), training(0.03, **MLX, **module | dict(apart))]
    for i, setting in enumerate(SETTINGS):
        other, lora = dict.fromkeys(setting, 0.5), {"trained": 999 + i, "workload": f"s{i}"}
        unlike += [training(0.01, parameters={"lora_rank": 8} | other, **lora)]
        unlike += [training(0.03, parameters={"lora_rank": 8} | setting, **lora, **MLX)]
    results = make(tmp_path / "unlike", unlike)
    said = [text for text in made.render(results).hover("losses") if "differs from" in text]
    assert not [text for text in said if "mlx" in text]
    gaps = [(line["slow_name"], line["fast_name"]) for line in shown_table(results, "gaps")]
    assert all("LoRA" in slow for slow, fast in gaps if ("mlx" in slow) != ("mlx" in fast))
    assert not any(line["against"] for line in shown_table(results, "fastest"))


def test_no_answer_rests_on_what_other_processes_disturbed(tmp_path: Path) -> None:
    """Unless there is no other, and then it is marked; a command that mends it is named."""
    disturbed = made.flagged(training(0.010), contended="2.0 cores by other processes")
    results = make(tmp_path / "one", [disturbed, training(0.020, **MLX)])
    page = made.render(results)
    (line,) = shown_table(results, "fastest")
    assert line["setup"] == "mlx · plain · fp32" and "(disturbed)" in line["against"]
    assert "1 of 2 cells were measured" in page.html
    assert "snakemake --cores 1 report --forcerun" in page.html
    said = [text.endswith("; disturbed by other processes") for text in page.hover("all-devices")]
    assert True in said and False in said
    assert "hollow: disturbed by other processes" in page.markup["all-devices"]
    results = make(tmp_path / "other", [disturbed])
    assert "disturbed" in made.render(results).markup["fastest"]
    assert "(disturbed)" in (results / "summary.txt").read_text(encoding="utf-8")


def test_a_mechanism_check_is_in_no_statement_about_speed(tmp_path: Path) -> None:
    place = {"workload": "gpt2-offload", "scenario": "offload", "parameters": {"zero_stage": 2}}
    offload = made.flagged(training(0.001, **place), offload_on_cpu="one memory")
    offload["scenario"] |= {"applied": "offload"}
    said = "batch 2 in place of 8: the largest power of two that fits"
    fitted = made.flagged(training(0.010), smaller_batch=said)
    results = make(tmp_path, [fitted, training(0.020, **MLX), offload])
    page = made.render(results)
    assert page.html.count(f"gpt2-nano: {said}") == 1  # in its head, which is no doubt
    assert "does not fit a device of this host" in page.markup["flags"]
    for name in ("fastest", "all-devices", "gaps", "why", "paper-choice", "paper-figure-3"):
        for path in (results / "figures").glob(f"{name}*.csv"):
            assert "offload stage" not in path.read_text(encoding="utf-8"), path
    assert "offload" not in (results / "summary.txt").read_text(encoding="utf-8")
    assert any("offload stage 2" in said for said in page.hover("losses"))  # it computes the same
    assert "says nothing about its cost" in page.markup["flags"]


def test_another_first_loss_is_another_training(tmp_path: Path) -> None:
    """The same weights on the same batch: what has another loss is compared with nothing, and said."""
    own = [training(0.010), training(0.020, (6.1, 5.5, 5.25), **MLX)]
    results = make(tmp_path / "other", own)
    page = made.render(results)
    assert not any(line["against"] for line in shown_table(results, "fastest"))
    said = "the first loss is 6.1, on torch-cpu 6 of the same weights and batch"
    assert said in page.markup["flags"]
    own[1]["points"][0]["draws"] = own[0]["points"][0]["draws"] = True
    results = make(tmp_path / "dropout", own)
    made.render(results)
    assert any(line["against"] for line in shown_table(results, "fastest"))


def test_a_loss_that_is_not_finite_is_shown_as_divergence(tmp_path: Path) -> None:
    """A record has None for NaN and infinity; the first one may diverge too, and at once."""
    losses, large = [6.0, 5.5, 5.25, 5.0], {"samples": 8, "workload": "at-once"}
    long = cells.whole_training("wide", 0.01)
    point = long["points"][0]
    for values in (point["loss"], point["curve"]["loss"], point["curve"]["gradient_norm"]):
        values[1:] = [None] * (len(values) - 1)
    own = [training(0.01, [*losses[:2], None, None]), training(0.02, losses, **MLX), long]
    own += [training(0.01, [None] * 4, **large), training(0.01, [None] * 4, **large | MLX)]
    results = make(tmp_path, own)
    assert "(1 diverged)" in made.render(results).markup["losses"]
    panels = {line["panel"] for line in shown_table(results, "losses")}
    assert sorted(re.findall(r"gpt2-nano, batch [^(]*\((\d) diverged\)", f"{panels}")) == ["1", "2"]
    ends = {line["line"].partition("(diverged: ")[2] for line in shown_table(results, "losses")}
    assert ends == {"NaN or infinite at step 3)", "NaN or infinite at step 1)", ""}
    results = make(tmp_path / "alone", [training(0.01, [None] * 4)])
    assert "It needs a training" in made.render(results).of("beyond")


def test_no_cell_came_to_be_measured(tmp_path: Path) -> None:
    statuses = ("oom", "failed", "timeout", "unsupported", "skipped")
    own = []
    for i, one in enumerate(cells.everything()):
        status, lost = statuses[i % 5], cells.named(one, f"lost-{i}-{one['cell']['module']}")
        own.append(made.without_result(lost, status, f"{status}, alas"))
    for folder, given, said in (("lost", own, "0 of 8 cells"), ("none", [], "0 of 0 cells")):
        results = make(tmp_path / folder, given)
        page = made.render(results)
        assert f"{said} measured" in page.html
        drawn = {name for name, block in page.markup.items() if "<svg" in block}
        assert all(name.startswith(("paper-", "networks")) for name in drawn)  # printed values
        for needed in ("fastest", "losses", "roofline", "bandwidth"):
            assert re.search(rf'<p class="note" id="{needed}"><b>[^<]*</b> It needs ', page.html)
        summary = (results / "summary.txt").read_text(encoding="utf-8")
        why = "torch-cpu: 6 of 8 cells failed: oom, alas (and 2 other reasons)\n"
        assert summary == (why if given else "")
    lines = shown_table(tmp_path / "lost/results", "every-cell")
    assert {line["remarks"] for line in lines} == {f"{status}, alas" for status in statuses}


def test_records_that_are_used_in_nothing_are_listed(tmp_path: Path) -> None:
    results, paths = make(tmp_path, [training(0.01)]), []
    for host, text in (("desk", "{}"), ("far", "{")):
        path = results / f"records/{host}/cpu-x/torch-cpu/old/auto/fp32.json"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        paths.append(path.as_posix())
    aggregate.main(matrix=results / "matrix.json")
    assert "1 of 1 cell measured, 1 record could not be read" in made.render(results).html
    summary = (results / "summary.txt").read_text(encoding="utf-8")
    assert "1 record could not be read: " in summary and paths[1] in summary.replace("\n  ", "")
    (outside,), (unreadable,) = table(results, "outside"), table(results, "unreadable")
    assert outside == {"record": paths[0], "note": "not in this experiment"}
    assert unreadable["record"] == paths[1] and "damaged record: " in unreadable["error"]


@pytest.mark.slow
def test_forty_devices_over_several_hosts(tmp_path: Path) -> None:
    every = []
    for i in range(40):
        host = "desk" if i < 2 else f"host-{i // 2:02}"
        axes = {"host": host, "device": f"gpu-{i:02}", "device_kind": "gpu"}
        axes |= {"backend": ("torch-cuda", "torch-mps", "mlx")[i % 3]}
        every += [training(0.001 * (i + 5), **axes), matmul(**axes), made.kernel_launch(**axes)]
        every += [training(0.002 * (i + 5), precision="bf16", **axes)]
        every += [cells.grid(cells.small_grid(), **axes)]
    here = [made.H200 | {"id": f"gpu-{i:02}", "name": f"Example GPU {i}"} for i in (0, 1)]
    results = make(tmp_path, [training(0.01), *every[:10]], every[10:], devices=here)
    page = made.render(results)
    heights = re.findall(r'<svg viewBox="0 0 \S+ ([\d.]+)"', page.html)
    assert len(heights) > 8 and max(map(float, heights)) < 72 * 20
    assert re.search(r"Drawn are \d+ of \d+ rows; all are in \S+/grid-throughput\.csv\.", page.html)
    # A long table is cut on the page and whole in its file.
    assert (
        len(page.rows("every-cell")) == tables.MOST_ROWS < len(shown_table(results, "every-cell"))
    )
    assert re.search(r"200 of 201 rows; all are in [^<]*figures/every-cell\.csv", page.html)


def test_the_papers_exhibits_compare_what_is_like_theirs(tmp_path: Path) -> None:
    """An RTX A6000 and an M2 Ultra of other hosts, with known times and energies."""
    plain = ULTRA | {"trainer": "plain", "workload": "gpt2-large-plain-8"}
    foreign = [
        made.of_the_paper("whisper", "medium", 4, joules=200.0, **A6000, step_s=0.4),
        made.of_the_paper("whisper", "medium", 4, **ULTRA, step_s=1.2),
        made.of_the_paper("gpt2", "large", 8, **plain | MLX, step_s=3.0),
        made.of_the_paper("gpt2", "large", 8, **plain, step_s=4.5),
    ]
    results = make(tmp_path, [training(0.010)], foreign)
    made.render(results)
    lines = [line for line in shown_table(results, "paper-figure-3") if "whis" in line["model"]]
    forward = [
        float(line["forward"]) for line in lines
    ]  # 0.3 of a split step, for one of 4 samples
    assert forward == pytest.approx([102 * 0.3, 306 * 0.3], rel=0.01)
    times = [float(line["times"] or 0) for line in shown_table(results, "paper-table-4")]
    for ratio in (4.5 / 3.0, 3.239 / 2.710):  # measured, and printed
        assert min(abs(time - ratio) for time in times) < 0.01
    joules = [line["energy_per_step_j"] for line in shown_table(results, "paper-table-5")]
    assert {"200.0", "212.39"} <= set(joules)


def test_what_was_measured_again_is_shown_over_time(tmp_path: Path) -> None:
    once = made.render(make(tmp_path / "once", [training(0.1), matmul()]))
    assert "history" not in once.markup and "history" in once.ids  # says what it would need
    old = training(0.2) | {"started_at": "2026-03-01T12:00:00+00:00"}
    new = training(0.1) | {"started_at": "2026-03-02T12:00:00+00:00"}
    record.write(old, None, tmp_path / "twice/results/history")
    results = make(tmp_path / "twice", [new, matmul()])
    first_s, second_s = siliconprof.load(results).history["step_s"]
    assert first_s == pytest.approx(2 * second_s)
    said = [text for text in made.render(results).hover("history") if "days" in text]
    assert ["200" in text or "100" in text for text in said] == [True] * 2
