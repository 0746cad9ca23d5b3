"""Causal language models of any architecture: equal in torch and MLX, and known before they are built."""

from __future__ import annotations

import gc
import json
import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    ROOT,
    SMALL_ARRAYS,
    NoClock,
    cpu_cell,
    defaults,
    opened,
    own_project,
)
from models import SMOLLM2, counted_flops, kept_in_torch, tokens
from siliconprof import formatting, plugins
from siliconprof.cells import config, matrix, model_file
from siliconprof.datasets.model_facts import ModelFacts
from siliconprof.errors import UserError
from siliconprof.memory import footprint
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store import temporary
from siliconprof.workloads import _causal_lm_torch

SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
HEADS = {"head_dim": 16}
OWN: dict[str, dict[str, Any]] = {  # model_type -> what it has beside `SMALL`
    "llama": {"tie_word_embeddings": True},
    "qwen3": HEADS,
    "mistral": HEADS,
    "qwen2": {},
    "gemma3_text": HEADS | {"num_hidden_layers": 6},
    "phi3": {},
    "olmo2": {},
    "smollm3": {},
    "granite": {},
    "starcoder2": {},
    "glm4": HEADS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {"intermediate_size": 256},
}
FAST = ("llama", "qwen3")
QUICK_CASES = [("llama", 0), ("llama", 4), ("qwen3", 0)]  # type, rank of LoRA


def in_campaigns(kinds: Iterable[str]) -> list[Any]:
    """All but the fast ones are cases of the campaigns."""
    return [
        kind if kind in FAST else pytest.param(kind, marks=pytest.mark.campaign) for kind in kinds
    ]


TYPES = in_campaigns(OWN)
DENSE = in_campaigns(kind for kind in OWN if "num_local_experts" not in OWN[kind])
SHAPE = {"batch_size": 4, "seq_len": 32}


def look(model: str | None, inline: dict[str, Any] | None = None, **lora: Any) -> ModelFacts:
    """What is found of a hub id, a folder, or a config of the experiment."""
    spec = {"model": model, "config": inline, "lora_rank": 0, "lora_targets": None} | lora
    return model_file.look_at_model(spec)


@cache
def facts(kind: str, lora_rank: int = 0) -> ModelFacts:
    """What is known of a small model of a type."""
    return look(None, SMALL | OWN[kind] | {"model_type": kind}, lora_rank=lora_rank)


def causal_lm(kind: str, folder: Path, **own: Any) -> Any:
    """A small model of a type as a cell has it; its file is in a folder."""
    path = folder / f"{kind}-{own.get('lora_rank', 0)}.json"
    known = asdict(facts(kind, own.get("lora_rank", 0)))
    temporary.write(path, json.dumps(known))
    chosen = {"config": {"model_type": kind}, "dataset_vocab_size": 512, "model_file": str(path)}
    return plugins.load("workloads", "causal_lm")(defaults("causal_lm", **chosen, **SHAPE, **own))


def trained(backend: str, workload: Any) -> tuple[list[float], int]:
    """(the losses of four whole steps, the parameters that they train)."""
    stepper = opened(backend).stepper(workload, 5)
    losses = [stepper.step(tokens(seed, 4), NoClock())() for seed in range(4)]
    return losses, stepper.inference.dtypes(tokens(9, 4))["trained_parameters"]


@pytest.mark.parametrize(
    ("kind", "lora_rank"),
    [
        pytest.param(kind, rank, marks=[] if (kind, rank) in QUICK_CASES else pytest.mark.campaign)
        for kind in OWN
        for rank in (0, 4)
    ],
)
def test_a_model_is_the_same_in_torch_and_mlx(kind: str, lora_rank: int, tmp_path: Path) -> None:
    workload = causal_lm(kind, tmp_path, lora_rank=lora_rank)
    expected, in_torch = trained("torch-cpu", workload)
    losses, in_mlx = trained("mlx", workload)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert len({*losses}) == 4
    assert in_torch == in_mlx == workload.weights.n_trainable_parameters()
    assert lora_rank or in_torch == workload.weights.n_parameters()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "bf16"])
def test_what_torch_keeps_is_counted_without_memory(
    kind: str, precision: str, tmp_path: Path
) -> None:
    """By fake tensors, at a shape that was not looked at, against what a forward pass really left."""
    workload = causal_lm(kind, tmp_path)
    backend = opened("torch-cpu", precision)
    estimator = footprint.MemoryEstimator(backend.features.memory_profile, precision)
    predicted = sum(estimator.saved_bytes(stage) for stage in workload.stages(estimator))
    within = 0.25 if workload.facts.n_experts else 0.01  # of a mixture by formula
    assert predicted == pytest.approx(kept_in_torch(backend, workload, tokens(3, 4)), rel=within)


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_the_peak_of_a_step_is_predicted(kind: str, backend: str, tmp_path: Path) -> None:
    """Within 10 % of what the framework counts, of dense models."""
    workload = causal_lm(kind, tmp_path)
    opened_backend = opened(backend)
    opened_backend.clock.synchronize()  # what other tests left running holds memory until it ends
    gc.collect()
    before = opened_backend.memory.allocated_bytes() or 0  # of other tests
    stepper = opened_backend.stepper(workload, 0)

    def step() -> Any:
        return stepper.step(tokens(3, 4), NoClock())()

    step()
    opened_backend.memory.reset_peak()
    step()
    peak, _ = opened_backend.memory.step_peak_bytes(step, stepper.persistent_arrays())
    predicted = footprint.total(workload.memory_bytes("fp32", backend))
    assert predicted == pytest.approx(peak - before, rel=0.1)


def test_operations_of_a_step_are_those_that_torch_counts(tmp_path: Path) -> None:
    """Of products; norms are 0.1 %."""
    for kind in FAST:
        workload = causal_lm(kind, tmp_path)
        flops, source = workload.flops_per_step()
        assert flops == pytest.approx(counted_flops(workload, tokens(3, 4)), rel=0.01)
        assert source.startswith("6N + 12 n_layer n_head head_dim seq_len")


QWEN3 = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128}
QWEN3 |= {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN3 |= {"vocab_size": 151936, "tie_word_embeddings": True}
LLAMA1B = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192}
LLAMA1B |= {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA1B |= {"vocab_size": 128256, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("of_model", "n_parameters"),
    [(SMOLLM2, 134_515_008), (QWEN3, 596_049_920), (LLAMA1B, 1_235_814_400)],
    ids=["SmolLM2-135M", "Qwen3-0.6B", "Llama-3.2-1B"],
)
@pytest.mark.campaign
def test_large_models_are_known_without_being_built(
    of_model: dict[str, Any], n_parameters: int
) -> None:
    found = look(None, of_model)
    assert found.n_parameters == n_parameters
    assert sum(count * stage.weights for count, stage in found.stages) == n_parameters


def test_gpt2_is_known_without_a_look_at_it() -> None:
    """By arithmetic, what a look at its config finds; the bytes kept are counted elsewhere."""
    entry = {"size": "nano", "lora_rank": 4, "dataset_vocab_size": 512} | SHAPE
    own = plugins.load("workloads", "gpt2")(defaults("gpt2", **entry)).facts
    found = look(None, own.config, lora_rank=4, lora_targets=["c_attn"])
    assert own.config.items() <= found.config.items()
    stages = tuple((count, replace(stage, kept=None)) for count, stage in found.stages)
    assert replace(found, config=own.config, stages=stages) == own


def test_a_feed_forward_is_as_wide_as_its_config_says() -> None:
    """Whatever the type calls it; four times the hidden size where it is not said."""
    opt = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
    opt |= {"model_type": "opt", "word_embed_proj_dim": 64}
    assert look(None, opt | {"ffn_dim": 160}).d_ff == 160
    assert facts("llama").d_ff == 96 and facts("gpt2").d_ff == 256


def test_what_would_fit_is_said_of_what_does_not(tmp_path: Path) -> None:
    """Too little for AdamW's state of all weights, and enough for that of adapters."""
    workload = causal_lm("llama", tmp_path, force=False)
    need = footprint.total(workload.memory_bytes("fp32", "torch-cpu"))
    how = {"trainer": "plain", "device_memory_bytes": need * 9 // 10}
    cell = cpu_cell("torch-cpu", "causal_lm", workload.parameters, **how)
    status, reason = ResolvedCell(cell).refusal() or ("", "")
    assert status == "skipped" and "it would fit with" in reason and "lora_rank: 8" in reason


# -- bad input -----------------------------------------------------------------------------------


def folder_of(path: Path, **content: Any) -> str:
    """A folder with a config.json."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def refused(model: str | None, inline: dict[str, Any] | None = None, **lora: Any) -> str:
    """The one line by which a model is refused."""
    with pytest.raises(UserError) as raised:
        look(model, inline, **lora)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_no_causal_language_model_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model.safetensors.incomplete").touch()
    wrong = refused(str(tmp_path / "empty"))
    assert "no config.json in the folder, found model.safetensors.incomplete" in wrong
    assert "no such folder" in refused(str(tmp_path / "nowhere"))
    gone = refused("nobody/nothing@v1")
    assert "download https://huggingface.co/nobody/nothing/resolve/v1/config.json by hand" in gone
    cases = {
        "half": ({"vocab_size": 3}, "has no model_type"),
        "quantised": ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantised"),
        "seeing": ({"model_type": "gemma3", "vision_config": {"x": 1}}, "a vision model"),
        "text": (
            {"model_type": "bert", "architectures": "BertForMaskedLM"},
            "it is BertForMaskedLM",
        ),
        "states": (
            {"model_type": "mamba", "num_hidden_layers": 1},
            "no decoder that can be trained",
        ),
        "headless": (
            {"model_type": "llama", "num_hidden_layers": 0},
            "no decoder that can be trained",
        ),
        "encoder": ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "no causal"),
        "bare encoder": ({"model_type": "bert"}, "it is an encoder"),
        "both": ({"model_type": "t5", "is_encoder_decoder": True}, "no causal language model"),
        "unknown": ({"model_type": "lama"}, "code that comes with a model"),
    }
    for name, (content, said) in cases.items():
        assert said in refused(folder_of(tmp_path / name, **content)), name
    assert "did you mean 'llama'?" in refused(None, {"model_type": "lama"})
    llama = SMALL | {"model_type": "llama"}
    assert "transformers refuses its config" in refused(None, llama | {"vocab_size": "x"})
    wrong = refused(None, llama, lora_rank=2, lora_targets=["q_prj"])
    assert "no linear layers 'q_prj'" in wrong and "did you mean 'q_proj'?" in wrong


def test_a_config_says_what_is_wrong_with_a_model(tmp_path: Path) -> None:
    """Before anything runs, where it can be known then."""
    entry = {"module": "causal_lm", "trainer": "plain", "batch_size": 1, "dataset": "words"}
    words = {"words": {"source": "builtin", "vocab_size": 300}}

    def mistakes(**own: Any) -> list[str]:
        return config.check({"datasets": words, "workloads": {"mine": entry | own}})

    assert mistakes(config={"model_type": "llama"}) == []
    assert mistakes(model="owner/name@main") == []
    (neither,) = mistakes()
    assert "workloads.mine.model: neither is set" in neither
    (both,) = mistakes(config={"model_type": "llama"}, model="owner/name")
    assert "both are set" in both
    (absent,) = mistakes(model=f"{tmp_path}/nowhere")
    assert "no such folder" in absent


def test_an_architecture_that_mlx_lacks_is_skipped_there_with_the_reason(tmp_path: Path) -> None:
    workload = causal_lm("llama", tmp_path)
    assert workload.supports("mlx", "fp32") is None and workload.supports("torch", "fp32") is None
    name, missing = _causal_lm_torch.in_mlx("biogpt")
    assert name is None and missing is not None and "has no model of type 'biogpt'" in missing
    workload.known = replace(workload.facts, mlx_module=None, mlx_missing=missing)
    assert workload.supports("mlx", "fp32") == missing
    assert workload.supports("torch", "fp32") is None
    longer = causal_lm("llama", tmp_path)
    longer.seq_len = 512
    assert "the model has 256 positions" in str(longer.supports("torch", "fp32"))


def test_pretrained_weights_are_read_in_bf16_and_under_another_shape_refused(
    tmp_path: Path,
) -> None:
    """A folder as the hub has it: config.json, and weights in bf16, which numpy has no type for."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    folder = tmp_path / "mine"
    model = LlamaForCausalLM(LlamaConfig(**SMALL)).to(torch.bfloat16)
    model.save_pretrained(folder)
    path = tmp_path / "mine.json"
    temporary.write(path, json.dumps(asdict(look(str(folder)))))
    own = {"model": str(folder), "weights": "pretrained", "model_file": str(path)}
    own |= {"dataset_vocab_size": 512, **SHAPE}
    workload = plugins.load("workloads", "causal_lm")(defaults("causal_lm", **own))
    batch = {name: torch.from_numpy(value).long() for name, value in tokens(1, 4).items()}
    with torch.no_grad():
        expected = float(model.float()(**batch).loss)
    for backend in ("torch-cpu", "mlx"):
        stepper = opened(backend).stepper(workload, 0)
        assert stepper.inference.evaluate(tokens(1, 4)) == pytest.approx(expected, rel=1e-5)
    assert workload.weights.origin()["weights_path"] == str(folder)
    LlamaForCausalLM(LlamaConfig(**SMALL | {"intermediate_size": 100})).save_pretrained(folder)
    with pytest.raises(UserError, match=r"^model .* has shape \(100, 64\), .* is \(96, 64\)"):
        list(workload.weights.initial(0))


# -- the front door ------------------------------------------------------------------------------


def experiment(**own: Any) -> dict[str, Any]:
    """The default experiment of a model, resolved."""
    return config.resolve(config.read(str(ROOT / "config" / "config.yaml")) | own)


def test_a_model_takes_the_place_of_the_workloads() -> None:
    """Each trainer in the shape of each kind of device, and the operations that explain them."""
    made = experiment(model="Qwen/Qwen3-0.6B@main", lora=8)
    entries = made["workloads"]
    operations = {name for name, entry in entries.items() if entry["module"] != "causal_lm"}
    assert operations == {
        *("matmul-small", "matmul-large", "bandwidth", "bandwidth-gpu", "kernel-launch")
    }
    trained = {name: entries[name] for name in entries if name not in operations}
    assert [*trained] == [
        f"qwen3-0.6b-lora8-{shape}-{trainer}"
        for shape in ("1x128", "8x512")
        for trainer in ("plain", "hf")
    ]
    assert all(entry["lora_rank"] == 8 for entry in trained.values())
    assert trained["qwen3-0.6b-lora8-8x512-hf"]["device_kinds"] == ["gpu"]
    assert len(matrix.model_specs(made)) == 1  # one file tells of them all
    own = experiment(model="Qwen/Qwen3-0.6B", batch=2, seq_len=64)["workloads"]
    assert own["qwen3-0.6b-2x64-plain"]["device_kinds"] == ["cpu", "gpu"]


def test_make_hands_the_model_over() -> None:
    command = ["make", "-n", "report", "MODEL=a b/o'c", "BATCH=2", "SEQ_LEN=64", "LORA=8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    given = shlex.split(done.stdout[done.stdout.index("--config ") :])
    assert given[:5] == ["--config", "model=a b/o'c", "batch=2", "seq_len=64", "lora=8"]


@pytest.mark.campaign
def test_a_report_of_a_model_answers_for_it_alone(tmp_path: Path) -> None:
    """From its folder with a config.json to the page; the same again has nothing to do."""
    own = SMALL | HEADS | {"model_type": "qwen3", "vocab_size": 600}
    model = folder_of(tmp_path / "mine", **own)
    project = own_project(tmp_path / "project")
    default = config.read(str(project.path / "config" / "config.yaml"))
    quick = ["matmul-small", "bandwidth", "kernel-launch"]
    default["workloads"]["bandwidth"] |= SMALL_ARRAYS
    project.configure(
        **default | {"precisions": ["fp32"], "quick": quick, "remeasure_contended_s": 0}
    )
    arguments = ("report", "--config", f"model={model}", "host=desk")
    plan = project.stage("pipeline.cli", "plan", "--config", *arguments[2:]).stdout
    assert "mine-1x128-plain" in plan
    said = project.snakemake(*arguments).stdout
    before, _, after = said.partition(" cells to measure on desk: ")
    assert "mine-1x128: 0.1" in before and " M parameters, " in before and " MiB of " in before
    assert "min" in after.partition("\n")[0]
    told = r"mine-1x128: [\d. ]+ tokens/s, [\d. ]+ h per 100 million tokens, .*it fits: "
    for name in ("summary.txt", "report.html"):
        text = (project.path / "results" / name).read_text(encoding="utf-8")
        told = told if name == "summary.txt" else told.partition(": ")[2]
        assert re.search(told, " ".join(text.replace(formatting.NARROW, " ").split()))
    modules = {record["cell"]["module"] for record in project.records().values()}
    assert modules == {"causal_lm", "matmul", "bandwidth", "kernel_launch"}
    assert "Nothing to be done" in project.snakemake(*arguments, "-n").stdout
