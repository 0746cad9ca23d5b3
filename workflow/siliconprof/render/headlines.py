"""Two findings that are no comparisons: how near trainings come to the hardware, and the noise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.render import uncertainty
from siliconprof.render.blocks import Finding
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.variants import Row, flagged, has_no_speed, label, model

NOISE = "Noise"
NOISE_FLAGS = ("noisy", "contended")
SPREADS = ("unsplit_step", "step", "launch_and_wait")  # whichever a point has first
MOST_NAMED = 6


class Efficiency(NamedTuple):
    """One training: shares between 0 and 1, None where the reference rate is unknown."""

    row: Row
    of_sheet: float | None  # of the data sheet's peak (MFU)
    of_product: float | None  # of the best measured product
    low: float  # ends of the 95 % interval over the middle, for both alike
    high: float


def efficiencies(data: Data, rows: Sequence[Row]) -> list[Efficiency]:
    """The efficiency of each training that has a rate to be compared with."""
    results = []
    for row in rows:
        rate, step = words.number(row["flop_per_s"]), Step.of(row)
        references = data.peak_flop_per_s(row), data.best_product(row)
        if rate and any(references):
            sheet, product = (rate / of if of else None for of in references)
            ends = (step.middle / step.high, step.middle / step.low) if step else (1.0, 1.0)
            results.append(Efficiency(row, sheet, product, *ends))
    return results


def hardware(data: Data) -> Finding | None:
    """The share that trainings reach of the device's measured or data sheet's throughput.

    The best training of each device and backend, in fp32 where any is: where a backend multiplies
    slowly in a format, even a slow training reaches a large share.
    """
    trained = [row for row in data.training() if not has_no_speed(row)]
    compared = efficiencies(data, trained)
    sound = [one for one in compared if not flagged(one.row, DISTURBED)] or compared
    own = sorted(
        (one for one in sound if one.of_product is not None), key=lambda one: -(one.of_product or 0)
    )
    sheet = sorted(
        (one for one in sound if one.of_sheet is not None), key=lambda one: -(one.of_sheet or 0)
    )
    sentences = []
    if own:
        sentences.append(
            f"{_best(own, False)} of the fastest matrix product measured on the device, by any backend "
            "in the same number format or in fp32"
        )
    if sheet:
        sentences.append(f"{_best(sheet, True)} of the data sheet's peak (MFU)")
    elif own:
        sentences.append("No data sheet's peak is known, so there is no MFU")
    if not sentences:
        return None
    rows = [f"{_share_text(one, False)} of the product." for one in own]
    rows += [f"{_share_text(one, True)} of the data sheet's peak (MFU)." for one in sheet]
    return Finding("How close to the hardware", f"{'. '.join(sentences)}.", rows, "training")


def _best(compared: Sequence[Efficiency], sheet: bool) -> str:
    """`The best fp32 trainings reach 35 % [33, 36] (…) on torch-cpu and 6.7 % […] (…) on mlx`."""
    plain = [one for one in compared if one.row["precision"] == "fp32"]
    best: dict[tuple[str, str], Efficiency] = {}
    for one in plain or compared:
        best.setdefault((one.row["device"], one.row["backend"]), one)
    several = len({device for device, _ in best}) > 1
    shares = [
        f"{_share_text(one, sheet)} on {f'{device}, ' if several else ''}{words.backend_name(one.row)}"
        for (device, _), one in list(best.items())[:MOST_NAMED]
    ]
    many = f"{'fp32 ' * bool(plain)}training{'s' * (len(shares) > 1)}"
    return f"The best {many} reach{'es' * (len(shares) == 1)} {words.listing(shares)}"


def _share_text(one: Efficiency, sheet: bool) -> str:
    """`35 % [34, 36] (whisper-nano, torch-cpu · plain · fp32)`."""
    share = (one.of_sheet if sheet else one.of_product) or 0.0
    low, high = (words.significant(100 * share * end, 2) for end in (one.low, one.high))
    return f"{words.percent(share)} [{low}, {high}] ({model(one.row)}, {label(one.row)})"


def noise(data: Data) -> Finding | None:
    """How far repeats scatter, how many cells are flagged for it, and what intervals rest on."""
    spreads = {id(point): spread for point in data.points if (spread := _spread(point)) is not None}
    if not spreads:
        return None
    widest = max((p for p in data.points if id(p) in spreads), key=lambda p: spreads[id(p)])
    measured = [cell for cell in data.cells if cell["status"] == "ok"]
    groups = {code: [c for c in measured if flagged(c, code)] for code in NOISE_FLAGS}
    counts = [f"{len(cells) or 'none'} {code}" for code, cells in groups.items()]
    sentence = (
        f"The middle half of a point's repeats spreads over {words.percent(median(spreads.values()))} "
        f"of their median (the median of {words.count(len(spreads), 'point')}) and at most over "
        f"{words.percent(spreads[id(widest)])} ({_name(widest)}). Flagged of "
        f"{words.count(len(measured), 'measured cell')}: {' and '.join(counts)}. "
        f"95 % intervals are {uncertainty.origin_text(data.points)}"
    )
    if uncertainty.origin_text(data.points) == uncertainty.WITHIN:
        sentence += f", and fresh processes may differ by more ({uncertainty.COMMAND} measures it)"
    rows = [
        f"Flagged {code}: {_names(cells)}: {words.FLAG_WORDS[code]}"
        for code, cells in groups.items()
        if cells
    ]
    return Finding(NOISE, f"{sentence}.", rows, "flags")


def _spread(point: Row) -> float | None:
    """Inter-quartile range over the median of what a point's number is made of."""
    for stem in SPREADS:
        middle, low, high = (
            words.number(point.get(f"{stem}_{part}_s")) for part in ("median", "q25", "q75")
        )
        if middle and low is not None and high is not None:
            return (high - low) / middle
    return None


def _name(row: Row) -> str:
    return f"{row['workload']}/{row['backend']}/{row['precision']}"


def _names(cells: Sequence[Row]) -> str:
    named = [_name(cell) for cell in cells]
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return words.listing([*named[:MOST_NAMED], *more])
