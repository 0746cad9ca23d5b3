"""The networks of Daniel 2023: Keras's layers described once, for torch and MLX alike.

Fabrice Daniel, "Apple M2 Max GPU vs Nvidia V100, P100 and T4" (Towards Data Science, 2023), trains
three Keras models on Fashion-MNIST in fp32. A network here is the list of its layers; parameters,
operations and initial weights follow from it. The last layer gives logits, not a softmax's
probabilities, and the loss takes those, which is the same function.

Weights have Keras's names, layouts and initial values: Glorot uniform kernels, orthogonal recurrent
kernels, biases 0, and 1 for an LSTM's forget gate (keras.io/api/layers and /initializers). numpy
draws them. Shapes of layers are given without the batch.

Optimizer: Adam with Keras's defaults; AdamW without weight decay is Adam. Keras adds epsilon to
sqrt(v) ("epsilon hat" of Kingma and Ba 2015, arXiv:1412.6980, before section 2.1), torch and MLX
add it to the bias-corrected sqrt(v): Keras's 1e-7 acts as 1e-7 / sqrt(1 - 0.999^t) would here, 32
times ours in step t = 1 and the same after some thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from siliconprof.datasets.training_data import shuffled
from siliconprof.datasets.weights import Weights
from siliconprof.declarations import Parameter, Settings
from siliconprof.parameters import Count, EachOnce, Limits, NotNegative, Positive, Several
from siliconprof.store.cell import PRECISIONS
from siliconprof.workloads._training import (
    Batch,
    MlxImplementation,
    TorchImplementation,
    TrainingParameters,
    TrainingWorkload,
)

if TYPE_CHECKING:
    import numpy as np

SIDE, CLASSES = 28, 10  # of the images
KERNEL = 3  # pixels on a side that a convolution sees
EPSILON = 1e-7
# On whole batches: half of them may warm up, then one is split and one is not.
FEWEST_EPOCH_STEPS = 4


class Layer(NamedTuple):
    """A layer of a network.

    Args:
        kind: flatten (channels innermost), dropout, pooling (2 × 2, a rest is dropped), dense,
            convolution or lstm.
        weights: Keras's name of each -> (shape in Keras's layout, name of its initializer).
        multiply_adds: of one sample forward: (of the layer's input, of its own state).
        relu: whether a ReLU follows.
    """

    kind: str
    weights: Mapping[str, tuple[tuple[int, ...], str]] = {}
    multiply_adds: tuple[int, int] = (0, 0)
    relu: bool = False


FLATTEN, DROPOUT, MAX_POOLING = Layer("flatten"), Layer("dropout"), Layer("pooling")


def dense(n_in: int, n_out: int, relu: bool = True) -> Layer:
    """n_in to n_out values, with a bias."""
    weights = {"kernel": ((n_in, n_out), "glorot"), "bias": ((n_out,), "zeros")}
    return Layer("dense", weights, (n_in * n_out, 0), relu)


def convolution(side: int, n_in: int, n_out: int) -> Layer:
    """3 × 3 convolution of (side, side, n_in) to (side - 2, side - 2, n_out), no padding; ReLU."""
    kernel = (KERNEL, KERNEL, n_in, n_out)
    weights = {"kernel": (kernel, "glorot"), "bias": ((n_out,), "zeros")}
    multiply_adds = (side - KERNEL + 1) ** 2 * math.prod(kernel)
    return Layer("convolution", weights, (multiply_adds, 0), relu=True)


def lstm(n_steps: int, n_in: int, n_units: int) -> Layer:
    """n_steps rows of n_in values to the last state, n_units values; gates i, f, g, o.

    The first row's state of zeros counts as any other.
    """
    gates = 4 * n_units
    weights = {
        "kernel": ((n_in, gates), "glorot"),
        "recurrent_kernel": ((n_units, gates), "orthogonal"),
        "bias": ((gates,), "unit_forget"),
    }
    return Layer("lstm", weights, (n_steps * n_in * gates, n_steps * n_units * gates))


def drawn(shape: tuple[int, ...], how: str, generator: Any) -> np.ndarray:
    """A weight's initial values, float32; constant ones draw nothing from the generator."""
    import numpy as np

    if how == "glorot":  # kernels are (…, n_in, n_out), and fans count the positions before
        field = math.prod(shape[:-2])
        bound = math.sqrt(6 / (field * (shape[-2] + shape[-1])))
        return generator.uniform(-bound, bound, shape).astype(np.float32)
    if how == "orthogonal":
        rows, columns = shape
        q, r = np.linalg.qr(generator.standard_normal((max(shape), min(shape))))
        q = q * np.sign(np.diag(r))  # else not uniform over all rotations
        return (q.T if rows < columns else q).astype(np.float32)
    values = np.zeros(shape, np.float32)
    if how == "unit_forget":
        values[shape[0] // 4 : shape[0] // 2] = 1
    return values


class ClassicWorkload(TrainingWorkload):
    """A network of Daniel 2023; its memory is not predicted: a cell trains at several sizes."""

    family = "MLP, CNN, LSTM"
    refuses = {
        name: f"{name}: the study trains in fp32, as Keras does by default; or in tf32"
        for name in PRECISIONS
        if name not in ("fp32", "tf32")
    }
    data_kind = "images"
    input_name = "images"
    trainers = ("epochs",)
    swept = ("batch_sizes",)
    POINT = {
        **TrainingWorkload.POINT,
        "network": Parameter("string", label="network", identifies=False),
    }
    network: ClassVar[str]
    layers: ClassVar[tuple[Layer, ...]]

    class Parameters(TrainingParameters):
        batch_sizes: Annotated[
            Several[Count],
            EachOnce,
            "images per training step; each is a training of its own, a point of the cell",
        ]
        learning_rate: Annotated[
            Positive, "Adam's learning rate, constant; the default is Keras's"
        ] = 0.001
        dropout: Annotated[
            NotNegative,
            Limits(lt=1),
            "share of the values that a dropout layer sets to 0; only the MLP has one",
        ] = 0.2
        epochs: Annotated[
            Count, "passes over the training part, with validation after each; without `max_steps`"
        ] = 1
        max_steps: Annotated[
            Annotated[int, Limits(ge=FEWEST_EPOCH_STEPS)] | None,
            "training steps per batch size, in place of whole epochs: the time of an epoch is then "
            "extrapolated, and labelled so; null = `epochs` whole epochs",
        ] = None
        max_validation_steps: Annotated[
            Count | None,
            "batches of a validation; with fewer than the part has, its time is extrapolated; null = "
            "all",
        ] = None
        max_test_steps: Annotated[
            Count | None,
            "batches of the test part that the trained network is tested on; null = all",
        ] = None

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.torch, self.mlx = TorchNetwork(self), MlxNetwork(self)
        self.draws = DROPOUT in self.layers

    @property
    def batch_size(self) -> int:
        """A whole cell has the largest; trainer `epochs` makes one training of each size."""
        own = self.parameters
        return int(own.get("batch_size") or max(own["batch_sizes"]))

    def planned_s(self, each_s: float) -> float:
        return len(self.parameters["batch_sizes"]) * super().planned_s(each_s)

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        problems = super().problems(parameters, dataset)
        n_train, sizes = (dataset or {}).get("n_train"), parameters.get("batch_sizes")
        if isinstance(n_train, int) and isinstance(sizes, list):
            problems += [
                f"batch_sizes.{index}: is {size}; the data set has {n_train} training images, "
                "expected at most as many"
                for index, size in enumerate(sizes)
                if isinstance(size, int) and size > n_train
            ]
        return problems

    def flops_per_step(self) -> tuple[float, str]:
        """Two operations per multiply-add of every layer, exact, for the forward pass, as many for
        the gradient by the weights, and as many for the gradient by the layer's input, which is
        not computed for the images. Biases, activations, pooling, dropout, an LSTM's gates, the
        loss and the optimizer are left out.
        """
        total = first = 0
        for layer in self.layers:
            with_input, with_own = layer.multiply_adds
            first = first or with_input
            total += with_input + with_own
        text = (
            "2 operations x multiply-adds of the layers, exact, x 3: forward, gradients by weights "
            "and by inputs; without the first layer's gradient by the images, which is not computed"
        )
        return float(2 * (3 * total - first) * self.batch_size), text

    def optimizer_settings(self, precision: str) -> dict[str, Any]:
        """Keras's Adam; see above about its epsilon."""
        return super().optimizer_settings(precision) | {"eps": EPSILON}

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """Each epoch in a new order, the last batch smaller: images (B, 28, 28), labels (B,)."""
        n_train = data.counts["train"]
        for order in shuffled(n_train, n_train, seed):
            for start in range(0, n_train, self.batch_size):
                yield data.batch(order[start : start + self.batch_size])

    def evaluation_batches(self, data: Any) -> Iterator[Batch]:
        return data.part_batches("validation", self.batch_size)

    @cached_property
    def weights(self) -> Weights:
        """Index of the layer and Keras's name of the weight (`0/kernel`), Keras's shapes.

        An orthogonal kernel is the same everywhere up to the rounding of LAPACK's QR.
        """
        own = {
            f"{place}/{name}": weight
            for place, layer in enumerate(self.layers)
            for name, weight in layer.weights.items()
        }

        def draw(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, Any]]:
            import numpy as np

            generator = np.random.Generator(np.random.PCG64(seed))
            for name, shape in shapes.items():
                yield name, drawn(shape, own[name][1], generator)

        shapes = {name: shape for name, (shape, _) in own.items()}
        return Weights(shapes, draw, more={"weights_drawn": "as Keras draws them, by numpy"})

    def network_in(self, framework: Any, seed: int) -> Any:
        """The network of `_classic_torch` or `_mlx`: images (B, 28, 28) to logits (B, 10)."""
        nn, weights = framework.nn, dict(self.weights.initial(seed))
        modules: list[Any] = []
        if self.layers[0].kind == "convolution":
            modules.append(framework.one_channel)
        for place, layer in enumerate(self.layers):
            if layer.weights:
                arrays = {name: weights[f"{place}/{name}"] for name in layer.weights}
                modules.append(getattr(framework, layer.kind)(**arrays))
            elif layer.kind == "dropout":
                modules.append(nn.Dropout(self.parameters["dropout"]))
            else:
                modules.append(framework.rows if layer.kind == "flatten" else nn.MaxPool2d(2))
            if layer.relu:
                modules.append(nn.ReLU())
        return nn.Sequential(*modules)


class TorchNetwork(TorchImplementation):
    def model(self, seed: int) -> Any:
        from siliconprof.workloads import _classic_torch

        return self.workload.network_in(_classic_torch, seed)


class MlxNetwork(MlxImplementation):
    def model(self, seed: int) -> Any:
        """The seed sets dropout's random state as well."""
        import mlx.core as mx

        from siliconprof.workloads import _classic_mlx

        mx.random.seed(seed)
        return self.workload.network_in(_classic_mlx, seed)
