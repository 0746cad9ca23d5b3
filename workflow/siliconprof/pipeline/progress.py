"""What a run says while it goes on: a line for each cell that ends, what cells wait for, and, on a
terminal, below these, which cell of how many is doing what, and about how long it will still take.

A handler on Snakemake's own log, whose lists of inputs go to its file alone. What a cell is doing
comes from a small file that its supervisor rewrites, its numbers from its record.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from siliconprof.errors import UserError, printable
from siliconprof.measure.child import PROGRESS_FILE_VARIABLE
from siliconprof.measure.lock import WAITING
from siliconprof.pipeline import cell_line
from siliconprof.store import documents, record

RECORDS = Path("results/records")
SNAKEMAKE_LOGGER = "snakemake.logging"
SUPERVISOR = "siliconprof.measure"  # among the words of its command
RETRIED = Path("results/retried.txt")
LOOK_EVERY_S = 1.0
STAGE_S = 1.5  # a job that measures nothing, of a dozen between the cells and the page; a guess
KILLED = "Terminating processes on user request"
INTERRUPTED = (KILLED, "Will exit after finishing")
FAILURE_EVENTS = ("ERROR", "GROUP_ERROR", "JOB_ERROR")
CHATTER_EVENTS = (
    "JOB_INFO",
    "JOB_FINISHED",
    "PROGRESS",
    "RESOURCES_INFO",
    "RUN_INFO",
    "SHELLCMD",
    "WORKFLOW_STARTED",
)
CHATTER = (
    "Assuming unrestricted shared filesystem",
    "Building DAG",
    "Execute ",
    "Rules claiming more threads",
    "Select jobs to execute",
    "Using shell",
)


def attach(cells_here: bool) -> CellHandler:
    """Say from now on what becomes of the cells, in place of Snakemake's lists; what says it.

    Args:
        cells_here: whether they are measured on this host, where it is known what each is doing.
    """
    logger = logging.getLogger(SNAKEMAKE_LOGGER)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            handler.addFilter(WorthALine())  # the log file has all
    if not cells_here:
        logger.addHandler(display := CellHandler())
        return display
    descriptor, name = tempfile.mkstemp(prefix="siliconprof-", suffix=".progress")
    os.close(descriptor)
    os.environ[PROGRESS_FILE_VARIABLE] = name
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    display = LiveHandler(path) if sys.stderr.isatty() else CellHandler()
    logger.addHandler(display)
    _follow_waits(path, display.say)
    return display


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


def _end_cells() -> None:
    """End cells that Ctrl-C has not reached: one that began just then, or all after `kill -INT`."""
    while True:
        time.sleep(LOOK_EVERY_S)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if SUPERVISOR in process.cmdline():
                    process.send_signal(signal.SIGINT)


def _doing(path: Path) -> tuple[str, str]:
    """What the cell is doing and how far it is; empty where that is not known."""
    try:
        message = documents.read(path)
        return str(message["doing"]), str(message["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


class WorthALine(logging.Filter):
    """Tells which messages of Snakemake's are printed above the live line."""

    killed = False  # by Ctrl-C: each running job then fails, which is no news

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message is printed."""
        name = getattr(getattr(record, "event", None), "name", "")
        message = record.getMessage()
        self.killed |= message.startswith(KILLED)
        if record.levelno >= logging.WARNING:
            return not (self.killed and name in FAILURE_EVENTS)
        return name not in CHATTER_EVENTS and not message.startswith(CHATTER)


def _measures(rule: str) -> bool:
    """Whether a rule measures cells: there is one of each label on a cluster, and `measured`."""
    return rule == "measure" or rule.startswith("measure_")


class State:
    """The state of the run by the log so far; it does not draw."""

    def __init__(self) -> None:
        self.cells_total = 0
        self.cells_done = 0
        self.stages_total = 0  # jobs that measure nothing
        self.stages_done = 0
        self.running: dict[int, tuple[str, str, float]] = {}  # job -> cell or "", label, start
        self.cell_seconds: list[float] = []
        self.interrupted = False

    def run_info(self, counts: dict[str, int]) -> None:
        """The jobs that are due, by rule."""
        self.cells_total = sum(count for rule, count in counts.items() if _measures(rule))
        self.stages_total = counts.get("total", sum(counts.values())) - self.cells_total

    def started(self, job: int, rule: str, wildcards: dict[str, str], now: float) -> None:
        """A job begins."""
        cell = wildcards["cell"] if _measures(rule) else ""
        label = " · ".join(cell.split("/")[1:]) or " ".join([rule, *wildcards.values()])
        self.running[job] = (cell, label, now)

    def finished(self, job: int, now: float, failed: bool = False) -> str:
        """A job ends: the path of its cell; empty for one of another rule.

        Args:
            failed: a cell that has no record, since its process was ended, is not done.
        """
        cell, _, start = self.running.pop(job, ("", "", now))
        if cell and not failed:
            self.cells_done += 1
            self.cell_seconds.append(now - start)
        elif not cell:
            self.stages_done += 1
        return cell

    def seconds_left(self, now: float) -> float | None:
        """Seconds of the cells left, by the mean so far, and of tables and page after them.

        None before the first cell ends.
        """
        stages_s = STAGE_S * max(self.stages_total - self.stages_done, 0)
        if not self.cells_total:
            return stages_s
        if not self.cell_seconds:
            return None
        mean = sum(self.cell_seconds) / len(self.cell_seconds)
        spent = sum(now - start for cell, _, start in self.running.values() if cell)
        left_s = mean * (self.cells_total - self.cells_done) - min(spent, mean)
        return max(left_s, 0.0) + stages_s

    def interruption(self) -> str:
        """How far an interrupted run has come; empty for one that was not interrupted."""
        if not self.interrupted:
            return ""
        done = f": {self.cells_done} of {self.cells_total} cells are done" * bool(self.cells_total)
        return f"Interrupted{done}. Run the same command to go on."

    def line(self, now: float, doing: str) -> str:
        """One line for a person."""
        labels = [label for _, label, _ in self.running.values()]
        parts = []
        if self.cells_done < self.cells_total:
            parts.append(f"cell {self.cells_done + 1} of {self.cells_total}")
        parts += labels[:1]
        if doing:
            parts.append(doing)
        left = self.seconds_left(now)
        if left is not None:
            parts.append(
                f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
            )
        return "  ".join(parts)


class CellHandler(logging.Handler):
    """Follows a run by Snakemake's log, and says a line for each cell that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()

    def say(self, line: str) -> None:
        """Print a line."""
        print(printable(line), file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal to others."""

    def emit(self, record: logging.LogRecord) -> None:
        """Follow one event of Snakemake's log; never let a display fault end a run."""
        try:
            if record.getMessage().startswith(INTERRUPTED):
                self.state.interrupted = True
            if record.getMessage().startswith(KILLED):
                threading.Thread(target=_end_cells, name="ending", daemon=True).start()
            self.follow(getattr(getattr(record, "event", None), "name", ""), vars(record))
        except Exception:
            self.handleError(record)

    def follow(self, event: str, fields: Mapping[str, Any]) -> None:
        """Follow one event, by its name and what comes with it."""
        now = time.monotonic()
        if event == "RUN_INFO":
            self.state.run_info(dict(fields.get("stats") or {}))
        elif event == "JOB_INFO":
            self.state.started(
                fields["jobid"], fields["rule_name"], dict(fields.get("wildcards") or {}), now
            )
        elif event in ("JOB_FINISHED", "JOB_ERROR"):
            job = int(fields.get("job_id", fields.get("jobid", -1)))
            _, label, _ = self.state.running.get(job, ("", "", now))
            cell = self.state.finished(job, now, failed=event == "JOB_ERROR")
            if cell and event == "JOB_FINISHED":
                self._tell(cell)
            elif label == "retry" and event == "JOB_FINISHED":
                for line in RETRIED.read_text(encoding="utf-8").splitlines():
                    self.say(line)

    def _tell(self, cell: str) -> None:
        """Say what a cell's record holds; nothing where storage is not here, but elsewhere."""
        with suppress(UserError):
            found = record.load(RECORDS / f"{cell}.json", check_schema=False)
            total = str(self.state.cells_total)
            self.say(f"{self.state.cells_done:>{len(total)}}/{total}  {cell_line.of(found)}")


class LiveHandler(CellHandler):
    """Draws the state at the bottom of the terminal with rich.

    Args:
        path: where the cell's supervisor writes what it is doing.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

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

    def say(self, line: str) -> None:
        """Print a line that stays, above the one that moves."""
        self.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def follow(self, event: str, fields: Mapping[str, Any]) -> None:
        """See `CellHandler.follow`."""
        super().follow(event, fields)
        if event == "RUN_INFO":
            self.live.start(refresh=True)

    def end(self) -> None:
        """See `CellHandler.end`."""
        self.live.stop()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.end()
        super().close()
