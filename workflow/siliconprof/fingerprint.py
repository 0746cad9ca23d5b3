"""What the code of a measurement does, as one hash: a cell is stale when it changes.

It is taken over the syntax trees of the modules that decide what is measured and how, the method,
without docstrings and the annotations of functions; comments and formatting are in no tree. The
modules are found by import statements, and none is imported. What starts, watches, locks, writes
and checks files, the supervision, is not hashed: the folders `SUPERVISION` and the modules at the
package's top.

Not followed: what is found by a string (`getattr`, a command's `-m siliconprof.…`), which is data
like any other string. A plug-in is a root of its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from siliconprof.plugins import PACKAGE_DIR

SUPERVISION = ("measure", "store")
CACHE = "code.json"  # in results/history, see `load_cache`; it may be deleted


@dataclass(frozen=True)
class Fingerprint:
    """The method code that some roots reach."""

    modules: Mapping[str, str]  # name below the package, 'session.timing' -> hash of its code

    @property
    def sha256(self) -> str:
        """Hex hash of the modules' names and hashes."""
        return _hash(f"{name} {value}" for name, value in sorted(self.modules.items()))


def of(roots: Iterable[str], package: Package | None = None) -> Fingerprint:
    """The fingerprint of dotted modules and of what they import.

    Args:
        package: by default the installed one, each module read once.

    Raises:
        LookupError: a root is no module of the package.
        SyntaxError: a module cannot be read as Python.
    """
    return (package or _installed()).fingerprint(frozenset(roots))


def of_package() -> str:
    """Hex hash of all code of the package, and of its declarations.

    What is made of records is made again when any of it changes: it takes seconds.
    """
    folder = PACKAGE_DIR
    modules = [f"{path.relative_to(folder)} {_code(path)[0]}" for path in folder.rglob("*.py")]
    return _hash(sorted([*modules, *map(of_file, folder.rglob("*.yaml"))]))


def of_file(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:  # some are weights of gigabytes
        return hashlib.file_digest(stream, "sha256").hexdigest()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of the modules that differ, or that one side lacks."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


class Package:
    """The modules of a package's folder, each read once in the life of an instance."""

    def __init__(self, folder: Path = PACKAGE_DIR) -> None:
        self.folder = folder
        self.file = cache(self._find)
        self._code = cache(_code)
        self.fingerprint = cache(self._fingerprint)

    def _fingerprint(self, roots: frozenset[str]) -> Fingerprint:
        """See `of`."""
        todo, seen, modules = sorted(roots), set(roots), {}
        for name in todo:
            if self.file(name) is None:
                raise LookupError(f"no module {name}")
        while todo:
            name = todo.pop()
            path = self.file(name)
            inside = path.relative_to(self.folder).parts if path else ()
            if path is None or len(inside) == 1 or inside[0] in SUPERVISION:
                continue
            sha256, imports = self._code(path)
            if sha256:
                modules[name.removeprefix(f"{self.folder.name}.")] = sha256
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            dotted = (resolve_name(imported, package) for imported in imports)
            reached = {package, *map(self._module_of, dotted)} - seen
            todo += reached
            seen |= reached
        return Fingerprint(dict(sorted(modules.items())))

    def _module_of(self, dotted: str) -> str:
        """The module that an imported name is, or is of."""
        while dotted and self.file(dotted) is None:
            dotted = dotted.rpartition(".")[0]
        return dotted

    def _find(self, module: str) -> Path | None:
        """The file of a dotted module; None for one that is no part of the package."""
        top, *parts = module.split(".")
        base = os.path.join(self.folder, *parts)
        # A folder without an `__init__.py` may be what an older checkout left of a package.
        found = [file for file in (f"{base}/__init__.py", f"{base}.py") if os.path.isfile(file)]
        return Path(found[0]) if found and top == self.folder.name else None


@cache
def _installed() -> Package:
    return Package()


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# -- one module ----------------------------------------------------------------------------------


class _Effective(ast.NodeTransformer):
    """Leaves out of a syntax tree what does nothing when it runs."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A docstring, or any other constant."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        """Imports for types alone."""
        self.generic_visit(node)
        return node.orelse if getattr(node.test, "id", "") == "TYPE_CHECKING" else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """What a function returns."""
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        """What it takes."""
        node.annotation = None
        return node


def _imports(tree: ast.AST) -> Iterator[str]:
    """The dotted names behind import statements: `siliconprof.hosts.blas`, `os.path`, `.base`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (f"{base}{alias.name}" for alias in node.names)


# Reading a hundred modules takes half a second, and every start of a run and every cell does it.
_read_before: dict[str, tuple[str, list[str]]] = {}  # by source, reader and Python
_unstored: list[str] = []


@cache
def _reader() -> str:
    """What the same source is read by: this module, and Python, whose trees change with versions."""
    return f"{of_file(__file__)} {sys.version}"


def _code(path: Path) -> tuple[str, list[str]]:
    """(hash of what a module does, empty for nothing; names of this package that it imports)."""
    source = path.read_text(encoding="utf-8")
    key = _hash([_reader(), source])
    if key not in _read_before:
        tree = _Effective().visit(ast.parse(source, str(path)))
        own = {name for name in _imports(tree) if name.startswith((".", f"{PACKAGE_DIR.name}."))}
        _read_before[key] = _hash([ast.dump(tree)]) if tree.body else "", sorted(own)
        _unstored.append(key)
    return _read_before[key]


def load_cache(path: Path) -> None:
    """Load the modules that earlier processes have read; ignore a missing or damaged file."""
    try:
        for key, (sha256, imports) in json.loads(path.read_text(encoding="utf-8")).items():
            _read_before.setdefault(key, (sha256, imports))
    except (OSError, ValueError, TypeError, AttributeError):
        return


def cache_text() -> str | None:
    """The content of the cache's file; None where this process has read nothing new."""
    return json.dumps(_read_before) if _unstored else None
