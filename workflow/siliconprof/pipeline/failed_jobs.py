"""A line for each job that fails: its rule, why, and its log.

`quiet: rules` of the default profile keeps jobs from filling the terminal, and with them hides all
three; what Snakemake still prints is the command, of several kilobytes where it holds a cell.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from siliconprof.errors import printable

LOGGER = "snakemake.logging"
# Snakemake's event of a failed job, snakemake_interface_logger_plugins.common.LogEvent
JOB_ERROR = "job_error"
# What its text begins with, has.
COMMAND = ("RuleException:\nCalledProcessError", "non-zero exit status")
LONGEST_REASON = 400  # characters of a reason


class FailedJobs(logging.Filter):
    """Prints a line for each failed job, and keeps its command off the terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake's handlers get a message."""
        if getattr(record, "event", None) == JOB_ERROR:
            print(line(record.rule_name, record.log), flush=True)  # type: ignore[attr-defined]
        begin, part = COMMAND
        text = record.getMessage()
        return not (text.startswith(begin) and part in text)


def line(rule: str, logs: Sequence[str]) -> str:
    """`rule aggregate failed: KeyError: 'host'; its log: results/logs/aggregate.log`."""
    where = f"; its log: {logs[0]}" if logs else ""
    return f"rule {rule} failed: {_last_line(logs) or 'it was killed, or said nothing'}{where}"


def _last_line(logs: Sequence[str]) -> str:
    for log in map(Path, logs):
        if log.is_file():
            with log.open(encoding="utf-8", errors="replace") as lines:
                last = deque((text for text in lines if text.strip()), maxlen=1)
            return printable("".join(last).strip())[:LONGEST_REASON]
    return ""


def watch() -> None:
    """Have this process's failed jobs named."""
    logging.getLogger(LOGGER).addFilter(FailedJobs())
