"""The interface of a probe: something that is read beside a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from siliconprof.backends.base import Backend
from siliconprof.declarations import Quantity


class Probe:
    """Starts, samples, stops; a sample is `{name_with_unit: value or None}`.

    A value that cannot be read is None in a sample and has its reason in the summary. The sampler
    switches off a probe that raises, and the measurement goes on without it.
    """

    name: ClassVar[str]
    QUANTITIES: ClassVar[Mapping[str, Quantity]] = {}  # what its summary holds, by name
    LIBRARIES: ClassVar[Sequence[str]] = ()  # distributions that it reads with
    missing: ClassVar[Mapping[str, Any]] = {}  # its summary where it is not available at all
    under_way = True  # timed work runs now: medians and shares are of such samples only

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Whether the probe works on this host, and by what means, or why not."""
        raise NotImplementedError

    def start(self, backend: Backend) -> None:
        """Called once, before the measurement."""
        self.backend = backend

    def sample(self) -> dict[str, float | int | None]:
        """Read now; called about four times a second from one thread, with the same keys always."""
        return {}

    def stop(self, wall_s: float) -> dict[str, Any]:
        """A summary, once the measurement is over.

        Args:
            wall_s: seconds since `start`.

        Returns:
            plain data for the record; `flags` in it, a list of (code, detail), marks the record.
        """
        return {}
