"""Checkpoints of a whole training, and its course so far: what a killed one goes on from.

A checkpoint is one file, `step-000200.safetensors`. `course.json` beside it says which file is the
`latest` and which the `best`, with their checksums, and holds the losses, norms and times so far.
A file is written under a temporary name, synced to disk and renamed before `course.json`, in the
same way, begins to speak of it; only then is an older one removed. So whenever the process is
killed, `course.json` speaks of whole files, or there is none.
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
from siliconprof.store.record import write_atomically

FOLDER = "checkpoints"
COURSE = "course.json"
VERSION = 1  # of course.json's shape
LATEST, BEST = "latest", "best"


class Checkpoints:
    """What is kept of one training in its cell's folder.

    Args:
        keep: the cell's folder for what outlives its process; None = nothing is kept.
        key: what a checkpoint counts for: code, environment, method and cell.
    """

    def __init__(self, keep: Path | None, key: str) -> None:
        self.folder = None if keep is None else keep / FOLDER
        self.key = key
        self.files: dict[str, dict[str, Any]] = {}  # latest, best -> path, step, bytes, sha256
        self.notes: list[str] = []

    def resume(self, stepper: Stepper) -> dict[str, Any] | None:
        """Load the latest checkpoint; the course until then, or None where there is none to use.

        One of another key or a damaged one is not used; `notes` say so.
        """
        if self.folder is None or not (self.folder / COURSE).exists():
            return None
        try:
            told = self._read()
            self._check(told["files"][LATEST])
            stepper.load(self.folder / Path(told["files"][LATEST]["path"]).name)
        except (UserError, OSError) as error:
            self._note(f"the checkpoint that was found is not used: {error}")
            return None
        self.files = {LATEST: told["files"][LATEST]}
        if BEST in told["files"]:
            try:
                self._check(told["files"][BEST])
                self.files[BEST] = told["files"][BEST]
            except (UserError, OSError) as error:
                self._note(f"the best checkpoint so far is lost: {error}")
        return told["course"]

    def save(
        self, stepper: Stepper, step: int, course: Mapping[str, Any], roles: Collection[str]
    ) -> None:
        """Keep the training as it is after so many steps; `notes` say so where that fails.

        Args:
            course: what `resume` shall answer with.
            roles: `latest`, `best`, or both.
        """
        if self.folder is None:
            return
        name = f"step-{step:06d}.safetensors"
        path = self.folder / name
        temporary = self.folder / f".{os.getpid()}.{name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stepper.save(temporary, {"step": str(step), "key": self.key})
            _sync(temporary)
            entry = {
                "path": f"{FOLDER}/{name}",
                "step": step,
                "bytes": temporary.stat().st_size,
                "sha256": sha256(temporary),
            }
            os.replace(temporary, path)
            _sync(self.folder)
            self.files |= dict.fromkeys(roles, entry)
            told = {"version": VERSION, "key": self.key, "files": self.files, "course": course}
            sealed = told | {"sha256": _content_sha256(told)}
            write_atomically(self.folder / COURSE, json.dumps(sealed))  # NaN stays NaN
            self._tidy()
        except Exception as error:  # a full disk, in each library's own words
            self._note(f"the checkpoint after {step} steps was not kept: {in_one_line(error)}")
            with suppress(OSError):
                temporary.unlink()

    def _read(self) -> dict[str, Any]:
        """The content of course.json.

        Raises:
            UserError: it is damaged, or of another key.
        """
        assert self.folder is not None
        path = self.folder / COURSE
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{COURSE} is damaged: {error}") from None
        if not isinstance(told, dict) or told.get("sha256") != _content_sha256(told):
            raise UserError(f"{COURSE} is damaged: its content does not match its own `sha256`")
        if told["version"] != VERSION or told["key"] != self.key:
            raise UserError("it is of other code, another environment or another cell")
        return told

    def _check(self, entry: Mapping[str, Any]) -> None:
        """See that a file is there as it was written: a flipped bit would train on unnoticed.

        Raises:
            UserError: it is damaged.
        """
        assert self.folder is not None
        name = Path(entry["path"]).name
        if sha256(self.folder / name) != entry["sha256"]:
            raise UserError(f"{name} is damaged: its SHA-256 is not the one in {COURSE}")

    def _tidy(self) -> None:
        """Remove what course.json does not speak of."""
        assert self.folder is not None
        kept = {COURSE, *(Path(entry["path"]).name for entry in self.files.values())}
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()

    def _note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def _content_sha256(told: Mapping[str, Any]) -> str:
    """Hex SHA-256 of course.json's content, its own `sha256` left out."""
    content = {name: value for name, value in told.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Have what was written to a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
