"""Numbers and states in words: every text of the page that is made from a value."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

DASH = "–"
LEAST_IN_DIGITS, MOST_IN_DIGITS = 1e-12, 1e18  # beyond, a number is in powers of ten
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
FEWEST_OF_INTERVAL = 8  # times of which the median has one of 95 %, see `block_median_interval`
NARROW = "\u202f"  # narrow no-break space: between digits in threes, and a number and its unit
MIB, GIB = 2.0**20, 2.0**30  # bytes
GIGA, TERA = 1e9, 1e12

# Trainer -> what it is called in a setup, where its own name would say nothing.
TRAINER_WORDS = {"training_run": "whole run", "epochs": "whole epochs"}
STATUS_WORDS = {
    "ok": "measured",
    "oom": "ran out of memory",
    "failed": "failed",
    "timeout": "ran past its time limit",
    "unsupported": "skipped",
    "skipped": "skipped",
}
STATISTICAL_FLAGS = {"noisy", "drift", "change_point"}  # no mark of a cell: the intervals say it
PART_WORDS = {  # parts of a step, where the page calls them otherwise
    "products": "matrix products",
    "blocked": "being blocked",
    "framework": "framework overhead",
}
REFERENCE_BLAS = "reference BLAS"  # how its name begins
SOURCE_BADGES = {"another host": "other host", "reference": "reference"}


def foreign_host(row: Mapping[str, Any]) -> str:
    """`other host: gpu-box` of a row that is not this host's; else empty."""
    badge = SOURCE_BADGES.get(row.get("source", ""))
    return f"{badge}: {row['host']}" if badge else ""


def number(value: Any) -> float | None:
    """A finite number, or None for anything that is not one."""
    if value is None or isinstance(value, str):
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def numbers(rows: Iterable[Mapping[str, Any]], column: str) -> list[float]:
    """The finite numbers of a column."""
    return [value for row in rows if (value := number(row.get(column))) is not None]


def _beyond_digits(value: float, digits: int = 2) -> str | None:
    """Return the text of a number that plain digits do not suit: `NaN`, `∞`, `1.0 × 10³⁰⁸`; else None."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or LEAST_IN_DIGITS <= abs(value) < MOST_IN_DIGITS:
        return None
    return scientific(value, digits)


def significant(value: float, digits: int = 3) -> str:
    """Return `value` to this many significant digits, grouped from 10 000.

    Only what is beyond all measured values is in powers of ten.
    """
    if (beyond := _beyond_digits(value, digits)) is not None:
        return beyond
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if round(abs(value), digits - 1 - magnitude) >= 10 ** (magnitude + 1):
        magnitude += 1  # 9.996 rounds to 10.0
    text = f"{value:,.{max(digits - 1 - magnitude, 0)}f}"
    return text.replace(",", NARROW if abs(value) >= 9999.5 else "").replace("-", "−")


def grouped(value: float) -> str:
    """A whole number, digits grouped from 10 000."""
    digits = f"{value:,.0f}".replace(",", NARROW if abs(value) >= 9999.5 else "")
    return _beyond_digits(round(value) if math.isfinite(value) else value) or digits


def scientific(value: float, digits: int = 2) -> str:
    """`2.1 × 10⁻⁷`, for errors and differences."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return significant(value)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} × 10{raised}".replace("-", "−")


def percent(share: float) -> str:
    """A share between 0 and 1 in per cent, three significant digits at most."""
    return f"{significant(100 * share, 2 if abs(share) < 0.1 else 3)}{NARROW}%"


def whole_percent(share: float) -> str:
    """A share as `15 %`."""
    return f"{grouped(100 * share)}{NARROW}%".replace("-", "−")


def change(share: float) -> str:
    """How much more or less, `+15 %`."""
    return f"{'+' if share > 0 else '−'}{whole_percent(abs(share))}"


def spread(n: float | None, half: str) -> str:
    """`± 3 %`, or `range of 4` where no 95 % interval exists.

    Args:
        n: values that the interval is of; None for one of which that is not asked.
    """
    return f"± {half}" if n is None or n >= FEWEST_OF_INTERVAL else f"range of {n:.0f}"


def suited(units: Sequence[tuple[str, float]], value: float) -> tuple[str, float]:
    """The largest of units, or prefixes, in which a value, rounded, is at least 1; else the smallest.

    So 999.6 µs are 1.00 ms.
    """
    size = float(f"{abs(value):.2e}")
    return next((unit for unit in units if size >= unit[1]), units[-1])


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: `23.4 ms`."""
    unit, scale = suited((("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)), seconds)
    return f"{significant(seconds / scale)}{NARROW}{unit}"


def scaled(value: float, unit: str) -> str:
    """A quantity with an SI prefix: `2.31 GFLOP/s`."""
    prefix, scale = suited(PREFIXES, value)
    return f"{significant(value / scale)}{NARROW}{prefix}{unit}"


def mebibytes(size_bytes: float) -> str:
    """Bytes in MiB, or GiB from 10 GiB on."""
    if abs(size_bytes) >= 10 * 2**30:
        return f"{significant(size_bytes / 2**30)}{NARROW}GiB"
    return f"{significant(size_bytes / 2**20)}{NARROW}MiB"


def count(n: int, one: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{n} {one if n == 1 else one + 's'}"


def listing(words: Iterable[str], most: int | None = None) -> str:
    """`a, b and c`; of more than `most` the first, `a, b and 3 more`."""
    items = list(words)
    if most is not None and len(items) > most:
        items[most:] = [f"{len(items) - most} more"]
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def shape(point: Mapping[str, Any]) -> str:
    """Return a product's shape: `512³`, `8 × 128³`, `8 × (64 × 128 × 32)`; with a vector, the matrix's."""
    names = "mk" if point["module"] == "matvec" else "mkn"
    batch, *sizes = (int(point[name]) for name in ("batch", *names))
    is_cube = len({*sizes}) == 1
    product = f"{sizes[0]}{'²³'[len(sizes) - 2]}" if is_cube else " × ".join(map(str, sizes))
    if batch == 1:
        return product
    return f"{batch} × {product if is_cube else f'({product})'}"


def shortened(text: str, limit: int) -> str:
    """The text, cut at a word where it is longer than the limit."""
    if len(text) <= limit:
        return text
    return text[: max(limit - 1, 0)].rsplit(" ", 1)[0].rstrip(",;: ") + "…"


def backend_name(row: Mapping[str, Any]) -> str:
    """Return a backend's name for display: `torch-cpu`, `mlx (reference BLAS)`.

    A reference BLAS is many times slower than a tuned library, so it says nothing about the backend.
    """
    slow = row.get("device_kind") == "cpu" and str(row.get("blas")).startswith(REFERENCE_BLAS)
    return f"{row['backend']} ({REFERENCE_BLAS})" if slow else str(row["backend"])


def flags(cell: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(code, detail) of every flag; `aggregate` joins them as `code: detail; code: detail`."""
    codes = [code for code in (cell.get("flags") or "").split(";") if code]
    details = cell.get("flag_details") or ""
    if not codes:
        return
    names = "|".join(map(re.escape, codes))
    parts = re.split(rf"(?:^|; )({names}): ", details)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of words as lines with aligned columns.

    Args:
        right: places of the columns that end, and do not begin, below each other.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.rjust(width) if place in right else word.ljust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
