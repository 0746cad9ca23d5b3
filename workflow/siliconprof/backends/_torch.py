"""What the torch backends share; each device adds its clock, its memory and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from siliconprof.backends import _streams
from siliconprof.backends.base import Backend, Stepper, Unsupported

TRAINING_ONLY = ("amp-fp16", "amp-bf16")


class TorchBackend(Backend):
    """PyTorch on one device."""

    framework = "torch"
    packages: ClassVar[Sequence[str]] = ("torch",)
    torch_device: ClassVar[str]

    def import_framework(self) -> None:
        """See `Backend.import_framework`."""
        import torch  # noqa: F401

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        """See `Backend.open`. TF32 and reduced-precision fp32 are pinned, never a default."""
        import torch

        self.torch = torch
        self.precision = precision
        torch.set_num_threads(threads)
        device = self.torch_device
        self.device = torch.device(device, index) if device == "cuda" else torch.device(device)
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.dtype = {
            "fp16": torch.float16,
            "bf16": torch.bfloat16,
        }.get(precision, torch.float32)
        self.autocast_dtype = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)

    def autocast(self) -> Any:
        """The context of the forward pass: autocast for AMP, else nothing."""
        if self.autocast_dtype is None:
            return nullcontext()
        return self.torch.autocast(self.device.type, dtype=self.autocast_dtype)

    def describe(self) -> dict[str, Any]:
        """See `Backend.describe`."""
        torch = self.torch
        return {
            "framework": "torch",
            "framework_version": torch.__version__,
            "device": str(self.device),
            "device_name": self.device_name(),
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "autocast_dtype": str(self.autocast_dtype) if self.autocast_dtype else None,
        }

    def device_name(self) -> str | None:
        """The device's own name for itself, None when it has none."""
        return None

    def normal(self, shape: Sequence[int], seed: int) -> Any:
        """See `Backend.normal`. Drawn on the CPU, so that it is the same on every device."""
        generator = self.torch.Generator().manual_seed(seed)
        drawn = self.torch.randn(*shape, generator=generator)
        return drawn.to(device=self.device, dtype=self.dtype)

    def matmul(self, a: Any, b: Any) -> Any:
        """See `Backend.matmul`. Under AMP the product runs in the autocast dtype."""
        with self.autocast():
            return self.torch.matmul(a, b)

    def vjp(self, a: Any, b: Any, cotangent: Any, forward: bool) -> Callable[[], Any]:
        """See `Backend.vjp`: without `forward`, every launch walks one kept graph backwards."""
        torch = self.torch
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()  # the same memory
        if not forward:
            product = torch.matmul(a, b)
            return lambda: torch.autograd.grad(product, (a, b), cotangent, retain_graph=True)

        def launch() -> Any:
            product = torch.matmul(a, b)
            return product.detach(), *torch.autograd.grad(product, (a, b), cotangent)

        return launch

    def copied(self, value: Any) -> Any:
        """See `Backend.copied`."""
        return value.clone()

    def relative_error(self, result: Any, reference: Callable[..., Any], *inputs: Any) -> float:
        """See `Backend.relative_error`."""
        wide = reference(*(value.cpu().double() for value in inputs))
        error = result.cpu().double() - wide
        return float(error.square().mean().sqrt() / wide.square().mean().sqrt())

    def from_host(self, values: list[Any]) -> Any:
        """See `Backend.from_host`."""
        return self.torch.tensor(values, dtype=self.dtype).to(self.device)

    def much_normal(self, count: int, seed: int) -> Any:
        """See `Backend.much_normal`."""
        drawn = self.normal((min(count, _streams.DRAWN),), seed)
        return drawn.repeat(-(-count // _streams.DRAWN))[:count]

    def stream(self, kernel: str) -> _streams.Stream:
        """See `Backend.stream`."""
        return _streams.torch_stream(self.torch, kernel)

    def add_one(self, value: Any) -> Any:
        """See `Backend.add_one`; in place."""
        return value.add_(1)

    def tensors(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch of numpy arrays as tensors on the CPU: integers as int64, floats in our dtype."""
        torch = self.torch
        return {
            name: torch.from_numpy(array).to(
                torch.int64 if array.dtype.kind in "iu" else self.dtype
            )
            for name, array in batch.items()
        }

    def stepper(self, workload: Any, seed: int) -> Stepper:
        """See `Backend.stepper`."""
        return TorchStepper(self, workload, seed)


class TorchStepper(Stepper):
    """forward, backward, AdamW, with gradient scaling under amp-fp16."""

    def __init__(self, backend: TorchBackend, workload: Any, seed: int) -> None:
        torch = backend.torch
        torch.manual_seed(seed)
        self.backend = backend
        self.model = workload.torch_model(seed).to(device=backend.device, dtype=backend.dtype)
        self.model.train()
        self.loss = workload.torch_loss
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            **workload.optimizer_settings(backend.precision),
        )
        self.scaling = backend.precision == "amp-fp16"
        self.scaler = torch.amp.GradScaler(backend.device.type, enabled=self.scaling)
        if self.scaling:
            # Unscaling and the search for infinities come before the update, or in its place; the
            # Trainer's way of timing has them in other_s.
            self.optimizer.register_step_pre_hook(lambda *_: self.clock.edge("other_s"))
            self.optimizer.register_step_post_hook(lambda *_: self.clock.edge("optimizer_s"))

    def on_device(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch as tensors on the device."""
        return {
            name: tensor.to(self.backend.device)
            for name, tensor in self.backend.tensors(batch).items()
        }

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        """See `Stepper.step`."""
        on_device = self.on_device(batch)
        clock.edge("data_s")
        with self.backend.autocast():
            loss = self.loss(self.model, on_device)
        clock.edge("forward_s")
        self.scaler.scale(loss).backward()
        clock.edge("backward_s")
        self.clock: Any = clock
        self.scaler.step(self.optimizer)
        if not self.scaling:
            clock.edge("optimizer_s")
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)  # other_s, as under the Trainer
        detached = loss.detach()
        return lambda: float(detached)

    def forward_only(self, batch: Any) -> Callable[[], None]:
        """See `Stepper.forward_only`."""
        on_device = self.on_device(batch)

        def forward() -> None:
            with self.backend.torch.no_grad(), self.backend.autocast():
                self.loss(self.model, on_device)

        return forward

    def standing(self) -> list[Any]:
        """See `Stepper.standing`."""
        return standing(self.model, self.optimizer)

    def dtypes(self, batch: Any) -> dict[str, Any]:
        """See `Stepper.dtypes`."""
        return observed_dtypes(self.model, self.forward_only(batch))


def standing(model: Any, optimizer: Any) -> list[Any]:
    """A training's tensors between two steps: weights, buffers, the optimizer's state."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    tensors = [value for value in state if hasattr(value, "untyped_storage")]
    return [*model.parameters(), *model.buffers(), *tensors]


def observed_dtypes(model: Any, forward: Callable[[], Any]) -> dict[str, Any]:
    """Dtype of the master weights, and of the first matrix product in a real forward pass.

    With them, how many parameters are trained.

    Args:
        forward: runs the model once, under the autocast of its training.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    weight = next(p for p in trained if p.dim() >= 2)
    return {
        "trained_parameters": sum(p.numel() for p in trained),
        "master_weights": str(weight.dtype).removeprefix("torch."),
        "activations": first_activation(model, forward),
    }


def first_activation(model: Any, forward: Callable[[], Any]) -> str:
    """Dtype of what the first matrix product of a forward pass gives.

    Layers are told by their names: a weight that is offloaded has no shape between its uses.

    Args:
        forward: runs the model once.
    """
    outputs: list[Any] = []
    layers = [
        module
        for module in model.modules()
        if not list(module.children())
        and getattr(module, "weight", None) is not None
        and not any(word in type(module).__name__ for word in ("Embedding", "Norm"))
    ]
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output.dtype))
        for layer in layers
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return str(outputs[0]).removeprefix("torch.")


def refuse(precision: str, reason: str | None) -> None:
    """Raise `Unsupported` when there is a reason."""
    if reason:
        raise Unsupported(f"{precision}: {reason}")
