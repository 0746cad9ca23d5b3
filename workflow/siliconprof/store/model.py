"""What a file may hold, declared once as a pydantic model; its mistakes, one line each.

The JSON schema of a model (pydantic makes it) says what is expected where, for messages and for
config/README.md. Plug-ins declare the parameters of their config as snippets of JSON schema, so that
they import without pydantic; `model_of` makes a model of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
)

from siliconprof import plugins
from siliconprof.errors import UserError, nearest
from siliconprof.store import names
from siliconprof.store.validation import one_line

T = TypeVar("T")
P = TypeVar("P", bound="Part")
Schema = Mapping[str, Any]  # JSON schema
Error = Mapping[str, Any]  # as pydantic gives it
Where = tuple[str, ...]  # the keys and indices on the way to a value

# A number to YAML 1.2 and to a person; YAML 1.1 asks for a point before the exponent.
_FLOAT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")
_OF_TYPE = ("_type", "literal_error")  # how the names of pydantic's errors of type end
_SHOULD = re.compile(r"^\w+ should (be|have) ")  # how most of pydantic's messages begin


class Part(BaseModel):
    """A file or a part of one: no other keys, no value converted, never changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class Open(Part, extra="ignore"):
    """A part that may have more than what is declared."""


def one_of(values: Sequence[Any] | str) -> tuple[Any, ...]:
    """Metadata of a type: one of some values, of just that type (`4.0` is not `4`).

    Args:
        values: or a kind of plug-in, whose names they are.
    """
    listed = plugins.names(values) if isinstance(values, str) else [*values]

    def check(value: Any) -> Any:
        if not any(type(one) is type(value) and one == value for one in listed):
            expected = f"expected one of: {', '.join(map(str, listed))}"
            raise ValueError(f"is {_shown(value)}; {expected}{nearest(value, listed)}")
        return value

    return PlainValidator(check), WithJsonSchema({"enum": listed})


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def _each_once(values: list[Any]) -> list[Any]:
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ValueError(f"is {_shown(values)}; expected each value once")
    return values


def matches(pattern: str, what: str = "") -> Any:
    """Metadata of a text that matches as a whole (pydantic's own engine knows no `(?!`).

    Args:
        what: what is expected, where the pattern does not say it to a person.
    """
    expression = re.compile(pattern)

    def check(text: str) -> str:
        if not expression.fullmatch(text):
            raise ValueError(
                f"is {_shown(text)}; expected {what or f'text that matches {pattern}'}"
            )
        return text

    return AfterValidator(check)


def required(description: str, column: str | None = None) -> Any:
    """A key that must be there; of a record, also a column, named otherwise where `column` says."""
    return Field(description=description, title=column)


def key(default: Any, description: str, column: str | None = None) -> Any:
    """The same of a key that may be left out."""
    return Field(default, description=description, title=column)


class Columns(str):
    """Metadata of a part of a record: its columns are columns of the whole, by names such as `gpu_{}`.

    They are optional where the part may be None.
    """


def absent(description: str) -> Any:
    """A key without a value of its own where it is left out."""
    return Field(default_factory=lambda: None, description=description)  # no default in the schema


# A whole number stays one: 2 is not 2.0 in the text that a cell is compared by.
Number = Annotated[int | float, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
Count = Annotated[int, Field(ge=1)]
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
EachOnce = AfterValidator(_each_once)


# -- parameters of plug-ins ----------------------------------------------------------------------

_LIMITS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}


def type_of(schema: Schema) -> Any:
    """The type of what a snippet of JSON schema describes."""
    if "enum" in schema:
        return Annotated[Any, *one_of(schema["enum"])]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    either = reduce(or_, [_of_kind(kind, schema) for kind in kinds])
    return Annotated[either, WithJsonSchema(dict(schema))]


def _of_kind(kind: str, schema: Schema) -> Any:
    """The type of one of the kinds that a snippet allows."""
    if kind in ("integer", "number"):
        limits = Field(**{ours: schema[name] for name, ours in _LIMITS.items() if name in schema})
        return Annotated[int, limits] if kind == "integer" else Annotated[Number, limits]
    if kind == "string" and "pattern" in schema:
        return Annotated[str, matches(schema["pattern"].strip("^$"))]
    if kind == "array":
        lengths = Field(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))
        once = EachOnce if schema.get("uniqueItems") else None
        return Annotated[list[type_of(schema["items"])], lengths, once]  # type: ignore[misc]
    if kind == "object" and "properties" not in schema:
        return dict[str, Any]
    if kind == "object":
        return model_of(schema["properties"], (), Part)
    return {"string": str, "boolean": bool, "null": type(None)}[kind]


def model_of(parameters: Mapping[str, Schema], required: Iterable[str], base: type[P]) -> type[P]:
    """A model of the parameters that a plug-in declares; dump it with `exclude_unset`."""
    fields: dict[str, Any] = {
        name: (type_of(schema), ... if name in required else None)
        for name, schema in parameters.items()
    }
    return create_model("Parameters", __base__=base, **fields)


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
    """The same.

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
    return f"is {_shown(value)}; expected {' or '.join(listed)}{near}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
