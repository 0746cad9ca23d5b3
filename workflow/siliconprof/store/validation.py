"""All problems of a document at once, one line each: where, what, expected, nearest spelling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from siliconprof import plugins
from siliconprof.errors import UserError, in_one_line, nearest, printable
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.store import documents

DEEPEST_TEXT = 400  # of a YAML text that is read at all
LONGEST_LINE = 2000  # characters on one problem
DEEPEST = 60  # values within values; our own documents have about ten
MOST_VALUES = 200_000  # the registry has some thousands
_MARGIN = re.compile(rf"^[ \t?:-]{{{DEEPEST_TEXT},}}", re.M)  # a block lies right of its owner
SCHEMA_DIR = PACKAGE_DIR.parent / "schemas"
_TYPE_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}
# The requirement of a JSON Schema keyword, for error messages.
EXPECTATIONS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "minProperties": "at least {} entry",
    "minLength": "text of at least {} character",
    "maxLength": "text of at most {} characters",
    "uniqueItems": "each value once",
    "pattern": "text that matches {}",
    "format": "a {} that exists",
}


def load_yaml(path: Path | str) -> Any:
    """A YAML file's content.

    Raises:
        UserError: the file is missing or not YAML; the line says where.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        # libyaml reads the registry ten times as fast, with the same result
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        if _too_deep(text, loader):
            raise UserError(f"{path}: nested too deeply")
        reader = loader(text)
        try:
            root = reader.get_single_node()
            document = None if root is None else reader.construct_document(_unique_keys(root))
        finally:
            reader.dispose()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}: {where}not YAML: {problem}") from None
    except UserError:
        raise
    except Exception as error:  # a tag, or a date, that does not fit its value raises anything
        raise UserError(f"{path}: not YAML: {in_one_line(error)}") from None
    reason = too_large(document, plain=True)
    if reason:
        raise UserError(f"{path}: {reason}")
    return document


def _unique_keys(root: Any) -> Any:
    """The same YAML node, once no mapping below it has a key twice: YAML would keep the last alone.

    Raises:
        yaml.MarkedYAMLError: one has.
    """
    import yaml

    seen, nodes = {id(root)}, [root]
    for node in nodes:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            keys: set[tuple[str, str]] = set()
            for key in (key for key, _ in below if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in keys:
                    problem = f"the key '{key.value}' stands twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                keys.add((key.tag, key.value))
            below = [one for pair in below for one in pair]
        fresh = [one for one in below if id(one) not in seen]
        seen.update(map(id, fresh))
        nodes += fresh
    return root


def _too_deep(text: str, loader: Any) -> bool:
    """Whether a YAML text is nested too deeply: libyaml reads it by recursion, and crashes.

    Without many brackets or wide margins it cannot be, so only such a text is parsed here.
    """
    import yaml

    if text.count("[") + text.count("{") <= DEEPEST_TEXT and not _MARGIN.search(text):
        return False
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST_TEXT:
            return True
    return False


def too_large(document: Any, plain: bool = False, most_values: float = MOST_VALUES) -> str | None:
    """Why a document must not be walked: nested without end, or grown by aliases of aliases.

    Args:
        plain: text that no terminal or page may show is a reason too.
        most_values: infinite where there are no aliases, so that a file's size is a bound.
    """
    level, counted = [document], 0
    for _ in range(DEEPEST):
        below: list[Any] = []
        for entry in level:
            if isinstance(entry, Mapping):
                below += entry.values()
            elif plain and isinstance(entry, str) and printable(entry) != entry:
                return f"a text with control characters: {one_line(entry)[:60]!r}"
            elif isinstance(entry, list):
                below += entry
            if len(below) + counted > most_values:
                return f"more than {most_values} values; aliases of aliases?"
        if not below:
            return None
        level, counted = below, counted + len(below)
    return "nested too deeply"


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The schema `workflow/schemas/{name}.schema.yaml`, read once; callers must not change it."""
    return _with_plugins(load_yaml(SCHEMA_DIR / f"{name}.schema.yaml"))


def _with_plugins(value: Any) -> Any:
    """A schema in which `{plugins: KIND}` has become the names of the plug-ins found."""
    if isinstance(value, dict):
        if list(value) == ["plugins"] and value["plugins"] in plugins.KINDS:
            return plugins.names(value["plugins"])
        return {key: _with_plugins(inner) for key, inner in value.items()}
    return [_with_plugins(inner) for inner in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(schema: Mapping[str, Any]) -> str:
    """`; expected …` of a schema, or empty when it has neither `enum` nor `type`."""
    if "enum" in schema:
        return f"; expected one of: {', '.join(map(str, schema['enum']))}"
    types = schema.get("type", ())
    names = [types] if isinstance(types, str) else list(types)
    return f"; expected {' or '.join(names)}" if names else ""


def _lines(error: Any) -> Iterable[tuple[str, str]]:
    """(where, what) of one jsonschema error, for a message."""
    path = [str(part) for part in error.absolute_path]
    where = ".".join(path)
    if error.validator == "additionalProperties":
        allowed = list(error.schema.get("properties", {}))
        patterns = error.schema.get("patternProperties", {})
        for key in error.instance:
            if key in allowed or any(re.search(p, str(key)) for p in patterns):
                continue
            expected = f"expected one of: {', '.join(allowed)}" if allowed else "none is allowed"
            yield (".".join([*path, str(key)]), f"unknown key; {expected}{nearest(key, allowed)}")
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                expected = _expected(error.schema.get("properties", {}).get(key, {}))
                yield ".".join([*path, key]), f"is missing{expected}"
    elif error.validator in ("enum", "const"):
        choices = error.validator_value if error.validator == "enum" else [error.validator_value]
        expected = _expected({"enum": choices})
        yield where, f"is {_shown(error.instance)}{expected}{nearest(error.instance, choices)}"
    elif error.validator == "type":
        yield where, f"is {_shown(error.instance)}{_expected({'type': error.validator_value})}"
    elif error.validator in EXPECTATIONS:
        expected = EXPECTATIONS[error.validator].format(error.validator_value)
        yield where, f"is {_shown(error.instance)}; expected {expected}"
    elif error.validator in ("anyOf", "oneOf"):
        yield where, f"is {_shown(error.instance)}; {error.schema.get('description', 'no match')}"
    elif error.validator == "propertyNames":
        yield where, f"bad name {_shown(error.instance)}: use letters, digits, '.', '_' and '-'"
    else:
        yield where, f"is {_shown(error.instance)}; {error.message}"


def _beyond_json(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(where, what) of values that YAML has and our JSON has not: other keys than text, NaN, …"""
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(path), f"is {value}; expected a finite number"
    elif isinstance(value, float) and abs(value) >= documents.HUGE:
        yield ".".join(path), f"is {value}; expected a number below {documents.HUGE:g}"
    elif isinstance(value, int) and abs(value) > documents.LARGEST:
        yield ".".join(path), "is an integer beyond 64 bits"
    elif isinstance(value, str) and documents.SURROGATE.search(value):
        yield ".".join(path), "has half of a surrogate pair, which is not a character"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield ".".join([*path, str(key)]), f"the key {key!r} is not text; put it in quotes"
            yield from _beyond_json(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _beyond_json(inner, (*path, str(index)))


def problems(
    document: Any, schema: Mapping[str, Any], prefix: str = "", most_values: float = MOST_VALUES
) -> list[str]:
    """Every problem of `document` under a JSON Schema, one line each, in document order.

    Args:
        prefix: starts each line, such as the file's name followed by `: `.
        most_values: see `too_large`.
    """
    reason = too_large(document, most_values=most_values)
    if reason:
        return [f"{prefix}(top level): {reason}"]
    errors = sorted(
        _validator()(schema, format_checker=_formats()).iter_errors(document),
        key=lambda e: [str(p) for p in e.absolute_path],
    )
    pairs = [line for error in errors for line in _lines(error)]
    pairs += _beyond_json(document)
    lines = (one_line(f"{where or '(top level)'}: {reason}") for where, reason in pairs)
    return [f"{prefix}{line}" for line in dict.fromkeys(lines)]


def is_sound(
    document: Any, name: str, schema_of: Callable[[str], Mapping[str, Any]] = load_schema
) -> bool:
    """Whether a document has no problem under the schema of a name; False where `problems` decides.

    A record has a thousand times as many numbers as it has keys, and jsonschema-rs takes a fortieth
    of the time; its messages are others. It is not on every host, and reads some values that JSON
    does not have, such as dates.

    Args:
        schema_of: gives the schema, which is compiled once.
    """
    try:
        documents.check(document)
        return bool(_compiled(name, schema_of).is_valid(document))
    except (ImportError, ValueError):
        return False


@cache
def _compiled(name: str, schema_of: Callable[[str], Mapping[str, Any]]) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        dict(schema_of(name)), validate_formats=True, formats={"date-time": _is_time}
    )


def _is_time(value: Any) -> bool:
    """Whether a text is a time; other values are not asked for their format.

    Raises:
        ValueError: it is not.
    """
    return not isinstance(value, str) or bool(datetime.fromisoformat(value))


def one_line(text: str) -> str:
    """An untrusted text on one line, without control characters and not too long."""
    shown = printable(text).replace("\n", "\\n")
    return shown if len(shown) <= LONGEST_LINE else f"{shown[: LONGEST_LINE - 3]}..."


@cache
def _validator() -> Any:
    """A validator of JSON Schema whose `$` matches at the end of the text only.

    Python's `$` also matches before a final line break, so a name with one would pass. And 4.0 is no
    integer, which it is to JSON Schema: no framework takes a batch of 4.0 samples, or 80.0 bands.
    """
    import jsonschema

    def pattern(validator: Any, regex: str, value: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(value, "string") and not _ends(regex).search(value):
            yield jsonschema.ValidationError(f"{value!r} does not match {regex!r}")

    def enum(validator: Any, choices: Any, value: Any, schema: Any) -> Iterator[Any]:
        if not any(type(choice) is type(value) and choice == value for choice in choices):
            yield jsonschema.ValidationError(f"{value!r} is not one of {choices!r}")

    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine("integer", lambda checker, value: type(value) is int)
    return jsonschema.validators.extend(
        base, {"pattern": pattern, "enum": enum}, type_checker=types
    )


@cache
def _formats() -> Any:
    """What `format` means: jsonschema leaves it to packages that may be missing."""
    import jsonschema

    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time", raises=ValueError)(_is_time)
    return formats


def types_alone(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the same types, lengths and limits that accepts other choices than its `enum`s.

    A choice may be another version's; a word where a number stood may not.
    """
    loosened: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "enum":
            loosened["type"] = sorted({_TYPE_NAMES[type(choice)] for choice in value})
        elif key in ("properties", "patternProperties"):
            loosened[key] = {name: types_alone(inner) for name, inner in value.items()}
        elif key in ("anyOf", "oneOf"):
            loosened[key] = [types_alone(inner) for inner in value]
        else:
            loosened[key] = types_alone(value) if isinstance(value, Mapping) else value
    return loosened


@cache
def _ends(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))
