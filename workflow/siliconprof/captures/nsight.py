"""NVIDIA Nsight Systems: a time line of CUDA calls, kernels and operating-system calls.

Written from the Nsight Systems user guide; it has not been run. `nsys` cannot attach, so the
process is started under it. Where the backend can start and stop CUDA's profiler, only the
captured steps are recorded, else the whole process is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.captures.base import Capture

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend

RANGE = "cuda-profiler"
STEM = "nsight"  # nsys adds .nsys-rep


class Plugin(Capture):
    """nsight"""

    name = "nsight"
    program = ("nsys", "install NVIDIA Nsight Systems")
    backend_range = (RANGE, "")
    means = "nsys profile (Nsight Systems): the steps where CUDA's profiler can be told, else all"

    @classmethod
    def command(cls, backend: type[Backend], folder: Path) -> Sequence[str]:
        """See `Capture.command`.

        `stop`, because by default the end of the range ends the process too.
        """
        command = ["nsys", "profile", "--trace=cuda,nvtx,cublas,cudnn,osrt", "--sample=none"]
        command.append(f"--output={folder / STEM}")
        if RANGE in backend.capture_ranges:
            command += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        return command

    def end(self) -> dict[str, Any]:
        """See `Capture.end`."""
        told = RANGE in self.backend.capture_ranges
        return super().end() | {"scope": "the captured steps" if told else "whole process"}
