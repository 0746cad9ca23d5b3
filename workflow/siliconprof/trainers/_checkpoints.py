"""Checkpoints of a whole training and its course so far, from which a killed training resumes.

A checkpoint is one file, `step-000200.safetensors`. `course.json` beside it names the `latest` and
the `best` file, with their checksums, and has the losses, norms and times so far. A file is written
under a temporary name, synced to disk and renamed; then `course.json`, written in the same way,
refers to it; only then is an older file removed. So whenever the process is killed, `course.json`
refers to complete files, or does not exist.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.backends.base import Stepper
from siliconprof.closure import sha256
from siliconprof.errors import UserError, in_one_line
from siliconprof.store import temporary

FOLDER = "checkpoints"
COURSE = "course.json"
VERSION = 1  # of the format of course.json
LATEST, BEST = "latest", "best"


class Checkpoints:
    """The checkpoints of one training in its cell's folder.

    Args:
        keep: the cell's folder for files that outlive its process; None = nothing is saved.
        key: identifies code, environment, method and cell; a checkpoint of another key is not used.
    """

    def __init__(self, keep: Path | None, key: str) -> None:
        self.folder = None if keep is None else keep / FOLDER
        self.key = key
        self.files: dict[str, dict[str, Any]] = {}  # latest, best -> path, step, bytes, sha256
        self.notes: list[str] = []

    def resume(self, stepper: Stepper) -> dict[str, Any] | None:
        """Load the latest checkpoint and return the course until then; None without a usable one.

        A checkpoint of another key or a damaged one is not used, which `notes` then says.
        """
        if self.folder is None or not (self.folder / COURSE).exists():
            return None
        try:
            document = self._read()
            self._check(document["files"][LATEST])
            stepper.load(self.folder / Path(document["files"][LATEST]["path"]).name)
        except (UserError, OSError) as error:
            self._add_note(f"the existing checkpoint is not used: {error}")
            return None
        self.files = {LATEST: document["files"][LATEST]}
        if BEST in document["files"]:
            try:
                self._check(document["files"][BEST])
                self.files[BEST] = document["files"][BEST]
            except (UserError, OSError) as error:
                self._add_note(f"the best checkpoint so far is lost: {error}")
        return document["course"]

    def save(
        self, stepper: Stepper, step: int, course: Mapping[str, Any], roles: Collection[str]
    ) -> None:
        """Save the training as it is after `step` steps; `notes` says so where that fails.

        Args:
            course: what `resume` returns later.
            roles: `latest`, `best`, or both.
        """
        if self.folder is None:
            return
        name = f"step-{step:06d}.safetensors"
        path = self.folder / name
        unfinished = self.folder / f".{os.getpid()}.{name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stepper.save(unfinished, {"step": str(step), "key": self.key})
            _sync(unfinished)
            entry = {
                "path": f"{FOLDER}/{name}",
                "step": step,
                "bytes": unfinished.stat().st_size,
                "sha256": sha256(unfinished),
            }
            os.replace(unfinished, path)
            _sync(self.folder)
            self.files |= dict.fromkeys(roles, entry)
            document = {"version": VERSION, "key": self.key, "files": self.files, "course": course}
            sealed = document | {"sha256": _content_sha256(document)}
            temporary.write(self.folder / COURSE, json.dumps(sealed))  # NaN stays NaN
            self._tidy()
        except Exception as error:  # a full disk raises another error in each library
            self._add_note(f"the checkpoint after {step} steps was not saved: {in_one_line(error)}")
            with suppress(OSError):
                unfinished.unlink()

    def _read(self) -> dict[str, Any]:
        """The content of course.json.

        Raises:
            UserError: it is damaged, or of another key.
        """
        assert self.folder is not None
        path = self.folder / COURSE
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{COURSE} is damaged: {error}") from None
        if not isinstance(document, dict) or document.get("sha256") != _content_sha256(document):
            raise UserError(f"{COURSE} is damaged: its content does not match its own `sha256`")
        if document["version"] != VERSION or document["key"] != self.key:
            raise UserError("it is of other code, another environment or another cell")
        return document

    def _check(self, entry: Mapping[str, Any]) -> None:
        """Check that a file is as it was written: a flipped bit would go unnoticed in training.

        Raises:
            OSError: it cannot be read.
            UserError: it is damaged.
        """
        assert self.folder is not None
        name = Path(entry["path"]).name
        if sha256(self.folder / name) != entry["sha256"]:
            raise UserError(f"{name} is damaged: its SHA-256 is not the one in {COURSE}")

    def _tidy(self) -> None:
        """Remove the files that course.json does not refer to."""
        assert self.folder is not None
        current = {COURSE, *(Path(entry["path"]).name for entry in self.files.values())}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in current:
                path.unlink()

    def _add_note(self, text: str) -> None:
        """Add a note unless it is there already."""
        if text not in self.notes:
            self.notes.append(text)


def _content_sha256(document: Mapping[str, Any]) -> str:
    """Hex SHA-256 of course.json's content, without its own `sha256`."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
