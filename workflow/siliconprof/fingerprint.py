"""What the code of a measurement does, as one hash: a cell is stale when it changes.

It is taken over the syntax trees of the modules that decide what is measured and how, the method,
without docstrings and annotations; comments and formatting are in no tree. The modules are found by
import statements, and none is imported. A module stands for what it does, wherever it lies and
whatever it is called. What starts, watches, locks, writes and checks files, the supervision, is not
hashed: the folders `SUPERVISION` and the modules at the package's top.

Not followed: what is found by a string (`getattr`, a command's `-m siliconprof.…`), which is data
like any other string. A plug-in is a root of its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from siliconprof.plugins import PACKAGE_DIR

SUPERVISION = ("measure", "store")
CACHE_FILE = "code.json"  # in results/history, see `load_cache`; it may be deleted
HALF = 32  # hex digits of a module's hash for what it does itself; as many for what it imports
HEEDED = ("ClassVar", "InitVar", "KW_ONLY")  # annotations that a dataclass acts on


@dataclass(frozen=True)
class Fingerprint:
    """The method code that some roots reach."""

    modules: Mapping[str, str]  # name below the package, 'session.timing' -> hash of its code

    @property
    def sha256(self) -> str:
        """Hex hash of the modules' hashes."""
        return _hash(sorted(self.modules.values()))


def fingerprint_of(roots: Iterable[str], package: Package | None = None) -> Fingerprint:
    """The fingerprint of dotted modules and of what they import.

    Args:
        package: by default the installed one, each module read once.

    Raises:
        LookupError: a root is no module of the package.
        SyntaxError: a module cannot be read as Python.
    """
    return (package or _installed()).fingerprint(frozenset(roots))


def hash_of_package() -> str:
    """Hex hash of all code of the package, and of its declarations.

    What is made of records is made again when any of it changes: it takes seconds.
    """
    folder = PACKAGE_DIR
    modules = [f"{path.relative_to(folder)} {_code(path)[0]}" for path in folder.rglob("*.py")]
    return _hash(sorted([*modules, *map(hash_of_file, folder.rglob("*.yaml"))]))


def hash_of_file(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:  # some are weights of gigabytes
        return hashlib.file_digest(stream, "sha256").hexdigest()


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules whose code has changed or, if none has, those whose imports have."""
    for digits in (HALF, None):
        then, today = ({n: code[:digits] for n, code in side.items()} for side in (before, now))
        gone = {name for name, code in then.items() if code not in today.values()}
        if found := gone | {name for name, code in today.items() if code not in then.values()}:
            return sorted(found)
    return []


class Package:
    """The modules of a package's folder, each read once in the life of an instance."""

    def __init__(self, folder: Path = PACKAGE_DIR) -> None:
        self.folder = folder
        self.file = cache(self._find)
        self._code = cache(_code)
        self.fingerprint = cache(self._fingerprint)

    def _fingerprint(self, roots: frozenset[str]) -> Fingerprint:
        todo, seen, modules = sorted(roots), set(roots), {}
        for name in todo:
            if self.file(name) is None:
                raise LookupError(f"no module {name}")
        while todo:
            name = todo.pop()
            path = self._method_file(name)
            if path is None:
                continue
            sha256, imports = self._code(path)
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            imported, uses = set(), []
            for bound, dotted in imports:
                whole = resolve_name(dotted, package)
                module = self._module_of(whole)
                file = self._method_file(module)
                own = self._code(file)[0] if file else ""
                uses.append(f"{bound} {own} {whole.removeprefix(module)}")
                imported.add(module)
            if sha256 or uses:
                short = name.removeprefix(f"{self.folder.name}.")
                modules[short] = sha256[:HALF].ljust(HALF, "0") + _hash(sorted(uses))[:HALF]
            reached = {package, *imported} - seen
            todo += reached
            seen |= reached
        return Fingerprint(dict(sorted(modules.items())))

    def _method_file(self, name: str) -> Path | None:
        """Return a module's file if its code is hashed, else None."""
        path = self.file(name)
        inside = path.relative_to(self.folder).parts if path else ()
        return path if len(inside) > 1 and inside[0] not in SUPERVISION else None

    def _module_of(self, dotted: str) -> str:
        """Return the module that an imported name is, or is defined in."""
        while dotted and self.file(dotted) is None:
            dotted = dotted.rpartition(".")[0]
        return dotted

    def _find(self, module: str) -> Path | None:
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


class _Effective(ast.NodeTransformer):
    """Removes what has no effect at run time, and this package's own imports, from a syntax tree."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str]] = []  # (name that it binds, what it stands for)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Drop a docstring, or any other constant."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        """Drop imports for types alone."""
        if getattr(node.test, "id", "") == "TYPE_CHECKING":
            return [kept for statement in node.orelse if (kept := self.visit(statement))]
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Take note of imports from this package, which count by the imported code, and drop them."""
        base = "." * node.level + (f"{node.module}." if node.module else "")
        if not base.startswith((".", f"{PACKAGE_DIR.name}.")):
            return node
        self.imports += [(a.asname or a.name, base + a.name) for a in node.names]
        return None

    def visit_Import(self, node: ast.Import) -> Any:
        """As `visit_ImportFrom`; an import without `as` binds the package, and its uses stay in the tree."""
        own = [a for a in node.names if a.name.startswith(f"{PACKAGE_DIR.name}.")]
        self.imports += [(a.asname or "", a.name) for a in own]
        node.names = [a for a in node.names if a not in own]
        return node if node.names else None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Drop the type of a variable."""
        if not any(word in ast.dump(node.annotation) for word in HEEDED):
            node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Drop the type that a function returns."""
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        """Drop the type of a parameter."""
        node.annotation = None
        return node


# Reading a hundred modules takes half a second, and every start of a run and every cell does it.
_read_before: dict[str, tuple[str, list[tuple[str, str]]]] = {}  # by source, reader and Python
_unstored: list[str] = []


@cache
def _reader() -> str:
    """Return what a source's hash depends on besides: this module, and the version of Python."""
    return f"{hash_of_file(__file__)} {sys.version}"


def _code(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """(hash of what a module does itself, empty for nothing; what it imports of this package)."""
    source = path.read_text(encoding="utf-8")
    key = _hash([_reader(), source])
    if key not in _read_before:
        effective = _Effective()
        tree = effective.visit(ast.parse(source, str(path)))
        _read_before[key] = _hash([ast.dump(tree)]) if tree.body else "", effective.imports
        _unstored.append(key)
    return _read_before[key]


def load_cache(path: Path) -> None:
    """Load the hashes that earlier processes have stored; ignore a missing or damaged file."""
    try:
        for key, (sha256, imports) in json.loads(path.read_text(encoding="utf-8")).items():
            _read_before.setdefault(key, (sha256, imports))
    except (OSError, ValueError, TypeError, AttributeError):
        return


def cache_text() -> str | None:
    """The content of the cache's file; None where this process has read nothing new."""
    return json.dumps(_read_before) if _unstored else None
