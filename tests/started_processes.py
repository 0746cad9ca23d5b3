"""Processes by what they were started with: daemons and jobs that left their parent, too."""

from __future__ import annotations

from contextlib import suppress

import psutil


def started_with(variable: str, value: str) -> list[psutil.Process]:
    """What runs on this host with a variable in the environment that it was started with."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # has ended, or is somebody else's
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(variable) == value:
                found.append(process)
    return found
