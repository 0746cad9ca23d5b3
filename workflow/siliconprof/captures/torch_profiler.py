"""torch.profiler: every operator and kernel of a few steps, as a Chrome trace.

Open the file in https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

from importlib import util
from typing import Any

from siliconprof.captures.base import STEPS, Capture

FILE = "trace.json"


class Plugin(Capture):
    """torch-profiler"""

    name = "torch-profiler"
    means = (
        "torch.profiler with shapes: operators on the CPU and, where torch can trace it, the "
        "device's kernels; Chrome trace"
    )
    frameworks = ("torch",)
    extra_steps = 1  # start-up skews the first step, so the profiler's schedule leaves it out

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Capture.available`."""
        if util.find_spec("torch") is None:
            return False, "torch is not installed"
        return True, "part of torch"

    def begin(self) -> None:
        """See `Capture.begin`; all activities that this build of torch can trace."""
        from torch import profiler

        self.profiler: Any = profiler.profile(
            schedule=profiler.schedule(wait=0, warmup=self.extra_steps, active=STEPS, repeat=1),
            record_shapes=True,
        )
        self.profiler.start()

    def between(self) -> None:
        """See `Capture.between`."""
        self.profiler.step()

    def end(self) -> dict[str, Any]:
        """See `Capture.end`."""
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.folder / FILE))
        return {}
