"""The static import closure of a cell's code: what must be an input of its rule.

Snakemake sees no change in an imported Python module, so every module that a cell can load is
declared. The closure is read from the source (`ast`), nothing is imported; plug-ins, which are
loaded by name, are roots of their own.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent
PACKAGE = PACKAGE_DIR.name


@cache
def _module_file(module: str) -> Path | None:
    """The file of a dotted module of this package, or None for anything else."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    base = PACKAGE_DIR.joinpath(*parts[1:])
    if base.is_dir():
        init = base / "__init__.py"
        return init if init.is_file() else None
    path = base.with_suffix(".py")
    return path if path.is_file() else None


@cache
def _imports(path: Path) -> frozenset[str]:
    """Dotted names of this package's modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                package = path.relative_to(PACKAGE_DIR.parent).parent.parts
                kept = package[: len(package) - (node.level - 1)]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(name for name in found if name.split(".")[0] == PACKAGE)


def modules(roots: Iterable[str]) -> dict[str, Path]:
    """Dotted name -> file of every module of this package that the roots can import.

    Raises:
        LookupError: a root is no module of this package.
    """
    closed: dict[str, Path] = {}
    todo = list(roots)
    for root in todo:
        if _module_file(root) is None:
            raise LookupError(f"no module {root}")
    while todo:
        name = todo.pop()
        path = _module_file(name)
        if path is None or name in closed:
            continue
        closed[name] = path
        parts = name.split(".")
        todo.extend(".".join(parts[:n]) for n in range(1, len(parts)))  # packages run as well
        todo.extend(_imports(path))
    return closed


def files(roots: Iterable[str]) -> list[str]:
    """The closure as sorted paths relative to the checkout (`workflow/siliconprof/…`)."""
    return list(_files(frozenset(roots)))


@cache
def _files(roots: frozenset[str]) -> tuple[str, ...]:
    """Many cells share their roots, and every parse of the Snakefile asks for all cells."""
    checkout = PACKAGE_DIR.parent.parent
    return tuple(sorted(p.relative_to(checkout).as_posix() for p in modules(roots).values()))


def sha256(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:  # some are weights of gigabytes
        return hashlib.file_digest(stream, "sha256").hexdigest()
