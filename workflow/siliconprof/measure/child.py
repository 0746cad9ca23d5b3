"""The measuring process as its supervisor sees it: its start, output, progress and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.lifetime import pipeline_alive
from siliconprof.measure import capture, descendants, inherited, lock
from siliconprof.measure.output import Output
from siliconprof.measure.processes import Process
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session import exhaustion
from siliconprof.session.trial import Trial
from siliconprof.store import documents

PROGRESS_FILE_VARIABLE = "SILICONPROF_PROGRESS_FILE"
COMPILER_CACHES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MLX_PTX_CACHE_DIR")
POLL_S = 0.25
CHUNK_BYTES = 2**16  # what a pipe holds
ENDS_WITHIN_S = 5.0  # a process that was killed, unless it is stuck in the kernel


def child_environment(trial: Trial, scratch: Path) -> dict[str, str]:
    """The child's environment: the trial's own, this checkout's code, and `inherited.without`.

    What compilers keep between runs goes to a folder of the cell's own, so that all of them start
    from nothing: torch/_inductor/runtime/cache_dir_utils.py, triton's knobs.py, mlx's
    backend/cpu/compiled.cpp and backend/cuda/jit_module.cpp.
    """
    package_parent = str(PACKAGE_DIR.parent)
    others = os.environ.get("PYTHONPATH")
    path = package_parent + (os.pathsep + others if others else "")
    own = trial.environment(os.environ)
    caches = dict.fromkeys(COMPILER_CACHES, str(scratch)) if trial.compiles else {}
    return (
        inherited.without(os.environ) | own | caches | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    )


def show(line: str) -> None:
    """Write the child's progress to the file that the pipeline's live display reads, if any."""
    path = os.environ.get(PROGRESS_FILE_VARIABLE)
    if path:
        try:
            Path(path).write_text(line, encoding="utf-8")
        except OSError:
            pass  # only a display; the measurement goes on


class PipelineGone(Exception):
    """The pipeline that started this cell has died."""


class Child:
    """The measuring process and its latest progress.

    Args:
        result: the file that the process writes at its end.
        held: the host's lock, which notes the process.
        output: takes in what it writes.
        launch: how it is started; a capture's process may run under a tool.
        journal_arguments: arguments of the worker that say where finished points are saved.
    """

    def __init__(
        self,
        trial: Trial,
        result: Path,
        held: lock.Held,
        output: Output,
        launch: capture.Launch = capture.MEASURE,
        journal_arguments: Sequence[str] = (),
    ) -> None:
        self._adopted = descendants.adopt()
        self.output = output
        output.begin()
        read_end, write_end = os.pipe()
        self.witness = exhaustion.Witness()
        self.process = subprocess.Popen(
            [
                *launch.under,
                sys.executable,
                "-m",
                "siliconprof.measure.worker",
                "--cell",
                trial.cell.to_json(),
                "--result",
                str(result),
                "--supervisor",
                str(os.getpid()),
                *([] if launch.under else ["--progress-fd", str(write_end)]),
                *launch.arguments,
                *journal_arguments,
            ],
            env=child_environment(trial, result.parent) | dict(launch.variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        held.measuring(self.process.pid)
        self.progress: dict[str, Any] = {"doing": "start", "step": 0}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._await_end, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_progress, args=(read_end,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _await_end(self) -> None:
        # `wait(timeout=…)` polls up to 2000 times a second and would disturb what is timed. This
        # call gives the peak of this one process, whatever other children there have been.
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
        except ChildProcessError:  # whoever started us ignores SIGCHLD: the system has reaped it
            self.process.returncode = 0  # as subprocess does; the result file has the status
        else:
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.witness.resident_peak = usage.ru_maxrss
        self._ended.set()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        while chunk := os.read(self.process.stdout.fileno(), CHUNK_BYTES):
            self.output.add(chunk)

    def _read_progress(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    message = documents.parsed(line)
                except ValueError:
                    continue  # cut off by the child's death
                if isinstance(message, dict) and message.keys() >= {"doing", "step"}:
                    self.progress = message
                    show(line)

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
        killed, left = descendants.end(
            lambda: descendants.of_cell(self.process.pid, self._adopted), descendants.GRACE_S
        )
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
        timed_out = False
        while not self._ended.wait(POLL_S):
            self.witness.look(self.process.pid)
            if self._adopted:
                descendants.reap(but=self.process.pid)
            require_pipeline()
            if time.monotonic() - started > limit_s:
                timed_out = True
                self.kill()
                break
        return None if timed_out else self.process.returncode, time.monotonic() - started


def require_pipeline() -> None:
    """Check that the pipeline lives.

    Raises:
        PipelineGone: it has died, so the cell's record would be for nobody.
    """
    if not pipeline_alive():
        raise PipelineGone
