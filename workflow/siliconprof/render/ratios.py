"""Device ratios as Daniel 2023 gives them: how many times as fast one side trains as another.

A side is a device and a backend. Two sides of one host are compared where both trained the
same network with the same batch, by the time of an epoch with its validation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from siliconprof import words
from siliconprof.render.compare import Step
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import CIRCUMSTANCES, WORK, Row, has_no_speed, order, point_status

TRAINER = "epochs"  # drives whole epochs of the article's networks
EXTRAPOLATED = "extrapolated"
SEED_ORDER = ("mlp", "cnn", "lstm")
# Of one side; of GPU and CPU the threads differ by nature.
OF_A_SIDE = ("device", "backend", "threads")
ALIKE = tuple(x for x in (*WORK, *CIRCUMSTANCES) if x not in OF_A_SIDE)


class Case(NamedTuple):
    """What is trained: a network, under its workload's name where several train it, and a batch."""

    network: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch_size}"


def measured(data: Data) -> list[Row]:
    """Points of the networks that came to their end, in the page's order."""
    rows = [
        point
        for point in data.points
        if point["trainer"] == TRAINER
        and point_status(point) == "ok"
        and words.number(point.get("batch_size"))
        and not has_no_speed(point)
    ]
    return sorted(rows, key=order)


def cases(points: Iterable[Row]) -> dict[Case, list[Row]]:
    """What was trained -> its points, small batches first."""
    by_network = grouped(points, network)

    def case(point: Row) -> Case:
        name = network(point)
        several = len({one["workload"] for one in by_network[name]}) > 1
        name += f" ({point['workload']})" if several else ""
        return Case(name, int(point["batch_size"]))

    by_case = grouped((point for group in by_network.values() for point in group), case)
    return dict(sorted(by_case.items(), key=lambda item: (_place(item[1][0]), item[0])))


def _place(point: Row) -> int:
    """Networks in the article's order, others after them."""
    module = point["module"]
    return SEED_ORDER.index(module) if module in SEED_ORDER else len(SEED_ORDER)


def network(point: Row) -> str:
    """`MLP`."""
    return str(point.get("network") or point["module"]).upper()


def side(row: Row) -> tuple[str, str, str, str]:
    """Which device and backend of whose records a row is about."""
    return (row["source"], row["host"], row["device"], row["backend"])


def side_name(row: Row) -> str:
    """`h200 (torch-cuda)`, `cpu-x (mlx, reference BLAS)`."""
    parts = filter(None, [row["backend"], words.blas_remark(row)])
    return f"{row['device']} ({', '.join(parts)})"


def epoch(point: Row) -> Step | None:
    """Time of an epoch, validation included, its interval as wide as that of its steps."""
    step, seconds = Step.of(point), words.number(point.get("epoch_s"))
    if step is None or not seconds:
        return None
    scale = seconds / step.middle
    return Step(point, seconds, step.low * scale, step.high * scale, step.n)


def extrapolated(*points: Row) -> bool:
    """Whether an epoch's time is made from some of its steps."""
    return any(point.get("epoch_means") == EXTRAPOLATED for point in points)


class Ratio(NamedTuple):
    """How many times as fast a trains as b, with what both intervals allow."""

    case: Case
    a: Step
    b: Step
    middle: float  # of the epochs
    low: float
    high: float

    @classmethod
    def of(cls, case: Case, a: Step, b: Step) -> Ratio:
        """That of two epochs."""
        return cls(case, a, b, *b.over(a))

    @property
    def rows(self) -> tuple[Row, Row]:
        """The points of both sides."""
        return self.a.row, self.b.row

    @property
    def of_steps(self) -> float:
        """The same of training steps alone."""
        return float(self.b.row["unsplit_step_median_s"] / self.a.row["unsplit_step_median_s"])

    @property
    def extrapolated(self) -> bool:
        """Whether either epoch is."""
        return extrapolated(self.a.row, self.b.row)

    def __str__(self) -> str:
        return (
            f"{times(self.middle)} [{words.significant(self.low)}, {words.significant(self.high)}]"
        )


def times(value: float) -> str:
    """`2.41 ×`."""
    return f"{words.significant(value)} ×"


@dataclass(frozen=True)
class Pair:
    """Two sides and their ratios."""

    a: Row  # any point of the side
    b: Row
    ratios: Sequence[Ratio]

    @property
    def geometric(self) -> float:
        """The mean that suits ratios: that of b over a is its reciprocal."""
        return math.exp(sum(math.log(ratio.middle) for ratio in self.ratios) / len(self.ratios))

    def gpu_against_cpu(self) -> bool:
        """Whether it is one, as in the article."""
        return self.a["device_kind"] != "cpu" and self.b["device_kind"] == "cpu"


def pairs(data: Data) -> list[Pair]:
    """Every two sides of one host that trained anything alike, GPU against CPU first.

    Of GPU and CPU the GPU stands first, else whichever is faster in the geometric mean.
    """
    found: list[tuple[Row, Row, Ratio]] = []
    for case, points in cases(measured(data)).items():
        for a, b in combinations(points, 2):
            if _comparable(a, b):
                a, b = (b, a) if is_cpu(a) and not is_cpu(b) else (a, b)
                first, second = epoch(a), epoch(b)
                if first and second:
                    found.append((a, b, Ratio.of(case, first, second)))
    by_sides = grouped(found, lambda one: (side(one[0]), side(one[1]))).values()
    results = [
        _faster_first(Pair(group[0][0], group[0][1], [ratio for _, _, ratio in group]))
        for group in by_sides
    ]
    return sorted(results, key=lambda pair: not pair.gpu_against_cpu())


def is_cpu(row: Row) -> bool:
    """Whether a point is a CPU's."""
    return bool(row["device_kind"] == "cpu")


def _comparable(a: Row, b: Row) -> bool:
    """Whether two points did the same, on two sides of one host."""
    alike = (*ALIKE, "source", "workload", "epoch_steps")
    return side(a) != side(b) and all(a.get(name) == b.get(name) for name in alike)


def _faster_first(pair: Pair) -> Pair:
    if pair.gpu_against_cpu() or pair.geometric >= 1:
        return pair
    return Pair(pair.b, pair.a, [Ratio.of(r.case, r.b, r.a) for r in pair.ratios])
