"""The static import closure of code: the modules that a stage's fingerprint is taken of.

It is read from the text of the modules; nothing is imported. Plug-ins are loaded by name, so they are
roots of their own. What a cell depends on is finer: see `fingerprint`.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from siliconprof.plugins import PACKAGE_DIR

PACKAGE = PACKAGE_DIR.name
# `from siliconprof.x import a, b`, in parentheses too, and `import siliconprof.x`.
IMPORT = re.compile(
    rf"^[ \t]*(?:from|import)[ \t]+({PACKAGE}[\w.]*)(?:[ \t]+import[ \t]+(\([^)]*\)|[^\n]*))?", re.M
)


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


_file = cache(module_file)


@cache
def _imports(path: Path) -> frozenset[str]:
    """The modules of this package, and names in them, that a file imports anywhere."""
    # The text is searched, since a syntax tree takes ten times as long at every start of a run.
    # A string that looks like an import counts as one, which makes the closure wider.
    names: set[str] = set()
    for module, listed in IMPORT.findall(path.read_text(encoding="utf-8")):
        names.add(module)
        names.update(f"{module}.{name}" for name in re.findall(r"\w+", listed))
    return frozenset(names)


def modules(roots: Iterable[str]) -> dict[str, Path]:
    """Dotted name -> file of every module of this package that the roots can import.

    Raises:
        LookupError: a root is no module of this package.
    """
    reached: dict[str, Path] = {}
    seen: set[str] = set()
    todo = list(roots)
    for root in todo:
        if _file(root) is None:
            raise LookupError(f"no module {root}")
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        todo.append(name.rpartition(".")[0])  # packages run as well; and a name is in a module
        path = _file(name)
        if path is not None:
            reached[name] = path
            todo.extend(_imports(path))
    return reached


def sha256(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:  # some are weights of gigabytes
        return hashlib.file_digest(stream, "sha256").hexdigest()
