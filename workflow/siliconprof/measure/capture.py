"""Deep captures of a cell, asked for by its entry's `capture`: one more process for each tool.

They come after the measurement, while the host's lock is held, and change nothing in it: a tool
that is missing, fails, or takes the process down with it leaves a reason. Files go to
`{keep}/{cell path}/{tool}/`, which no rule owns; the record has their sizes and hashes.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siliconprof import plugins
from siliconprof.store.cell import Cell

METHOD = (
    "each tool in a process of its own after the measurement: the same training, warmed up, then a "
    "few unsplit steps under the tool; no time of that process is in this record"
)


@dataclass(frozen=True)
class Launch:
    """How a measuring process is started."""

    under: Sequence[str] = ()  # the command that starts it; its progress is then not seen
    variables: Mapping[str, str] = field(default_factory=dict)  # beside the cell's own
    arguments: Sequence[str] = ()  # of the worker


MEASURE = Launch()
# (launch, result file) -> status, reason and what the process left, as `measure.run` gives them
Run = Callable[[Launch, Path], Mapping[str, Any]]


def asked(cell: Cell) -> list[str]:
    """The tools that the cell wants, in order."""
    return list(cell.parameters.get("capture", ()))


def nothing(cell: Cell, reason: str) -> dict[str, Any]:
    """The same reason for every tool that is asked for."""
    return {name: _entry(name, {"reason": reason}) for name in asked(cell)}


def take(cell: Cell, keep: Path | None, run: Run) -> dict[str, Any]:
    """Run every tool that the cell asks for; by tool, what it left or why it left nothing.

    Args:
        keep: the folder `results/captures`.
        run: runs a measuring process to its end.
    """
    if not asked(cell):
        return {}
    if keep is None:
        return nothing(cell, "no folder to keep it in: give --captures")
    for name in plugins.names("captures"):  # of an earlier measurement
        shutil.rmtree(keep / cell.path / name, ignore_errors=True)
    return {name: _entry(name, _take(cell, name, keep, run)) for name in asked(cell)}


def refusal(cell: Cell, name: str) -> str | None:
    """Why a tool cannot be had for a cell on this host, or None."""
    if cell.trainer is None:
        return "only training steps are captured"
    tool = plugins.load("captures", name)
    backend = plugins.load("backends", cell.backend)
    reason = tool.supports(backend, cell.device_kind)
    if reason:
        return str(reason)
    can, found = tool.available()
    return None if can else str(found)


def _entry(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """One tool's part of the record."""
    means = plugins.load("captures", name).means
    return {"reason": None, "means": means, "steps": None, "files": []} | dict(found)


def _take(cell: Cell, name: str, keep: Path, run: Run) -> dict[str, Any]:
    """Run one tool."""
    reason = refusal(cell, name)
    if reason:
        return {"reason": reason}
    tool = plugins.load("captures", name)
    with tempfile.TemporaryDirectory() as temporary:
        folder, result = Path(temporary) / "files", Path(temporary) / "result.json"
        folder.mkdir()
        backend = plugins.load("backends", cell.backend)
        launch = Launch(
            tool.command(backend, folder),
            tool.environment,
            ("--capture", name, "--capture-folder", str(folder)),
        )
        left = run(launch, result)
        found = dict(left.get("capture") or {})
        found["wall_s"] = left["accounting"]["child_wall_s"]
        if left["status"] != "ok":
            return found | {"reason": left["reason"]}
        place = keep / cell.path / name
        try:
            found["files"] = _keep(folder, place, keep)
        except OSError as error:
            return found | {"reason": f"{place}: cannot write: {error.strerror or error}"}
    if not found["files"]:
        found["reason"] = "the tool ended well and left no file"
    return found


def _keep(folder: Path, place: Path, root: Path) -> list[dict[str, Any]]:
    """Move what a tool left to its place; a folder, as Apple's tools leave, as one zip file.

    Returns:
        `path` below `root`, `bytes` and `sha256` of each file.
    """
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            path = Path(shutil.make_archive(str(path), "zip", folder, path.name))
        kept = place / path.name
        shutil.move(path, kept)
        with open(kept, "rb") as stream:  # may be larger than memory
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        relative = kept.relative_to(root).as_posix()
        files.append({"path": relative, "bytes": kept.stat().st_size, "sha256": sha256})
    return files
