"""What a file may hold, declared once as a pydantic model; its mistakes, one line each.

The JSON schema of a model (pydantic makes it) says what is expected where, for messages and for
config/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)

from siliconprof.errors import UserError, nearest
from siliconprof.parameters import shown
from siliconprof.store import names
from siliconprof.store.validation import one_line

T = TypeVar("T")
P = TypeVar("P", bound="Part")
Schema = Mapping[str, Any]  # JSON schema
Error = Mapping[str, Any]  # as pydantic gives it
Where = tuple[str, ...]  # the keys and indices on the way to a value

_OF_TYPE = ("_type", "literal_error")  # how the names of pydantic's errors of type end
_SHOULD = re.compile(r"^\w+ should (be|have) ")  # how most of pydantic's messages begin


class Part(BaseModel):
    """A file or a part of one: unknown keys are refused, values not converted, instances frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class Open(Part, extra="ignore"):
    """A part whose unknown keys are ignored."""


def matches(pattern: str, what: str = "") -> Any:
    """Metadata of a text that matches as a whole (pydantic's own engine knows no `(?!`).

    Args:
        what: what is expected, where the pattern does not say it to a person.
    """
    expression = re.compile(pattern)

    def check(text: str) -> str:
        if not expression.fullmatch(text):
            raise ValueError(f"is {shown(text)}; expected {what or f'text that matches {pattern}'}")
        return text

    return AfterValidator(check)


def required(description: str, column: str | None = None) -> Any:
    """A key that must be there; of a record, also a column, named otherwise where `column` says."""
    return Field(description=description, title=column)


def key(default: Any, description: str, column: str | None = None) -> Any:
    """A key that may be left out; otherwise as `required`."""
    return Field(default, description=description, title=column)


class Columns(str):
    """Metadata of a part of a record: its columns are columns of the whole, by names such as `gpu_{}`.

    They are optional where the part may be None.
    """


def absent(description: str) -> Any:
    """A key that is None where it is left out."""
    return Field(default_factory=lambda: None, description=description)  # no default in the schema


Text = Annotated[str, Field(min_length=1)]
Label = Annotated[str, matches(names.LABEL, names.LABEL_RULE)]
Id = Annotated[  # of a device, a source
    str,
    matches(
        rf"(?=.{{1,{names.LONGEST_LABEL}}}$)[a-z0-9]+(-[a-z0-9]+)*",
        f"an id of at most {names.LONGEST_LABEL} lower-case letters, digits and single hyphens",
    ),
]
Sha256 = Annotated[str, matches("[0-9a-f]{64}")]


def model_of(parameters: type, base: type[P], **more: Any) -> type[P]:
    """A model of a plug-in's `Parameters`, and more fields; dump it with `exclude_unset`."""
    hints = get_type_hints(parameters, include_extras=True)
    for name in sorted(hints, key=partial(hasattr, parameters)):  # without a default first
        hint = hints[name]
        texts = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
        described = Field(getattr(parameters, name, ...), description=texts[-1] if texts else None)
        more[name] = (hint, described)
    return create_model("Parameters", __base__=base, **more)


# -- mistakes ------------------------------------------------------------------------------------


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, as pydantic makes it."""
    return _adapter(kind).json_schema()


def validated(kind: Callable[..., T], document: Any, context: Any = None) -> T:
    """The value of a type that a document holds.

    Args:
        context: what validators of the type ask for.

    Raises:
        ValidationError: it holds none; `problems` has the lines.
    """
    return _adapter(kind).validate_python(document, context=context)


def checked(kind: Callable[..., T], document: Any, prefix: str, context: Any = None) -> T:
    """The value of a type that a document holds.

    Raises:
        UserError: every mistake, one line each, each beginning with `prefix`.
    """
    try:
        return validated(kind, document, context)
    except ValidationError:
        raise UserError("\n".join(problems(kind, document, prefix, context))) from None


def problems(kind: Any, document: Any, prefix: str = "", context: Any = None) -> list[str]:
    """Every mistake of a document, one line each: where, what, expected, nearest spelling.

    pydantic names every branch of a union: where one of them got further into the document, or has
    the right type and another mistake, that is the one that was meant.
    """
    try:
        validated(kind, document, context)
        return []
    except ValidationError as raised:
        errors = raised.errors(include_url=False)
    places: dict[Where, list[Error]] = {}
    for error in errors:
        places.setdefault(_place(error, document), []).append(error)
    on_the_way = {where[:depth] for where in places for depth in range(len(where))}
    lines = []
    for where, found in places.items():
        deeper = [error for error in found if not error["type"].endswith(_OF_TYPE)]
        if deeper or where not in on_the_way:
            what = _what(deeper or found, where, schema_of(kind))
            lines.append(prefix + one_line(f"{'.'.join(where) or '(top level)'}: {what}"))
    return lines


def _place(error: Error, document: Any) -> Where:
    where: Where = ()
    for part in error["loc"]:
        # A part of pydantic's path that the document does not have names a branch of a union.
        with suppress(LookupError, TypeError):
            document = document[part]
            where += (str(part),)
    return (*where, str(error["loc"][-1])) if error["type"] == "missing" else where


def _branches(schema: Schema, root: Schema) -> list[Schema]:
    """A schema's alternatives, references followed."""
    if "$ref" in schema:
        return _branches(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    either = schema.get("anyOf", schema.get("oneOf"))
    return [leaf for one in either for leaf in _branches(one, root)] if either else [schema]


def _below(around: Iterable[Schema], part: str, root: Schema) -> list[Schema]:
    """The schemas of what some schemas hold at a key or an index."""
    found = []
    for schema in around:
        inner = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        inner = inner or schema.get("items")
        if isinstance(inner, Mapping):
            found += _branches(inner, root)
    return found


def _what(found: Sequence[Error], where: Where, root: Schema) -> str:
    """What is wrong at one place, by its errors of one kind."""
    around, name, error = _branches(root, root), where[-1] if where else "", found[0]
    for part in where[:-1]:
        around = _below(around, part, root)
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        below = _below(around, name, root)
        choices = [str(choice) for one in below for choice in one.get("enum", ())]
        types = dict.fromkeys(str(one.get("type", "another value")) for one in below)
        expected = f"one of: {', '.join(choices)}" if choices else " or ".join(types)
        return f"is missing; expected {expected}"
    if kind == "invalid_key" or error["loc"][-1:] == ("[key]",) and kind == "string_type":
        return f"the key {value!r} is not text; put it in quotes"
    if kind == "extra_forbidden":
        allowed = list(dict.fromkeys(key for one in around for key in one.get("properties", ())))
        expected = f"expected one of: {', '.join(allowed)}" if allowed else "none is allowed"
        return f"unknown key; {expected}{nearest(name, allowed)}"
    listed = dict.fromkeys(_SHOULD.sub("", one["msg"]) for one in found)
    near = nearest(value, re.findall(r"'([^']+)'", context.get("expected", "")))
    return f"is {shown(value)}; expected {' or '.join(listed)}{near}"
