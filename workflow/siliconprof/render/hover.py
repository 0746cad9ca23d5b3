"""What stands beside the pointer over a mark: whose it is, its value, unit and what it may be.

A range is named: `95 %` is an interval of the median, `IQR` the middle half of the repeats, and
`range` their lowest and highest, which stands in where there are too few for an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median as median_of
from typing import Any

from siliconprof import words
from siliconprof.render import uncertainty
from siliconprof.render.compare import FEW
from siliconprof.render.variants import Row, label, model

INTERVAL, MIDDLE_HALF, RANGE = "95 %", "IQR", "range"
SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def training(row: Row) -> str:
    """`gpt2-tiny, torch-cpu · plain · fp32`."""
    return f"{model(row)}, {label(row)}"


def seconds(
    middle: float, low: float | None = None, high: float | None = None, what: str = INTERVAL
) -> str:
    """`12.3 ms (95 % 11.9–12.8)`; the range in the unit of the middle."""
    unit, scale = words.suited(SECONDS, middle)
    return spanned(middle, low, high, unit, scale, what)


def rate(
    middle: float,
    unit: str,
    low: float | None = None,
    high: float | None = None,
    what: str = INTERVAL,
) -> str:
    """`171 GFLOP/s (95 % 168–173)`."""
    prefix, scale = words.suited(words.PREFIXES, middle)
    return spanned(middle, low, high, f"{prefix}{unit}", scale, what)


def spanned(
    middle: float,
    low: float | None,
    high: float | None,
    unit: str,
    scale: float = 1.0,
    what: str = INTERVAL,
) -> str:
    """A value over `scale` with its unit, its range in brackets where there is one."""
    text = f"{words.significant(middle / scale)}{words.THIN}{unit}".rstrip()
    if low is None or high is None:
        return text
    ends = "–".join(words.significant(end / scale) for end in (low, high))
    return f"{text} ({what} {ends})"


def _part(row: Mapping[str, Any], stem: str, part: str) -> float | None:
    return words.number(row.get(f"{stem}_{part}_s"))


def quartiles(row: Mapping[str, Any], stem: str) -> str:
    """A median of seconds with the middle half of its repeats; empty when nothing was timed."""
    middle = _part(row, stem, "median")
    if middle is None:
        return ""
    return seconds(middle, _part(row, stem, "q25"), _part(row, stem, "q75"), MIDDLE_HALF)


def median(row: Mapping[str, Any], stem: str) -> str:
    """A median of seconds with its 95 % interval; empty when nothing was timed."""
    middle = _part(row, stem, "median")
    if middle is None:
        return ""
    what = interval_name(row, stem)
    return seconds(middle, _part(row, stem, "low"), _part(row, stem, "high"), what)


def interval_name(row: Mapping[str, Any], stem: str) -> str:
    """What the ends of a median's interval are."""
    n = words.number(row.get(f"{stem}_n"))
    few = n is not None and n < FEW and row.get("interval") != uncertainty.BETWEEN
    return RANGE if few else INTERVAL


def of_several(values: Sequence[float], unit: str, scale: float = 1.0) -> str:
    """`median 12.3 MiB (range 1.2–40)` of the points of one line."""
    middle = median_of(values)
    if len(values) < 2:
        return spanned(middle, None, None, unit, scale)
    return f"median {spanned(middle, min(values), max(values), unit, scale, RANGE)}"
