"""Live progress on a terminal: which cell of how many, what it is doing, about how long still.

A handler on Snakemake's own log, attached when standard error is a terminal. What a cell is doing
comes from a small file that its supervisor rewrites. What a cell waits for is printed, on a terminal
or not: without a word nobody would know why nothing happens.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.errors import printable
from siliconprof.measure.child import PROGRESS_FILE_VARIABLE
from siliconprof.measure.lock import WAITING
from siliconprof.store import documents

SNAKEMAKE_LOGGER = "snakemake.logging"
LOOK_EVERY_S = 1.0


def attach() -> None:
    """Show progress from now on: all of it on a terminal, elsewhere what cells wait for."""
    descriptor, path = tempfile.mkstemp(prefix="siliconprof-", suffix=".progress")
    os.close(descriptor)
    os.environ[PROGRESS_FILE_VARIABLE] = path
    if not sys.stderr.isatty():
        atexit.register(Path(path).unlink, missing_ok=True)
        _follow_waits(Path(path), lambda line: print(line, file=sys.stderr, flush=True))
        return
    logger = logging.getLogger(SNAKEMAKE_LOGGER)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            handler.addFilter(worth_a_line)  # the live line shows the rest; the log file has all
    display = ProgressHandler(Path(path))
    logger.addHandler(display)
    _follow_waits(Path(path), display.print_above)


def _follow_waits(path: Path, tell: Callable[[str], None]) -> None:
    """Tell what cells wait for, whenever they say it, as long as the file exists."""

    def watch() -> None:
        told = 0
        with suppress(OSError):
            while True:
                doing, written = _doing(path)[0], path.stat().st_mtime_ns
                if doing.startswith(WAITING) and written != told:
                    told = written
                    tell(printable(doing).replace("\n", " "))
                time.sleep(LOOK_EVERY_S)

    threading.Thread(target=watch, name="waits", daemon=True).start()


def _doing(path: Path) -> tuple[str, str]:
    """What the cell is doing and how far it is; empty where that is not known."""
    try:
        message = documents.read(path)
        return str(message["doing"]), str(message["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a message of Snakemake's is printed above the live line."""
    if record.levelno >= logging.WARNING:
        return True
    name = getattr(getattr(record, "event", None), "name", "")
    chatter = record.getMessage().startswith(("Select jobs to execute", "Execute "))
    return not chatter and name not in ("JOB_INFO", "JOB_FINISHED", "PROGRESS", "SHELLCMD")


class State:
    """The state of the run by the log so far; it does not draw."""

    def __init__(self) -> None:
        self.cells_total = 0
        self.cells_done = 0
        self.running: dict[int, tuple[str, str, float]] = {}  # job -> rule, label, start
        self.cell_seconds: list[float] = []

    def run_info(self, counts: dict[str, int]) -> None:
        """The jobs that are due, by rule."""
        self.cells_total = counts.get("measure", 0)

    def started(self, job: int, rule: str, wildcards: dict[str, str], now: float) -> None:
        """A job begins."""
        values = list(wildcards.values())
        label = " ".join([rule, *values])
        if rule == "measure":  # its wildcard is the cell's path, which begins with this host
            label = " · ".join(values[0].split("/")[1:])
        self.running[job] = (rule, label, now)

    def finished(self, job: int, now: float) -> None:
        """A job ends, one way or the other."""
        rule, _, start = self.running.pop(job, ("", "", now))
        if rule == "measure":
            self.cells_done += 1
            self.cell_seconds.append(now - start)

    def seconds_left(self, now: float) -> float | None:
        """Seconds that the cells left should take, by the mean so far; None before the first ends."""
        if not self.cell_seconds:
            return None
        mean = sum(self.cell_seconds) / len(self.cell_seconds)
        spent = sum(now - start for rule, _, start in self.running.values() if rule == "measure")
        return max(mean * (self.cells_total - self.cells_done) - min(spent, mean), 0.0)

    def line(self, now: float, doing: str) -> str:
        """One line for a person."""
        labels = [label for _, label, _ in self.running.values()]
        parts = []
        if self.cells_total:
            current = min(self.cells_done + 1, self.cells_total)
            parts.append(f"cell {current} of {self.cells_total}")
        parts += labels[:1]
        if doing:
            parts.append(doing)
        left = self.seconds_left(now)
        if left is not None:
            parts.append(
                f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
            )
        return "  ".join(parts)


class ProgressHandler(logging.Handler):
    """Draws the state at the bottom of the terminal with rich."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self.state = State()
        self.path = path
        self.console = Console(stderr=True)
        self.live = Live(
            get_renderable=self._render, console=self.console, refresh_per_second=4, transient=True
        )

    def _render(self) -> Any:
        from rich.text import Text

        what = " ".join(_doing(self.path)).strip()
        shown = printable(self.state.line(time.monotonic(), what)).replace("\n", " ")
        line = Text(shown, style="bold", no_wrap=True)
        line.truncate(max(self.console.width - 1, 20), overflow="ellipsis")
        return line

    def print_above(self, line: str) -> None:
        """Print a line that stays, above the one that moves."""
        self.console.print(line, markup=False, highlight=False)

    def emit(self, record: logging.LogRecord) -> None:
        """Follow one event of Snakemake's log; never let a display fault end a run."""
        try:
            self._follow(getattr(record, "event", None), record)
        except Exception:
            self.handleError(record)

    def _follow(self, event: Any, record: logging.LogRecord) -> None:
        name = getattr(event, "name", "")
        now = time.monotonic()
        fields = vars(record)
        if name == "RUN_INFO":
            self.state.run_info(dict(fields.get("stats") or {}))
            self.live.start()
        elif name == "JOB_INFO":
            self.state.started(
                fields["jobid"], fields["rule_name"], dict(fields.get("wildcards") or {}), now
            )
        elif name in ("JOB_FINISHED", "JOB_ERROR"):
            self.state.finished(int(fields.get("job_id", fields.get("jobid", -1))), now)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.live.stop()
        self.path.unlink(missing_ok=True)
        super().close()
