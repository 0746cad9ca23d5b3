"""Small models and batches for them, and all parameters that a workload takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from siliconprof import plugins
from siliconprof.backends._torch_stepper import on_device
from siliconprof.datasets.training_data import TokenData
from siliconprof.store import model as store_model
from siliconprof.workloads import transformer_lm

SMOLLM2 = {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536}
SMOLLM2 |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SMOLLM2 |= {"vocab_size": 49152, "tie_word_embeddings": True}


# Of workloads whose defaults are large, or whose shapes may come from elsewhere.
TRANSFORMER = {"n_layer": 1, "n_embd": 8, "n_head": 1, "seq_len": 8, "batch_size": 2}
SMALL: dict[str, dict[str, Any]] = {
    "matmul": {"shapes": [[1, 8, 8, 8]]},
    "bandwidth": {"sweep_factor": 64},
    "optimizer_sweep": TRANSFORMER | {"steps": 3, "sweep": {"learning_rate": [0.001, 0.01]}},
    "transformer_grid": {key: [value] for key, value in TRANSFORMER.items()}
    | {"min_run_time_s": 0.01},
}


def example(schema: dict[str, Any]) -> Any:
    """The smallest value that a key without a default takes, of its JSON schema."""
    schema = schema.get("anyOf", [schema])[0]
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "array":
        return [example(schema["items"])] * schema["minItems"]
    return {"integer": schema.get("minimum", 0), "number": 1.0, "string": "x"}[schema["type"]]


def parameters_of(name: str, **more: Any) -> dict[str, Any]:
    """Parameters that a workload takes, as a cell holds them."""
    plugin = plugins.load("workloads", name)
    schema = store_model.model_of(plugin.Parameters, store_model.Part).model_json_schema()
    needed = {key: example(schema["properties"][key]) for key in schema.get("required", ())}
    small = SMALL.get(name, {})
    return plugin.defaults() | needed | small | {"dataset_vocab_size": 300} | more


def model(module: str, **own: Any) -> Any:
    """A workload that trains, of the smallest size unless told otherwise."""
    sizes = {"size": "nano"} if module in ("gpt2", "whisper") else {}
    return plugins.load("workloads", module)(parameters_of(module, **sizes | own))


def gpt2(**own: Any) -> Any:
    """GPT-2 on two rows of 32 tokens."""
    shape = {"batch_size": 2, "seq_len": 32, "dataset_vocab_size": 512}
    return model("gpt2", **shape | own)


def whisper(clip_seconds: int = 2, **own: Any) -> Any:
    """Whisper on two clips."""
    data = {"dataset_clip_seconds": clip_seconds, "dataset_n_mels": 80}
    return model("whisper", **data | {"batch_size": 2} | own)


def lm(**own: Any) -> Any:
    """The decoder-only transformer, of three layers."""
    small = {"n_layer": 3, "n_embd": 24, "n_head": 3, "d_ff": 40, "seq_len": 17, "vocab_size": 50}
    return transformer_lm.Plugin({"batch_size": 4, **small, **own})


def tokens(seed: int, rows: int = 2, columns: int = 32) -> dict[str, np.ndarray]:
    """A batch of random token ids, int32 of shape (rows, columns), as GPT-2 takes it."""
    drawn = np.random.default_rng(seed).integers(0, 512, (rows, columns), dtype=np.int32)
    labels = drawn.copy()
    labels[:, 0] = -100
    return {"input_ids": drawn, "labels": labels}


def images(seed: int = 0, n: int = 8) -> dict[str, np.ndarray]:
    """A batch of random images, float32 of shape (n, 28, 28), with labels."""
    drawn = np.random.default_rng(seed)
    pixels = drawn.random((n, 28, 28), dtype=np.float32)
    return {"images": pixels, "labels": drawn.integers(0, 10, n, dtype=np.int32)}


def noise(workload: Any, seed: int = 0) -> dict[str, Any]:
    """A batch that no data set would have; rows differ in their number of labels."""
    generator = np.random.default_rng(seed)
    shape = (workload.batch_size, workload.target_len)
    tokens, labels = generator.integers(0, workload.vocab_size, (2, *shape), dtype=np.int32)
    labels[0, 7:] = -100
    features = (workload.batch_size, workload.n_mels, 2 * workload.source_len)
    return {
        "input_features": generator.standard_normal(features, dtype=np.float32),
        "decoder_input_ids": tokens,
        "labels": labels,
    }


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as torch's tensors, integers as int64."""
    import torch

    return {
        name: torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.int64))
        for name, array in batch.items()
    }


def words(n_tokens: int = 2000, vocab_size: int = 50) -> TokenData:
    """Numbered tokens: a token's neighbour is known from it."""
    tokens = (np.arange(n_tokens) % vocab_size).astype(np.uint16)
    return TokenData(tokens, "sha", vocab_size, "words")


def kept_in_torch(backend: Any, workload: Any, batch: dict[str, np.ndarray]) -> int:
    """Bytes of all storages that autograd saves, weights left out."""
    import torch

    stepper = backend.stepper(workload, 0)
    moved = on_device(backend, batch)
    weights = {p.untyped_storage().data_ptr() for p in stepper.model.parameters()}
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor  # kept alive: no address twice
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        backend.autocast(),
    ):
        stepper.loss(stepper.model, moved)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def counted_flops(workload: Any, batch: Mapping[str, Any], device: str = "cpu") -> int:
    """Operations of the products of a step in torch as torch counts them, attention decomposed."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = workload.torch.model(0).to(device)
    dtypes = {"i": torch.int64, "f": torch.float32}
    tensors = {k: torch.as_tensor(v).to(device, dtypes[v.dtype.kind]) for k, v in batch.items()}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        workload.torch.loss(model, tensors).backward()
    return int(counter.get_total_flops())
