"""What the source of a module does, written down from its syntax tree; see `fingerprint`.

Left out are comments, formatting, docstrings, annotations and what is imported for them alone,
the text of messages (in `raise`, `assert`, `print`, `warnings.warn`, of a key `description`, in
what `declarations` declares), and the order of imports that follow each other. Names of other
modules of the package are resolved by Python's rules of scope: `timing.measure`, `measure` and
`t.measure` read the same if they mean the same.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof import closure

# Fields of syntax nodes: no part of what is done, or of some versions of Python only.
NO_FIELDS = {"annotation", "returns", "ctx", "kind", "type_comment", "type_params"}
OUTSIDE = {"decorator_list", "bases", "keywords"}  # evaluated outside a function's or class's scope
AROUND = {"defaults", "kw_defaults"}  # fields of `arguments`, a node inside a function's scope
FIELD_KINDS = ("ClassVar", "InitVar", "KW_ONLY")  # annotations that a dataclass heeds
SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class Code:
    """What a module does by its own source."""

    sha256: str  # of its tree; empty if it does nothing
    uses: tuple[str, ...]  # for each null byte: 'siliconprof.session.timing.measure'
    exports: Mapping[str, str]  # what the names stand for that imports bind at the top


def read(source: str, path: str, package: str) -> Code:
    """What a module does, from its source.

    Args:
        package: the dotted package that the module is in.
    """
    reader = _Reader(package)
    reader.statements(ast.parse(source, path).body, reader.top)
    return reader.code()


class _Scope:
    """What names are bound to in a module, class, function or comprehension."""

    def __init__(self, node: ast.AST | None = None, around: _Scope | None = None) -> None:
        self.around = around
        self.is_class = isinstance(node, ast.ClassDef)
        # With a decorator (`dataclass`) or as a `NamedTuple`, an annotated name is a field.
        self.has_fields = isinstance(node, ast.ClassDef) and bool(
            node.decorator_list or "NamedTuple" in map(_last_name, node.bases)
        )
        self.begun = False  # a comprehension: its first `for` has been seen
        self.bound: set[str] = set()  # by anything but an import from this package
        self.imported: dict[str, set[str]] = {}  # from this package
        self.outer: set[str] = set()  # declared global or nonlocal

    def meaning(self, name: str) -> str | None:
        """What of this package a name stands for; None if it is, or may be, anything else."""
        scope: _Scope | None = self
        while scope is not None:
            if (scope is self or not scope.is_class) and name not in scope.outer:
                meanings = scope.imported.get(name, ())
                if name in scope.bound or len(meanings) > 1:
                    return None
                if meanings:
                    return min(meanings)
            scope = scope.around
        return None


@dataclass(frozen=True, eq=False)
class _Imported:
    """One name of an import statement."""

    scope: _Scope
    name: str
    text: str
    means: str | None  # what of this package; None for another's
    needed: bool  # used or not


class _Reader:
    """Writes a syntax tree down. The meaning of a name is resolved once the tree is complete.

    The text is the same for every version of Python: empty fields are left out, as are those
    that only some versions have.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.top = _Scope()
        self.exports: dict[str, str] = {}
        self.pieces: list[str | tuple[_Scope, str] | list[_Imported]] = []
        self.used: set[str] = set()
        self.in_message = False

    def code(self) -> Code:
        """The code written down, with a null byte for every use of this package."""
        text: list[str] = []
        uses: list[str] = []
        after_use = False
        for piece in self.pieces:
            if isinstance(piece, str):
                if after_use and piece.startswith("."):
                    uses[-1] += piece
                else:
                    text.append(piece)
                    after_use = False
            elif isinstance(piece, list):
                for imported in sorted(filter(self.counts, piece), key=lambda one: one.text):
                    text.append(imported.text)
                    uses.extend([imported.means] if imported.means else [])
            else:
                scope, name = piece
                means = scope.meaning(name)
                if means is None:
                    text.append(f"${name}")
                    if scope.is_class and scope.around:  # perhaps it is not bound there yet
                        means = scope.around.meaning(name)
                if after_use := means is not None:
                    text.append("\0")
                    uses.append(means)
        own = {name: self.top.meaning(name) for name in self.top.imported}
        exports = self.exports | {name: means for name, means in own.items() if means}
        tree = "".join(text).encode()
        return Code(hashlib.sha256(tree).hexdigest() if tree else "", tuple(uses), exports)

    def counts(self, imported: _Imported) -> bool:
        """Of this package only what `code` cannot replace; otherwise what is not for types."""
        if imported.means:
            return imported.needed or imported.scope.meaning(imported.name) is None
        return imported.needed or imported.name in self.used

    def statements(self, body: list[ast.stmt], scope: _Scope, tried: bool = False) -> None:
        """A block; the order in a run of imports does not count.

        Args:
            tried: in a `try`, where an import asks whether there is such a thing.
        """
        run: list[_Imported] = []
        for node in _effective(body, scope):
            if isinstance(node, ast.Import | ast.ImportFrom):
                if not run:
                    self.pieces.append(run)
                run.extend(self.imports(node, scope, tried))
            else:
                run = []
                self.put(node, scope)

    def imports(
        self, node: ast.Import | ast.ImportFrom, scope: _Scope, tried: bool
    ) -> Iterator[_Imported]:
        """The names that a statement binds."""
        whole = isinstance(node, ast.Import)
        for alias, means in zip(node.names, closure.dotted(node, self.package), strict=True):
            name = alias.asname or (means.split(".")[0] if whole else alias.name)
            stands_for = name if whole and not alias.asname else means
            star = alias.name == "*"
            if means.split(".")[0] == self.package.split(".")[0]:
                home = self.top if name in scope.outer else scope
                if not star:
                    home.imported.setdefault(name, set()).add(stands_for)
                yield _Imported(home, name, f"(own {name} \0)", stands_for, star)
            else:
                scope.bound.add(name)
                if scope is self.top:
                    self.exports[name] = stands_for
                text = f"({type(node).__name__} {means} {name})"
                yield _Imported(scope, name, text, None, whole or star or tried)

    def put(self, value: Any, scope: _Scope) -> None:
        """What a field holds: a node, a name, a number, or several."""
        if isinstance(value, ast.AST):
            _WRITERS.get(type(value), _Reader.node)(self, value, scope)
        elif isinstance(value, list):
            for item in value:
                self.put(item, scope)
                self.pieces.append(",")
        else:
            self.pieces.append(ascii(value))

    def node(self, node: ast.AST, scope: _Scope) -> None:
        """The kind, and each field that is not empty, in the scope that it is evaluated in."""
        inside = _Scope(node, scope) if isinstance(node, SCOPES) else scope
        is_first_for = isinstance(node, ast.comprehension) and not scope.begun
        scope.begun |= is_first_for
        before = self.in_message
        is_message = before or _is_message(node)
        self.pieces.append(f"({type(node).__name__}")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in NO_FIELDS:
                continue
            self.pieces.append(f" {name}=")
            self.in_message = is_message or name == "msg"  # of an assertion
            if isinstance(value, list) and isinstance(value[0], ast.stmt):
                self.statements(value, inside, isinstance(node, ast.Try))
            elif name in AROUND or (name == "iter" and is_first_for):
                self.put(value, scope.around or scope)
            else:
                if isinstance(value, str) and not isinstance(node, ast.keyword):
                    scope.bound.add(value)
                self.put(value, scope if name in OUTSIDE else inside)
        self.in_message = before
        self.pieces.append(")")

    def name(self, node: ast.Name, scope: _Scope) -> None:
        """A name that is read; one that is written is of this module."""
        if isinstance(node.ctx, ast.Load):
            self.pieces.append((scope, node.id))
            self.used.add(node.id)
        else:
            self.pieces.append(f"${node.id}")
            scope.bound.add(node.id)

    def attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        """The object first, so that `code` can join the attribute to a module's name."""
        self.put(node.value, scope)
        self.pieces.append(f".{node.attr}")

    def constant(self, node: ast.Constant, scope: _Scope) -> None:
        """With its type, as 1, 1.0 and True are equal; by `ascii`, which no version changes."""
        value = "" if self.in_message and isinstance(node.value, str) else node.value
        self.pieces.append(f"<{type(value).__name__} {ascii(value)}>")

    def formatted(self, node: ast.JoinedStr, scope: _Scope) -> None:
        """Versions differ in how they cut the literal text; of a message only the values count."""
        self.pieces.append('f"')
        for part in node.values:
            if self.in_message:
                if isinstance(part, ast.FormattedValue):
                    self.put(part.value, scope)
            elif isinstance(part, ast.Constant):
                self.pieces.append(json.dumps(part.value)[1:-1])  # quotes within are escaped
            else:
                self.pieces.append('"')
                self.put(part, scope)
                self.pieces.append('"')
        self.pieces.append('"')

    def annotated(self, node: ast.AnnAssign, scope: _Scope) -> None:
        """In a class perhaps a field, anywhere else an assignment."""
        if node.value and not scope.has_fields:
            self.put(ast.Assign([node.target], node.value), scope)
            return
        kind = _last_name(node.annotation)
        self.pieces.append(f"(Field {kind if kind in FIELD_KINDS else ''} ")
        if node.value:
            self.put([node.value, node.target], scope)
        else:  # binds nothing
            self.pieces.append(_last_name(node.target))
        self.pieces.append(")")

    def mapping(self, node: ast.Dict, scope: _Scope) -> None:
        """Pair by pair; the text of a `description` is a message."""
        self.pieces.append("(Dict")
        before = self.in_message
        for key, value in zip(node.keys, node.values, strict=True):
            self.put([key], scope)
            self.in_message = before or (
                isinstance(key, ast.Constant) and key.value == "description"
            )
            self.put([value], scope)
            self.in_message = before
        self.pieces.append(")")

    def declared(self, node: ast.Global | ast.Nonlocal, scope: _Scope) -> None:
        """Names that belong to an outer scope."""
        scope.outer.update(node.names)
        if isinstance(node, ast.Global):
            self.top.bound.update(node.names)  # perhaps: it is declared where it is written
        self.node(node, scope)


_WRITERS: dict[type[ast.AST], Callable[[_Reader, Any, _Scope], None]] = {
    ast.Name: _Reader.name,
    ast.Attribute: _Reader.attribute,
    ast.Constant: _Reader.constant,
    ast.Dict: _Reader.mapping,
    ast.JoinedStr: _Reader.formatted,
    ast.AnnAssign: _Reader.annotated,
    ast.Global: _Reader.declared,
    ast.Nonlocal: _Reader.declared,
}


def _effective(body: list[ast.stmt], scope: _Scope) -> Iterator[ast.stmt]:
    """The statements of a block that do something."""
    for node in body:
        match node:
            case ast.If(test=test) if _last_name(test) == "TYPE_CHECKING":
                yield from _effective(node.orelse, scope)
            case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                pass
            case ast.AnnAssign(value=None) if not scope.is_class:
                pass
            case _:
                yield node


def _is_message(node: ast.AST) -> bool:
    """Whether the text in it is only for a person."""
    match node:
        case ast.Raise() | ast.Call(func=ast.Name(id="print" | "Parameter" | "Quantity")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn")):
            return True
    return False


def _last_name(node: ast.AST) -> str:
    """`ClassVar` of `typing.ClassVar[int]`; empty for anything but a name."""
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a quoted annotation
        return node.value.split("[")[0].rpartition(".")[2]
    return getattr(node, "id", "") or getattr(node, "attr", "")
