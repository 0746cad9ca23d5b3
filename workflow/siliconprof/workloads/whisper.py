"""Whisper for speech recognition, in torch (transformers) and MLX (mlx-audio), with equal weights.

Sizes are those of Radford et al. 2022 (arXiv:2212.04356), table 1, with the first large model's 80
mel bands. Random weights are drawn as transformers draws them; the encoder's positions are
sinusoids that are not trained. Dropout is 0. The encoder's table has 50 positions per second of a
clip, so the number of parameters depends on the data set's `clip_seconds`, and is OpenAI's with 30
s. Transcripts are cut or padded to `target_len` tokens, so that the work is known before any data
are read; padding has no label. Pretraining and fine-tuning differ in `weights` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, Any

from siliconprof.datasets.weights import Checkpoint, Weights
from siliconprof.declarations import Parameter
from siliconprof.memory import footprint
from siliconprof.parameters import Limits, one_of
from siliconprof.workloads._mlx_checkpoint import checkpoint
from siliconprof.workloads._training import (
    UNLABELLED,
    Batch,
    CheckpointParameters,
    MlxImplementation,
    TrainingWorkload,
    TransformersImplementation,
)

# d_model, layers of the encoder and of the decoder, n_head, vocab_size (None: that of the data)
SIZES: dict[str, tuple[int, int, int, int | None]] = {
    "nano": (64, 2, 2, None),
    "tiny": (384, 4, 6, 51865),
    "base": (512, 6, 8, 51865),
    "small": (768, 12, 12, 51865),
    "medium": (1024, 24, 16, 51865),
    "large": (1280, 32, 20, 51865),
}
MAX_TARGET_POSITIONS = 448
KERNEL = 3  # frames that each of the two convolutions sees
POSITIONS = "encoder.embed_positions.weight"  # fixed
POSITIONS_PER_SECOND = 50  # of the encoder; the features have twice as many frames


class Plugin(TrainingWorkload):
    """whisper"""

    family = called = "Whisper"
    vocab_sizes = {size: shape[3] for size, shape in SIZES.items()}
    LIBRARIES = {"torch": ("transformers", "numpy"), "mlx": ("mlx-audio", "numpy")}
    POINT = {
        **TrainingWorkload.POINT,
        "n_trainable_parameters": Parameter("integer", label="trainable parameters", derived=True),
        "vocab_size": Parameter("integer", label="vocabulary", identifies=False, derived=True),
    }
    data_kind = "speech"
    trainer_class = "Seq2SeqTrainer"

    class Parameters(CheckpointParameters):
        size: Annotated[str, one_of(SIZES), "model size; tiny to large are OpenAI's, nano is ours"]
        target_len: Annotated[
            int,
            Limits(ge=2, le=MAX_TARGET_POSITIONS),
            "tokens to which every transcript is cut or padded",
        ] = 32

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.torch, self.mlx = TorchWhisper(self), MlxWhisper(self)
        self.d_model, self.n_layer, self.n_head, own = SIZES[parameters["size"]]
        self.d_ff = 4 * self.d_model
        self.vocab_size = int(parameters["vocab_size"] or own or parameters["dataset_vocab_size"])
        # OpenAI's own, where no data set says otherwise.
        self.clip_seconds = int(parameters.get("dataset_clip_seconds", 30))
        self.n_mels = int(parameters.get("dataset_n_mels", 80))
        self.source_len = POSITIONS_PER_SECOND * self.clip_seconds
        self.target_len = int(parameters["target_len"])

    def audio_s_per_step(self) -> float:
        return float(self.batch_size * self.clip_seconds)

    def flops_per_step(self) -> tuple[float, str]:
        """6 operations per position and multiplied weight, plus 12 n_layer d_model q k for the
        scores and values of q queries on k keys (Chowdhery et al. 2022, PaLM, appendix B),
        summed over what runs at the encoder's positions and what at the decoder's: the
        cross-attention's keys and values run at the encoder's. The first convolution runs at
        twice as many positions, and its input needs no gradient: 4, not 6. Norms, biases,
        activations, softmax and loss are left out, which understates a little. Causal masking is
        not subtracted, which overstates the decoder's own attention by up to a factor of two.
        """
        d, ff, layers = self.d_model, self.d_ff, self.n_layer
        source, target = self.source_len, self.target_len
        encoder = layers * (4 * d * d + 2 * d * ff) + KERNEL * d * d
        cross = layers * 2 * d * d
        decoder = layers * (6 * d * d + 2 * d * ff) + self.vocab_size * d
        attention = 12 * layers * d * (source * source + target * target + source * target)
        per_clip = (
            6 * (encoder + cross) * source
            + 6 * decoder * target
            + attention
            + 4 * KERNEL * self.n_mels * d * 2 * source
        )
        text = (
            "6 N per position, encoder and decoder apart, plus 12 n_layer d_model q k of each "
            "attention (after PaLM, arXiv:2204.02311, appendix B)"
        )
        return float(per_clip * self.batch_size), text

    def stages(self, estimator: footprint.MemoryEstimator) -> list[footprint.Stage]:
        """Encoder, decoder, loss; the cross-attention's keys lie at the encoder's positions."""
        d, ff, heads = self.d_model, self.d_ff, self.n_head
        batch, queries, keys = self.batch_size, self.target_len, self.source_len
        target, source = batch * queries, batch * keys
        attention_weights, mlp_weights = 4 * d * d + 5 * d, 8 * d * d + 7 * d  # with their norms
        encoder_weights = attention_weights + mlp_weights
        decoder_weights = encoder_weights + attention_weights
        convolution_weights = KERNEL * (self.n_mels + d) * d + 2 * d

        def mlp(positions: int) -> float:
            return (
                estimator.norm(positions, d)
                + estimator.linear(positions, d)
                + estimator.gelu(positions, ff, tanh=False)
                + estimator.linear(positions, ff)
            )

        def attention(n_queries: int, n_keys: int, projections: int) -> float:
            return (
                estimator.norm(batch * n_queries, d)
                + estimator.linear(batch * n_queries, d, projections=projections)
                + estimator.attention(batch, n_queries, n_keys, d, heads, joint=False, trained=True)
            )

        def layer(saved: float, n_queries: int, n_keys: int, weights: int) -> footprint.Stage:
            scores = batch * heads * n_queries * n_keys
            return estimator.layer(saved, batch * n_queries, d, ff, scores, weights, weights)

        convolutions = footprint.Stage(
            estimator.linear(2 * source, self.n_mels + d)
            + estimator.gelu(2 * source, d, tanh=False)
            + estimator.gelu(source, d, tanh=False),
            weights=convolution_weights + keys * d,  # with the fixed positions
            trained=convolution_weights,
            cast=convolution_weights,
        )
        encoder = layer(
            attention(keys, keys, projections=3) + mlp(source), keys, keys, encoder_weights
        )
        decoder = layer(
            attention(queries, queries, projections=3)
            + attention(queries, keys, projections=1)
            + estimator.linear(source, d, estimator.recasts, projections=2)
            + mlp(target),
            queries,
            queries + keys,
            decoder_weights,
        )
        encoded = footprint.Stage(
            estimator.norm(source, d) + estimator.linear(source, d, not estimator.recasts),
            weights=2 * d,
            trained=2 * d,
        )
        positions = MAX_TARGET_POSITIONS * d
        table = self.vocab_size * d
        embedding = footprint.Stage(
            0, table * estimator.master, weights=table + positions, trained=positions
        )
        last = estimator.norm(target, d) + estimator.linear(target, d)
        head = estimator.head(last, target, d, self.vocab_size, True, fp32_loss=False)
        layers = self.n_layer
        return [convolutions, *[encoder] * layers, encoded, embedding, *[decoder] * layers, head]

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """input_features float32 (B, mels, frames), the two others int32 (B, target_len)."""
        for batch in data.batches(self.batch_size, seed):
            yield {
                "input_features": batch["input_features"],
                "decoder_input_ids": self.fitted(batch["decoder_input_ids"], 0),
                "labels": self.fitted(batch["labels"], UNLABELLED),
            }

    def fitted(self, tokens: Any, filling: int) -> Any:
        """Tokens of shape (B, L) cut or padded to (B, target_len)."""
        import numpy as np

        missing = max(0, self.target_len - tokens.shape[1])
        return np.pad(tokens[:, : self.target_len], ((0, 0), (0, missing)), constant_values=filling)

    @cached_property
    def weights(self) -> Weights:
        """Names of transformers' state dict; the output head shares the token embedding.

        A checkpoint has the positions of 30 s; shorter clips take the first of them.
        """
        d, d_ff = self.d_model, self.d_ff
        shapes: dict[str, tuple[int, ...]] = {}

        def add(prefix: str, **weights: tuple[int, ...]) -> None:
            for name, shape in weights.items():
                shapes[f"{prefix}{name}.weight"] = shape
                if name != "k_proj":  # a bias of all keys would change nothing
                    shapes[f"{prefix}{name}.bias"] = shape[:1]

        def layers(part: str, *attentions: str) -> None:
            for layer in (f"{part}.layers.{index}." for index in range(self.n_layer)):
                for name in attentions:
                    for projection in ("q_proj", "v_proj", "out_proj", "k_proj"):
                        add(f"{layer}{name}.", **{projection: (d, d)})
                    add(f"{layer}{name}_", layer_norm=(d,))
                add(layer, fc1=(d_ff, d), fc2=(d, d_ff), final_layer_norm=(d,))
            add(f"{part}.", layer_norm=(d,))

        add("encoder.", conv1=(d, self.n_mels, KERNEL), conv2=(d, d, KERNEL))
        shapes[POSITIONS] = (self.source_len, d)
        layers("encoder", "self_attn")
        shapes["decoder.embed_tokens.weight"] = (self.vocab_size, d)
        shapes["decoder.embed_positions.weight"] = (MAX_TARGET_POSITIONS, d)
        layers("decoder", "self_attn", "encoder_attn")
        return Weights(
            shapes,
            pretrained=self.parameters["weights"] == "pretrained",
            checkpoint=partial(Checkpoint, self.parameters["weights_path"], config=self.config()),
            fixed={POSITIONS: sinusoids},
        )

    def config(self) -> dict[str, Any]:
        """What decides what the tensors compute, in the names of transformers' WhisperConfig."""
        parts = ("encoder", "decoder")
        layers = {f"{part}_layers": self.n_layer for part in parts}
        heads = {f"{part}_attention_heads": self.n_head for part in parts}
        functions = {"activation_function": "gelu", "scale_embedding": False}
        return {"d_model": self.d_model} | layers | heads | functions


class TorchWhisper(TransformersImplementation):
    """transformers' model."""

    imports = ("transformers.modeling_utils", "transformers.models.whisper.modeling_whisper")

    def model(self, seed: int) -> Any:
        import torch
        from transformers import WhisperConfig, WhisperForConditionalGeneration
        from transformers.initialization import no_init_weights

        workload = self.workload
        config = WhisperConfig(
            **workload.config(),
            vocab_size=workload.vocab_size,
            num_mel_bins=workload.n_mels,
            encoder_ffn_dim=workload.d_ff,
            decoder_ffn_dim=workload.d_ff,
            max_source_positions=workload.source_len,
            max_target_positions=MAX_TARGET_POSITIONS,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            use_cache=False,
            # The batches bring their own; a padding token's embedding would get no gradient.
            pad_token_id=None,
            bos_token_id=0,
            eos_token_id=0,
            decoder_start_token_id=0,
            # For generation only, and beyond a small vocabulary.
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
        with no_init_weights():  # all are ours
            model = WhisperForConditionalGeneration(config)
        initial = workload.weights.initial(seed)
        model.model.load_state_dict({name: torch.from_numpy(array) for name, array in initial})
        model.tie_weights()
        return self.checkpointed(model)


class MlxWhisper(MlxImplementation):
    """mlx-audio's model."""

    imports = ("mlx_audio.stt.models.whisper.whisper",)
    bare = ("mlx_audio.stt", "mlx_audio.stt.models")

    def model(self, seed: int) -> Any:
        import mlx.core as mx
        from mlx_audio.stt.models.whisper import whisper

        workload = self.workload
        model = whisper.Model(
            whisper.ModelDimensions(
                n_mels=workload.n_mels,
                n_audio_ctx=workload.source_len,
                n_audio_state=workload.d_model,
                n_audio_head=workload.n_head,
                n_audio_layer=workload.n_layer,
                n_vocab=workload.vocab_size,
                n_text_ctx=MAX_TARGET_POSITIONS,
                n_text_state=workload.d_model,
                n_text_head=workload.n_head,
                n_text_layer=workload.n_layer,
            ),
            dtype=mx.float32,
        )
        initial = workload.weights.initial(seed)
        weights = {f"model.{name}": mx.array(array) for name, array in initial}
        # `sanitize` leaves these out: its own table is off by 1e-4, or another than a checkpoint's.
        model.encoder._positional_embedding = weights[f"model.{POSITIONS}"]
        model.load_weights(list(model.sanitize(weights).items()))
        if workload.parameters["gradient_checkpointing"]:
            # Beside its output a block answers with keys, values and scores, for generation.
            checkpoint(model.encoder.blocks, lambda result: (result[0], None, None))
            checkpoint(model.decoder.blocks, lambda result: (result[0], None, None))
        return model

    def output(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """Logits of shape (B, target_len, V) in the dtype that the model computes in."""
        features = batch["input_features"].transpose(0, 2, 1)  # (B, 100 clip_seconds, n_mels)
        # No parameters, so nobody else casts them; in fp32 they would make all that follows fp32.
        for part, name in ((model.encoder, "_positional_embedding"), (model.decoder, "_mask")):
            if getattr(part, name).dtype != features.dtype:
                setattr(part, name, getattr(part, name).astype(features.dtype))
        return model(features, batch["decoder_input_ids"])

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """Mean cross-entropy of the labelled tokens in fp32."""
        import mlx.core as mx
        import mlx.nn as nn

        logits = self.output(model, batch).astype(mx.float32)  # (B, target_len, V)
        labelled = batch["labels"] != UNLABELLED
        labels = mx.where(labelled, batch["labels"], 0)
        losses = nn.losses.cross_entropy(logits, labels, reduction="none")
        return (losses * labelled).sum() / labelled.sum()


def sinusoids(length: int, channels: int) -> Any:
    """The encoder's positions, float32 (length, channels): sines, then cosines.

    Wavelengths from 2 pi to 20,000 pi in a geometric row (Vaswani et al. 2017, arXiv:1706.03762,
    section 3.5, with the channels in Whisper's order); computed in float64.
    """
    import numpy as np

    half = channels // 2
    rates = np.exp(-math.log(10000) / (half - 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
