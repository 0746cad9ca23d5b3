"""What a sensor answers. Hardware that is absent is a null object with a reason, never a zero.

Units are in the names. A value that cannot be read is None; what stops being readable raises
`Unreadable`, whose message is the reason for the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

Readings = dict[str, float | int | None]


class Unreadable(Exception):
    """A sensor cannot be read, or no longer; the message says why."""


@dataclass(frozen=True)
class Source:
    """One figure of energy.

    Attributes:
        scope: `gpu`, `soc`, `cpu-package` or `wall`: what the energy was spent in.
        quality: `counter`: cumulative joules, counted by hardware. `model`: cumulative joules,
            estimated by firmware. `integral`: a power in watts, to be integrated.
        means: how it is read, and what is known of its error.
        reason: why it cannot be read here; None where it can.
        vendor: who made what it counts, as in `sensors.GPUS`; empty where that says nothing.
    """

    name: str
    scope: str
    quality: str
    means: str
    reason: str | None = None
    vendor: str = ""

    def without(self, reason: str) -> Source:
        """The same source, not readable."""
        return replace(self, reason=reason)


class EnergySensor:
    """Sources of energy that are read together."""

    sources: tuple[Source, ...] = ()

    def read(self) -> dict[str, float]:
        """By source: cumulative joules, or watts where the quality is `integral`.

        Raises:
            Unreadable: it was readable and is not any more.
        """
        return {}


class NoEnergy(EnergySensor):
    """Sources that are absent, so that a record names them with their reason."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources


class Hardware:
    """Clocks, temperatures and limits of a processor. What is not told is None.

    Attributes:
        reasons: why a column is None throughout, by column.
        throttling: those names of `limits` that are heat, or the hardware protecting itself.
        power_caps: those that are a limit on power.
        must_tell: nothing else tells of its limits, so without it nobody knows of them.
    """

    must_tell = False

    throttling: ClassVar[frozenset[str]] = frozenset()
    power_caps: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def clocks(self) -> Readings:
        """For every sample: cheap.

        Raises:
            Unreadable: it is lost.
        """
        return {}

    def state(self) -> Readings:
        """For once a second: what is dear or slow to change."""
        return {}

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        """What held the clock down in a sample of both; None where the sample does not tell."""
        return None

    def limits_means(self) -> str:
        """How `limits` knows, or why it does not."""
        return "nothing tells"


class Gpu(Hardware):
    """The GPU that a cell runs on."""

    reason: str | None = None  # why nothing can be read

    def energy(self) -> EnergySensor | None:
        """Its own sources of energy; None where the host's sensors count it, or there is no GPU."""
        return None

    def power_limit_w(self) -> float | None:
        """The power limit in force, in watts."""
        return None

    def utilization_percent(self) -> float | None:
        """Share of the last second or less in which anything at all ran on it."""
        return None

    def processes(self) -> list[tuple[int, int | None]] | None:
        """(process id, bytes held or None) of everyone who computes on it; None: not told."""
        return None


class NoGpu(Gpu):
    """There is no GPU, or nothing tells of it; its sources of energy keep the reason."""

    def __init__(self, reason: str, *sources: Source) -> None:
        super().__init__()
        self.reason = reason
        self.reasons = {"gpu": reason}
        self.sources = sources
        self.must_tell = bool(sources)  # otherwise the host's sensors cover it

    def energy(self) -> EnergySensor | None:
        """See `Gpu.energy`."""
        if not self.sources:
            return None
        return NoEnergy(*(source.without(self.reason or "") for source in self.sources))

    def limits_means(self) -> str:
        """See `Hardware.limits_means`."""
        return self.reason or ""
