"""The training step in MLX, whole or with its phases told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from siliconprof.backends.base import Stepper


class MlxStepper(Stepper):
    """trace, forward, backward, AdamW; under amp-bf16 on bf16 copies of fp32 master weights."""

    def __init__(self, backend: Any, workload: Any, seed: int) -> None:
        import mlx.optimizers as optimizers
        from mlx.utils import tree_flatten, tree_map, tree_unflatten

        mx = backend.mx
        self.backend, self.workload = backend, workload
        self.model = workload.mlx_model(seed)
        self.model.set_dtype(backend.dtype)
        self.model.train()
        self.parameters = self.model.trainable_parameters()
        trained = {name for name, _ in tree_flatten(self.parameters)}
        # What adapters sit on; it too is cast in every step, as an autocast would do.
        frozen = tree_unflatten(
            [(n, value) for n, value in tree_flatten(self.model.parameters()) if n not in trained]
        )
        mx.eval(self.parameters, frozen)
        settings = dict(workload.optimizer_settings(backend.precision))
        settings["learning_rate"] = settings.pop("lr")
        self.optimizer = optimizers.AdamW(bias_correction=True, **settings)
        self.optimizer.init(self.parameters)
        compute = backend.compute_dtype

        def as_compute(values: Any) -> Any:
            return tree_map(
                lambda v: v.astype(compute) if mx.issubdtype(v.dtype, mx.floating) else v, values
            )

        def loss(parameters: Any, batch: Any) -> Any:
            if compute != backend.dtype:
                self.model.update(as_compute(frozen))
                parameters, batch = as_compute(parameters), as_compute(batch)
            self.model.update(parameters)
            return workload.mlx_loss(self.model, batch)

        self.loss, self.as_compute = loss, as_compute
        self.loss_and_gradients = mx.value_and_grad(loss)

    def arrays(self, batch: Any) -> dict[str, Any]:
        """The batch as MLX arrays, floats in our dtype."""
        mx, dtype = self.backend.mx, self.backend.dtype
        return {
            name: mx.array(array, dtype if array.dtype.kind == "f" else None)
            for name, array in batch.items()
        }

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        """See `Stepper.step`. Evaluating an unsplit step is one call at its end."""
        mx = self.backend.mx
        arrays = self.arrays(batch)
        clock.edge("data_s")
        loss, gradients = self.loss_and_gradients(self.parameters, arrays)
        clock.edge("trace_s")
        if clock.split:
            mx.eval(loss)
        clock.edge("forward_s")
        if clock.split:
            mx.eval(gradients)
        clock.edge("backward_s")
        self.parameters = self.optimizer.apply_gradients(gradients, self.parameters)
        del gradients
        self.model.update(self.parameters)  # what it held of this step is free to go
        mx.eval(self.parameters, self.optimizer.state, loss)
        clock.edge("optimizer_s")
        return loss.item

    def forward_only(self, batch: Any) -> Callable[[], None]:
        """See `Stepper.forward_only`; building the graph of the forward pass is in it."""
        arrays = self.arrays(batch)
        self.backend.mx.eval(arrays)
        return lambda: self.backend.mx.eval(self.loss(self.parameters, arrays))

    def dtypes(self, batch: Any) -> dict[str, Any]:
        """See `Stepper.dtypes`; the activation's is that of the model's own output."""
        from mlx.utils import tree_flatten

        arrays = self.arrays(batch)
        self.loss(self.parameters, arrays)  # leaves the compute weights in the model
        output = self.workload.mlx_output(self.model, self.as_compute(arrays))
        trained = [value for _, value in tree_flatten(self.parameters)]
        weight = next(value for value in trained if value.ndim >= 2)
        return {
            "trained_parameters": sum(value.size for value in trained),
            "master_weights": str(weight.dtype).removeprefix("mlx.core."),
            "activations": str(output.dtype).removeprefix("mlx.core."),
        }
