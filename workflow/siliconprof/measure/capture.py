"""Deep captures of a cell, requested by its entry's `capture`: one more process for each tool.

They come after the measurement, while the host's lock is held, and do not change it: for a tool
that is missing, fails or crashes the process, the record has the reason. Files go to
`{keep}/{cell path}/{tool}/`, which no rule owns; the record has their sizes and hashes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siliconprof import closure, plugins
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
    forked: bool = False  # where it can be


# (launch, result file) -> status, reason and the process's result, as `supervise.run` returns them
Run = Callable[[Launch, Path], Mapping[str, Any]]


def requested(cell: Cell) -> list[str]:
    """Names of the tools that the cell asks for, in order."""
    return list(cell.parameters.get("capture", ()))


def not_taken(cell: Cell, reason: str) -> dict[str, Any]:
    """The record's part on captures when none is taken: one reason for every requested tool."""
    return {name: _entry(name, {"reason": reason}) for name in requested(cell)}


def take(cell: Cell, keep: Path | None, run: Run) -> dict[str, Any]:
    """Run every tool that the cell asks for; by tool, its files or why there are none.

    Args:
        keep: the folder `results/captures`.
        run: runs a measuring process to its end.
    """
    if not requested(cell):
        return {}
    if keep is None:
        return not_taken(cell, "no folder to save it in; name one with --captures")
    for name in plugins.names("captures"):  # of an earlier measurement
        shutil.rmtree(keep / cell.path / name, ignore_errors=True)
    return {name: _entry(name, _take(cell, name, keep, run)) for name in requested(cell)}


def refusal(cell: Cell, name: str) -> str | None:
    """Why a tool cannot capture a cell on this host, or None."""
    if cell.trainer is None:
        return "only training steps are captured"
    tool = plugins.load("captures", name)
    backend = plugins.load("backends", cell.backend)
    if reason := tool.supports(backend, cell.device_kind):
        return str(reason)
    available, explanation = tool.available()
    return None if available else str(explanation)


def _entry(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """One tool's part of the record, filled with defaults."""
    means = plugins.load("captures", name).means
    return {"reason": None, "means": means, "steps": None, "files": []} | dict(facts)


def _take(cell: Cell, name: str, keep: Path, run: Run) -> dict[str, Any]:
    """Run one tool; its facts, with a `reason` if it took nothing."""
    if reason := refusal(cell, name):
        return {"reason": reason}
    tool, backend = plugins.load("captures", name), plugins.load("backends", cell.backend)
    with tempfile.TemporaryDirectory() as temporary:
        folder, result = Path(temporary) / "files", Path(temporary) / "result.json"
        folder.mkdir()
        arguments = ("--capture", name, "--capture-folder", str(folder))
        report = run(Launch(tool.command(backend, folder), tool.environment, arguments), result)
        facts = dict(report.get("capture") or {})
        facts["wall_s"] = report["accounting"]["child_wall_s"]
        if report["status"] != "ok":
            return facts | {"reason": report["reason"]}
        place = keep / cell.path / name
        try:
            facts["files"] = _keep(folder, place, keep)
        except OSError as error:
            return facts | {"reason": f"{place}: cannot write: {error.strerror or error}"}
    if not facts["files"]:
        facts["reason"] = "the tool succeeded but wrote no file"
    return facts


def _keep(folder: Path, place: Path, root: Path) -> list[dict[str, Any]]:
    """Move a tool's files to their place; a folder, such as Apple's tools write, as one zip file.

    Returns:
        `path` below `root`, `bytes` and `sha256` of each file.
    """
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            path = Path(shutil.make_archive(str(path), "zip", folder, path.name))
        target = place / path.name
        shutil.move(path, target)
        relative, sha256 = target.relative_to(root).as_posix(), closure.sha256(target)
        files.append({"path": relative, "bytes": target.stat().st_size, "sha256": sha256})
    return files
