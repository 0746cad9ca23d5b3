"""The operators of a training step that nobody has measured: one step, on this host's CPU.

The values do not matter, so the data are blank; the second step is listed, when the optimizer has
its state. Nothing is timed. Of a backend for GPUs the step runs on the same framework's for a CPU,
with the optimizer that the GPU would have; what is another operator there is one that nobody timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.backends.base import Backend, Unsupported
from siliconprof.datasets import image_data, speech_data, token_data
from siliconprof.errors import UserError
from siliconprof.hosts import machine
from siliconprof.memory import footprint
from siliconprof.session.operators import Operators
from siliconprof.session.timing import PhaseClock

# AdamW reads its counts of steps, which beside a GPU are in the host's memory: none of its operators.
HOST_READS = "aten::_local_scalar_dense"


class Training:
    """A training that takes one more step on request, in this process and on this host's CPU.

    Args:
        workload: a training's plug-in.
        parameters: of its data too, see `blank_data`.

    Raises:
        UserError: no CPU does it in that precision.
    """

    def __init__(
        self,
        workload: Any,
        parameters: Mapping[str, Any],
        backend: str,
        precision: str,
        threads: int,
    ) -> None:
        asked = plugins.load("backends", backend)
        self.for_gpu = asked.device_kind == "gpu"
        self.backend = on_cpu(asked)()
        if asked.usual_adamw and workload.parameters.get("adamw") == "default":
            workload.parameters = {**workload.parameters, "adamw": asked.usual_adamw}
        self.backend.import_framework()
        try:
            self.backend.open("cpu", 0, threads, precision)
        except Unsupported as error:
            raise UserError(f"a step's operators are read from a step on a CPU: {error}") from error
        self.stepper = self.backend.stepper(workload, 0)
        blank = blank_data(workload.data_kind, parameters)
        self.batch = next(iter(workload.batches(blank, 0)))
        self.clock = PhaseClock(self.backend)
        self.method: dict[str, Any] = {}  # as a session's: which kernels were taken

    def step(self) -> Any:
        """One training step, with its edges on the clock."""
        return self.stepper.step(self.batch, self.clock)

    def operators(self) -> list[dict[str, Any]]:
        """Rows of a step's operators as a record has them, without times."""
        watched = Operators(self, self.clock)
        for watches in (False, True):
            self.clock.start(split=True)
            if watches:
                watched.begin(0)
            self.step()
            self.clock.stop()
        watched.end()
        rows: list[dict[str, Any]] = watched.part()["operators"]["rows"]
        return [row for row in rows if not (self.for_gpu and row["kind"] == HOST_READS)]


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
        images = np.zeros((n_train, *image_data.SHAPE), np.uint8)
        counts = {"train": n_train, "validation": 0, "test": 0}
        return image_data.ImageData(images, np.zeros(n_train, np.uint8), counts, "", "blank")
    batch_size, vocab_size = parameters["batch_size"], parameters["dataset_vocab_size"]
    if kind == "speech":
        clip_seconds, n_mels = parameters["dataset_clip_seconds"], parameters["dataset_n_mels"]
        return speech_data.SpeechData(
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
    return token_data.TokenData(tokens, "", vocab_size, "blank")


def require_memory(workload: Any, precision: str, backend: str) -> None:
    """Refuse a step that this host has no memory for.

    Raises:
        UserError: one line.
    """
    need = footprint.total(workload.memory_bytes(precision, backend))
    room, _ = machine.by_psutil(lambda psutil: psutil.virtual_memory().available)
    has = "are available"
    if room is None:  # what is free is not known: then all that there is
        room, has = machine.cpu()["memory_bytes"], "is all its memory"
    if room is not None and need > room:
        raise UserError(
            f"a step's operators are read from a step on this host, which needs {need / 1e9:.3g} GB; "
            f"{room / 1e9:.3g} GB {has}: a smaller batch, or a host with more memory"
        )
