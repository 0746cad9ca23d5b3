"""The most memory that one training step holds on the device, predicted from its layers.

Memory rises through the forward pass, since every layer saves what its backward pass will need;
on the way back each layer frees that, needs some room to work, and leaves the gradients of its
weights; then the optimizer needs room beside its state. So the peak is the largest of a few
moments: the work on the loss, the work on each layer, and the optimizer's. Saved values were
counted, tensor by tensor: in torch 2.13 with `torch.autograd.graph.saved_tensors_hooks` on
transformers 5.23's GPT-2 and Whisper and on our own transformer, in MLX 0.32 as the active memory
after each operation's forward pass. Fitted values are marked so. `benchmarks/memory_model.py`
compares with measured peaks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STATISTIC = 4  # bytes: norms and fused attention keep theirs in fp32
MOMENTS = 2  # AdamW's averages of the gradient and of its square, in the weights' dtype
BUCKETS = 2  # ZeRO: gradients of the largest tensor on their way to the host, and their copy


@dataclass(frozen=True)
class MemoryProfile:
    """What one framework saves and needs for its work; a backend has its own. Defaults are torch's.

    Numbers count values of the named size, per position, unless their comment has another unit.
    """

    stream_fp32: bool = True  # under AMP, what flows from layer to layer stays fp32
    keeps_norm_input: bool = True  # the norm keeps its input; else its normalised fp32 output
    keeps_scores: bool = False  # attention keeps heads × keys scores per query, softmax done
    scores_fp32: bool = False  # such attention computes in fp32 whatever the precision
    split_copies: int = 0  # attention's extra copies of d where q, k and v are one projection
    gelu_saved: int = 1  # exact GELU, of d_ff
    rms_fused: bool = False  # torch's RMS norm keeps its input only; else its result too, in fp32
    rotated: int = 2  # copies of d that rotary positions leave beside one projection's q, k and v
    angles: int = 0  # and in each layer, per position of a sequence, of a head's channels
    swiglu_saved: int = 3  # of d_ff: gate, its SiLU, and the values it multiplies
    cubes_fp32: bool = False  # autocast does the cube in GPT-2's tanh GELU, and after it, in fp32
    loss_fp32: bool = False  # every loss is taken of fp32 logits; else as the model does it
    casts_stay: bool = False  # AMP's 16-bit weights live until the next step, not to the backward
    logits: int = 3  # copies of the logits at the worst moment of the loss: log-softmax, gradients
    logits_narrow: int = 0  # copies besides, in the compute dtype, where that is 16-bit
    work_d: float = 0.0  # fitted: room to work on one layer, of d
    work_ff: float = 3.0  # fitted: and of d_ff, gradients before and after the activation function
    work_scores: float = 0.0  # fitted: and of heads × keys where scores are kept
    recomputed: float = 1.0  # fitted: times a checkpointed layer's saved values when recomputed
    recomputed_gated: float = 1.0  # fitted: and of one whose feed-forward is a SwiGLU
    update_all: float = 0.0  # the optimizer's room, in copies of all trained weights
    update_at_once: int | None = None  # ... or of the share that so many tensors are; None = of all
    update_largest: float = 2.0  # and in copies of the largest trained tensor
    update_two: float | None = None  # fitted: in its place, of the two largest, if there are two
    workspace_bytes: int = 0  # the libraries' own, taken once from the counted memory


@dataclass(frozen=True)
class Stage:
    """A part of the model: the bytes that it saves and works with, and its number of weights."""

    saved_bytes: float
    work_bytes: float = 0.0
    weights: int = 0
    trained: int = 0
    cast: int = 0  # weights of which AMP makes 16-bit copies
    input_bytes: float | None = None  # where checkpointed: what stays until it is computed again
    recomputed: float = 1.0  # times `saved_bytes`, held while it is computed again


class MemoryEstimator:
    """Predicts the memory of a model's training step, by a framework's profile and a precision."""

    def __init__(self, profile: MemoryProfile, precision: str, checkpointing: bool = False) -> None:
        self.profile = profile
        self.checkpointing = checkpointing  # of layers
        pure = precision in ("fp16", "bf16")
        self.amp = precision.startswith("amp-")
        self.width = 2 if pure or self.amp else 4  # bytes of a computed value
        self.master = 2 if pure else 4  # bytes of a weight, its gradient and its moments
        self.stream = self.master if profile.stream_fp32 else self.width

    # -- what operations save, in bytes ------------------------------------------------------

    def norm(self, positions: int, d: int, trained: bool = True) -> float:
        """A layer norm of d channels: its input, or its normalised values."""
        if self.profile.keeps_norm_input:
            return positions * (d * self.stream + 2 * self.stream)
        # The normalised values in fp32; for the scale's gradient once more as computed.
        return positions * (d * (4 + (self.width if trained else 0)) + 3 * STATISTIC)

    def rms_norm(self, positions: int, d: int) -> float:
        """An RMS norm of d channels: its input and its values before scaling."""
        if not self.profile.keeps_norm_input:
            return positions * (d * (4 + self.width) + 2 * STATISTIC)
        saved = self.stream if self.profile.rms_fused else 2 * 4  # in fp32 whatever comes in
        return positions * (d * saved + STATISTIC)

    @property
    def recasts(self) -> bool:
        """Whether AMP copies an fp32 input for each projection that reads it.

        torch's autocast reuses copies of weights only.
        """
        return self.amp and self.profile.stream_fp32

    def linear(self, positions: int, n: int, trained: bool = True, projections: int = 1) -> float:
        """Projections of the same n inputs: these inputs, if the projections are trained."""
        copies = projections if self.recasts else 1
        return positions * n * self.width * copies if trained else 0.0

    def attention(
        self, batch: int, queries: int, keys: int, d: int, heads: int, joint: bool, trained: bool
    ) -> float:
        """Bytes of an attention, with the input of its output projection.

        Args:
            joint: q, k and v are views of one projection's result.
            trained: the output projection is trained.
        """
        profile, width = self.profile, self.width
        if not profile.keeps_scores:
            mixed = 1 if joint or not trained else 2  # else torch makes a copy in another order
            saved = (1 + mixed) * queries * d + 2 * keys * d
            return batch * (saved * width + queries * heads * STATISTIC)
        inner = 4 if profile.scores_fp32 else width
        copies = profile.split_copies if joint else 0
        saved = (queries + 2 * keys + copies * queries) * d + heads * queries * keys
        return batch * (saved * inner + (queries * d * width if trained else 0))

    def rotary(self, batch: int, length: int, d: int, heads: int) -> float:
        """Rotary positions of q and k where both come out of one projection with v."""
        turned = batch * length * d * self.profile.rotated
        return (turned + length * d // heads * self.profile.angles) * self.width

    def swiglu(self, positions: int, d_ff: int) -> float:
        """SiLU of one projection to d_ff channels, times another; not their product."""
        return positions * d_ff * self.profile.swiglu_saved * self.width

    def gelu(self, positions: int, d_ff: int, tanh: bool) -> float:
        """GELU on d_ff channels; `tanh`: GPT-2's approximation, written in single operations."""
        if not tanh:
            return positions * d_ff * self.profile.gelu_saved * self.width
        if self.profile.cubes_fp32 and self.amp:
            return positions * d_ff * (3 * 4 + self.width)
        return positions * d_ff * 4 * self.width

    # -- stages --------------------------------------------------------------------------------

    def layer(
        self,
        saved: float,
        positions: int,
        d: int,
        d_ff: int,
        scores: int,
        weights: int,
        trained: int,
        gated: bool = False,
    ) -> Stage:
        """A transformer layer.

        Args:
            scores: heads × queries × keys of its attention, batch included.
            gated: its feed-forward is a SwiGLU.
        """
        profile = self.profile
        work = positions * (profile.work_d * d + profile.work_ff * d_ff)
        work += profile.work_scores * scores
        entering = positions * d * self.stream if self.checkpointing else None
        again = profile.recomputed_gated if gated else profile.recomputed
        return Stage(saved, work * self.width, weights, trained, weights, entering, again)

    def head(
        self,
        saved: float,
        positions: int,
        d: int,
        vocab_size: int,
        trained: bool,
        fp32_loss: bool,
        tied: bool = True,
    ) -> Stage:
        """The last norm, the logits and the loss.

        The first saved copy of the logits is their logarithmic softmax.

        Args:
            fp32_loss: the model makes its logits fp32 for the loss; autocast does so anyway.
            tied: the projection's weights are the embedding's, and the norm has a bias; else the
                projection has its own, and the norm a scale alone.
        """
        logits = positions * vocab_size
        wide = fp32_loss or self.profile.loss_fp32 or self.amp
        value = 4 if wide else self.width
        narrow = self.profile.logits_narrow * self.width if self.width == 2 else 0
        room = positions * d * self.profile.work_d * self.width
        work = logits * ((self.profile.logits - 1) * value + narrow) + room
        table = vocab_size * d
        own = 2 * d if tied else table + d
        changed = (table + 2 * d if tied else own) if trained else 0
        return Stage(saved + value * logits, work, own, changed, table)

    # -- the step ------------------------------------------------------------------------------

    def peak(
        self, stages: Sequence[Stage], sizes: Sequence[int], untied: bool = False
    ) -> dict[str, int]:
        """Bytes by part at the step's largest moment.

        Args:
            stages: in the order of the forward pass.
            sizes: values of each trained tensor.
            untied: whether the two largest are about equal, as an embedding and an untied head.

        Returns:
            Bytes of `weights`, `optimizer`, `gradients`, `activations` and `temporary`.
        """
        profile, master = self.profile, self.master
        weights = sum(stage.weights for stage in stages)
        trained = sum(stage.trained for stage in stages)
        copies = self.width * weights if self.amp and profile.casts_stay else 0
        update = profile.update_all * trained
        if profile.update_at_once is not None and profile.update_at_once < len(sizes):
            update *= profile.update_at_once / len(sizes)
        if untied and profile.update_two is not None:
            update += profile.update_two * sum(sorted(sizes)[-2:])
        else:
            update += profile.update_largest * max(sizes)
        moments = [_parts(0, trained * master, update * master)]
        saved = gradients = 0.0
        for stage in stages:
            saved += self.waiting_bytes(stage)
        for stage in reversed(stages):
            again = self.again_bytes(stage)
            moments.append(_parts(saved + again, gradients * master, stage.work_bytes))
            saved -= self.waiting_bytes(stage)
            gradients += stage.trained
        worst = max(moments, key=lambda parts: sum(parts.values()))
        worst["temporary"] += copies + profile.workspace_bytes
        standing = {"weights": weights * master, "optimizer": MOMENTS * trained * master}
        return {name: math.ceil(value) for name, value in (standing | worst).items()}

    def saved_bytes(self, stage: Stage) -> float:
        """Bytes that a stage saves for its backward pass."""
        copies = 0 if self.profile.casts_stay or not self.amp else self.width * stage.cast
        return stage.saved_bytes + copies

    def waiting_bytes(self, stage: Stage) -> float:
        """Bytes of a stage that stay from its forward pass until its backward pass."""
        return self.saved_bytes(stage) if stage.input_bytes is None else stage.input_bytes

    def again_bytes(self, stage: Stage) -> float:
        """Bytes that the backward pass of a checkpointed stage first computes again."""
        if stage.input_bytes is None:
            return 0.0
        return stage.recomputed * self.saved_bytes(stage)

    def offloaded(self, stages: Sequence[Stage], largest: int, zero_stage: int) -> dict[str, int]:
        """Bytes on the device under ZeRO-Offload, which has no autocast: 16-bit weights instead.

        Gradients leave for the host in buckets of the largest tensor; stage 3 fetches weights
        too, one stage ahead (Rajbhandari et al. 2020, ZeRO; Ren et al. 2021, ZeRO-Offload).
        """
        own = [stage.weights + stage.cast * (not stage.weights) for stage in stages]
        weights = sum(stage.weights for stage in stages) if zero_stage == 2 else 2 * max(own)
        saved, activations = 0.0, _parts(0, 0, 0)
        for stage in stages:
            saved += self.waiting_bytes(stage)
            activations = max(
                activations,
                _parts(saved + self.again_bytes(stage), 0, stage.work_bytes),
                key=lambda parts: sum(parts.values()),
            )
        activations["temporary"] += self.profile.workspace_bytes
        buckets = {"gradients": BUCKETS * largest * self.width}
        parts = {"weights": weights * self.width, "optimizer": 0} | activations | buckets
        return {name: math.ceil(value) for name, value in parts.items()}


def _parts(activations: float, gradients: float, temporary: float) -> dict[str, float]:
    return {"gradients": gradients, "activations": activations, "temporary": temporary}


def total(parts: Mapping[str, int]) -> int:
    """All parts together, in bytes."""
    return sum(parts.values())
