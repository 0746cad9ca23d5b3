"""The operators of a training step that nobody has measured, found on this host's CPU.

The data are blank, since values do not matter, and nothing is computed, so the model needs no memory. For
a GPU's backend the step is traced on the same framework's CPU backend, with the optimizer that the GPU
would use; where the GPU would run another operator, it is one that nobody timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.backends._isolated import Call
from siliconprof.backends.base import Backend, Unsupported
from siliconprof.datasets import prepared, training_data
from siliconprof.errors import UserError, in_one_line
from siliconprof.session.timing import PhaseClock

# AdamW reading its step counts, which a GPU's backend keeps in the host's memory.
HOST_READS = "aten::_local_scalar_dense"


def calls(
    workload: Any, parameters: Mapping[str, Any], backend: str, precision: str, threads: int
) -> list[Call]:
    """The operators of a step in order, each with a function that times it alone.

    Raises:
        UserError: the CPU lacks the precision, or the framework does not list the operators.
    """
    cpu_backend = opened(workload, backend, precision, threads)
    try:
        batch = blank_batch(workload, parameters)
        found = cpu_backend.isolated_calls(workload, batch, PhaseClock(cpu_backend.clock))
    except (Unsupported, UserError) as error:
        raise UserError(f"the operators of its step are not known: {error}") from None
    except Exception as error:  # a model of the user's: its code, and what fake tensors lack
        raise UserError(f"the operators of its step are not known: {in_one_line(error)}") from error
    return [one for one in found if not (is_for_gpu(backend) and one.operator.kind == HOST_READS)]


def is_for_gpu(backend: str) -> bool:
    """Whether a backend works on GPUs alone."""
    return bool(plugins.load("backends", backend).device_kind == "gpu")


def opened(workload: Any, backend: str, precision: str, threads: int) -> Backend:
    """The framework's backend on this host's CPU, with the optimizer of the backend that is named.

    Raises:
        UserError: the CPU lacks the precision, or the workload the framework.
    """
    target = plugins.load("backends", backend)
    cpu_backend = on_cpu(target)()
    if reason := workload.supports(cpu_backend.framework, precision):
        raise UserError(reason)
    usual_adamw = target.features.usual_adamw
    if usual_adamw and workload.parameters.get("adamw") == "default":
        workload.parameters = {**workload.parameters, "adamw": usual_adamw}
    cpu_backend.import_framework()
    try:
        cpu_backend.open("cpu", 0, threads, precision)
    except Unsupported as error:
        raise UserError(f"a step's operators are read from a step on a CPU: {error}") from error
    return cpu_backend


def blank_batch(workload: Any, parameters: Mapping[str, Any]) -> Any:
    """A batch of `blank_data`."""
    return next(iter(workload.batches(blank_data(workload.data_kind, parameters), 0)))


def on_cpu(target: type[Backend]) -> type[Backend]:
    """A backend of the same framework that runs on a CPU; itself if it does."""
    if target.device_kind != "gpu":
        return target
    found = (plugins.load("backends", name) for name in plugins.names("backends"))
    return next(b for b in found if b.framework == target.framework and b.device_kind != "gpu")


def blank_data(kind: str | None, parameters: Mapping[str, Any]) -> Any:
    """One batch of zeros as a data set of a kind, for its shapes.

    None for a workload that reads no data set.
    """
    import numpy as np

    if kind is None:
        return None
    if kind == "images":
        n_train = parameters.get("batch_size") or max(parameters["batch_sizes"])
        images = np.zeros((n_train, *prepared.IMAGE_SHAPE), np.uint8)
        counts = {"train": n_train, "validation": 0, "test": 0}
        return training_data.ImageData(images, np.zeros(n_train, np.uint8), counts, "", "blank")
    batch_size, vocab_size = parameters["batch_size"], parameters["dataset_vocab_size"]
    if kind == "speech":
        clip_seconds, n_mels = parameters["dataset_clip_seconds"], parameters["dataset_n_mels"]
        return training_data.SpeechData(
            np.zeros((batch_size, n_mels, 100 * clip_seconds), np.float32),
            np.zeros((batch_size, 1), np.int32),  # the workload fills them to its own length
            np.zeros((batch_size, 1), np.int32),
            "",
            vocab_size,
            clip_seconds,
            n_mels,
            "blank",
        )
    # Some workloads take a token more for the last label, and hold half of the tokens out at most.
    tokens = np.zeros(4 * batch_size * (parameters["seq_len"] + 1), np.uint16)
    return training_data.TokenData(tokens, "", vocab_size, "blank")
