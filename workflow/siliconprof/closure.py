"""Which file a module of the package is, what an import statement names, and a file's hash."""

from __future__ import annotations

import ast
import hashlib
import os
from pathlib import Path

from siliconprof.plugins import PACKAGE_DIR


def module_file(module: str, folder: Path = PACKAGE_DIR) -> Path | None:
    """The file of a dotted module of the package in a folder, or None for anything else."""
    parts = module.split(".")
    if parts[0] != folder.name:
        return None
    base = os.path.join(folder, *parts[1:])
    # A folder without an `__init__.py` may be what an older checkout left of a package.
    candidates = [os.path.join(base, "__init__.py"), *([f"{base}.py"] if parts[1:] else [])]
    return next((Path(path) for path in candidates if os.path.isfile(path)), None)


def dotted(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The dotted name behind each name of an import statement: `siliconprof.hosts.blas`, `os.path`.

    Args:
        package: the package of the importing module, for relative imports.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = [node.module] if node.module else []
    if node.level:
        parents = package.split(".")
        base = parents[: len(parents) - (node.level - 1)] + base
    return [".".join([*base, alias.name]) for alias in node.names]


def sha256(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:  # some are weights of gigabytes
        return hashlib.file_digest(stream, "sha256").hexdigest()
