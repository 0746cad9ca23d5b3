"""The training step in MLX, whole or split into its phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from siliconprof.backends import _step
from siliconprof.backends._mlx_calls import UnknownPrimitive
from siliconprof.backends._mlx_operators import StepGraph
from siliconprof.backends._step import Compilation, Inference, Stepper

STATE = {"exp_avg": "m", "exp_avg_sq": "v"}  # torch's names of AdamW's moments -> MLX's


class Step(NamedTuple):
    """The results of a training step, as trees of arrays."""

    scalars: list[Any]  # loss, and the gradients' norm if they are clipped
    gradients: Any
    clipped: Any  # the gradients that the optimizer uses
    parameters: Any
    state: Any  # of the optimizer


class MlxInference(Inference):
    """Forward passes with the stepper's current weights."""

    def __init__(self, stepper: MlxStepper) -> None:
        self.stepper = stepper

    def evaluate(self, batch: Any) -> float:
        return self._without_dropout(self.stepper.loss, batch).item()

    def outputs(self, batch: Any) -> Any:
        import numpy as np

        stepper = self.stepper

        def output(parameters: Any, arrays: Any) -> Any:
            arrays = stepper.put(parameters, arrays)
            return stepper.workload.mlx.output(stepper.model, arrays).astype(
                stepper.backend.mx.float32
            )

        return np.array(self._without_dropout(output, batch))

    def _without_dropout(self, function: Callable[[Any, Any], Any], batch: Any) -> Any:
        stepper = self.stepper
        stepper.model.eval()
        try:
            return function(stepper.parameters, stepper.arrays(batch))
        finally:
            stepper.model.train()
            stepper.model.update(stepper.parameters)  # frees the arrays of this pass that it held

    def forward(self, batch: Any) -> Callable[[], None]:
        """Each launch also builds the graph of the forward pass."""
        stepper, arrays = self.stepper, self.stepper.arrays(batch)
        return lambda: stepper.backend.mx.eval(stepper.loss(stepper.parameters, arrays))

    def dtypes(self, batch: Any) -> dict[str, Any]:
        """The activation's is that of the model's own output."""
        from mlx.utils import tree_flatten

        stepper = self.stepper
        arrays = stepper.put(stepper.parameters, stepper.arrays(batch))
        output = stepper.workload.mlx.output(stepper.model, arrays)
        trained = [value for _, value in tree_flatten(stepper.parameters)]
        weight = next(value for value in trained if value.ndim >= 2)
        return {
            "trained_parameters": sum(value.size for value in trained),
            "master_weights": str(weight.dtype).removeprefix("mlx.core."),
            "activations": str(output.dtype).removeprefix("mlx.core."),
        }


class MlxStepper(Stepper):
    """trace, forward, backward, clipping, AdamW; under amp-bf16 on bf16 copies of fp32 master weights."""

    def __init__(self, backend: Any, workload: Any, seed: int) -> None:
        import mlx.optimizers as optimizers
        from mlx.utils import tree_flatten, tree_map, tree_unflatten

        mx = backend.mx
        self.backend, self.workload = backend, workload
        self.steps = 0
        self.max_norm, self.norm = workload.parameters.get("max_gradient_norm"), None
        self.model = workload.mlx.model(seed)
        self.model.set_dtype(backend.dtype)
        self.model.train()
        self.parameters = self.model.trainable_parameters()
        trained = {name for name, _ in tree_flatten(self.parameters)}
        # Weights below adapters; they too are cast in every step, as autocast would do.
        frozen = tree_unflatten(
            [(n, value) for n, value in tree_flatten(self.model.parameters()) if n not in trained]
        )
        mx.eval(self.parameters, frozen)
        settings = dict(workload.optimizer_settings(backend.precision))
        settings["learning_rate"] = self.rate = settings.pop("lr")
        self.optimizer = optimizers.AdamW(bias_correction=True, **settings)
        self.optimizer.init(self.parameters)
        compute = backend.compute_dtype

        def as_compute(values: Any) -> Any:
            return tree_map(
                lambda v: v.astype(compute) if mx.issubdtype(v.dtype, mx.floating) else v, values
            )

        def put(parameters: Any, batch: Any) -> Any:
            """Put the weights to compute with into the model; return the batch in their dtype."""
            if compute != backend.dtype:
                self.model.update(as_compute(frozen))
                parameters, batch = as_compute(parameters), as_compute(batch)
            self.model.update(parameters)
            return batch

        def loss(parameters: Any, batch: Any) -> Any:
            return workload.mlx.loss(self.model, put(parameters, batch))

        self.loss, self.put = loss, put
        self.loss_and_gradients = mx.value_and_grad(loss)
        self._graph: StepGraph | None = None
        self.traces = 0  # of the step by the compiler
        compiles = workload.parameters.get("compile")
        self.compiled = mx.compile(self._traced) if compiles else None
        self.inference = MlxInference(self)

    def arrays(self, batch: Any) -> dict[str, Any]:
        """The batch as MLX arrays, floats in our dtype."""
        mx, dtype = self.backend.mx, self.backend.dtype
        return {
            name: mx.array(array, dtype if array.dtype.kind == "f" else None)
            for name, array in batch.items()
        }

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        """A whole step is evaluated by one call at its end."""
        arrays = self.arrays(batch)
        clock.edge("data_s")
        rate = self.workload.learning_rate_at(self.steps)
        if rate != self.rate:  # a new one is a new array
            self.optimizer.learning_rate = self.rate = rate
        self.steps += 1
        if self.backend.profiler.watched is not None:
            return self._watched(arrays, clock, self.backend.profiler.watched)
        return self._step(arrays, clock)

    def _step(self, arrays: Any, clock: Any) -> Callable[[], float]:
        mx = self.backend.mx
        if self.compiled is not None:
            scalars, self.parameters, self.optimizer.state = self.compiled(
                self.parameters, self.optimizer.state, arrays
            )
            self.norm = scalars[-1] if self.max_norm is not None else None
            self.model.update(self.parameters)  # frees what an evaluation left there
            self._evaluate(scalars, clock)
            return scalars[0].item
        loss, gradients = self.loss_and_gradients(self.parameters, arrays)
        clock.edge("trace_s")
        if clock.split:
            mx.eval(loss)
        clock.edge("forward_s")
        if clock.split:
            mx.eval(gradients)
        clock.edge("backward_s")
        scalars = [loss]
        if self.max_norm is not None:
            gradients, self.norm = clipped(mx, gradients, self.max_norm)
            scalars.append(self.norm)
            if clock.split:
                mx.eval(gradients, self.norm)
            clock.edge("other_s")  # as under the Trainer
        self.parameters = self.optimizer.apply_gradients(gradients, self.parameters)
        del gradients
        self.model.update(self.parameters)  # frees the arrays of this step that it held
        self._evaluate(scalars, clock)
        clock.edge("optimizer_s")
        return loss.item

    def _watched(self, arrays: Any, clock: Any, found: list[Any]) -> Callable[[], float]:
        """A step that lists its operators, or runs them one by one."""
        if self.backend.profiler.describes:
            try:
                self._graph = StepGraph(self, arrays)
                found += self._graph.operators
                made, _ = self._graph.run(self, arrays)
            except UnknownPrimitive as error:
                self.backend.profiler.untimed = str(error)
                return self._step(arrays, clock)
            loss = self._step(arrays, clock)
            self.backend.profiler.untimed = self._graph.differs(self, made)
            return loss
        assert self._graph is not None
        (self.parameters, self.optimizer.state, scalars), times = self._graph.run(self, arrays)
        found += times
        self.norm = scalars[-1] if self.max_norm is not None else None
        self.model.update(self.parameters)
        return scalars[0].item

    def _evaluate(self, scalars: list[Any], clock: Any) -> None:
        """Have the step's results computed, and wait for them if the clock does."""
        mx = self.backend.mx
        (mx.eval if clock.waits else mx.async_eval)(self.parameters, self.optimizer.state, scalars)

    def _traced(self, parameters: Any, state: Any, arrays: Any) -> tuple[list[Any], Any, Any]:
        """A whole step as a function of arrays: loss and norm if any, new weights, new moments."""
        self.traces += 1
        step = self.whole(parameters, state, arrays)
        return step.scalars, step.parameters, step.state

    def whole(self, parameters: Any, state: Any, arrays: Any) -> Step:
        """A whole step as a function of arrays; the optimizer's state is that of the result."""
        self.optimizer.state = state
        loss, gradients = self.loss_and_gradients(parameters, arrays)
        scalars, used = [loss], gradients
        if self.max_norm is not None:
            used, norm = clipped(self.backend.mx, gradients, self.max_norm)
            scalars.append(norm)
        parameters = self.optimizer.apply_gradients(used, parameters)
        return Step(scalars, gradients, used, parameters, self.optimizer.state)

    def weights(self) -> dict[str, Any]:
        from mlx.utils import tree_flatten

        return dict(tree_flatten(self.parameters))

    def compilation(self) -> Compilation | None:
        """One graph of forward and backward pass and AdamW."""
        if self.compiled is None:
            return None
        return Compilation(self.traces, max(0, self.traces - 1), 0)

    def gradient_norm(self) -> float | None:
        return None if self.norm is None else self.norm.item()

    def save(self, path: Path) -> None:
        from mlx.utils import tree_flatten

        arrays = dict(tree_flatten(self.parameters))
        state = dict(tree_flatten(self.optimizer.state))
        moments = {
            _step.moment(name, kind): state[f"{name}.{short}"]
            for name in arrays
            for kind, short in STATE.items()
        }
        metadata = _step.metadata(self.steps, self.optimizer.step.item())
        self.backend.mx.save_safetensors(str(path), arrays | moments, metadata)

    def load(self, path: Path) -> None:
        from mlx.utils import tree_flatten, tree_unflatten

        mx = self.backend.mx
        names = [name for name, _ in tree_flatten(self.parameters)]
        metadata = _step.read_metadata(path)
        arrays = mx.load(str(path))
        updates = int(metadata[_step.UPDATES])
        self.parameters = tree_unflatten([(name, arrays[name]) for name in names])
        if updates:
            self.optimizer.state = tree_unflatten(
                [
                    (f"{name}.{short}", arrays[_step.moment(name, kind)])
                    for name in names
                    for kind, short in STATE.items()
                ]
            ) | {
                "step": mx.array(updates, mx.uint64),
                "learning_rate": self.optimizer.learning_rate,
            }
            self.optimizer.init(self.parameters)  # keeps what there is
        self.model.update(self.parameters)  # frees the weights that it had
        mx.eval(self.parameters, self.optimizer.state)
        self.steps = int(metadata[_step.STEPS_KEY])


def clipped(mx: Any, gradients: Any, max_norm: float) -> tuple[Any, Any]:
    """(gradients clipped to a joint norm, that norm before), squares summed in fp32 as in torch."""
    from mlx.utils import tree_flatten, tree_map

    squares = [g.astype(mx.float32).square().sum() for _, g in tree_flatten(gradients)]
    # Stacked: a chain of sums would compute the first gradient first, for which every layer is
    # gone through, and checkpointed layers would keep what they computed again until their turn.
    norm = mx.sqrt(mx.stack(squares).sum())
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return tree_map(lambda g: (g * scale).astype(g.dtype), gradients), norm
