"""What tests run without a copy of the project: cells by the command or here, and programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import (
    ROOT,
    code_of_the_tests,
    fork_server_of_the_tests,
    opened,
    record_problems,
    until,
)
from siliconprof import plugins
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.measure import fork_server, scratch
from siliconprof.session import inventory, operators
from siliconprof.session.cell_run import CellRun
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.session.sampler import SAMPLE_EVERY_S, Sampler
from siliconprof.session.timing import PhaseClock
from siliconprof.store import record
from siliconprof.store.cell import Cell


def own_environment(search: Sequence[Path] = (), **more: str) -> dict[str, str]:
    """Environment variables under which Python finds this checkout's package.

    Args:
        search: folders whose modules go before all others.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SILICONPROF_", "HF_"))}
    path = os.pathsep.join(map(str, [*search, ROOT / "workflow"]))
    return own | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | more


def python(program: str, *arguments: str, **environment: str) -> str:
    """Run a Python program in a new process and return what it prints."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env=own_environment(**environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_hand(
    cell: Cell,
    folder: Path,
    *options: str,
    search: Sequence[Path] = (),
    preexec_fn: Callable[[], None] | None = None,
    **environment: str,
) -> dict[str, Any]:
    """Measure a cell by this checkout's command and return its record, `record.json` in a folder.

    Its process is forked from one that has imported, unless it is to start otherwise by `search` or
    `preexec_fn`.

    Args:
        search: see `own_environment`.
        preexec_fn: see `subprocess.Popen`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Checks of kernels are made once, as in a run.
    own = {"SILICONPROF_LOCK_FILE": str(folder / "host.lock"), PIPELINE_VARIABLE: str(os.getpid())}
    own[scratch.CODE_VARIABLE] = code_of_the_tests()
    if not search and preexec_fn is None and (address := fork_server_of_the_tests()):
        own[fork_server.SERVER_VARIABLE] = address
    command = [sys.executable, "-m", "siliconprof.measure", "--cell", cell.to_json()]
    done = subprocess.run(
        [*command, "--output", "record.json", *options],
        cwd=folder,
        env=own_environment(search, **own | environment),
        preexec_fn=preexec_fn,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return record.read(folder / "record.json")


@contextmanager
def busy(core: int) -> Iterator[None]:
    """Keep a core busy by another process."""
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            yield
        finally:
            other.kill()


def session_of(cell: Cell) -> CellRun:
    """A session as the measuring process has it, on an open backend of this machine's CPU."""
    backend = opened(cell.backend, cell.precision, cell.threads)
    return CellRun(cell, backend, ResolvedCell(cell).workload, lambda message: None)


def watched(backend: Any, step: Callable[[], Any], clock: PhaseClock) -> dict[str, Any]:
    """Return `operators` of a training's point, from watching a step."""
    session: Any = SimpleNamespace(
        backend=backend,
        cell=SimpleNamespace(timing={}),
        method={},
        progress=lambda *_: None,
        timed=lambda _: None,
    )
    return operators.watch_step(session, step, clock)["operators"]


def sampled(session: Any, seconds: float, **more: Any) -> Sampler:
    """Sample for so many seconds; the session has its flags afterwards."""
    with Sampler(session, **more) as taken:
        time.sleep(seconds)
        until(  # on a busy host its thread, which ends where no probe is left, may be late
            lambda: (
                len(taken.samples) > seconds // SAMPLE_EVERY_S
                or "probes" not in {thread.name for thread in threading.enumerate()}
            )
        )
    assert record_problems(taken.samples, "samples") == []
    assert record_problems(taken.summaries, "probes") == []
    assert taken.summaries.keys() == set(plugins.names("probes"))
    json.dumps(taken.summaries, allow_nan=False)
    return taken


class Training:
    """A training that takes one more step on request, in this process and on this host's CPU.

    Args:
        workload: a training's plug-in.
        parameters: of its data too, see `inventory.blank_data`.
    """

    def __init__(
        self,
        workload: Any,
        parameters: Mapping[str, Any],
        backend: str,
        precision: str,
        threads: int,
    ) -> None:
        self.backend = inventory.opened(workload, backend, precision, threads)
        self.stepper = self.backend.stepper(workload, 0)
        self.batch = inventory.blank_batch(workload, parameters)
        self.clock = PhaseClock(self.backend.clock)

    def step(self) -> Any:
        """One training step, with its edges on the clock."""
        return self.stepper.step(self.batch, self.clock)

    def operators(self) -> list[dict[str, Any]]:
        """Return the operator rows of a second step as a record has them, without times."""
        watched = operators.Operators(self.backend.profiler, self.clock, {})
        for watches in (False, True):
            self.clock.start(split=True)
            if watches:
                watched.begin(0)
            self.step()
            self.clock.stop()
        watched.end()
        rows: list[dict[str, Any]] = watched.of_point()["operators"]["rows"]
        return rows
