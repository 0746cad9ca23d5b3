"""All mistakes of a document at once, one line each: where, what, expected, nearest spelling."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA_DIR = Path(__file__).resolve().parent.parent / "schemas"
# What a keyword of JSON Schema asks for, said for a person.
EXPECTATIONS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "minProperties": "at least {} entry",
    "minLength": "text of at least {} character",
    "pattern": "text that matches {}",
}


def load_yaml(path: Path | str) -> Any:
    """A YAML file's content.

    Raises:
        UserError: the file is missing or no YAML; the line says where.
    """
    import yaml

    from siliconprof.errors import UserError

    try:
        with open(path, encoding="utf-8") as stream:
            # libyaml reads the registry ten times as fast, with the same result
            return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{path}: {where}not YAML: {getattr(error, 'problem', error)}") from None


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema `workflow/schemas/{name}.schema.yaml`, read once; not to be changed."""
    return load_yaml(SCHEMA_DIR / f"{name}.schema.yaml")


def nearest(word: Any, choices: Iterable[Any]) -> str:
    """`; did you mean 'x'?`, or nothing when no choice is near."""
    close = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(schema: Mapping[str, Any]) -> str:
    """`; expected …` of a schema, or nothing when it does not say."""
    if "enum" in schema:
        return f"; expected one of: {', '.join(map(str, schema['enum']))}"
    wanted = schema.get("type", ())
    words = [wanted] if isinstance(wanted, str) else list(wanted)
    return f"; expected {' or '.join(words)}" if words else ""


def _lines(error: Any) -> Iterable[tuple[str, str]]:
    """(where, what) of one jsonschema error, said for a person."""
    path = [str(part) for part in error.absolute_path]
    where = ".".join(path)
    if error.validator == "additionalProperties":
        allowed = list(error.schema.get("properties", {}))
        patterns = error.schema.get("patternProperties", {})
        import re

        for key in error.instance:
            if key in allowed or any(re.search(p, str(key)) for p in patterns):
                continue
            expected = f"expected one of: {', '.join(allowed)}" if allowed else "none is allowed"
            yield (
                ".".join([*path, str(key)]),
                f"unknown key; {expected}{nearest(key, allowed)}",
            )
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                wanted = _expected(error.schema.get("properties", {}).get(key, {}))
                yield ".".join([*path, key]), f"is missing{wanted}"
    elif error.validator in ("enum", "const"):
        choices = error.validator_value if error.validator == "enum" else [error.validator_value]
        wanted = _expected({"enum": choices})
        yield where, f"is {_shown(error.instance)}{wanted}{nearest(error.instance, choices)}"
    elif error.validator == "type":
        yield where, f"is {_shown(error.instance)}{_expected({'type': error.validator_value})}"
    elif error.validator in EXPECTATIONS:
        wanted = EXPECTATIONS[error.validator].format(error.validator_value)
        yield where, f"is {_shown(error.instance)}; expected {wanted}"
    elif error.validator in ("anyOf", "oneOf"):
        yield where, f"is {_shown(error.instance)}; {error.schema.get('description', 'no match')}"
    elif error.validator == "propertyNames":
        yield where, f"bad name {_shown(error.instance)}: use letters, digits, '.', '_' and '-'"
    else:
        yield where, f"is {_shown(error.instance)}; {error.message}"


def _beyond_json(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """What YAML can say and JSON cannot: keys that are no text, numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(path), f"is {value}; expected a finite number"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield ".".join([*path, str(key)]), f"the key {key!r} is no text; put it in quotes"
            yield from _beyond_json(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _beyond_json(inner, (*path, str(index)))


def problems(document: Any, schema: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every mistake of `document` against a JSON Schema, one line each, in document order.

    Args:
        prefix: what each line starts with, such as the file's name followed by `: `.
    """
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(
        validator.iter_errors(document), key=lambda e: [str(p) for p in e.absolute_path]
    )
    seen: dict[str, None] = {}
    for error in errors:
        for where, what in _lines(error):
            seen[f"{prefix}{where or '(top level)'}: {what}"] = None
    for where, what in _beyond_json(document):
        seen[f"{prefix}{where}: {what}"] = None
    return list(seen)
