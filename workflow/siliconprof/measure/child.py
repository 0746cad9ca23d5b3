"""The measuring process as its supervisor sees it: its start, output, progress and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.lifetime import pipeline_alive
from siliconprof.measure import fork_server, inherited, leftovers, lock
from siliconprof.measure.output import Output
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session import exhaustion, memory_limit
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


class PipelineGone(Exception):
    """The pipeline that started this cell has died."""


class Fresh:
    """A measuring process that is an interpreter of its own, started as a child of this process."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        kept: Sequence[int],
    ) -> None:
        leftovers.adopt()
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=kept,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def ended(self) -> int:
        """Wait for its end, without the polling of a `wait` with a time limit: its exit code.

        It is 0 where whoever started us ignores SIGCHLD; the result file then has the status.
        """
        return self._process.wait()

    def end_leftovers(self) -> tuple[list[str], list[str]]:
        """Names of what it had started and had to be killed, and of what still lives."""
        return leftovers.end(leftovers.GRACE_S, self.pid, spared=[self.pid])


class Child:
    """The measuring process, its latest progress and its points so far.

    Args:
        result: the file that the process writes at its end.
        held: the host's lock, which the process inherits.
        output: takes in what it writes.
        arguments: of the worker, beside those of every one.
        under: the command that starts it, see `capture` of a workload's entry.

    Attributes:
        started: how, for the record.
    """

    def __init__(
        self,
        trial: Trial,
        result: Path,
        held: lock.Held,
        output: Output,
        arguments: Sequence[str],
        under: Sequence[str] = (),
    ) -> None:
        self.output = output
        output.begin()
        self.oom_kills_before, self.started_s = exhaustion.cgroup_kills(), time.monotonic()
        own = ["--supervisor", str(os.getpid()), "--result", str(result)]
        arguments = [*own, "--cell", trial.cell.to_json(), *arguments]
        environment = child_environment(trial, result.parent)
        (says, to_say), (tells, to_tell) = os.pipe(), os.pipe()
        try:
            kept = (to_tell, held.descriptor)
            self.process, self.started = _start(trial, arguments, under, environment, to_say, kept)
        finally:
            os.close(to_say)
            os.close(to_tell)
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

    def _await_end(self) -> None:
        self.returncode = self.process.ended()
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

    def end(self) -> tuple[list[str], list[str]]:
        """End it and everything that it started; what had to be killed, and what still lives."""
        if not self._ended.is_set():
            self.kill()
        killed, left = self.process.end_leftovers() if self._ended.is_set() else ([], [])
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
            require_pipeline()
            if time.monotonic() - started > limit_s:
                self.kill()
                return None, time.monotonic() - started
        return self.returncode, time.monotonic() - started


def _start(
    trial: Trial,
    arguments: Sequence[str],
    under: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    kept: tuple[int, int],
) -> tuple[Fresh | fork_server.Forked, str]:
    """(the process, how it was started).

    Args:
        kept: descriptors that it inherits: of its progress, of the lock.
    """
    started = FRESH
    if may_fork(trial) and fork_server.VARIABLE in os.environ:
        try:
            descriptors = (output, *kept)
            process = fork_server.Forked(
                trial, environment, arguments, is_limited(trial), descriptors, require_pipeline
            )
            return process, FORKED
        except fork_server.NoFork as error:
            started = f"{FRESH}, since {error}"
            print(f"not forked: {error}; starts {FRESH}", file=sys.stderr)
    command = [*under, sys.executable, "-m", fork_server.WORKER, *arguments]
    command += fork_server.descriptor_arguments(*kept)
    return Fresh(command, environment, output, kept), started


def may_fork(trial: Trial) -> bool:
    """Whether a fork measures it as a fresh interpreter does; nothing can be put before a fork.

    A driver's context may not be forked; and under a memory limit the pages would count that a fork
    copies when it writes, unless they are copied before.
    """
    if trial.cell.device_kind != "cpu" or trial.cell.parameters.get("capture"):
        return False
    return not is_limited(trial) or fork_server.can_copy_pages()


def is_limited(trial: Trial) -> bool:
    """Whether the memory of its process is limited."""
    return memory_limit.requested_limit(trial.scenario()) is not None


def prepare(trials: Sequence[Trial]) -> None:
    """Have what these cells import imported, as long as none of them is measured.

    Where one starts an interpreter of its own, that would be measured beside the imports, and so is
    a cell of another run that is under way.
    """
    can = fork_server.VARIABLE in os.environ and lock.is_free()
    if can and all(map(may_fork, trials)):
        scratch = Path(tempfile.gettempdir())
        fork_server.prepare((trial, child_environment(trial, scratch)) for trial in trials)


def require_pipeline() -> None:
    """Check that the pipeline lives.

    Raises:
        PipelineGone: it has died, so the cell's record would be for nobody.
    """
    if not pipeline_alive():
        raise PipelineGone
