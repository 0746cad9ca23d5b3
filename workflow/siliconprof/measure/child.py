"""The measuring process as its supervisor sees it: its start, output, progress and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.lifetime import pipeline_alive
from siliconprof.measure import descendants, fork_server, inherited, lock
from siliconprof.measure.output import Output
from siliconprof.measure.processes import Process
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session import exhaustion
from siliconprof.session.trial import Trial
from siliconprof.store import documents

POLL_S = 0.25
FRESH = "an interpreter of its own"
FORKED = "a fork of one that had imported its libraries and computed nothing"
CHUNK_BYTES = 2**16  # what a pipe holds
ENDS_WITHIN_S = 5.0  # a process that was killed, unless it is stuck in the kernel


def child_environment(trial: Trial, scratch: Path) -> dict[str, str]:
    """The child's environment: the trial's own, this checkout's code, and `inherited.without`.

    What compilers keep between runs goes to a folder of the cell's own, so that all of them start
    from nothing: torch/_inductor/runtime/cache_dir_utils.py, triton's knobs.py, mlx's
    backend/cpu/compiled.cpp and backend/cuda/jit_module.cpp.
    """
    path = filter(None, [str(PACKAGE_DIR.parent), os.environ.get("PYTHONPATH")])
    own = trial.environment(os.environ)
    if trial.compiles:
        own |= dict.fromkeys(fork_server.COMPILER_CACHES, str(scratch))
    own |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
    return inherited.without(os.environ) | own


@dataclass(frozen=True)
class Launch:
    """How a measuring process is started."""

    arguments: Sequence[str]  # of the worker
    under: Sequence[str] = ()  # the command that starts it, see `capture` of a workload's entry
    forked: bool = False  # where it can be


class PipelineGone(Exception):
    """The pipeline that started this cell has died."""


class Fresh:
    """A measuring process that is an interpreter of its own, started as a child of this process."""

    lost = False  # nobody but this process waits for it

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: int, progress: int
    ) -> None:
        self._adopted = descendants.adopt()
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(progress,),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def ended(self) -> tuple[int, int]:
        """Wait for its end: (exit code as of `Popen`, largest resident size in the system's unit).

        `Popen.wait(timeout=…)` polls up to 2000 times a second and would disturb what is timed.
        This call gives the peak of this one process, whatever other children there have been.
        """
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:  # whoever started us ignores SIGCHLD: the system has reaped it
            self._process.returncode = 0  # as subprocess does; the result file has the status
            return 0, 0
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, usage.ru_maxrss

    def look(self) -> None:
        """Collect what it has left to this process and has ended."""
        if self._adopted:
            descendants.reap(but=self.pid)

    def left(self) -> list[Process]:
        """What it has started and still lives."""
        return descendants.of_cell(self.pid, self._adopted)

    def close(self) -> None:
        """Nothing is held."""


class Child:
    """The measuring process, its latest progress and its points so far.

    Args:
        result: the file that the process writes at its end.
        held: the host's lock, which notes the process.
        output: takes in what it writes.
        launch: how it is started.

    Attributes:
        started: how, for the record.
    """

    def __init__(
        self,
        trial: Trial,
        result: Path,
        held: lock.Held,
        output: Output,
        launch: Launch,
    ) -> None:
        self.output = output
        output.begin()
        self.witness = exhaustion.Witness()
        arguments = [
            "--supervisor",  # first: a fork has little room for its name, where this is looked for
            str(os.getpid()),
            "--cell",
            trial.cell.to_json(),
            "--result",
            str(result),
            *launch.arguments,
        ]
        environment = child_environment(trial, result.parent)
        (says, to_say), (tells, to_tell) = os.pipe(), os.pipe()
        try:
            self.process, self.started = self._start(
                trial, launch, arguments, environment, to_say, to_tell
            )
        finally:
            os.close(to_say)
            os.close(to_tell)
        held.measuring(self.process.pid)
        self.returncode = 0
        self.progress: dict[str, Any] = {"doing": "start", "step": 0}
        self.points: list[dict[str, Any]] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._await_end, daemon=True),
            threading.Thread(target=self._read_output, args=(says,), daemon=True),
            threading.Thread(target=self._read_progress, args=(tells,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _start(
        trial: Trial,
        launch: Launch,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        progress: int,
    ) -> tuple[Fresh | fork_server.Forked, str]:
        """(the process, how it was started)."""
        started = FRESH
        if launch.forked and fork_server.VARIABLE in os.environ:
            try:
                process = fork_server.Forked(
                    trial, environment, arguments, output, progress, require_pipeline
                )
                return process, FORKED
            except fork_server.NoFork as error:
                started = f"{FRESH}, since {error}"
                print(f"not forked: {error}; starts {FRESH}", file=sys.stderr)
        command = [*launch.under, sys.executable, "-m", lock.WORKER, *arguments]
        command += ["--progress-fd", str(progress)]
        return Fresh(command, environment, output, progress), started

    def _await_end(self) -> None:
        self.returncode, self.witness.resident_peak = self.process.ended()
        self._ended.set()

    def _read_output(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                self.output.add(chunk)

    def _read_progress(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    message = documents.parsed(line)
                except ValueError:
                    continue  # cut off by the child's death
                if isinstance(message, dict) and "point" in message:
                    self.points.append(message["point"])
                elif isinstance(message, dict) and message.keys() >= {"doing", "step"}:
                    self.progress = message

    def kill(self) -> None:
        """End the process and its group."""
        with suppress(ProcessLookupError, PermissionError):
            # macOS gives EPERM for a group of dead processes that nobody has waited for
            os.killpg(self.process.pid, signal.SIGKILL)
        self._ended.wait(ENDS_WITHIN_S)

    def end(self) -> tuple[list[Process], list[Process]]:
        """End it and everything that it started; what had to be killed, and what still lives."""
        if not self._ended.is_set():
            self.kill()
        killed, left = descendants.end(self.process.left, descendants.GRACE_S)
        self.process.close()
        until = time.monotonic() + ENDS_WITHIN_S
        for thread in self._threads:  # what still lives may hold a pipe open
            thread.join(max(until - time.monotonic(), 0))
        return killed, left

    def wait(self, limit_s: float) -> tuple[int | None, float]:
        """(exit code, or None after a time-out; seconds it took).

        Args:
            limit_s: seconds after which the child is killed.

        Raises:
            PipelineGone: the pipeline died meanwhile.
        """
        started = time.monotonic()
        while not self._ended.wait(POLL_S):
            self.witness.look(self.process.pid)
            self.process.look()
            require_pipeline()
            if time.monotonic() - started > limit_s:
                self.kill()
                return None, time.monotonic() - started
        return self.returncode, time.monotonic() - started


def require_pipeline() -> None:
    """Check that the pipeline lives.

    Raises:
        PipelineGone: it has died, so the cell's record would be for nobody.
    """
    if not pipeline_alive():
        raise PipelineGone
