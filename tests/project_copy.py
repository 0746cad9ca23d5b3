"""Files that tests and benchmarks make: a copy of the project, programs of the shell."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("envs", "Snakefile", "workflow", "config", "profiles", "report", "pyproject.toml")


def copy_parts(target: Path, *ignored: str) -> Path:
    """A copy of this checkout without results.

    Args:
        ignored: names of files that are not copied.
    """
    target.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir() and not source.is_symlink():
            ignore = shutil.ignore_patterns("*.egg-info", *ignored)
            shutil.copytree(source, target / part, ignore=ignore)
        else:
            shutil.copy2(source, target / part, follow_symlinks=False)
    return target


def script(path: Path, text: str) -> Path:
    """A program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
