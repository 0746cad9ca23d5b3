"""Scenario `offload`: ZeRO-Offload through DeepSpeed, for the plain loop and the Trainer alike.

Gradients, master weights and AdamW's moments stay in the host's memory and are updated there (stage
2); under stage 3 the weights too, which are copied to the device layer by layer (Ren et al. 2021,
arXiv:2101.06840; deepspeed.ai/docs/config-json). One process, no launcher: a process group of one
over a store in memory. Nothing is compiled: see `offload_ops`. Only the CPU path has run, where
both memories are one.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from siliconprof import packages
from siliconprof.backends._step import Inference, Stepper
from siliconprof.backends._torch_stepper import first_activation, on_device
from siliconprof.backends.base import Unsupported
from siliconprof.errors import UserError, in_one_line
from siliconprof.hosts import offload_ops
from siliconprof.session.cell_run import CellRun

OFFLOADED_BY_STAGE = {
    2: ["optimizer states", "master weights", "gradients"],
    3: ["optimizer states", "master weights", "gradients", "weights"],
}
MIXED = "{} weights to compute with, float32 master weights on the host; no autocast"
WEIGHTS = {
    "amp-bf16": MIXED.format("bfloat16"),
    "amp-fp16": MIXED.format("float16"),
    "bf16": "bfloat16, master weights and moments too",
}
COMPUTES_IN = {"bf16": "bfloat16", "amp-bf16": "bfloat16", "amp-fp16": "float16"}
PHASES_METHOD = (
    "backward_s includes the gradients' copy to the host; optimizer_s the gradient norm, the "
    "update on the host, the weights' copy back and zero_grad"
)
NOT_COMPILED = (
    "torch.optim.AdamW updates on the host, not DeepSpeed's compiled Adam: build that with "
    f"{offload_ops.BUILD}"
)
MECHANISM_CHECK = "device and host share one memory: this shows that offloading works, not its cost"


def import_deepspeed() -> None:
    """Import DeepSpeed, if it is installed, and an optimizer that all of its engines import.

    Its module compiles a function when imported, for which torch would load its compiler, 2 s.
    """
    import torch

    compile_, torch.compile = torch.compile, lambda function: function
    try:
        import deepspeed.runtime.zero.muon.original_muon  # noqa: F401
    except ImportError:
        pass  # `initialise` says so, or another version has none
    finally:
        torch.compile = compile_


def initialise(cell_run: CellRun) -> tuple[Any, bool]:
    """(DeepSpeed, with its process group, whether its Adam is compiled), or `Unsupported`."""
    cell_run.progress("import DeepSpeed", 0)
    backend: Any = cell_run.backend
    # Read by DeepSpeed and accelerate; this process measures one cell and ends.
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "ACCELERATE_TORCH_DEVICE": str(backend.device),
    }
    try:
        import deepspeed
    except Exception as error:  # a broken one raises anything
        why = packages.failure(["deepspeed"]) or in_one_line(error)
        raise UserError(f"scenario offload: {why}") from error
    from deepspeed.accelerator import get_accelerator
    from torch import distributed

    compiled, precision = offload_ops.load(), cell_run.cell.precision
    if precision == "fp16":
        raise Unsupported(
            "fp16: DeepSpeed cannot offload in pure fp16; use amp-fp16 (float32 master weights)"
        )
    if precision == "amp-fp16" and not get_accelerator().is_fp16_supported():
        raise Unsupported("amp-fp16: DeepSpeed needs a processor with fp16 instructions for it")
    if precision == "bf16" and not compiled:
        raise Unsupported(
            "bf16: only DeepSpeed's compiled Adam updates bfloat16 weights on the host; build it "
            f"({offload_ops.BUILD}), or use amp-bf16, which has float32 master weights"
        )
    # torch warns at every step that collectives which DeepSpeed uses will be renamed.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # An empty list of compilable ops: else DeepSpeed compiles collectives in shared memory.
    deepspeed.ops.__compatible_ops__ = {}
    collectives = get_accelerator().communication_backend_name()
    distributed.init_process_group(collectives, store=distributed.HashStore(), rank=0, world_size=1)
    atexit.register(distributed.destroy_process_group)
    deepspeed.init_distributed(collectives, verbose=False)
    return deepspeed, compiled


def configured(cell_run: CellRun, model: Any) -> dict[str, Any]:
    """DeepSpeed's configuration, for both trainers, with the plain run's arithmetic.

    The record's method and flags say how it offloads. Under stage 3 the model's weights move to the
    host in place, one after another, since all of them together need not fit the device.
    """
    deepspeed, compiled = cell_run.deepspeed
    cell: Any = cell_run.cell
    workload = cell_run.workload
    optimizer = workload.optimizer_settings(cell.precision) | {"torch_adam": not compiled}
    host = {"device": "cpu", "pin_memory": cell.device_kind == "gpu"}
    zero = {
        "stage": workload.parameters["zero_stage"],
        "offload_optimizer": host,
        "reduce_bucket_size": max(p.numel() for p in model.parameters() if p.requires_grad),
    }
    if zero["stage"] == 3:
        zero |= {
            "offload_param": host,
            "stage3_prefetch_bucket_size": max(p.numel() for p in model.parameters()),
            "stage3_param_persistence_threshold": max(
                (p.numel() for p in model.parameters() if p.dim() == 1), default=0
            ),
        }
    pure = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    config = {
        "train_micro_batch_size_per_gpu": workload.parameters["batch_size"],
        "gradient_accumulation_steps": 1,
        "gradient_clipping": workload.parameters.get("max_gradient_norm") or 0.0,
        "optimizer": {"type": "AdamW", "params": optimizer},
        "zero_optimization": zero,
        "bf16": {"enabled": cell.precision in ("bf16", "amp-bf16")}
        | (pure if cell.precision == "bf16" else {}),
        # Like torch's GradScaler, which starts at 2^16.
        "fp16": {
            "enabled": cell.precision == "amp-fp16",
            "hysteresis": 1,
            "loss_scale_window": 2000,
        },
    }
    on_cpu = cell.device_kind == "cpu"
    cell_run.method["offload"] = {
        "library": "DeepSpeed",
        "version": deepspeed.__version__,
        "zero_stage": zero["stage"],
        "offloaded": OFFLOADED_BY_STAGE[zero["stage"]],
        "optimizer": "DeepSpeedCPUAdam (compiled)" if compiled else "torch.optim.AdamW",
        "weights": WEIGHTS.get(cell.precision, "float32"),
        "bucket_elements": zero["reduce_bucket_size"],
        "phases": PHASES_METHOD,
        "mechanism_check": on_cpu,
    }
    if on_cpu:
        cell_run.flag("offload_on_cpu", MECHANISM_CHECK)
    elif not compiled:
        cell_run.flag("offload_not_compiled", NOT_COMPILED)
    if zero["stage"] == 3:
        dtype = weight_dtype(cell_run)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        deepspeed.zero.Init(module=model, config_dict_or_path=config, dtype=dtype)
    return config


def weight_dtype(cell_run: CellRun) -> Any:
    """torch's dtype of the weights that the device computes with."""
    backend: Any = cell_run.backend
    return getattr(backend.torch, COMPUTES_IN.get(cell_run.cell.precision, "float32"))


class OffloadInference(Inference):
    def __init__(self, stepper: OffloadStepper) -> None:
        self.stepper = stepper

    def forward(self, batch: Any) -> Callable[[], None]:
        stepper, tensors = self.stepper, self.stepper.on_device(batch)

        def launch() -> None:
            with stepper.backend.torch.no_grad():
                stepper.loss(stepper.engine, tensors)

        return launch

    def dtypes(self, batch: Any) -> dict[str, Any]:
        return observed_dtypes(self.stepper.engine, self.forward(batch))


class OffloadStepper(Stepper):
    """Forward, backward and step of DeepSpeed's engine, which also scales the loss."""

    def __init__(self, cell_run: CellRun) -> None:
        workload = cell_run.workload
        backend: Any = cell_run.backend
        backend.torch.manual_seed(cell_run.cell.seed)
        model = workload.torch.model(cell_run.cell.seed).to(backend.dtype)
        config = configured(cell_run, model)
        self.dtype = weight_dtype(cell_run)
        trained = [p for p in model.parameters() if p.requires_grad]
        deepspeed, _ = cell_run.deepspeed
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
        self.engine.train()
        self.loss, self.backend = workload.torch.loss, backend
        self.workload, self.steps = workload, 0
        self.inference = OffloadInference(self)

    def on_device(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch as tensors on the device, floats in the weights' dtype."""
        return {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in on_device(self.backend, batch).items()
        }

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        tensors = self.on_device(batch)
        clock.edge("data_s")
        loss = self.loss(self.engine, tensors)
        clock.edge("forward_s")
        self.engine.backward(loss)
        clock.edge("backward_s")
        rate = self.workload.learning_rate_at(self.steps)
        for group in self.engine.basic_optimizer.param_groups:
            group["lr"] = rate
        self.steps += 1
        self.engine.step()
        clock.edge("optimizer_s")
        detached = loss.detach()
        return lambda: float(detached)

    def updates(self) -> int | None:
        return updates(self.engine) if self.dtype == self.backend.torch.float16 else None

    def weights(self) -> Mapping[str, Any]:
        return weights(self.engine.module)


def updates(engine: Any) -> int:
    """Steps of DeepSpeed's engine without those that it skipped because gradients overflowed."""
    return int(engine.global_steps - engine.skipped_steps)


def weights(model: Any) -> dict[str, Any]:
    """A model's trained weights by name; in stage 3 the share of this process."""
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name: getattr(p, "ds_tensor", p) for name, p in trained}


def observed_dtypes(engine: Any, forward: Callable[[], Any]) -> dict[str, Any]:
    """Dtypes of a training in DeepSpeed's engine; the master weights are its optimizer's."""
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    master, moments = next(iter(engine.basic_optimizer.state.items()))
    return {
        "trained_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in trained),
        "master_weights": str(master.dtype).removeprefix("torch."),
        "master_weights_on": str(master.device),
        "moments": str(moments["exp_avg"].dtype).removeprefix("torch."),
        "weights": str(trained[0].dtype).removeprefix("torch."),
        "activations": first_activation(engine.module, forward),
    }
