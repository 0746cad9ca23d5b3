"""The operators of a training step that nobody has measured, on this host's CPU.

The values do not matter, so the data are blank, and no step is taken: the model needs no memory. Of
a backend for GPUs the step is one on the same framework's for a CPU, with the optimizer that the GPU
would have; what is another operator there is one that nobody timed.
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

# AdamW reads its counts of steps, which beside a GPU are in the host's memory: none of its operators.
HOST_READS = "aten::_local_scalar_dense"


def calls(
    workload: Any, parameters: Mapping[str, Any], backend: str, precision: str, threads: int
) -> list[Call]:
    """The operators of a step, in order, each with what times it alone.

    Raises:
        UserError: no CPU does it in that precision, or the framework does not tell them.
    """
    own = opened(workload, backend, precision, threads)
    try:
        batch = blank_batch(workload, parameters)
        found = own.isolated_calls(workload, batch, PhaseClock(own.clock))
    except (Unsupported, UserError) as error:
        raise UserError(f"the operators of its step are not known: {error}") from None
    except Exception as error:  # a model of the user's: its code, and what fake tensors lack
        raise UserError(f"the operators of its step are not known: {in_one_line(error)}") from error
    return [one for one in found if not (is_for_gpu(backend) and one.operator.kind == HOST_READS)]


def is_for_gpu(backend: str) -> bool:
    """Whether a backend works on GPUs alone."""
    return bool(plugins.load("backends", backend).device_kind == "gpu")


def opened(workload: Any, backend: str, precision: str, threads: int) -> Backend:
    """The backend on this host's CPU, with the optimizer of the one that is asked for.

    Raises:
        UserError: no CPU does it in that precision, or the workload is none of its framework.
    """
    asked = plugins.load("backends", backend)
    own = on_cpu(asked)()
    if reason := workload.supports(own.framework, precision):
        raise UserError(reason)
    if asked.usual_adamw and workload.parameters.get("adamw") == "default":
        workload.parameters = {**workload.parameters, "adamw": asked.usual_adamw}
    own.import_framework()
    try:
        own.open("cpu", 0, threads, precision)
    except Unsupported as error:
        raise UserError(f"a step's operators are read from a step on a CPU: {error}") from error
    return own


def blank_batch(workload: Any, parameters: Mapping[str, Any]) -> Any:
    """A batch of `blank_data`."""
    return next(iter(workload.batches(blank_data(workload.data_kind, parameters), 0)))


def on_cpu(asked: type[Backend]) -> type[Backend]:
    """A backend of the same framework that has a CPU, itself if it can."""
    if asked.device_kind != "gpu":
        return asked
    found = (plugins.load("backends", name) for name in plugins.names("backends"))
    return next(b for b in found if b.framework == asked.framework and b.device_kind != "gpu")


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
