"""What a probe, a thing read beside a measurement, answers and does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend


class Probe:
    """Starts, samples, stops; answers `{name_with_unit: value or None}`."""

    name: ClassVar[str]

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Whether this host can be read so, and by what means, or why not."""
        raise NotImplementedError

    def start(self, backend: Backend) -> None:
        """Called once, before the measurement; the backend is open."""
        self.backend = backend

    def sample(self) -> dict[str, float | int | None]:
        """Read now; called about ten times a second from one thread."""
        return {}

    def stop(self, wall_s: float) -> dict[str, Any]:
        """A summary, once the measurement is over; `flag` in it marks the record."""
        return {}
