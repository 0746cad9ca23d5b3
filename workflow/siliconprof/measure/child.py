"""The measuring process as its supervisor sees it: its start, output, progress and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.errors import printable
from siliconprof.lifetime import pipeline_alive
from siliconprof.measure import fork_server, inherited, leftovers, lock
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session import exhaustion
from siliconprof.session.trial import Trial
from siliconprof.store import documents

POLL_S = 0.25
FRESH = "an interpreter of its own"
FORKED = "a fork of one that had imported its libraries and computed nothing"
CHUNK_BYTES = 2**16  # what a pipe holds
ENDS_WITHIN_S = 12.0  # a process that was killed and what it left, unless stuck in the kernel
HEAD_BYTES = TAIL_BYTES = 2**20  # of the output, in the log
TAIL_LINES = 200
LONGEST = 1000  # characters of a last line


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


class Output:
    """What a process writes: the first `HEAD_BYTES` go to the log, standard error, as they come.

    The last `TAIL_BYTES` go there at `close`, with a line between them that counts what is left out.
    """

    def __init__(self) -> None:
        self._end = bytearray()  # at least the last TAIL_BYTES
        self._n_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take in what the process wrote."""
        self._write(chunk[: max(HEAD_BYTES - self._n_bytes, 0)])
        self._n_bytes += len(chunk)
        self._end += chunk
        if len(self._end) > 2 * TAIL_BYTES:
            del self._end[:-TAIL_BYTES]

    def _write(self, content: bytes) -> None:
        with suppress(OSError):  # a full disk must not keep a cell from writing
            sys.stderr.buffer.write(content)
            sys.stderr.flush()

    @property
    def tail(self) -> str:
        """The last lines."""
        text = self._end[-TAIL_BYTES:].decode(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    @property
    def last_line(self) -> str:
        """The last line that is not empty, printable and cut where long."""
        lines = (line.strip() for line in reversed(self.tail.splitlines()))
        return printable(next((line for line in lines if line), "")[:LONGEST])

    def close(self) -> None:
        """Write the end to the log."""
        n_end = min(self._n_bytes - HEAD_BYTES, TAIL_BYTES)
        if n_end > 0:
            omitted = self._n_bytes - HEAD_BYTES - n_end
            note = f"\n[siliconprof: {omitted} bytes of output are left out here]\n"
            self._write((note.encode() if omitted else b"") + self._end[-n_end:])


class Child:
    """The measuring process, its latest progress and its points so far.

    Args:
        result: the file that the process writes at its end.
        held: the host's lock, which the process inherits.
        arguments: of the worker, beside those of every one.
        under: the command that starts it, see `capture` of a workload's entry.

    Attributes:
        started: how, for the record.
        killed: names of what it left and had to be killed.
    """

    def __init__(
        self,
        trial: Trial,
        result: Path,
        held: lock.Held,
        arguments: Sequence[str],
        under: Sequence[str] = (),
    ) -> None:
        self.oom_kills_before, self.started_s = exhaustion.cgroup_kills(), time.monotonic()
        own = ["--supervisor", str(os.getpid()), "--result", str(result)]
        arguments = [*own, "--cell", trial.cell.to_json(), *arguments]
        environment = child_environment(trial, result.parent)
        (says, to_say), (tells, to_tell) = os.pipe(), os.pipe()
        try:
            kept = (to_tell, held.descriptor)
            self.pid, self._ended, self.started = _start(
                trial, arguments, under, environment, to_say, kept
            )
        finally:
            os.close(to_say)
            os.close(to_tell)
        self.output = Output()
        self.returncode = 0
        self.killed: list[str] = []
        self.progress: dict[str, Any] = {"doing": "start", "step": 0}
        self.points: list[dict[str, Any]] = []
        self._threads = [
            threading.Thread(target=self._await_end, daemon=True),
            threading.Thread(target=self._read_output, args=(says,), daemon=True),
            threading.Thread(target=self._read_progress, args=(tells,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _await_end(self) -> None:
        self.returncode, self.killed = self._ended()

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
                if "point" in message:
                    self.points.append(message["point"])
                else:
                    self.progress = message

    def end(self) -> None:
        """End it and everything that it started, and write the end of its output to the log."""
        until = time.monotonic() + ENDS_WITHIN_S
        if self._threads[0].is_alive():
            with suppress(ProcessLookupError, PermissionError):
                # macOS gives EPERM for a group of dead processes that nobody has waited for
                os.killpg(self.pid, signal.SIGKILL)
        for thread in self._threads:  # what still lives may hold a pipe open
            thread.join(max(until - time.monotonic(), 0))
        self.output.close()

    def wait(self, limit_s: float) -> tuple[int | None, float]:
        """(exit code, or None after a time-out; seconds it took).

        Raises:
            PipelineGone: the pipeline died meanwhile.
        """
        started = time.monotonic()
        while self._threads[0].is_alive():
            require_pipeline()
            if time.monotonic() - started > limit_s:
                return None, time.monotonic() - started
            self._threads[0].join(POLL_S)
        return self.returncode, time.monotonic() - started


Ended = Callable[[], tuple[int, list[str]]]  # waits: (exit code, what was left and was killed)


def _start(
    trial: Trial,
    arguments: Sequence[str],
    under: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    kept: tuple[int, int],
) -> tuple[int, Ended, str]:
    """(process id, what waits for its end, how it was started).

    Args:
        kept: descriptors that it inherits: of its progress, of the lock.
    """
    started = FRESH
    if may_fork(trial) and fork_server.VARIABLE in os.environ:
        try:
            descriptors = (output, *kept)
            forked = fork_server.forked(
                trial, environment, arguments, descriptors, require_pipeline
            )
            return *forked, FORKED
        except fork_server.NoFork as error:
            started = f"{FRESH}, since {error}"
            print(f"not forked: {error}; starts {FRESH}", file=sys.stderr)
    leftovers.adopt()
    command = [*under, sys.executable, "-m", fork_server.WORKER, *arguments]
    process = subprocess.Popen(
        [*command, *fork_server.descriptor_arguments(*kept)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=kept,
        start_new_session=True,
    )
    # 0 where whoever started us ignores SIGCHLD; the result file then has the status
    return process.pid, lambda: (process.wait(), leftovers.end(process.pid)), started


def may_fork(trial: Trial) -> bool:
    """Whether a fork measures it as a fresh interpreter does.

    A driver's context may not be forked, and nothing can be put before a fork.
    """
    return trial.cell.device_kind == "cpu" and not trial.cell.parameters.get("capture")


def prepare(trials: Sequence[Trial]) -> None:
    """Have what these cells import imported, as long as none of them is measured.

    Not where one starts an interpreter of its own, which would be measured beside the imports.
    """
    if fork_server.VARIABLE in os.environ and all(map(may_fork, trials)):
        scratch = Path(tempfile.gettempdir())
        fork_server.prepare((trial, child_environment(trial, scratch)) for trial in trials)


def require_pipeline() -> None:
    """Check that the pipeline lives.

    Raises:
        PipelineGone: it has died, so the cell's record would be for nobody.
    """
    if not pipeline_alive():
        raise PipelineGone
