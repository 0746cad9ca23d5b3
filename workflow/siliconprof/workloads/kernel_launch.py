"""Kernel launch, which is several numbers: cold, enqueue only, launch and wait, amortised.

An empty compiled kernel where the backend can make one; the trivial operator everywhere, which
is labelled dispatch because it also pays for the framework's own path.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from siliconprof.timing import Plan, repeat
from siliconprof.workloads.base import KernelWorkload

if TYPE_CHECKING:
    from siliconprof.session import Session


class Plugin(KernelWorkload):
    """kernel_launch"""

    frameworks = ("torch", "mlx")
    PARAMETERS = {
        "burst": {
            "type": "integer",
            "minimum": 1,
            "default": 100,
            "description": "launches between two synchronisations; below the queue's depth (1024)",
        },
        "repeats": {
            "type": "integer",
            "minimum": 10,
            "default": 200,
            "description": "bursts measured for enqueue and amortised time",
        },
    }
    REQUIRED = ()

    def supports(self, framework: str, precision: str) -> str | None:
        """See `Workload.supports`."""
        if precision != "fp32":
            return "a launch computes nothing, so it has no precision: measured under fp32 only"
        return super().supports(framework, precision)

    def measure(self, session: Session) -> None:
        """See `KernelWorkload.measure`."""
        backend = session.backend
        other = backend.matmul(backend.normal((8, 8), 0), backend.normal((8, 8), 1))
        backend.evaluate(other)  # the context exists and another kernel has run
        backend.synchronize()
        value = backend.normal((1,), session.cell.seed)
        backend.synchronize()
        session.add_point(
            self.point(session, "dispatch", "a + 1 on one element", lambda: backend.add_one(value))
        )
        kernel, note = backend.empty_kernel()
        if kernel is None:
            session.flag("no_empty_kernel", note)
        else:
            try:
                session.add_point(self.point(session, "empty kernel", note, kernel))
            except Exception as error:  # made by private or young interfaces: keep the dispatch
                session.flag("no_empty_kernel", f"its launch failed: {error}")

    def point(
        self, session: Session, what: str, note: str, launch: Callable[[], Any]
    ) -> dict[str, Any]:
        """All four numbers of one launcher."""
        backend, burst = session.backend, self.parameters["burst"]
        start = time.perf_counter()
        launch()
        backend.synchronize()
        cold_s = time.perf_counter() - start
        warmup, waited, stopped_by = repeat(
            launch, backend, Plan.of(session.cell.timing), session.stepping(f"{what} and wait")
        )
        enqueue, amortised = [], []
        stepping = session.stepping(f"{what} burst")
        begin = time.perf_counter()
        for index in range(self.parameters["repeats"]):
            stepping("measure", index)
            start = time.perf_counter()
            for _ in range(burst):
                launch()
            handed_over = time.perf_counter()
            backend.synchronize()
            enqueue.append((handed_over - start) / burst)
            amortised.append((time.perf_counter() - start) / burst)
        session.timed(time.perf_counter() - begin)
        return {
            "params": {"launch": what, "note": note, "burst": burst},
            "times": {
                "cold_s": [cold_s],
                "launch_and_wait_s": waited,
                "warmup_step_s": warmup,
                "enqueue_s": enqueue,
                "amortised_s": amortised,
            },
            "stopped_by": stopped_by,
            "flops": None,
            "bytes": None,
            "memory": session.memory(),
        }
