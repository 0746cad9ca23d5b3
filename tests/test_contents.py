"""The types of a record are those of its schema, and a record of wrong types is one line."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from siliconprof.errors import UserError
from siliconprof.store import record, validation
from siliconprof.store.contents import Probe, Record, Scalar
from synthetic_results import training

SCHEMA = validation.load_schema("record")
JSON_TYPES = {
    "string": {str},
    "integer": {int},
    "number": {float, int},
    "boolean": {bool},
    "null": {type(None)},
}
OPEN = {Scalar, Any}  # whatever a plug-in says


def resolved(schema: Any) -> Mapping[str, Any]:
    """A schema without references at its top."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema if isinstance(schema, dict) else {}


def kinds(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(kinds(resolved(one)) for one in schema[key]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {"null" if v is None else "integer" if type(v) is int else "string" for v in values}
    listed = schema.get("type", ())
    return {listed} if isinstance(listed, str) else set(listed)


def unlike(hint: Any, schema: Any, where: str) -> Iterator[str]:
    """Where a type is none of its schema's."""
    schema = resolved(schema)
    if hint in OPEN or not schema:
        return
    options = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    (main,) = options - {type(None)}
    origin, inner = typing.get_origin(main), typing.get_args(main)
    allowed = kinds(schema)
    if origin is Sequence or origin is Mapping:
        if allowed - {"null"} != ({"array"} if origin is Sequence else {"object"}):
            yield f"{where}: {hint} is {allowed}"
        part = "items" if origin is Sequence else "additionalProperties"
        yield from unlike(inner[-1], schema.get(part), f"{where}[]")
    elif is_dataclass(main):
        yield from unlike_fields(main, schema, where)
    elif not any(main in JSON_TYPES.get(kind, ()) for kind in allowed):
        yield f"{where}: {hint} is {allowed}"


def unlike_fields(kind: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    """The same of the fields of a dataclass."""
    if kind is Probe:  # made of what a probe says, see there
        return
    hints = typing.get_type_hints(kind)
    properties = schema.get("properties", {})
    for one in fields(kind):
        here = f"{where}.{one.name}"
        if properties and one.name not in properties:
            yield f"{here}: not in the schema"
        allowed = kinds(resolved(properties.get(one.name)))
        optional = one.name not in schema.get("required", ()) or "null" in allowed
        if optional and one.default is one.default_factory is MISSING and one.name != "trainer":
            if type(None) not in typing.get_args(hints[one.name]):
                yield f"{here}: may be absent or null, and has no default"
        yield from unlike(hints[one.name], properties.get(one.name), here)


def test_the_types_are_those_of_the_schema():
    assert list(unlike_fields(Record, SCHEMA, "record")) == []


def test_a_record_of_wrong_types_is_one_line(tmp_path: Path):
    data = training(0.01) | {"points": 5}  # which a reader that checks no schema comes upon
    path = tmp_path / "record.json"
    path.write_text(json.dumps(data | {"sha256": record.content_sha256(data)}), encoding="utf-8")
    with pytest.raises(UserError) as error:
        record.load(path, check_schema=False)
    assert str(error.value).startswith(f"{path}: damaged record: ")
    assert "\n" not in str(error.value)
