"""The training step in torch, whole or split into its phases, and the dtypes seen in a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from siliconprof.backends import _step
from siliconprof.backends._step import Compilation, Inference, Stepper

# Arguments of torch.optim.AdamW for each implementation.
ADAMW: Mapping[str, Mapping[str, bool]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


class TorchInference(Inference):
    def __init__(self, stepper: TorchStepper) -> None:
        self.backend, self.workload = stepper.backend, stepper.workload
        self.model, self.loss = stepper.model, stepper.loss

    def _without_dropout(self, function: Callable[[Any, Any], Any], batch: Any) -> Any:
        tensors = on_device(self.backend, batch)
        self.model.eval()
        try:
            with self.backend.torch.no_grad(), self.backend.autocast():
                return function(self.model, tensors)
        finally:
            self.model.train()

    def evaluate(self, batch: Any) -> float:
        return float(self._without_dropout(self.loss, batch))

    def outputs(self, batch: Any) -> Any:
        output = self._without_dropout(self.workload.torch.output, batch)
        return output.float().cpu().numpy()

    def forward(self, batch: Any) -> Callable[[], None]:
        tensors = on_device(self.backend, batch)

        def launch() -> None:
            with self.backend.torch.no_grad(), self.backend.autocast():
                self.loss(self.model, tensors)

        return launch

    def dtypes(self, batch: Any) -> dict[str, Any]:
        return observed_dtypes(self.model, self.forward(batch))


class TorchStepper(Stepper):
    """forward, backward, clipping, AdamW, with gradient scaling under amp-fp16."""

    def __init__(self, backend: Any, workload: Any, seed: int) -> None:
        torch = backend.torch
        torch.manual_seed(seed)
        self.backend, self.workload = backend, workload
        self.steps = 0
        self.max_norm, self.norm = workload.parameters.get("max_gradient_norm"), None
        self.model = workload.torch.model(seed).to(device=backend.device, dtype=backend.dtype)
        self.model.train()
        self.loss = self.training_loss = workload.torch.loss
        self.compiles = bool(workload.parameters.get("compile"))
        if self.compiles:
            self.training_loss = torch.compile(self.loss)
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        settings = workload.optimizer_settings(backend.precision)
        settings |= adamw_arguments(workload)
        self.optimizer = torch.optim.AdamW(list(self.trained.values()), **settings)
        self.scaling = backend.precision == "amp-fp16"
        self.scaler = torch.amp.GradScaler(backend.device.type, enabled=self.scaling)
        if self.scaling:
            # Unscaling and the search for infinities come before the update, or in its place; the
            # Trainer's way of timing has them in other_s.
            self.optimizer.register_step_pre_hook(lambda *_: self.clock.edge("other_s"))
            self.optimizer.register_step_post_hook(lambda *_: self.clock.edge("optimizer_s"))
        self.inference = TorchInference(self)

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        tensors = on_device(self.backend, batch)
        clock.edge("data_s")
        with self.backend.autocast():
            loss = self.training_loss(self.model, tensors)
        clock.edge("forward_s")
        self.scaler.scale(loss).backward()
        clock.edge("backward_s")
        self.clock: Any = clock
        if self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)  # does nothing where nothing is scaled
            self.norm = clip(self.backend.torch, self.trained.values(), self.max_norm)
            clock.edge("other_s")  # as under the Trainer
        rate = self.workload.learning_rate_at(self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.steps += 1
        self.scaler.step(self.optimizer)
        if not self.scaling:
            clock.edge("optimizer_s")
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)  # other_s, as under the Trainer
        detached = loss.detach()
        return lambda: float(detached)

    def compilation(self) -> Compilation | None:
        """Forward and backward pass; the optimizer is not compiled."""
        if not self.compiles:
            return None
        from torch._dynamo.utils import counters, get_compilation_metrics

        # `frame/attempt`: a second attempt at a frame is made because a guard of the first failed.
        attempts = {str(metrics.compile_id) for metrics in get_compilation_metrics()}
        return Compilation(
            int(counters["stats"]["unique_graphs"]),
            sum(not attempt.endswith("/0") for attempt in attempts),
            sum(counters["graph_break"].values()),
        )

    def updates(self) -> int | None:
        return updates(self.optimizer) if self.scaling else None

    def gradient_norm(self) -> float | None:
        return None if self.norm is None else float(self.norm)

    def save(self, path: Path) -> None:
        from safetensors.torch import save_file

        tensors = dict(self.trained)
        updates = 0
        for name, weight in self.trained.items():
            state = self.optimizer.state.get(weight)
            if state:
                updates = int(state["step"])
                tensors |= {_step.moment(name, kind): state[kind] for kind in _step.MOMENT_NAMES}
        scaler = json.dumps(self.scaler.state_dict()) if self.scaling else None
        metadata = _step.metadata(self.steps, updates, scaler)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)

    def load(self, path: Path) -> None:
        from safetensors.torch import load_file

        torch = self.backend.torch
        metadata = _step.read_metadata(path)
        tensors = load_file(path, device="cpu")
        updates, state = int(metadata[_step.UPDATES]), {}
        with torch.no_grad():
            for index, (name, weight) in enumerate(self.trained.items()):
                weight.copy_(tensors[name])
                if updates:
                    moments = {
                        kind: tensors[_step.moment(name, kind)] for kind in _step.MOMENT_NAMES
                    }
                    state[index] = {"step": torch.tensor(float(updates)), **moments}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.scaling:
            self.scaler.load_state_dict(json.loads(metadata[_step.SCALER]))
        self.steps = int(metadata[_step.STEPS_KEY])

    def weights(self) -> Mapping[str, Any]:
        return self.trained

    def persistent_arrays(self) -> list[Any]:
        return persistent_tensors(self.model, self.optimizer)


def cpu_tensors(backend: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of numpy arrays as tensors on the CPU: integers as int64, floats in the cell's dtype."""
    torch = backend.torch
    return {
        name: torch.from_numpy(array).to(torch.int64 if array.dtype.kind in "iu" else backend.dtype)
        for name, array in batch.items()
    }


def on_device(backend: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of numpy arrays as tensors on the device."""
    return {
        name: (tensor.pin_memory() if backend.pins else tensor).to(
            backend.device, non_blocking=backend.pins
        )
        for name, tensor in cpu_tensors(backend, batch).items()
    }


def adamw_arguments(workload: Any) -> dict[str, bool]:
    """Keyword arguments of torch.optim.AdamW by the key `adamw`; none by default."""
    return dict(ADAMW.get(workload.parameters.get("adamw"), {}))


def clip(torch: Any, weights: Iterable[Any], max_norm: float) -> Any:
    """Scale the gradients so that their joint norm is at most `max_norm`; return that norm before.

    The norm is a scalar tensor on the device: reading it would wait. Squares are summed in fp32,
    whatever the gradients' dtype; the arithmetic is that of `torch.nn.utils.clip_grad_norm_`.
    """
    weights = list(weights)
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if all(gradient.dtype == torch.float32 for gradient in gradients):
        norm = torch.nn.utils.get_total_norm(gradients)
    else:
        norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms))
    torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    return norm


def updates(optimizer: Any) -> int:
    """How often AdamW has updated the weights: `torch.amp.GradScaler` skips overflowing steps."""
    state = next(iter(optimizer.state.values()), None)
    return int(state["step"]) if state else 0


def persistent_tensors(model: Any, optimizer: Any) -> list[Any]:
    """A training's tensors between two steps: weights, buffers, the optimizer's state."""
    state = [value for values in optimizer.state.values() for value in values.values()]
    tensors = [value for value in state if hasattr(value, "untyped_storage")]
    return [*model.parameters(), *model.buffers(), *tensors]


def observed_dtypes(model: Any, forward: Callable[[], Any]) -> dict[str, Any]:
    """Number of trained parameters, and dtypes of master weights and of `forward`'s activations."""
    trained = [p for p in model.parameters() if p.requires_grad]
    weight = next(p for p in trained if p.dim() >= 2)
    return {
        "trained_parameters": sum(p.numel() for p in trained),
        "master_weights": str(weight.dtype).removeprefix("torch."),
        "activations": first_activation(model, forward),
    }


def first_activation(model: Any, forward: Callable[[], Any]) -> str:
    """Dtype of the first matrix product's result in a forward pass."""
    outputs: list[Any] = []
    layers = [
        module
        for module in model.modules()
        if not list(module.children())
        and getattr(module, "weight", None) is not None
        and not any(part in type(module).__name__ for part in ("Embedding", "Norm"))
    ]

    def note(_layer: Any, _inputs: Any, output: Any) -> None:
        if hasattr(output, "dtype"):  # a router's is a tuple
            outputs.append(output.dtype)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return str(outputs[0]).removeprefix("torch.")
