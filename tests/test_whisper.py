"""Whisper: the same model in both frameworks, trained through the pipeline's own commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUICK, Checkout, NoClock, own_project, rounding
from models import noise, tensors, whisper
from siliconprof import plugins
from siliconprof.datasets import training_data

pytestmark = pytest.mark.slow

ONCE, TEN_TIMES = rounding(300), rounding(300, steps=10)  # sums over the vocabulary
TALK = {"kind": "speech", "source": "builtin", "vocab_size": 300, "clip_seconds": 1}
NANO = {
    "module": "whisper",
    "trainer": "plain",
    "size": "nano",
    "batch_size": 2,
    "target_len": 24,
    "learning_rate": 0.003,
    "dataset": "talk",
    "probes": [],
}


# -- the same model ------------------------------------------------------------------------------


def test_filled_tokens_change_nothing() -> None:
    """Transcripts are cut or filled to target_len; what is filled has no part in the loss."""

    class Data:
        def batches(self, batch_size: int, seed: int) -> Any:
            yield noise(whisper(target_len=20), seed)

    batches = {n: next(whisper(target_len=n).batches(Data(), 3)) for n in (12, 20, 33)}
    for length, batch in batches.items():
        assert batch["labels"].shape == batch["decoder_input_ids"].shape == (2, length)
        assert batch["labels"].dtype == np.int32
        assert batch["input_features"].shape == (2, 80, 200)
    np.testing.assert_array_equal(batches[12]["labels"], batches[20]["labels"][:, :12])
    assert set(batches[33]["labels"][:, 20:].flat) == {-100}
    model = whisper().torch.model(0)
    losses = {
        n: float(whisper().torch.loss(model, tensors(b)).detach()) for n, b in batches.items()
    }
    assert losses[33] == pytest.approx(losses[20], rel=ONCE)
    assert losses[12] != pytest.approx(losses[20], rel=ONCE)


# -- through the pipeline ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of another model of nano's size, for 3 s, as transformers saves it."""
    import torch

    folder = tmp_path_factory.mktemp("weights") / "whisper"
    torch.manual_seed(3)
    model = whisper(clip_seconds=3).torch.model(3)
    torch.nn.init.normal_(model.model.encoder.embed_positions.weight)  # not what a formula gives
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, given: Path) -> Checkout:
    """Whisper nano on the built-in speech: both trainers, both frameworks, a checkpoint."""
    copy = own_project(tmp_path_factory.mktemp("whisper"))
    ten = QUICK | {"warmup_iterations": 2, "iterations": 4, "max_iterations": 4}
    pretrained = NANO | {
        "weights": "pretrained",
        "weights_path": str(given),
        "timing": QUICK,
        "backends": ["mlx"],
    }
    copy.configure(
        timing=ten,
        datasets={"talk": TALK},
        precisions=["fp32"],
        workloads={
            "plain": NANO | {"timing": ten | {"warmup_iterations": 32}},
            "hf": NANO | {"trainer": "hf"},
            "given": pretrained,
        },
    )
    copy.snakemake("aggregate", "--until", "measure")
    return copy


def records(study: Checkout) -> dict[tuple[str, str], dict[str, Any]]:
    """(workload, backend) -> record, of CPU devices."""
    return {
        (r["cell"]["workload"], r["cell"]["backend"]): r
        for r in study.records().values()
        if r["cell"]["device_kind"] == "cpu"
    }


def losses(study: Checkout, workload: str, backend: str) -> list[float]:
    """One loss per step, from the first, without the unsynchronised ones at the end."""
    record = records(study)[workload, backend]
    assert record["status"] == "ok", record["reason"]
    (point,) = record["points"]
    return point["loss"][: point["steps"]["kind"].index("unsynchronised")]


def test_trainers_and_frameworks_give_the_same_losses(study: Checkout) -> None:
    """Ten steps of the Trainer, 40 of the plain loop in both frameworks, from one seed."""
    plain, trainer = losses(study, "plain", "torch-cpu"), losses(study, "hf", "torch-cpu")
    assert len(plain) > 40 and len(trainer) > 10  # some are watched besides
    assert trainer[:10] == pytest.approx(plain[:10], rel=TEN_TIMES)
    assert losses(study, "plain", "mlx")[:10] == pytest.approx(plain[:10], rel=TEN_TIMES)
    within = rounding(300, steps=len(plain))
    assert losses(study, "plain", "mlx") == pytest.approx(plain, rel=within)
    assert records(study)["hf", "mlx"]["status"] == "unsupported"


def test_no_part_of_mlx_s_model_computes_in_fp32_unasked() -> None:
    """MLX widens on contact: one table left in fp32 would turn half of the model into fp32."""
    backend = plugins.load("backends", "mlx")()
    backend.open("cpu", 0, 1, "bf16")
    workload = whisper(clip_seconds=1)
    stepper = backend.stepper(workload, 0)
    first = stepper.step(noise(workload), NoClock())()
    second = stepper.step(noise(workload), NoClock())()
    assert second < first
    arrays = stepper.put(stepper.parameters, stepper.arrays(noise(workload)))
    encoded = stepper.model.encoder(arrays["input_features"].transpose(0, 2, 1))
    assert encoded.dtype == backend.compute_dtype
    assert workload.mlx.output(stepper.model, arrays).dtype == backend.compute_dtype


def test_pretrained_weights_are_read_from_a_folder(study: Checkout, given: Path) -> None:
    """The first loss is that of the model that transformers makes of the same folder.

    Clips of 1 s take the first of its positions; OpenAI's checkpoints are for 30 s.
    """
    import torch
    from transformers import WhisperForConditionalGeneration

    data = training_data.load(study.path / "results/data/talk")
    batch = tensors(next(whisper(target_len=24).batches(data, 0)))
    model = WhisperForConditionalGeneration.from_pretrained(given)
    encoder = model.model.encoder
    first = torch.nn.Embedding.from_pretrained(encoder.embed_positions.weight[:50])
    encoder.embed_positions = first
    encoder.config.max_source_positions = 50
    with torch.no_grad():
        expected = float(model(**batch).loss)
        ours = whisper(clip_seconds=1, weights="pretrained", weights_path=str(given))
        assert float(ours.torch.model(0)(**batch).loss) == pytest.approx(expected, rel=ONCE)
    assert losses(study, "given", "mlx")[0] == pytest.approx(expected, rel=ONCE)
    assert losses(study, "plain", "mlx")[0] != pytest.approx(expected, rel=ONCE)
    assert records(study)["given", "mlx"]["method"]["weights"]["weights_path"] == str(given)
