"""The child process that measures one cell.

`python -m siliconprof.measure.worker --cell JSON --result FILE …`, started by
`siliconprof.measure` only. It ends when its supervisor has died, and the kernel's out-of-memory
killer takes it before other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.backends.base import DeviceLost, Unsupported
from siliconprof.errors import (
    CANNOT_WRITE_STATUS,
    DEVICE_LOST_STATUS,
    CannotWrite,
    UserError,
    in_one_line,
)
from siliconprof.lifetime import end_with, leave
from siliconprof.session import exhaustion, measurement, sweep
from siliconprof.session.session import COURSE
from siliconprof.session.trial import Trial
from siliconprof.store import temporary
from siliconprof.store.cell import Cell
from siliconprof.store.record import finite


def modules_loaded() -> list[str]:
    """Modules of this package in the process, by their names below it."""
    names = {
        module.__spec__.name  # type: ignore[union-attr]
        for module in list(sys.modules.values())
        if getattr(module, "__spec__", None) is not None  # `__main__` has its real name there
        if not hasattr(module, "__path__")  # packages
    }
    return sorted(n.removeprefix("siliconprof.") for n in names if n.startswith("siliconprof."))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the cell and write its status, reason and numbers to the result file."""
    parser = argparse.ArgumentParser(prog="siliconprof.measure.worker")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--supervisor", type=int, required=True)
    parser.add_argument("--progress-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True, help="held until this process ends")
    parser.add_argument("--checkpoints", type=Path, help="folder for those of a whole training")
    parser.add_argument("--expect", type=json.loads, help="the device that this node must have")
    parser.add_argument("--checks", type=Path, help="file of this run's checks of such cells")
    arguments = parser.parse_args(argv)
    end_with(arguments.supervisor)
    with suppress(OSError):  # the cell's `capture` passes no descriptor on
        os.set_inheritable(arguments.lock_fd, False)
        os.register_at_fork(after_in_child=lambda: os.close(arguments.lock_fd))
    cell = Cell.from_json(arguments.cell)
    trial = Trial(cell)
    try:
        progress = open(arguments.progress_fd, "w", encoding="utf-8", buffering=1)
    except OSError:
        progress = open(os.devnull, "w", encoding="utf-8")
    reached: dict[str, Any] = {"doing": "start", "step": 0}

    def report(message: dict[str, Any]) -> None:
        if "doing" in message:
            reached.update(message)
        try:
            progress.write(json.dumps(finite(message)) + "\n")
        except OSError:
            pass  # the supervisor is gone; end_with ends us

    result: dict[str, Any] = {"status": "ok", "reason": None}
    partial: dict[str, Any] = {}
    try:
        own = (arguments.checkpoints, arguments.expect, arguments.checks)
        result |= measurement.measure(trial, report, partial, *own)
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
    except DeviceLost as error:
        print(error, flush=True)
        os._exit(DEVICE_LOST_STATUS)  # a library's teardown may abort without its device
    except UserError as error:
        result = {"status": "failed", "reason": str(error)}
    except BaseException as error:
        traceback.print_exc()
        where = f"while: {reached['doing']}, step {reached['step']}"
        status = "oom" if exhaustion.raised(error) else "failed"
        result = {"status": status, "reason": f"{in_one_line(error)}; {where}"}
    result = partial | result
    result["python"] = platform.python_version()
    try:
        temporary.write(arguments.result, json.dumps(finite(result)))
    except CannotWrite as error:
        return _gives_up(error)
    if "modules_loaded" in result and arguments.checkpoints:  # whoever asks again begins anew
        (arguments.checkpoints / COURSE).unlink(missing_ok=True)
    return 0


def _gives_up(error: CannotWrite) -> int:
    """A full disk is no result of the cell: print why, so that its supervisor writes no record."""
    print(error, flush=True)
    return CANNOT_WRITE_STATUS


if __name__ == "__main__":
    leave(main())
