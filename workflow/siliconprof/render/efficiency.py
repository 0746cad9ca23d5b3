"""Efficiency of trainings: of the data sheet's peak (MFU), and of the best measured product.

The numbers are those of the table of training rates; here they have intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from siliconprof import words
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.training import best_products, product_key
from siliconprof.render.variants import Row


class Efficiency(NamedTuple):
    """One training: shares between 0 and 1, None where the reference rate is unknown."""

    row: Row
    of_sheet: float | None
    of_product: float | None
    low: float  # ends of the 95 % interval over the middle, for both alike
    high: float


def efficiencies(data: Data, rows: Sequence[Row]) -> list[Efficiency]:
    """The efficiency of each training that has a rate to be compared with."""
    fastest, results = best_products(data), []
    for row in rows:
        rate, step = words.number(row["flop_per_s"]), Step.of(row)
        peak, product = data.peak_flop_per_s(row), fastest.get(product_key(row))
        if not rate or not (peak or product):
            continue
        low, high = (step.middle / step.high, step.middle / step.low) if step else (1.0, 1.0)
        results.append(
            Efficiency(
                row,
                rate / peak if peak else None,
                rate / product if product else None,
                low,
                high,
            )
        )
    return results
