"""A model's step as the sum of its own operators, each timed alone on this host's CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from siliconprof import plugins
from siliconprof.analyse.attribution import STEP_MEDIAN
from siliconprof.analyse.frames import Frames
from siliconprof.analyse.prediction import MODEL, TimedTrainings
from siliconprof.errors import UserError
from siliconprof.measure import fork_server
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.cell import AXES, Cell
from siliconprof.store.record import HERE

WITHIN_S = 25.0  # that timing the operators of a training may take, with its checks
CHECKS = 2  # measured trainings that are predicted in the same way
MODULE = "siliconprof.session.isolated_operators"
OF_JOB = ("module", "backend", "precision", "threads", "parameters")  # what that asks of a cell


class TrainingRequest(NamedTuple):
    """A training to predict."""

    title: str
    model: Sequence[Any]  # see `prediction.MODEL`
    samples: float  # of a step
    operators: Callable[[Mapping[str, Any]], pd.DataFrame]  # of its step, on a place
    parameters: Mapping[str, Any] | None = None  # of its workload and data, where it is a model
    flops: float | None = None  # of a step, where it is a model

    @property
    def precision(self) -> str:
        return str(self.model[-1])


def cell_of(place: Mapping[str, Any], frames: Frames) -> Cell | None:
    """A CPU cell of this host on a place, on which single operators can be timed; None without one."""
    axes = ("host", "device", "backend")
    cells = (planned.cell for planned in frames.matrix.cells if place["source"] == HERE)
    here = (c for c in cells if all(getattr(c, axis) == place[axis] for axis in axes))
    return next((c for c in here if c.device_kind == "cpu" and c.trainer == "plain"), None)


def predict_by_own_operators(
    request: TrainingRequest, place: Mapping[str, Any], there: TimedTrainings, frames: Frames
) -> dict[str, Any]:
    """The step as the sum of its own operators, timed alone in a process as a cell's.

    The host's time for each call is added, taken from trainings on the place, of the same module if
    there are any. Measured trainings are predicted in the same way, as checks.

    Returns:
        `rows`, its operators as timed; and the answer of `siliconprof predict … --json`.

    Raises:
        UserError: its operators are not known, or need more memory than there is.
    """
    cell = cell_of(place, frames)
    assert cell is not None and request.parameters is not None
    cell = replace(
        cell, module=request.model[0], precision=request.precision, parameters=request.parameters
    )
    checks = _checks(request, there, frames)
    jobs = [{name: getattr(one, name) for name in OF_JOB} for one in (cell, *checks.values())]
    with tempfile.TemporaryDirectory() as code:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, str(WITHIN_S)],
            input=json.dumps(jobs),
            env=fork_server.child_environment(ResolvedCell(cell), Path(code)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise UserError(f"timing its operators ended with status {done.returncode}: {last[0]}")
    (own, *others) = json.loads(done.stdout)
    if own["reason"]:
        raise UserError(own["reason"])
    rows = pd.DataFrame(own["rows"])
    calls = int(rows["count"].sum())
    host_s = calls * there.call_s(request.model)
    times = {
        name: float((rows["count"] * rows[name]).sum()) for name in ("low_s", "seconds", "high_s")
    }
    errors = []
    for label, other in zip(checks, others, strict=True):
        without = there.only(there.trainings.index.to_series() != label)
        if other["reason"] or without.trainings.empty:
            continue
        line: Any = there.trainings.loc[label]
        of_check = pd.DataFrame(other["rows"])
        seconds = (of_check["count"] * of_check["seconds"]).sum()
        seconds += of_check["count"].sum() * without.call_s([line[name] for name in MODEL])
        errors.append(
            {"workload": line["workload"], "error": float(seconds / line[STEP_MEDIAN] - 1.0)}
        )
    return {
        "rows": own["rows"],
        **{name: host_s + seconds for name, seconds in times.items()},
        "host_s": host_s,
        "operators": calls,
        "distinct": len(rows),
        "checks": errors,
    }


def _checks(request: TrainingRequest, there: TimedTrainings, frames: Frames) -> dict[Any, Cell]:
    """Labels of the measured trainings with the longest steps in the same precision -> their cells."""
    cells = {
        planned.cell.path: planned.cell
        for planned in frames.matrix.cells
        if planned.cell.trainer == "plain"
        and planned.cell.dataset
        and plugins.load("workloads", planned.cell.module).vocab_sizes
    }
    of = there.trainings[there.trainings["precision"] == request.precision]
    longest = of.sort_values(STEP_MEDIAN, ascending=False)[[*AXES]]
    paths = zip(longest.index, longest.itertuples(index=False), strict=True)
    found = ((label, cells.get("/".join(path))) for label, path in paths)
    return dict(islice(((label, cell) for label, cell in found if cell), CHECKS))
