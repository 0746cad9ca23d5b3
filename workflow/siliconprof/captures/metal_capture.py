"""Metal's own capture: every command that a few steps hand to the GPU, for Xcode.

Written from MLX's page on the Metal debugger and torch's `mps.profiler`; it has not been run on
a Mac. Metal captures only in a process started with `MTL_CAPTURE_ENABLED=1`, which, as Apple
says, has a small cost of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from siliconprof.captures.base import Capture

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend


class Plugin(Capture):
    """metal-capture"""

    name = "metal-capture"
    means = "Metal commands of the framework, as a .gputrace that Xcode replays"
    environment = {"MTL_CAPTURE_ENABLED": "1"}
    backend_range = ("metal", "metal.gputrace")  # a folder, which must not exist yet

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Capture.available`."""
        if sys.platform != "darwin":
            return False, "Metal needs macOS"
        return True, "macOS 14 or later"

    @classmethod
    def supports(cls, backend: type[Backend], device_kind: str) -> str | None:
        """See `Capture.supports`."""
        if "metal" not in backend.capture_ranges or device_kind == "cpu":
            return f"it records Metal, which {backend.name} on a {device_kind} does not use"
        return super().supports(backend, device_kind)
