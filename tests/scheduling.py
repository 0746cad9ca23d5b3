"""What pytest's workers take at a time and first, and which skips fail a run."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKER = os.environ.get("PYTEST_XDIST_WORKER")


@cache
def _makes_something_once(file: str) -> bool:
    """Whether tests of a file, by its path in the project, share what one of them has made."""
    return 'scope="module"' in (ROOT / file).read_text(encoding="utf-8")


def _together(nodeid: str) -> str:
    """What a worker takes at a time: a file whose tests share something, else a test."""
    file = nodeid.partition("::")[0]
    return file if _makes_something_once(file) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadgroup`, which knows its groups no more under pytest 9.2 (xdist 3.8.0)."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For workers: what takes long comes first."""
    if WORKER:
        long = Counter(
            _together(i.nodeid)
            for i in items
            if {"slow", "campaign"} & {m.name for m in i.iter_markers()}
        )
        items.sort(key=lambda item: -long[_together(item.nodeid)])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where skips are forbidden, a skip without the mark gpu or apple fails the run.

    With workers, the controller has the reports of all and is the one with a terminal.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("SILICONPROF_FORBID_SKIPS"):
        return
    wrong = [
        report.nodeid
        for report in reporter.stats.get("skipped", [])
        if not {"gpu", "apple"} & set(report.keywords)
    ]
    if wrong:
        reporter.write_line("skipped without the mark gpu or apple: " + ", ".join(wrong), red=True)
        session.exitstatus = 1
