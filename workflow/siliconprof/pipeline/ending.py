"""How a run ends for a person: what it made, what its page leaves out, why it failed.

A page that leaves something out stands, and the run that made it fails: so does every later one
until the page is whole, also where Snakemake has nothing to do and would end well.
"""

from __future__ import annotations

import html
import logging
import re
import sys
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof.errors import CannotWrite, printable, writing
from siliconprof.store import temporary
from siliconprof.store.validation import one_line

PAGE = Path("results/report.html")
STUDY = PAGE.with_name("study.html")
SUMMARY = PAGE.with_name("summary.txt")
ERRORS = PAGE.with_name("errors.txt")  # a line for each box that stands for a section or figure
NOTHING_TO_DO = "Nothing to be done"
NOT_WHOLE_STATUS = 1
_TOP = '<main id="main" tabindex="-1">\n'
_STALE = re.compile(r'<p class="box" id="stale"[^>]*>.*?</p>\n', re.S)


def wants_page(targets: Collection[str]) -> bool:
    """Whether a run was asked for the page; one without targets is."""
    return not targets or bool({"report", "render", PAGE.as_posix(), STUDY.as_posix()} & {*targets})


def summary() -> str:
    """The page in a dozen lines; empty where nobody has made them, or somebody has deleted them."""
    try:
        return SUMMARY.read_text(encoding="utf-8")
    except OSError:
        return ""


def say_what_is_missing() -> None:
    """End the run with the errors of what could not be drawn; return where the page is whole.

    Raises:
        SystemExit: it is not.
    """
    errors = ERRORS.read_text(encoding="utf-8") if ERRORS.exists() else ""
    if errors:
        print(f"{errors}{PAGE}: the page stands, but for what could not be drawn", file=sys.stderr)
        sys.stderr.flush()
        raise SystemExit(NOT_WHOLE_STATUS)


class NothingToDo(logging.Handler):
    """Ends a run in which nothing was to be done as the one that made the page has ended.

    Args:
        snakemake: its workflow, whose settings say what was asked for.
    """

    def __init__(self, snakemake: Any) -> None:
        super().__init__()
        self.snakemake = snakemake

    def emit(self, record: logging.LogRecord) -> None:
        """Follow one message of Snakemake's log."""
        if record.getMessage().startswith(NOTHING_TO_DO) and wants_page(
            self.snakemake.dag_settings.targets
        ):
            say_what_is_missing()


def made_at() -> int | None:
    """When the page was last made, as a number that only compares with another; None if it is due."""
    try:
        return ERRORS.stat().st_mtime_ns
    except OSError:
        return None


def mark_stale(made_before: int | None, how: str, log: str) -> None:
    """Say in both pages, if this run has not made them, that they are an earlier run's, and why.

    Args:
        made_before: `made_at` when the run began.
        how: what became of the run: it "failed", or "was interrupted".
        log: file of the job that failed last; empty where none is known.
    """
    if made_at() not in (None, made_before):
        return
    with suppress(OSError, CannotWrite):  # the disk may be full: then the page stands as it is
        with writing(ERRORS):
            ERRORS.unlink(missing_ok=True)  # so that the next run makes it
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        why = f" ({reason})" if how == "failed" and (reason := _reason(log)) else ""
        banner = (
            '<p class="box" id="stale" role="note">This page is an earlier run\u2019s: a run '
            f"{how} at {when} before it had made the page again{html.escape(why)}.</p>\n"
        )
        for page in (PAGE, STUDY):
            text = _STALE.sub("", page.read_text(encoding="utf-8"))
            marked = text.replace(_TOP, _TOP + banner, 1)
            temporary.write(page, marked)
        print(f"{PAGE}: not made again; the earlier page stands, and says so", file=sys.stderr)


def _reason(log: str) -> str:
    """The last line of a log; empty where there is none."""
    try:
        text = Path(log).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return printable(one_line(f"{log}: {lines[-1]}")) if lines else ""
