"""The interface of a capture: a profiling tool that records a few training steps.

A tool perturbs what it records, takes memory, and may crash. So each has a process of its own,
after the cell's measurement is over: the same training warms up there and runs a few unsplit
steps under the tool, and no time of that process is used. `siliconprof.measure.capture` starts
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend

STEPS = 3  # training steps that a tool sees


class Over(Exception):
    """The tool has recorded its last step, so the training ends."""


class Capture:
    """A tool: whether it is here, how its process is started, and its window of steps."""

    name: ClassVar[str]
    means: ClassVar[str]  # what is recorded, for the record
    program: ClassVar[tuple[str, str]]  # that must be on PATH, and where it comes from
    frameworks: ClassVar[tuple[str, ...]] = ("torch", "mlx")
    extra_steps: ClassVar[int] = 0  # steps in the tool's window that it does not record
    environment: ClassVar[Mapping[str, str]] = {}  # that its process must be started with
    backend_range: ClassVar[tuple[str, str]] = ("", "")  # see `Backend.capture_range`

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """(whether this host has the tool, which one or what is missing). Imports nothing."""
        name, origin = cls.program
        if shutil.which(name) is None:
            return False, f"{name} is not on PATH; {origin}"
        return True, f"{name} is on PATH"

    @classmethod
    def supports(cls, backend: type[Backend], device_kind: str) -> str | None:
        """Why it cannot capture such a cell, or None when it can."""
        if backend.framework not in cls.frameworks:
            return f"it captures {' and '.join(cls.frameworks)} only"
        return None

    @classmethod
    def command(cls, backend: type[Backend], folder: Path) -> Sequence[str]:
        """The command that starts the process, for a tool that cannot attach; empty otherwise."""
        return ()

    def __init__(self, backend: Backend, device_kind: str, folder: Path) -> None:
        """
        Args:
            backend: open.
            folder: exists and is empty; all that is left in it is kept.
        """
        self.backend, self.device_kind, self.folder = backend, device_kind, folder
        self.opened = ExitStack()

    def begin(self) -> None:
        """Start to record; the device is idle.

        Raises:
            UserError: the tool cannot start; why, and how to mend it.
        """
        kind, file = self.backend_range
        if kind in self.backend.capture_ranges:
            path = str(self.folder / file) if file else ""
            self.opened.enter_context(self.backend.capture_range(kind, path))

    def between(self) -> None:
        """One step is over, the next begins."""

    def end(self) -> dict[str, Any]:
        """Stop, and write the files; facts for the record, such as `counters`.

        Raises:
            UserError: the tool failed.
        """
        self.opened.close()
        return {}


class Window:
    """Counts the steps that a tool records; `trainers.base.Course` calls it for each."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.steps = 0
        self.facts: dict[str, Any] = {}

    def next_kind(self) -> str:
        """`capture`: one more step is due under the tool.

        Raises:
            Over: the last one is done, and the tool has stopped.
        """
        if self.steps == STEPS + self.capture.extra_steps:
            self.facts = self.capture.end()
            raise Over
        if self.steps:
            self.capture.between()
        else:
            self.capture.begin()
        self.steps += 1
        return "capture"
