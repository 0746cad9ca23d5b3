"""The operators of a training step that nobody has measured: one step, on this host's CPU.

The values do not matter, so the data are blank; the second step is listed, when the optimizer has
its state. Nothing is timed. Of a backend for GPUs the step runs on the same framework's for a CPU,
with the optimizer that the GPU would have; what is another operator there is one that nobody timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from siliconprof import plugins
from siliconprof.backends.base import Backend, Unsupported
from siliconprof.errors import UserError
from siliconprof.memory import footprint
from siliconprof.session import step_shapes
from siliconprof.session.operators import Operators
from siliconprof.session.timing import PhaseClock


class Training:
    """A training that takes one more step on request, in this process and on this host's CPU.

    Args:
        workload: a training's plug-in.
        parameters: of its data too, see `step_shapes.blank_data`.

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
        self.backend = on_cpu(asked)()
        if asked.usual_adamw and workload.parameters.get("adamw") == "default":
            workload.parameters = {**workload.parameters, "adamw": asked.usual_adamw}
        self.backend.import_framework()
        try:
            self.backend.open("cpu", 0, threads, precision)
        except Unsupported as error:
            raise UserError(f"a step's operators are read from a step on a CPU: {error}") from error
        self.stepper = self.backend.stepper(workload, 0)
        blank = step_shapes.blank_data(workload.data_kind, parameters)
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
        return rows


def on_cpu(asked: type[Backend]) -> type[Backend]:
    """A backend of the same framework that has a CPU, itself if it can."""
    if asked.device_kind != "gpu":
        return asked
    found = (plugins.load("backends", name) for name in plugins.names("backends"))
    return next(b for b in found if b.framework == asked.framework and b.device_kind != "gpu")


def require_memory(workload: Any, precision: str, backend: str) -> None:
    """Refuse a step that this host has no memory for.

    Raises:
        UserError: one line.
    """
    need = footprint.total(workload.memory_bytes(precision, backend))
    available = psutil.virtual_memory().available
    if need > available:
        raise UserError(
            f"a step's operators are read from a step on this host, which needs {need / 1e9:.3g} GB; "
            f"{available / 1e9:.3g} GB are available: a smaller batch, or a host with more memory"
        )
