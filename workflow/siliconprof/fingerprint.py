"""What the code of a measurement does, as one hash: a cell is stale when it changes.

It is taken over the syntax trees of the modules that decide what is measured and how, the
method. Comments, formatting, docstrings, annotations, the text of messages, and where a module
lies or what it is called are no part of it. What starts, watches, locks, writes and checks files,
the supervision, is not hashed: the folders `SUPERVISION` and the modules at the package's top.

A module is read into `Code`: its tree as text, with a null byte for everything that it takes from
another module of the package. The other module is identified by what it does alone (the first half
of its hash), so circular imports need no care. Nothing is imported.

Not followed: what is found by a string (`getattr`, a command's `-m siliconprof.…`), which is data
like any other string. A plug-in is a root of its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from siliconprof import closure, syntax
from siliconprof.syntax import Code

SUPERVISION = ("measure", "store")
HALF = 32  # hex digits of a module's hash for what it does alone; as many for what it refers to


@dataclass(frozen=True)
class Fingerprint:
    """The method code that some roots reach."""

    modules: Mapping[str, str]  # name below the package, 'session.timing' -> hash of what it does

    @property
    def sha256(self) -> str:
        """Hex hash of the modules' hashes; their names are no part of it."""
        return _hash(sorted(self.modules.values()))


def of(roots: Iterable[str], package: Package | None = None) -> Fingerprint:
    """The fingerprint of dotted modules and of what they use.

    Args:
        package: by default the installed one.

    Raises:
        LookupError: a root is no module of the package.
        SyntaxError: a module cannot be read as Python.
    """
    return (package or _installed()).fingerprint(frozenset(roots))


def of_package() -> str:
    """Hex hash of all statements of the package, texts among them, and of its declarations.

    What is made of records is made again when any of them changes: it takes seconds.
    """
    folder = closure.PACKAGE_DIR
    modules = [f"{path.relative_to(folder)} {_statements(path)}" for path in folder.rglob("*.py")]
    return _hash(sorted([*modules, *map(closure.sha256, folder.rglob("*.yaml"))]))


def _statements(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    key = _hash(["statements", source])
    if key not in _read_before:
        tree = ast.dump(ast.parse(source))
        _read_before[key] = Code(_hash([tree]), (), {})
        _unstored.append(key)
    return _read_before[key].sha256


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of the modules that differ; one that only moved does not. Empty if nothing differs.

    A module that is the same itself and uses an edited one is not named. Where none is edited, but
    some are used no more or newly, those that use them are named as well.
    """
    alone, alone_now = ({n: v[:HALF] for n, v in side.items()} for side in (before, now))
    differing = _without_counterpart(alone, alone_now)
    edited = any(name in before and name in now for name in differing)
    return differing if edited else _without_counterpart(before, now)


def _without_counterpart(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names on one side whose hash has no counterpart on the other, under whatever name."""
    removed = {name: value for name, value in before.items() if now.get(name) != value}
    added = {name: value for name, value in now.items() if before.get(name) != value}
    unmatched: set[str] = set()
    for side, other in ((removed, added), (added, removed)):
        moved = Counter(other.values())
        for name, value in sorted(side.items()):
            moved[value] -= 1
            if moved[value] < 0:
                unmatched.add(name)
    return sorted(unmatched)


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


# Reading a hundred modules takes half a second, and every start of a run and every cell does it.
CACHE = "code.json"  # in results/history; it may be deleted
READER = 1  # changes whenever `syntax` reads the same source in another way
_read_before: dict[str, Code] = {}  # by source
_unstored: list[str] = []


def load_cache(path: Path) -> None:
    """Load the modules that earlier processes have read; ignore a missing or damaged file."""
    try:
        for key, (sha256, uses, exports) in json.loads(path.read_text(encoding="utf-8")).items():
            _read_before.setdefault(key, Code(sha256, tuple(uses), exports))
    except (OSError, ValueError, TypeError, AttributeError):
        return


def cache_text() -> str | None:
    """The content of the cache's file; None where this process has read nothing new."""
    if not _unstored:
        return None
    return json.dumps({k: (c.sha256, c.uses, dict(c.exports)) for k, c in _read_before.items()})


class Package:
    """The modules of a package's folder, each read once in the life of an instance."""

    def __init__(self, folder: Path = closure.PACKAGE_DIR) -> None:
        self.folder = folder
        self._file = cache(partial(closure.module_file, folder=folder))
        self._code = cache(self._read)
        self._alone = cache(self._hash_alone)
        self._parts = cache(self._split)
        self._meaning = cache(self._follow)
        self._whole = cache(self._hash_whole)
        self.fingerprint = cache(self._fingerprint)

    def _fingerprint(self, roots: frozenset[str]) -> Fingerprint:
        """See `of`."""
        for root in sorted(roots):
            if self._file(root) is None:
                raise LookupError(f"no module {root}")
        todo, seen, modules = list(roots), set(roots), {}
        while todo:
            name = todo.pop()
            code = self._code(name)
            if code is None:
                continue
            value, reached = self._whole(name)
            if code.sha256:
                modules[name.removeprefix(f"{self.folder.name}.")] = value
            todo += reached - seen
            seen |= reached
        return Fingerprint(dict(sorted(modules.items())))

    def _read(self, module: str) -> Code | None:
        """The code of a module; None for supervision, which is not read."""
        path = self._file(module)
        inside = path.relative_to(self.folder).parts if path else ()
        if path is None or len(inside) == 1 or inside[0] in SUPERVISION:
            return None
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        source = path.read_text(encoding="utf-8")
        key = _hash([str(READER), package, source])
        if key not in _read_before:
            _read_before[key] = syntax.read(source, str(path), package)
            _unstored.append(key)
        return _read_before[key]

    def _hash_whole(self, module: str) -> tuple[str, frozenset[str]]:
        """Hash of a module of the method, and the modules that it reaches directly."""
        code = self._code(module)
        assert code is not None
        meanings = [self._meaning(use) for use in code.uses]
        reached = {module.rpartition(".")[0]}.union(*(through for through, _ in meanings))
        return self._alone(module) + _hash(what for _, what in meanings)[:HALF], frozenset(reached)

    def _hash_alone(self, module: str) -> str:
        """Hash of what a module does by itself, whatever the modules that it uses do."""
        code = self._code(module)
        assert code is not None
        return _hash([code.sha256, *(self._parts(use)[1] for use in code.uses)])[:HALF]

    def _split(self, use: str) -> tuple[str, str]:
        """The module that a dotted name begins with, and the rest."""
        module, rest = use, ""
        while module and self._file(module) is None:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return module, rest

    def _follow(self, use: str) -> tuple[tuple[str, ...], str]:
        """The modules that a use leads through, and its meaning without their names."""
        module, rest = self._parts(use)
        code = self._code(module)
        if code is None:
            return (), f"supervision:{rest}"
        name, dot, more = rest.partition(".")
        if name not in code.exports:
            return (module,), f"{self._alone(module)}:{rest}"
        use = f"{code.exports[name]}{dot}{more}"  # it passes on what it has imported itself
        if use.split(".")[0] != self.folder.name:
            return (module,), use
        through, meaning = self._meaning(use)
        return (module, *through), meaning


@cache
def _installed() -> Package:
    return Package()
