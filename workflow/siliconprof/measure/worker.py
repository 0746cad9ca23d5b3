"""The child process that measures one cell.

`python -m siliconprof.measure.worker JSON`, started by `siliconprof.measure` only. It ends when its
supervisor has died, and the kernel's out-of-memory killer takes it before other processes.
"""

from __future__ import annotations

import json
import platform
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof import packages
from siliconprof.backends.base import Unsupported
from siliconprof.errors import (
    BUSY,
    CANNOT_WRITE_STATUS,
    EXCLUSIVE,
    CannotWrite,
    UserError,
    in_one_line,
)
from siliconprof.lifetime import end_with, leave
from siliconprof.session import measurement, oom, sweep
from siliconprof.session.cell_run import COURSE
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store import temporary
from siliconprof.store.cell import Cell
from siliconprof.store.documents import finite


def modules_loaded() -> list[str]:
    """Modules of this package in the process, by their names below it; this one is `__main__`."""
    names = [name for name in sys.modules if name.startswith("siliconprof.")]
    own = {n.removeprefix("siliconprof.") for n in names if not hasattr(sys.modules[n], "__path__")}
    return sorted({*own, "measure.worker"})


def main(job: Mapping[str, Any]) -> int:
    """Measure the cell and write its status, reason and numbers to the result file.

    Args:
        job: `cell`, `result` (that file), `progress` (file of how far it is, and of each point, as
            lines of JSON), `supervisor` (process id); None or `checkpoints` (folder for those of a
            whole training) and `expect` (the device that this node must have).
    """
    end_with(job["supervisor"])
    packages.hide_as_told()
    cell = Cell(**job["cell"])
    resolved = ResolvedCell(cell)
    checkpoints = Path(job["checkpoints"]) if job["checkpoints"] else None
    progress = open(job["progress"], "w", encoding="utf-8", buffering=1)
    reached: dict[str, Any] = {"doing": "start", "step": 0}

    def report(message: dict[str, Any]) -> None:
        if "doing" in message:
            reached.update(message)
        with suppress(OSError):  # a full disk
            progress.write(json.dumps(finite(message)) + "\n")

    result: dict[str, Any] = {"status": "ok", "reason": None}
    partial: dict[str, Any] = {}
    try:
        result |= measurement.measure(resolved, report, partial, checkpoints, job["expect"])
        result["modules_loaded"] = modules_loaded()
        result["status"], result["reason"] = sweep.status(partial["points"])
        effective = result["precision"]["effective"]
        if result["status"] == "ok" and effective != cell.precision:
            result["status"] = "failed"
            result["reason"] = (
                f"asked for {cell.precision}, but the arithmetic was {effective}: "
                f"its times do not count as {cell.precision}"
            )
    except Unsupported as error:
        result = {"status": "unsupported", "reason": str(error)}
    except CannotWrite as error:
        return _gives_up(error)
    except packages.NotLoaded:
        traceback.print_exc()
        packages.restart_isolated("siliconprof.measure.worker", json.dumps(job))
    except UserError as error:
        result = {"status": "failed", "reason": str(error)}
    except BaseException as error:
        traceback.print_exc()
        where = f"while: {reached['doing']}, step {reached['step']}"
        status = "oom" if oom.raised(error) else "failed"
        fix = f"; {EXCLUSIVE}" if BUSY in str(error) else ""
        result = {"status": status, "reason": f"{in_one_line(error)}; {where}{fix}"}
    result = partial | result
    result["python"] = platform.python_version()
    try:
        temporary.write(Path(job["result"]), json.dumps(finite(result)))
    except CannotWrite as error:
        return _gives_up(error)
    if "modules_loaded" in result and checkpoints:  # a later run starts from the beginning
        (checkpoints / COURSE).unlink(missing_ok=True)
    return 0


def _gives_up(error: CannotWrite) -> int:
    """Print why the result could not be written, so that the supervisor writes no record."""
    print(error, flush=True)
    return CANNOT_WRITE_STATUS


if __name__ == "__main__":
    leave(main(json.loads(sys.argv[1])))
