"""How a run ends for a person: what it made, and what its page leaves out."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

PAGE = Path("results/report.html")
STUDY = PAGE.with_name("study.html")
SUMMARY = PAGE.with_name("summary.txt")
ERRORS = PAGE.with_name("errors.txt")  # a line for each box that stands for a section or figure
NOT_WHOLE_STATUS = 1


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
