"""The training study through the front door: what is trained is what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Checkout, own_project, rounding
from siliconprof.stats import statistics
from siliconprof.store.cell import PRECISIONS

pytestmark = pytest.mark.slow

# Ten steps: two to warm up, four split, four whole.
TEN_STEPS = QUICK | {"warmup_iterations": 2, "iterations": 4, "max_iterations": 4}
WORDS = {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 100_000}}
NANO = {"module": "gpt2", "size": "nano", "batch_size": 4, "seq_len": 32, "dataset": "words"}
FP32, IN_TORCH = {"precisions": ["fp32"]}, {"backends": ["torch-cpu"]}
PLAIN, HF = NANO | {"trainer": "plain"}, NANO | IN_TORCH | {"trainer": "hf"}
LARGE = PLAIN | FP32 | IN_TORCH | {"batch_size": 16, "seq_len": 128}
LONG = {"timing": TEN_STEPS | {"warmup_iterations": 150}}
OVERRUNS = {"timing": TEN_STEPS | {"iterations": 6, "max_iterations": 9, "budget_s": 1e-6}}
COMMIT = "5" * 40
# The longest sums of nano on these data are over its vocabulary of 300.
ONCE, TEN_TIMES = rounding(300), rounding(300, steps=10)
LEARNS = PLAIN | FP32 | LONG | {"learning_rate": 0.003}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """(a model of nano's size, a folder with `model`, as save_pretrained lays it out, and `hf`).

    The latter is the hub's cache in its own layout, with that model.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    sizes = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 2}
    size = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    folder, model = tmp_path_factory.mktemp("given"), GPT2LMHeadModel(size)
    model.save_pretrained(folder / "model")
    repository = folder / "hf" / "hub" / "models--maker--nano"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    model.save_pretrained(repository / "snapshots" / COMMIT)
    return model, folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, given: tuple[Any, Path]) -> Checkout:
    """GPT-2 nano with and without LoRA, both trainers, both frameworks, every precision.

    Some learn for longer, and some begin with weights from a file.
    """
    _, folder = given
    pretrained = {"weights": "pretrained", "weights_path": str(folder / "model")}
    entry = PLAIN | FP32 | pretrained | {"vocab_size": 300}
    hub = entry | {"weights_path": "maker/nano", "backends": ["torch-cpu"]}
    copy = own_project(tmp_path_factory.mktemp("study"))
    copy.environment |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    copy.configure(
        cpu_threads=1,  # two would wait for each other wherever tests share the cores
        timing=TEN_STEPS,
        datasets=WORDS,
        precisions=["fp32", "amp-bf16"],
        workloads={
            "full-plain": PLAIN | {"precisions": [*PRECISIONS]},
            "full-hf": HF | {"precisions": ["fp32", "amp-fp16", "amp-bf16"]},
            "lora-plain": PLAIN | {"lora_rank": 4},
            "lora-hf": HF | FP32 | {"lora_rank": 4},
            "checkpointed-plain": PLAIN | {"gradient_checkpointing": True},
            "checkpointed-hf": HF | FP32 | {"gradient_checkpointing": True},
            "compiled-hf": HF | FP32 | {"compile": True},
            "math": PLAIN | FP32 | {"attention": "math"},
            "efficient": PLAIN | FP32 | IN_TORCH | {"attention": "efficient"},
            "fused": PLAIN | FP32 | {"adamw": "fused"},
            "foreach-hf": HF | FP32 | {"adamw": "foreach", "probes": []},
            "retained": LARGE | {"allocator": "retain"},
            "not-retained": LARGE,
            "overruns-plain": PLAIN | FP32 | OVERRUNS | {"backends": ["mlx"]},
            "overruns-hf": HF | FP32 | OVERRUNS,
            "learns": LEARNS,
            "lora-learns": LEARNS | {"lora_rank": 4},
            "given": entry,
            "given-wrong": entry | {"size": "tiny", "backends": ["mlx"]},
            "given-absent": entry | {"weights_path": str(folder / "nowhere"), "backends": ["mlx"]},
            "given-hub": hub,
            "given-nobody": hub | {"weights_path": "maker/nothing"},
        },
    )
    copy.snakemake("results/tables/cells.csv")
    return copy


def found(study: Checkout) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(workload, backend, precision) -> record."""
    return {
        (r["cell"]["workload"], r["cell"]["backend"], r["cell"]["precision"]): r
        for r in study.records().values()
    }


def losses(record: dict[str, Any]) -> list[float]:
    """The losses of the ten steps that are timed one by one."""
    assert record["status"] == "ok", record["reason"]
    return record["points"][0]["loss"][:10]


def test_a_training_that_takes_ten_budgets_ends_with_fewer_steps_and_says_so(
    study: Checkout,
) -> None:
    """Two of each kind, and beside them those in which operators are timed."""
    records = {name: r for (name, *_), r in found(study).items() if name.startswith("overruns")}
    assert len(records) == 2
    for record in records.values():
        (point,) = record["points"]
        assert record["status"] == "ok" and point["stopped_by"] == "overrun"
        assert len(point["times"]["whole_step_s"]) == len(point["times"]["step_s"]) == 2
        assert not point["times"]["unsynchronised_step_s"]
        assert point["operators"]["reason"] is None
        assert {len(row["seconds"]) for row in point["operators"]["rows"]} == {1}
        (flag,) = (flag for flag in record["flags"] if flag["code"] == "fewer_repeats")
        assert flag["detail"].startswith("1 of 1 points: ended after 10 times its budget")


def test_trainers_and_frameworks_give_the_same_losses_over_ten_steps(study: Checkout) -> None:
    records = found(study)
    for kind in ("full", "lora"):
        first = losses(records[f"{kind}-plain", "torch-cpu", "fp32"])
        assert len(first) == 10
        assert len(set(first)) == 10
        for other in ((f"{kind}-hf", "torch-cpu"), (f"{kind}-plain", "mlx")):
            assert losses(records[*other, "fp32"]) == pytest.approx(first, rel=TEN_TIMES), other
        amp = losses(records[f"{kind}-plain", "torch-cpu", "amp-bf16"])
        assert amp == pytest.approx(first, rel=5e-3)
        assert amp != pytest.approx(first, rel=1e-6)  # it is another arithmetic
    for precision in ("fp32", "amp-bf16"):  # computed again, and not otherwise
        for backend in ("torch-cpu", "mlx"):
            whole = records["full-plain", backend, precision]
            again = records["checkpointed-plain", backend, precision]
            assert losses(again) == pytest.approx(losses(whole), rel=1e-6), (backend, precision)
    whole = records["full-hf", "torch-cpu", "fp32"]
    again = records["checkpointed-hf", "torch-cpu", "fp32"]
    assert losses(again) == pytest.approx(losses(whole), rel=1e-6)
    full, lora = (records[f"{k}-plain", "torch-cpu", "fp32"] for k in ("full", "lora"))
    assert losses(full)[0] == pytest.approx(losses(lora)[0], rel=ONCE)  # B begins as 0
    assert losses(full)[-1] != pytest.approx(losses(lora)[-1], rel=TEN_TIMES)


def test_a_step_runs_by_the_kernels_that_are_asked_for_and_learns_the_same(study: Checkout) -> None:
    records = found(study)
    first = losses(records["full-plain", "torch-cpu", "fp32"])
    flash = "_scaled_dot_product_flash_attention_for_cpu"
    asked = {
        "math": {"attention": "math", "adamw": "for-loop"},
        "fused": {"attention": flash, "adamw": "fused"},
        "foreach-hf": {"attention": flash, "adamw": "foreach"},
    }
    for workload, kernels in asked.items():
        record = records[workload, "torch-cpu", "fp32"]
        assert record["method"]["kernels"] == kernels
        assert losses(record) == pytest.approx(first, rel=TEN_TIMES)
    refused = {
        ("compiled-hf", "torch-cpu"): "compile: trainer hf runs eager steps; use trainer plain",
        ("efficient", "torch-cpu"): "attention: efficient is not to be had, torch-cpu has a choice "
        "of math, flash",
        ("math", "mlx"): "attention: math is not to be had, mlx has one, which it chooses",
        ("fused", "mlx"): "adamw: fused is not to be had, mlx has one, which it chooses",
    }
    for (workload, backend), reason in refused.items():
        record = records[workload, backend, "fp32"]
        assert (record["status"], record["reason"]) == ("unsupported", reason)


@pytest.mark.campaign
def test_a_compiled_step_learns_the_same(tmp_path: Path) -> None:
    """Both compile with g++, MLX once for each kernel, which takes a minute."""
    project = own_project(tmp_path)
    workloads = {"eager": PLAIN | FP32 | IN_TORCH, "compiled": PLAIN | FP32 | {"compile": True}}
    project.configure(timing=TEN_STEPS | {"time_limit_s": 600}, datasets=WORDS, workloads=workloads)
    project.snakemake("measured")
    records = found(project)
    first = losses(records["eager", "torch-cpu", "fp32"])
    for backend in ("mlx", "torch-cpu"):
        compiled = records["compiled", backend, "fp32"]
        assert losses(compiled) == pytest.approx(first, rel=TEN_TIMES)
        (point,) = compiled["points"]
        kinds = ["compile"] * 2 + ["warm-up"] * 2 + ["whole"] * 4 + ["unsynchronised"] * 4
        assert point["steps"]["kind"] == kinds
        assert point["quantities"]["recompilations"] == point["quantities"]["graph_breaks"] == 0
        assert point["quantities"]["compile_s"] > 10 * point["times"]["whole_step_s"][0]
        assert compiled["accounting"]["timed_s"] < point["quantities"]["compile_s"]


def test_every_precision_is_honoured_proved_or_refused(study: Checkout) -> None:
    for (workload, backend, precision), record in found(study).items():
        if record["status"] == "ok":
            assert record["precision"]["effective"] == precision
        elif not workload.startswith("given"):
            assert record["status"] == "unsupported", (workload, backend, precision, record)
            assert record["reason"]
    status = {key: record["status"] for key, record in found(study).items()}
    for backend in ("torch-cpu", "mlx"):
        for precision in ("fp32", "amp-bf16", "bf16", "fp16"):
            assert status["full-plain", backend, precision] == "ok"
        assert status["full-plain", backend, "tf32"] == "unsupported"
        checks = found(study)["full-plain", backend, "fp32"]["checks"]
        counts = backend == "torch-cpu"
        assert checks["work"]["verdict"] == ("ok" if counts else "not checked")
    assert status["full-plain", "torch-cpu", "amp-fp16"] == "ok"
    assert status["full-plain", "mlx", "amp-fp16"] == "unsupported"
    assert status["full-hf", "torch-cpu", "amp-fp16"] == "unsupported"  # silently fp32, if run
    evidence = {
        precision: found(study)["full-plain", "mlx", precision]["precision"]["evidence"]
        for precision in ("amp-bf16", "bf16")
    }
    assert [e["activations"] for e in evidence.values()] == ["bfloat16", "bfloat16"]
    assert [e["master_weights"] for e in evidence.values()] == ["float32", "bfloat16"]


def test_lora_trains_the_adapters_and_nothing_else(study: Checkout) -> None:
    """Rank 4 on c_attn of two layers of width 64: 2 x 4 x (64 + 192)."""
    for key, record in found(study).items():
        if record["status"] != "ok":
            continue
        params = record["points"][0]["params"]
        expected = 2048 if key[0].startswith("lora") else params["n_parameters"]
        assert params["n_trainable_parameters"] == expected, key
        assert record["precision"]["evidence"]["trained_parameters"] == expected, key
        assert record["checks"]["trained"]["verdict"] == "ok", key


def test_steps_samples_and_faults_lie_on_one_clock(study: Checkout) -> None:
    for key, record in found(study).items():
        if record["status"] != "ok" or key[0].startswith("overruns"):
            continue
        (point,) = record["points"]
        steps = point["steps"]
        warmup = record["cell"]["timing"]["warmup_iterations"]
        told = [kind for kind in steps["kind"] if kind != "operators"]
        begins, pairs = ["warm-up"] * warmup, ["split", "whole"] * 4
        assert told == [*begins, *pairs, *["unsynchronised"] * 4], key
        # After one pair of steps a step is described, after three one is timed.
        untold = record["cell"]["backend"] == "mlx" and key[0].startswith("checkpointed")
        assert steps["kind"].count("operators") == (1 if untold else 2), key
        assert steps["started_s"] == sorted(steps["started_s"])
        assert all(len(values) == len(point["loss"]) for values in steps.values())
        if record["samples"]:
            begin, end = record["samples"][0]["t_s"], record["accounting"]["measure_s"] + 1
            assert begin <= steps["started_s"][0] and steps["started_s"][-1] <= end, key
    assert found(study)["foreach-hf", "torch-cpu", "fp32"]["samples"] == []


def test_faults_that_are_the_allocator_s_habit_can_be_told_apart(study: Checkout) -> None:
    """With freed memory kept in the process, a training of the same size faults far less.

    A typical step with, the mean of all without: the first steps fetch memory either way, and glibc
    may come to keep it by itself after some of them.
    """

    def faults(workload: str) -> list[int]:
        return found(study)[workload, "torch-cpu", "fp32"]["points"][0]["steps"]["minor_faults"]

    assert losses(found(study)["retained", "torch-cpu", "fp32"])
    given_back = faults("not-retained")
    assert sum(given_back) > 1000
    assert statistics.median(faults("retained")) < sum(given_back) / len(given_back) / 10


def test_loss_falls_on_the_built_in_text(study: Checkout) -> None:
    """With every weight by much; adapters of a frozen random model can only do a little."""
    for workload, least in (("learns", 0.5), ("lora-learns", 0.03)):
        for backend in ("torch-cpu", "mlx"):
            record = found(study)[workload, backend, "fp32"]
            assert record["status"] == "ok", record["reason"]
            series = record["points"][0]["loss"]
            fallen = statistics.median(series[:5]) - statistics.median(series[-10:])
            assert fallen > least, (workload, backend, fallen)


def test_pretrained_weights_are_read_from_a_folder_and_the_hub_s_cache(
    study: Checkout, given: tuple[Any, Path]
) -> None:
    """The first loss is that of the model it came from."""
    import torch
    from siliconprof.datasets import training_data

    records, (model, folder) = found(study), given
    data = training_data.load(study.path / "results/data/words")
    tokens = torch.from_numpy(next(data.batches(4, 32, 0))).long()
    with torch.no_grad():
        expected = float(model.eval()(input_ids=tokens, labels=tokens).loss)
    for backend in ("torch-cpu", "mlx"):
        read = records["given", backend, "fp32"]
        assert losses(read)[0] == pytest.approx(expected, rel=ONCE)
        assert read["method"]["weights"]["weights_path"] == str(folder / "model")
    wrong = records["given-wrong", "mlx", "fp32"]
    assert wrong["status"] == "failed"
    assert (
        "another model by its config.json: n_head 2, not 4; n_embd 64, not 128" in wrong["reason"]
    )
    absent = records["given-absent", "mlx", "fp32"]
    assert "neither a folder" in absent["reason"] and "\n" not in absent["reason"]
    hub, unknown = (records[f"given-{name}", "torch-cpu", "fp32"] for name in ("hub", "nobody"))
    assert hub["method"]["weights"]["weights_revision"] == COMMIT
    assert losses(hub)[0] == pytest.approx(expected, rel=ONCE)
    assert "weights_path 'maker/nothing': neither" in unknown["reason"]
