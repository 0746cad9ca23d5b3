"""A decoder-only transformer as a language model, of any size, in torch and MLX with equal weights.

Token embedding, layers of causal self-attention (fused projection, rotary positions) and SwiGLU
feed-forward, each behind an RMSNorm, a last RMSNorm and a head of its own; no bias, no dropout. It
is the wide/deep report's model, and a grid varies its sizes. Trained with AdamW, whose weight decay
is on every parameter, linear warm-up, cosine decay and clipping of the gradients' norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, Any, Literal

from siliconprof.datasets.weights import Weights, drawn_weights
from siliconprof.declarations import Parameter, Settings
from siliconprof.memory import footprint
from siliconprof.parameters import Count, Limits, NotNegative, Positive, Whole
from siliconprof.workloads._training import (
    Batch,
    LayerParameters,
    MlxImplementation,
    StepParameters,
    TorchImplementation,
    TrainingWorkload,
)
from siliconprof.workloads.base import KernelWorkload

HELD_OUT_SHARE = 0.1  # of the tokens, the last ones: they are not trained on
LOWEST_RATE_SHARE = 0.1  # of the learning rate, at the end of its decay

# Parameters of the points of the grid and the sweep; one that all points share is of the cell.
SHAPE_POINT: Mapping[str, Parameter] = {
    "n_layer": Parameter("integer", label="layers"),
    "n_embd": Parameter("integer", label="channels"),
    "n_head": Parameter("integer", label="heads"),
    "d_ff": Parameter("integer", label="feed-forward channels"),
    "seq_len": Parameter("integer", label="sequence length"),
    "vocab_size": Parameter("integer", label="vocabulary", derived=True),
    "head_dim": Parameter("integer", label="channels of a head", identifies=False, derived=True),
}
OPTIMIZER_POINT: Mapping[str, Parameter] = {
    "learning_rate": Parameter("number", label="learning rate", identifies=False),
    "warmup_steps": Parameter("integer", label="warm-up steps", identifies=False),
    "decay_steps": Parameter("integer", label="decay steps", identifies=False),
    "weight_decay": Parameter("number", label="weight decay", identifies=False),
    "beta1": Parameter("number", label="beta 1", identifies=False),
    "beta2": Parameter("number", label="beta 2", identifies=False),
    "max_gradient_norm": Parameter("number", label="clipped at a norm of", identifies=False),
}


def with_betas(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, and AdamW's two betas by the names that `OPTIMIZER_POINT` has for them."""
    beta1, beta2 = parameters.get("betas") or (None, None)
    return {**parameters, "beta1": beta1, "beta2": beta2}


Betas = Annotated[list[Annotated[NotNegative, Limits(lt=1)]], Limits(min_length=2, max_length=2)]


class OptimizerParameters(LayerParameters):
    """Settings of AdamW and of what a step keeps."""

    learning_rate: Annotated[
        Positive, "AdamW's learning rate after the warm-up, before the decay"
    ] = 0.001
    weight_decay: Annotated[NotNegative, "AdamW's decoupled weight decay, of every parameter"] = 0.1
    betas: Annotated[
        Betas, "AdamW's decay rates of the averages of gradient and squared gradient"
    ] = [0.9, 0.95]
    max_gradient_norm: Annotated[
        Positive | None,
        "largest joint norm of all gradients, to which larger ones are scaled down; null = no "
        "clipping",
    ] = 1.0


class ModelParameters(OptimizerParameters):
    """Settings of one model and of how its weights change."""

    weights: Annotated[
        Literal["random"], "initial weights; there are no pretrained ones of this model"
    ] = "random"
    n_layer: Annotated[Count, "layers"] = 4
    n_embd: Annotated[int, Limits(ge=2), "channels, a multiple of 2 n_head"] = 128
    n_head: Annotated[Count, "attention heads of n_embd / n_head channels"] = 4
    d_ff: Annotated[
        Count | None,
        "channels of the SwiGLU feed-forward; null = 8/3 n_embd rounded up to a multiple of 8",
    ] = None
    seq_len: Annotated[int, Limits(ge=2), "tokens per sequence"] = 128
    vocab_size: Annotated[
        Annotated[int, Limits(ge=2)] | None,
        "rows of the embedding and of the head; null = that of the data",
    ] = None
    warmup_steps: Annotated[Whole, "steps in which the learning rate rises linearly"] = 0
    decay_steps: Annotated[
        Count | None,
        "steps after the warm-up in which it falls along a cosine to a tenth, constant afterwards; "
        "null = it does not fall",
    ] = None


class Plugin(TrainingWorkload):
    """transformer_lm"""

    family = "Transformers"
    called = "the transformer"
    trainers = ("plain", "training_run")
    untied = True
    rope_base, norm_eps = 10_000.0, 1e-6  # of the rotary positions' wavelengths; of the norms
    POINT = {
        **{
            name: one._replace(identifies=False)
            for name, one in {**TrainingWorkload.POINT, **SHAPE_POINT}.items()
        },
        "batch_size": TrainingWorkload.POINT["batch_size"],
        **OPTIMIZER_POINT,
    }

    class Parameters(ModelParameters, StepParameters):
        steps: Annotated[Count, "training steps, under trainer training_run"] = 200
        evaluate_every: Annotated[
            Count, "steps between two evaluations on held-out data, under trainer training_run"
        ] = 50
        evaluation_batches_limit: Annotated[
            Count, "largest number of batches of an evaluation, the first of the held-out data"
        ] = 8
        checkpoint_every: Annotated[
            Count, "steps between two checkpoints, under trainer training_run"
        ] = 50
        sample_temperatures: Annotated[
            list[NotNegative],
            "temperatures at which the trained model writes, under trainer training_run; 0 = always "
            "the likeliest token",
        ] = [0, 0.8]
        sample_tokens: Annotated[
            Count, "tokens that it writes at each, under trainer training_run"
        ] = 48

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        """Missing keys have their defaults, for a grid."""
        super().__init__(self.defaults() | dict(parameters))
        self.torch, self.mlx = TorchTransformer(self), MlxTransformer(self)
        own = self.parameters
        self.n_layer, self.n_embd, self.seq_len = own["n_layer"], own["n_embd"], own["seq_len"]
        self.n_head, self.head_dim = own["n_head"], self.n_embd // own["n_head"]
        # SwiGLU has three matrices where GPT-2's feed-forward has two: two thirds of its width make
        # the parameters equal (Shazeer 2020, arXiv:2002.05202).
        self.d_ff = int(own["d_ff"] or 8 * math.ceil(self.n_embd / 3))
        self.vocab_size = int(own["vocab_size"] or own["dataset_vocab_size"])

    @classmethod
    def common_settings(cls, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the sizes that follow from others."""
        model = cls(parameters)
        return with_betas(parameters) | {name: getattr(model, name) for name in SHAPE_POINT}

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        problems = super().problems(parameters, dataset)
        values = cls.defaults() | dict(parameters)
        n_embd, n_head = values["n_embd"], values["n_head"]
        of_schema = isinstance(n_embd, int) and isinstance(n_head, int) and n_head > 0
        if of_schema and n_embd % (2 * n_head):
            problems.append(
                f"n_embd: is {n_embd}; rotary positions turn pairs of a head's channels, expected a "
                f"multiple of {2 * n_head}, twice n_head"
            )
        return problems

    def sizes(self) -> dict[str, int]:
        """What a point of a sweep says of its model."""
        return {
            **{name: getattr(self, name) for name in SHAPE_POINT},
            "batch_size": self.batch_size,
            "n_parameters": self.weights.n_parameters(),
            "tokens_per_step": self.tokens_per_step(),
            "samples_per_step": self.batch_size,
        }

    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    def flops_per_step(self) -> tuple[float, str]:
        """6 operations per token and multiplied parameter, plus 12 n_layer n_embd seq_len for
        attention scores and values (Chowdhery et al. 2022, PaLM, appendix B). Causal masking is not
        subtracted, which overstates attention by up to a factor of two; norms, rotations, activation
        and loss are left out, which understates a little.
        """
        multiplied = self.weights.n_parameters() - self.vocab_size * self.n_embd
        per_token = 6 * multiplied + 12 * self.n_layer * self.n_embd * self.seq_len
        source = (
            "6N + 12 n_layer n_embd seq_len per token (PaLM, arXiv:2204.02311, appendix B); N without "
            "the embedding, which is looked up"
        )
        return float(per_token * self.tokens_per_step()), source

    def stages(self, estimator: footprint.MemoryEstimator) -> list[footprint.Stage]:
        d, ff, heads = self.n_embd, self.d_ff, self.n_head
        batch, length, tokens = self.batch_size, self.seq_len, self.tokens_per_step()
        saved = (
            2 * estimator.rms_norm(tokens, d)
            + estimator.linear(tokens, d)
            + estimator.rotary(batch, length, d, heads)
            + estimator.attention(batch, length, length, d, heads, joint=True, trained=True)
            + estimator.linear(tokens, d, projections=2)
            + estimator.swiglu(tokens, ff)
            + estimator.linear(tokens, ff)
        )
        own = 4 * d * d + 3 * d * ff + 2 * d
        scores = batch * heads * length * length
        layer = estimator.layer(saved, tokens, d, ff, scores, own, own, gated=True)
        table = self.vocab_size * d
        embedding = footprint.Stage(0, weights=table, trained=table)
        last = estimator.rms_norm(tokens, d) + estimator.linear(tokens, d)
        head = estimator.head(last, tokens, d, self.vocab_size, True, fp32_loss=True, tied=False)
        return [embedding, *[layer] * self.n_layer, head]

    def smallest(self) -> TrainingWorkload:
        sizes = {"batch_size": 1, "n_layer": 1, "n_embd": 8, "n_head": 1, "d_ff": 8}
        run = {"steps": 2, "evaluation_batches_limit": 1, "sample_temperatures": []}
        return type(self)({**self.parameters, **sizes, "vocab_size": None, **run})

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then half a cosine (arXiv:1608.03983, equation 5, without restarts)."""
        own = self.parameters
        peak, warmup, decay = own["learning_rate"], own["warmup_steps"], own["decay_steps"]
        if step < warmup:
            return float(peak * (step + 1) / warmup)
        if decay is None:
            return float(peak)
        done = min(1.0, (step - warmup) / decay)
        floor = peak * LOWEST_RATE_SHARE
        return float(floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2)

    def optimizer_settings(self, precision: str) -> dict[str, Any]:
        return super().optimizer_settings(precision) | {
            "lr": self.learning_rate_at(0),
            "betas": list(self.parameters["betas"]),
            "weight_decay": self.parameters["weight_decay"],
        }

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """input_ids and labels, int32 (B, T): each label is the token after its input."""
        train, _ = data.split(HELD_OUT_SHARE)
        drawn = train.batches(self.batch_size, self.seq_len + 1, seed)
        return map(aligned, drawn)

    def evaluation_batches(self, data: Any) -> Iterator[Batch]:
        _, held_out = data.split(HELD_OUT_SHARE)
        drawn = held_out.in_order(self.batch_size, self.seq_len + 1)
        return map(aligned, islice(drawn, self.parameters["evaluation_batches_limit"]))

    @cached_property
    def weights(self) -> Weights:
        """Names are the same in torch and MLX; projections are (out, in)."""
        d, ff = self.n_embd, self.d_ff
        layer = {
            "attention_norm": (d,),
            "attention.qkv": (3 * d, d),
            "attention.output": (d, d),
            "feed_forward_norm": (d,),
            "feed_forward.gate": (ff, d),
            "feed_forward.up": (ff, d),
            "feed_forward.down": (d, ff),
        }
        table = (self.vocab_size, d)
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": table}
        for i in range(self.n_layer):
            shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {"norm.weight": (d,), "head.weight": table}
        narrow = ("attention.output.weight", "feed_forward.down.weight")
        draw = partial(drawn_weights, narrow=narrow, n_layer=self.n_layer)
        return Weights(shapes, draw)


class TorchTransformer(TorchImplementation):
    def model(self, seed: int) -> Any:
        import torch

        from siliconprof.workloads import _transformer_torch

        model = _transformer_torch.Model(self.workload)
        initial = self.workload.weights.initial(seed)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in initial})
        return model


class MlxTransformer(MlxImplementation):
    def model(self, seed: int) -> Any:
        import mlx.core as mx

        from siliconprof.workloads import _transformer_mlx

        model = _transformer_mlx.Model(self.workload)
        initial = self.workload.weights.initial(seed)
        model.load_weights([(name, mx.array(array)) for name, array in initial])
        return model


class Sweep(KernelWorkload):
    """Base of workloads whose points are such trainings, or one step of each."""

    family = Plugin.family
    LIBRARIES = Plugin.LIBRARIES
    POINT = {
        **Plugin.POINT,
        **{name: TrainingWorkload.POINT[name] for name in ("batch_size", "n_parameters")},
        "tokens_per_step": Parameter("integer", label="tokens in a step", derived=True),
        "samples_per_step": Parameter(
            "integer", label="samples in a step", identifies=False, derived=True
        ),
    }
    QUANTITIES = {
        name: TrainingWorkload.QUANTITIES[name]
        for name in ("whole_step_s", "flop_per_s", "tokens_per_s")
    }

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        return Plugin.describe_point(row)

    @classmethod
    def common_settings(cls, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_betas(parameters)


def aligned(windows: Any) -> Batch:
    """Windows of shape (B, T + 1) as inputs and, one token later, labels."""
    import numpy as np

    return {
        "input_ids": np.ascontiguousarray(windows[:, :-1]),
        "labels": np.ascontiguousarray(windows[:, 1:]),
    }
