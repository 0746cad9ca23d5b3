"""ZeRO-Offload through DeepSpeed, on a CPU: the same training, elsewhere; and what it may not do.

Cells are measured by the command that the pipeline's rule runs, two at a time, since nothing here
looks at how long they take.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import QUICK, Checkout, codes, own_project, rounding
from siliconprof import plugins
from siliconprof.cells import config, matrix
from siliconprof.hosts import host_file, registry
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.captions import flag_words
from synthetic_results import H200

pytestmark = pytest.mark.slow

TWELVE_STEPS = QUICK | {
    "warmup_iterations": 4,
    "iterations": 4,
    "max_iterations": 4,
    "energy_window_s": 0,
}
TEXT = {"module": "gpt2", "size": "nano", "batch_size": 4, "seq_len": 32, "dataset": "words"}
SPEECH = {"module": "whisper", "size": "nano", "batch_size": 2, "target_len": 24, "dataset": "talk"}
COMMON = {"backends": ["torch-cpu"], "precisions": ["fp32"], "probes": []}
FITS, BOTH = {"scenarios": ["fits"]}, {"scenarios": ["fits", "offload"]}
OFFLOAD = {"scenarios": ["offload"]}
TWELVE_TIMES = rounding(300, steps=12)  # sums over the vocabulary
WORKLOADS = {
    "text-plain": TEXT | BOTH | {"trainer": "plain"},
    "text-plain-3": TEXT | OFFLOAD | {"trainer": "plain", "zero_stage": 3, "precisions": ["bf16"]},
    "text-hf-3": TEXT
    | OFFLOAD
    | {"trainer": "hf", "zero_stage": 3, "precisions": ["fp32", "amp-bf16"]},
    "lora": TEXT | BOTH | {"trainer": "plain", "lora_rank": 4},
    "speech-plain": SPEECH | FITS | {"trainer": "plain"},
    "speech-hf": SPEECH | OFFLOAD | {"trainer": "hf", "zero_stage": 3},
    "unified": TEXT | OFFLOAD | {"trainer": "plain", "backends": ["mlx"]},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A project with data prepared, and extensions in a folder of its own: none is built."""
    copy = own_project(tmp_path_factory.mktemp("offload"))
    copy.environment["TORCH_EXTENSIONS_DIR"] = str(copy.path / "extensions")
    copy.configure(
        timing=TWELVE_STEPS,
        cpu_threads=1,
        datasets={
            "words": {"source": "builtin", "vocab_size": 300, "max_bytes": 100_000},
            "talk": {"kind": "speech", "source": "builtin", "vocab_size": 300, "clip_seconds": 1},
        },
        workloads={name: COMMON | entry for name, entry in WORKLOADS.items()},
    )
    copy.snakemake("results/data/words/dataset.json", "results/data/talk/dataset.json")
    return copy


@pytest.fixture(scope="module")
def cells(project: Checkout) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(workload, scenario, precision) -> cell of every cell on this host's CPU."""
    plan = json.loads(project.stage("pipeline.cli", "plan", "--json").stdout)
    every = [entry["cell"] for entry in plan["cells"] if entry["cell"]["device_kind"] == "cpu"]
    return {(c["workload"], c["scenario"], c["precision"]): c for c in every}


def measure(
    project: Checkout, cell: dict[str, Any], name: str, **environment: str
) -> dict[str, Any]:
    """Measure a cell under a lock of its own and return its record."""
    output = project.path / "own" / f"{name}.json"
    project.stage(
        "measure",
        *("--cell", json.dumps(cell), "--output", str(output)),
        env={"SILICONPROF_LOCK_FILE": str(project.path / f"{name}.lock")} | environment,
    )
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def study(project: Checkout, cells: dict) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(workload, scenario, precision) -> record; two cells at a time."""
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda key: measure(project, cells[key], "-".join(key)), cells)
    return dict(zip(cells, done, strict=True))


def losses(record: dict[str, Any]) -> list[float]:
    """The losses of the first twelve steps of a successful cell."""
    assert record["status"] == "ok", record["reason"]
    (point,) = record["points"]
    assert len(point["loss"]) >= 12
    return point["loss"][:12]


def test_offloaded_training_is_the_same_training(study: dict) -> None:
    """Stage 2 by the plain trainer, 3 by the Trainer, both models, adapters: the plain run's losses."""
    for base, others in {
        "text-plain": ("text-plain", "text-hf-3"),
        "lora": ("lora",),
        "speech-plain": ("speech-hf",),
    }.items():
        expected = losses(study[base, "fits", "fp32"])
        assert len(set(expected)) == 12  # weights do change
        for name in others:
            found = losses(study[name, "offload", "fp32"])
            assert found == pytest.approx(expected, rel=TWELVE_TIMES), name
    assert losses(study["lora", "fits", "fp32"])[-1] != pytest.approx(
        losses(study["text-plain", "fits", "fp32"])[-1], abs=1e-5
    )


def test_mixed_precision_keeps_master_weights_in_fp32(study: dict) -> None:
    """DeepSpeed's bf16 computes in bf16 and updates fp32 weights: amp-bf16, and proved to be."""
    wide = losses(study["text-plain", "fits", "fp32"])
    record = study["text-hf-3", "offload", "amp-bf16"]
    narrow = losses(record)
    assert narrow == pytest.approx(wide, rel=5e-3)
    assert narrow != pytest.approx(wide, rel=1e-6)  # it is another arithmetic
    assert record["precision"]["effective"] == "amp-bf16"
    evidence = record["precision"]["evidence"]
    assert (evidence["master_weights"], evidence["moments"]) == ("float32", "float32")
    assert (evidence["weights"], evidence["activations"]) == ("bfloat16", "bfloat16")
    assert "no autocast" in record["method"]["offload"]["weights"]


def test_a_record_says_how_it_offloads(study: dict) -> None:
    """Library, stage, what moves, which optimizer; on a CPU a mechanism check, and flagged so."""
    for (name, scenario, _), record in study.items():
        if record["status"] != "ok":
            continue
        assert ("offload_on_cpu" in codes(record)) == (scenario == "offload"), name
        assert ("offload" in record["method"]) == (scenario == "offload"), name
        if scenario != "offload":
            continue
        method, evidence = record["method"]["offload"], record["precision"]["evidence"]
        stage = record["cell"]["parameters"]["zero_stage"]
        assert (method["library"], method["zero_stage"]) == ("DeepSpeed", stage)
        assert method["version"][0].isdigit()
        assert ("weights" in method["offloaded"]) == (stage == 3)
        assert {"optimizer states", "gradients"} <= set(method["offloaded"])
        assert method["optimizer"] == "torch.optim.AdamW"  # nothing was built
        assert method["mechanism_check"] is True
        assert evidence["master_weights_on"] == "cpu"
        params = record["points"][0]["params"]
        assert evidence["trained_parameters"] == params["n_trainable_parameters"], name
        assert record["environment"]["backend"]["threads"] == 1  # accelerate leaves them alone
    assert "offload_on_cpu" in flag_words()


def test_what_cannot_offload_says_why(study: dict) -> None:
    """MLX has no DeepSpeed; pure bf16 needs what is not built here."""
    unified = study["unified", "offload", "fp32"]
    assert unified["status"] == "unsupported"
    assert unified["reason"] == plugins.load("backends", "mlx").features.offload
    pure = study["text-plain-3", "offload", "bf16"]
    assert pure["status"] == "unsupported"
    assert "siliconprof.hosts.offload_ops" in pure["reason"]
    for name in plugins.names("backends"):
        backend = plugins.load("backends", name)
        assert (backend.features.offload is None) == name.startswith("torch-c"), name


def test_deepspeed_and_its_adam_count_for_offloaded_cells_only(project: Checkout) -> None:
    """An upgrade or a build reruns what is offloaded, asked for or derived, and no other cell."""
    common = TEXT | {"precisions": ["fp32"], "trainer": "hf"}
    small = {"backends": ["torch-cuda", "torch-cpu"], "memory_budget_gib": 0.001}
    workloads = {
        "asked": common | BOTH | {"backends": ["torch-cpu"]},
        "fitting": common | {"backends": ["torch-cuda"]},
        "derived": common | small,
    }
    words = {"source": "builtin", "vocab_size": 300}
    experiment = config.resolve({"workloads": workloads, "datasets": {"words": words}})
    devices = registry.load(project.path / "config" / "devices.yaml")
    host = host_file.resolve(project.path / "results", "auto", devices)
    gpu = H200 | {"id": "gpu", "memory_bytes": 2**30, "backends": ["torch-cuda"]}
    host |= {"devices": [*host["devices"], gpu], "cpu_adam": "0" * 64}
    planned = matrix.Expansion(experiment, devices, host).cells
    found = {(p.cell.workload, p.cell.device_kind, p.cell.scenario): p for p in planned}
    offloaded = {("asked", "cpu", "offload"), ("derived", "gpu", "auto")}
    others = {("asked", "cpu", "fits"), ("fitting", "gpu", "auto"), ("derived", "cpu", "auto")}
    assert found.keys() == offloaded | others
    for key, one in found.items():
        assert ("deepspeed" in one.environment["packages"]) == (key in offloaded), key
        assert one.environment.get("cpu_adam") == ("0" * 64 if key in offloaded else None), key
        # Told before DeepSpeed is imported, which takes a GPU of the host where there is one.
        told = ResolvedCell(one.cell).environment({}).get("DS_ACCELERATOR")
        assert (told == "cpu") == (one.cell.device_kind == "cpu"), key
        assert {"trainers._offload", "hosts.offload_ops"} <= one.code.modules.keys()


def test_building_without_a_compiler_is_one_clear_line(project: Checkout) -> None:
    done = project.stage("hosts.offload_ops", check=False, env={"CXX": "no-such-compiler"})
    assert done.returncode == 2
    assert done.stderr.startswith("offload-ops: no C++ compiler ('no-such-compiler')")
    assert len(done.stderr.splitlines()) == 1
