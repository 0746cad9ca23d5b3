"""What the intervals of the page rest on: the variation between processes, where it is known.

A cell is one process, and the interval of its median knows nothing of the next one: fresh
processes of one product had medians 22 % apart while their own intervals were 0.4 to 2.7 % wide.
So where the noise floor of a cell's host gives how far processes differ, an interval is that
of a single process among them; elsewhere it stays the process's own, and says so. Everything on
the page that has an interval reads the columns that are set here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import Noise
from siliconprof.render.tables import Value, missing, told
from siliconprof.store.noise_floors import Floor

WITHIN, BETWEEN = "within one process", "between processes"
STEMS = ("unsplit_step", "step", "launch_and_wait", "enqueue", "amortised")  # that have intervals
COMMAND = "siliconprof noise-floor"
HELP = "whether it rests on the variation between processes (the host's noise floor) or on one"
Row = dict[str, Any]


def rest_on(points: Iterable[Row], floors: Mapping[str, Floor]) -> None:
    """Set each point's intervals, `{stem}_low_s` and `{stem}_high_s`, and where they are from.

    With a noise floor they hold 95 % of what another process of the cell would give (Student's t on
    the logarithm), and are never narrower than the process's own. `{stem}_interval` is then
    `BETWEEN`, else `WITHIN`; `{stem}_interval_basis` names the processes.

    Args:
        floors: host -> its noise floor; a reference bundle was measured elsewhere under any label.
    """
    noise = Noise(floors)
    for point in points:
        for stem in STEMS:
            interval = noise.interval(point, stem)
            if interval is None:
                continue
            low, high, basis = interval
            point[f"{stem}_interval"] = BETWEEN if basis else WITHIN
            if basis:
                point[f"{stem}_low_s"], point[f"{stem}_high_s"] = low, high
                point[f"{stem}_interval_basis"] = basis


def origin(point: Mapping[str, Any]) -> str | None:
    """What a point's intervals rest on; None where it has none."""
    origins = [point[name] for stem in STEMS if (name := f"{stem}_interval") in point]
    return origins[0] if origins else None


def basis(point: Mapping[str, Any]) -> str:
    """The processes that a point's interval rests on; empty where it is the point's own alone."""
    bases = [point[name] for stem in STEMS if (name := f"{stem}_interval_basis") in point]
    return str(bases[0]) if bases else ""


def value(point: Mapping[str, Any]) -> Value:
    """A table's cell: what the row's intervals rest on."""
    name = origin(point)
    return Value(name, sort=name, title=basis(point)) if name else missing("nothing was timed")


COLUMN = told("95 % interval", value, HELP, folds=True)


def origin_text(points: Iterable[Mapping[str, Any]]) -> str:
    """What intervals of several points rest on, to be put after “95 % interval”."""
    origins = {name for point in points if (name := origin(point))}
    if origins == {BETWEEN, WITHIN}:
        return f"{BETWEEN} where a noise floor is known, {WITHIN} elsewhere"
    return BETWEEN if origins == {BETWEEN} else WITHIN


def method(points: Sequence[Mapping[str, Any]], host: str, floors: Mapping[str, Floor]) -> str:
    """What the intervals of the page rest on, said once.

    Args:
        points: of this host.
    """
    if host not in floors:
        return (
            f"95 %, {WITHIN}. Fresh processes of one cell may differ by far more: “{COMMAND}” "
            "measures by how much on this host, and the intervals then rest on it"
        )
    with_interval = [point for point in points if origin(point)]
    rests = sum(origin(point) == BETWEEN for point in with_interval)
    floor = floors[host]
    return (
        f"95 %, {BETWEEN} for {rests} of {words.count(len(with_interval), 'point')}: by how much fresh "
        f"processes of one cell differ on this host ({floor.path.as_posix()}, by “{COMMAND}”). A "
        "point that was not among them gets the widest spread of its device and backend; where "
        f"nothing is known of those, it keeps its own interval, {WITHIN}"
    )
