"""The interfaces of sensors. Absent hardware is a null object with a reason, never a zero.

Units are in the names. A value that cannot be read is None, with its reason. What reads a sensor does
so through `machine.reading`, so that one which raises costs itself alone; `Unreadable` has the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from siliconprof.hosts import machine

Readings = dict[str, float | int | None]


@dataclass(frozen=True)
class Source:
    """One figure of energy.

    Attributes:
        scope: `gpu`, `soc`, `cpu-package` or `wall`: what consumed the energy.
        quality: `counter`: cumulative joules, counted by hardware. `model`: cumulative joules,
            estimated by firmware. `integral`: a power in watts, to be integrated.
        means: how it is read, and what is known of its error.
        reason: why it cannot be read here; None where it can.
    """

    name: str
    scope: str
    quality: str
    means: str
    reason: str | None = None

    def without(self, reason: str) -> Source:
        """The same source with the reason why it cannot be read."""
        return replace(self, reason=reason)


class EnergySensor:
    """Sources of energy that are read together. This base class stands for absent ones, with reasons.

    Attributes:
        lost: why a source can no longer be read, by its name.
    """

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        self.lost: dict[str, str] = {}

    def read(self) -> dict[str, float]:
        """Return source -> cumulative joules, or watts where the quality is `integral`.

        Raises:
            Exception: of any kind: none of the sources can be read any more.
        """
        return {}

    def readings(self) -> dict[str, float]:
        """Return `read`, without the sources that can no longer be read, which are `lost`."""
        values, why = machine.reading(self.read)
        if values is None:
            self.lost |= {source.name: str(why) for source in self.sources}
        return values or {}

    def held(self, source: Source) -> Source:
        """Return a source with what it turned out to hold, or why it is no measurement, once it was read."""
        return source


class Hardware:
    """Clocks, temperatures and limits of a processor. A value that is not reported is None.

    Attributes:
        reasons: why a column is None throughout, by column.
        throttling: the names in `limits` that stand for heat, or for the hardware protecting itself.
        power_caps: the names in `limits` that stand for a limit on power.
        must_report: whether it is the only sensor that reports its limits.
        limits_shown: the column that shows `limits`, and what that is.
    """

    must_report = False

    limits_shown: ClassVar[tuple[str, str]] = ("gpu", "nothing reports limits")
    throttling: ClassVar[frozenset[str]] = frozenset()
    power_caps: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def clocks(self) -> Readings:
        """The readings of every sample, which are cheap; units are in the names."""
        return {}

    def state(self) -> Readings:
        """The readings of once a second, which are expensive or change slowly."""
        return {}

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        """What limited the clock in a sample of `clocks` and `state`; None where it does not show."""
        return None

    def limits_means(self) -> str:
        """The source of `limits`, or why there is none."""
        column, means = self.limits_shown
        return self.reasons.get(column, means)


class Gpu(Hardware):
    """The GPU that a cell runs on. This base class stands for one without sensors, and for none.

    Args:
        reason: why nothing can be read; None where something can.
        sources: of its energy, which carry the reason; none where the host's sensors cover it.
    """

    def __init__(self, reason: str | None, *sources: Source) -> None:
        super().__init__()
        self.reason = reason
        self.reasons = {"gpu": reason} if reason else {}
        self.sources = sources
        self.must_report = bool(sources)

    def energy(self) -> EnergySensor | None:
        """Return its own energy sensor; None where the host's sensors count it, or without a GPU."""
        absent = (source.without(self.reason or "") for source in self.sources)
        return EnergySensor(*absent) if self.sources else None

    def now(self) -> dict[str, Any]:
        """`sm_clock_mhz`, `power_w` and `limits` of this moment, which is just after work; {}: not reported."""
        return {}

    def power_limit_w(self) -> float | None:
        """The power limit in force, in watts."""
        return None

    def processes(self) -> list[tuple[int, int | None]] | None:
        """(process id, bytes allocated or None) of each process on it; None: not reported."""
        return None
