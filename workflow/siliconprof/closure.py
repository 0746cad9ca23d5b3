"""The static import closure of code: what a rule must have as inputs, read from the source.

Snakemake sees no change in an imported Python module, so every module that a stage can load is
declared. The closure is read from the text of the modules, nothing is imported; plug-ins, which are
loaded by name, are roots of their own. What a cell depends on is finer: see `fingerprint`.
"""

from __future__ import annotations

import ast
import hashlib
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
    base = folder.joinpath(*parts[1:])
    # A folder without an `__init__.py` may be what an older checkout left of a package.
    ways = (base / "__init__.py", base.with_suffix(".py")) if parts[1:] else (base / "__init__.py",)
    return next((path for path in ways if path.is_file()), None)


def dotted(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """What each name of an import statement stands for: `siliconprof.hosts.blas`, `os.path`.

    Args:
        package: of the module that the statement is in, for relative imports.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = [node.module] if node.module else []
    if node.level:
        above = package.split(".")
        base = above[: len(above) - (node.level - 1)] + base
    return [".".join([*base, alias.name]) for alias in node.names]


_file = cache(module_file)


@cache
def _imports(path: Path) -> frozenset[str]:
    """What of this package a file imports, anywhere in it: modules, and names in modules.

    Found in the text, which is read at every start of a run: a syntax tree takes ten times as long.
    What looks so in a string is found too, which makes the closure wider.
    """
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
    closed: dict[str, Path] = {}
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
            closed[name] = path
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
