"""Checkpoints of a whole training, from which a killed one goes on.

A checkpoint is one file, `step-000200.safetensors`. `course.json` names the latest and the best one
and has the course so far; it is written once they are whole, and only then is an older file
removed. The folder is of one cell, code and host alone; a cell that has ended leaves no course.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from siliconprof import fingerprint
from siliconprof.backends.base import Stepper
from siliconprof.errors import UserError, in_one_line
from siliconprof.session.session import COURSE
from siliconprof.store import temporary

LATEST, BEST = "latest", "best"


class Checkpoints:
    """The checkpoints of a training in a folder; without one nothing is saved."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}  # by role: path, step, bytes and sha256
        self.course: dict[str, Any] | None = None  # of the latest, as it was saved
        self.problem: str | None = None  # why one was not used, or not saved
        if folder is not None and (folder / COURSE).exists():
            try:
                document = json.loads((folder / COURSE).read_text(encoding="utf-8"))
                self.course, self.files = document["course"], document["files"]
            except (OSError, ValueError, LookupError, TypeError) as error:
                self.problem = f"{COURSE} cannot be read: {in_one_line(error)}"

    def resume(self, stepper: Stepper) -> dict[str, Any] | None:
        """Load the latest checkpoint into a stepper; its course, None where there is none."""
        if self.folder is None or self.course is None:
            return None
        try:
            stepper.load(self.folder / self.files[LATEST]["path"])
        except (UserError, OSError) as error:
            self.problem = f"the latest checkpoint is not used: {error}"
            self.course, self.files = None, {}
        return self.course

    def save(self, stepper: Stepper, step: int, course: Any, roles: Collection[str]) -> None:
        """Save the training as it is after `step` steps; `problem` says so where that fails."""
        if self.folder is None:
            return
        path = self.folder / f"step-{step:06d}.safetensors"
        unfinished = temporary.beside(path).with_suffix(".safetensors")  # which MLX would add
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stepper.save(unfinished)
            sha256 = fingerprint.of_file(unfinished)
            of_file = {"bytes": unfinished.stat().st_size, "sha256": sha256}
            unfinished.replace(path)
            self.files |= dict.fromkeys(roles, {"path": path.name, "step": step, **of_file})
            document = {"files": self.files, "course": course}
            temporary.write(self.folder / COURSE, json.dumps(document))  # NaN stays NaN
            current = {COURSE, *(entry["path"] for entry in self.files.values())}
            for old in [file for file in self.folder.iterdir() if file.name not in current]:
                old.unlink()
        except Exception as error:  # a full disk raises another error in each library
            self.problem = f"the checkpoint after {step} steps was not saved: {in_one_line(error)}"
            temporary.remove(unfinished)
