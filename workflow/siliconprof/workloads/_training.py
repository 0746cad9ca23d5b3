"""The interface of a training, for the trainers and the backends' steppers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Annotated, Any, ClassVar, Literal

from siliconprof import plugins
from siliconprof.datasets.weights import Weights
from siliconprof.declarations import Bytes, Parameter, Quantity, Settings
from siliconprof.memory import footprint
from siliconprof.parameters import Count, Limits, Number, Positive, one_of
from siliconprof.session.timing import PHASES
from siliconprof.workloads.base import LATER_MODULES, Workload

# name -> numpy array whose first axis is the batch
Batch = Mapping[str, Any]

Allocator = Annotated[
    Literal["default", "retain"],
    "`retain` keeps freed host memory in the process (glibc), so that page faults which are the "
    "allocator's habit vanish",
]
MemoryBudget = Annotated[
    Positive | dict[Literal["cpu", "gpu"], Positive] | None,
    "device memory that the cell may use, GiB; null = all that the device has; "
    "`{cpu: …, gpu: …}` = another for each kind: a GPU's libraries and its allocator take up to 1 GiB "
    "by themselves",
]


class LayerParameters(Workload.Parameters):
    """Settings of a model of layers whose memory is predicted, in trainings, sweeps and grids."""

    gradient_checkpointing: Annotated[
        bool,
        "keep each layer's input only and compute the layer again in the backward pass: less memory "
        "for one more forward pass, which FLOPs do not count",
    ] = False
    memory_budget_gib: MemoryBudget = None
    force: Annotated[
        bool | Annotated[Number, Limits(ge=1)],
        "measure even what the memory model predicts not to fit; a number: where it predicts at most "
        "so many times the memory",
    ] = False


class TrainingParameters(Workload.Parameters):
    """Settings of whatever a trainer trains."""

    near_capacity_share: Annotated[
        Positive, Limits(le=1), "share of the memory that scenario near-capacity aims at"
    ] = 0.9
    allocator: Allocator = "default"
    probes: Annotated[
        list[Annotated[str, one_of("probes")]] | None,
        "probes to read beside the training; null = all, [] = none",
    ] = None


class StepParameters(TrainingParameters, LayerParameters):
    """Settings of a training in steps of one batch size."""

    batch_size: Annotated[
        Count | Literal["auto"],
        "samples per training step; `auto`, in scenario near-capacity only: as many as the memory "
        "model puts at `near_capacity_share` of the memory",
    ]
    learning_rate: Annotated[Positive, "AdamW's learning rate, constant"] = 0.001
    zero_stage: Annotated[
        Literal[2, 3],
        "ZeRO stage under scenario offload: 2 offloads optimizer and gradients, 3 the weights too",
    ] = 2
    compile: Annotated[
        bool,
        "compile the training step: `torch.compile` of the model and its loss, `mx.compile` of the "
        "whole step. Such a step is not split into phases, and the first one, which compiles with "
        "empty caches, is timed apart. Trainer plain only",
    ] = False
    attention: Annotated[
        Literal["default", "math", "efficient", "flash", "cudnn"],
        "torch's kernel for scaled dot products; `default` leaves the choice to torch. Which one ran "
        "is in the record, but of steps that are compiled, offloaded or near capacity",
    ] = "default"
    adamw: Annotated[
        Literal["default", "for-loop", "foreach", "fused"],
        "torch's implementation of AdamW; `default` leaves the choice to torch. Which one ran is in "
        "the record, as of attention",
    ] = "default"


class CheckpointParameters(StepParameters):
    """Settings of a model with named sizes, some of which have published weights."""

    vocab_size: Annotated[
        Annotated[int, Limits(ge=256)] | None,
        "rows of the embedding; null = the size's own, or that of the data",
    ] = None
    weights: Annotated[
        Literal["random", "pretrained"],
        "initial weights; speed does not depend on them and `random` needs no download; `pretrained` "
        "reads `weights_path`",
    ] = "random"
    weights_path: Annotated[
        str | None, "hub name or folder of pretrained weights, in transformers' layout"
    ] = None


def import_directly(name: str, bare: Collection[str]) -> None:
    """Import a dotted module, without running the code of the `bare` packages above it.

    The code of large packages imports all of their submodules.
    """
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package in bare and package not in sys.modules:
            above = sys.modules.get(".".join(parts[: depth - 1]))
            spec = PathFinder.find_spec(package, above.__path__ if above else None)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = module_from_spec(spec)
            if above:
                setattr(above, parts[depth - 1], sys.modules[package])
        else:
            import_module(package)
    import_module(name)


UNLABELLED = -100  # both frameworks' losses leave such labels out


class Implementation:
    """A training's model in one framework."""

    imports: ClassVar[tuple[str, ...]] = ()  # see `modules`
    bare: ClassVar[tuple[str, ...]] = ()  # packages of those, see `import_directly`

    def __init__(self, workload: Any) -> None:
        self.workload = workload

    def modules(self) -> tuple[str, ...]:
        """Third-party modules that the model needs beside the framework, in the order of import."""
        return self.imports

    def model(self, seed: int) -> Any:
        """The model with its initial weights, fp32, in torch on the CPU."""
        raise NotImplementedError

    def output(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """Its output in the dtype that it computes in: logits of shape (B, …, classes)."""
        return model(batch[self.workload.input_name])

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """The loss, a scalar; the batch's arrays are the framework's, on the model's device."""
        raise NotImplementedError


class TorchImplementation(Implementation):
    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """The mean cross-entropy of the outputs with `labels`, in fp32."""
        from torch.nn import functional

        logits = self.output(model, batch).float()
        return functional.cross_entropy(logits.flatten(0, -2), batch["labels"].flatten())


class TransformersImplementation(Implementation):
    """A model of transformers, in torch."""

    def output(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return model(**batch).logits

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return model(**batch).loss

    def checkpointed(self, model: Any) -> Any:
        """The model, its layers checkpointed where `gradient_checkpointing` says so."""
        if self.workload.parameters["gradient_checkpointing"]:
            named = getattr(model, "activation_checkpointing_enable", None)  # after 5.17
            (named or model.gradient_checkpointing_enable)({"use_reentrant": False})
        return model


class MlxImplementation(Implementation):
    imports = ("mlx.nn",)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """The mean cross-entropy of the outputs with `labels`, in fp32."""
        import mlx.core as mx
        import mlx.nn as nn

        logits = self.output(model, batch).astype(mx.float32)
        return nn.losses.cross_entropy(logits, batch["labels"], reduction="mean")


class TrainingWorkload(Workload):
    """A model to train: the interface for the trainers and the backends' steppers."""

    kind = "training"
    LIBRARIES = {"torch": ("numpy",), "mlx": ("numpy",)}
    trainer_class: ClassVar[str] = "Trainer"  # of transformers, under trainer hf
    trainers: ClassVar[tuple[str, ...]] = ("plain", "hf")  # those that can drive it
    data_kind: ClassVar[str] = "text"  # of the data set that it trains on
    called: ClassVar[str] = "this model"  # in sentences
    # size -> its own number of tokens, None where it takes the data's
    vocab_sizes: ClassVar[Mapping[str, int | None]] = {}
    input_name: ClassVar[str] = "input_ids"  # of the array in a batch that a model is called with
    untied: ClassVar[bool] = False  # its two largest tensors are about equal: embedding and head
    torch: Implementation
    mlx: Implementation
    draws: bool = False  # a step draws random numbers, as dropout does: each framework has its own
    POINT = {
        "batch_size": Parameter("integer", label="batch"),
        "n_parameters": Parameter("integer", label="parameters", derived=True),
        "samples_per_step": Parameter("integer", label="samples in a step", derived=True),
        "n_trainable_parameters": Parameter(
            "integer", label="trainable parameters", identifies=False, derived=True
        ),
        "tokens_per_step": Parameter(
            "integer", label="tokens in a step", identifies=False, derived=True
        ),
        "audio_s_per_step": Parameter(
            "number", label="audio in a step", unit="s", identifies=False, derived=True
        ),
        "learning_rate": Parameter("number", label="learning rate", identifies=False),
    }
    QUANTITIES = {
        **{name: Quantity(name.removesuffix("_s"), "s", "lower", series=True) for name in PHASES},
        "step_s": Quantity("step, phase by phase", "s", "lower", series=True),
        "whole_step_s": Quantity("step", "s", "lower", series=True),
        "unsynchronised_step_s": Quantity("unsynchronised step", "s", "lower", series=True),
        "dispatch_s": Quantity("dispatch of a step to the device", "s", "lower", series=True),
        "compile_step_s": Quantity("step that compiles", "s", "lower", series=True),
        "compile_s": Quantity("compiling", "s", "lower"),
        "recompilations": Quantity("recompilations", "", "lower"),
        "graph_breaks": Quantity("graph breaks", "", "lower"),
        "forward_only_s": Quantity("forward pass by itself", "s", "lower", series=True),
        "partial_step_s": Quantity("step on a smaller batch", "s", "lower", series=True),
        "flop_per_s": Quantity("operations", "FLOP/s", "higher"),
        "samples_per_s": Quantity("samples", "1/s", "higher"),
        "tokens_per_s": Quantity("tokens", "1/s", "higher"),
    }

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        """The layers where they are known, and the batch."""
        layers, width, batch = row.get("n_layer"), row.get("n_embd"), f"batch {row['batch_size']:g}"
        if not (layers and width):
            return batch
        return f"{layers:g} layer{'s' * (layers > 1)} of width {width:g}, {batch}"

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        problems = []
        if parameters.get("weights") == "pretrained":
            if not parameters.get("weights_path"):
                problems.append("weights_path: is missing; expected a hub name or a folder")
            elif dataset and dataset.get("source") == "hub" and not dataset.get("tokenizer"):
                problems.append(
                    "weights: pretrained weights know the tokens of their own tokenizer; set "
                    f"`tokenizer: {parameters['weights_path']}` in the data set"
                )
        scenarios = parameters.get("scenarios")
        if parameters.get("batch_size") == "auto" and scenarios != ["near-capacity"]:
            problems.append(
                "batch_size: is 'auto'; expected an integer, or scenarios: [near-capacity], the "
                "only one that says how large a batch should be"
            )
        kind = cls.data_kind
        if dataset is None:
            article = "an" if kind == "images" else "a"
            missing = f"dataset: is missing; {cls.called} trains on {article} {kind} data set"
            return [*problems, missing]
        data_kind = dataset.get("kind") or "text"
        if data_kind != kind:
            problems.append(f"dataset: is of kind {data_kind}; {cls.called} trains on {kind}")
        size = parameters.get("size")
        of_size = cls.vocab_sizes.get(size) if isinstance(size, str) else None
        vocab_size = parameters.get("vocab_size") or of_size
        if data_kind == kind and isinstance(vocab_size, int) and vocab_size < dataset["vocab_size"]:
            problems.append(
                f"vocab_size: is {vocab_size}; the data set has {dataset['vocab_size']} tokens, "
                "expected at least as many"
            )
        return problems

    def planned_s(self, each_s: float) -> float:
        """Twice the budgets: building the model and what is read beside its steps take as long."""
        return 2 * each_s

    @cached_property
    def weights(self) -> Weights:
        """The model's weights."""
        raise NotImplementedError

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """Endless batches of the prepared data, the same for every framework and trainer."""
        raise NotImplementedError

    def flops_per_step(self) -> tuple[float, str]:
        """Floating-point operations of one training step, and the source of the formula."""
        raise NotImplementedError

    def smallest(self) -> TrainingWorkload:
        """The smallest model of the kind on the same data, one sample per step."""
        first = {"weights": "random", "batch_size": 1, "vocab_size": None}
        sizes = [*self.vocab_sizes]
        return type(self)({**self.parameters, **first, **({"size": sizes[0]} if sizes else {})})

    def stages(self, estimator: footprint.MemoryEstimator) -> list[footprint.Stage]:
        """The model's parts in the order of the forward pass, for the memory model; [] = unknown."""
        return []

    def memory_bytes(
        self, precision: str, backend: str, capability: str | None = None, offloads: bool = False
    ) -> Bytes:
        """See `Workload.memory_bytes`; under ZeRO-Offload, which has no autocast, if it offloads."""
        profile = plugins.load("backends", backend).features.memory_profile_on(capability)
        checkpointing = self.parameters.get("gradient_checkpointing", False)
        precision = precision.removeprefix("amp-") if offloads else precision
        estimator = footprint.MemoryEstimator(profile, precision, checkpointing)
        if not (stages := self.stages(estimator)):
            return {}
        sizes = self.weights.trained_sizes()
        if offloads:
            return estimator.offloaded(stages, max(sizes), self.parameters["zero_stage"])
        return estimator.peak(stages, sizes, self.untied)

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        own = {"torch": self.torch, "mlx": self.mlx}[framework]
        names = (*LATER_MODULES.get(framework, ()), *own.modules())
        return [(name, partial(import_directly, name, own.bare)) for name in names]

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step; the first one is step 0."""
        return float(self.parameters["learning_rate"])

    def evaluation_batches(self, data: Any) -> Iterator[Batch]:
        """A finite number of batches that no training step sees, always the same."""
        raise NotImplementedError

    @property
    def batch_size(self) -> int:
        """Training samples in one step."""
        return int(self.parameters["batch_size"])

    def tokens_per_step(self) -> int | None:
        """Tokens in one step, None where the input is not text."""
        return None

    def audio_s_per_step(self) -> float | None:
        """Seconds of audio in one step, None where the input is not audio."""
        return None

    def optimizer_settings(self, precision: str) -> dict[str, Any]:
        """Keyword arguments of AdamW, in torch's names.

        No weight decay and no clipping, so that plain loops, the Trainer and MLX do the same
        arithmetic. Pure fp16 needs a larger epsilon: 1e-8 rounds to zero there.
        """
        return {
            "lr": self.parameters["learning_rate"],
            "betas": [0.9, 0.999],
            "eps": 1e-4 if precision == "fp16" else 1e-8,
            "weight_decay": 0.0,
        }
