"""YAML files from any source, and what of a document no reader may be given; see `model` for the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, in_one_line, printable
from siliconprof.store import documents

LONGEST_LINE = 2000  # characters on one problem
MOST_VALUES = 200_000  # the registry has some thousands
Where = tuple[str, ...]  # the keys and indices on the way to a value


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


def too_large(document: Any, plain: bool = False) -> str | None:
    """Why a document must not be walked: nested without end, or grown by aliases of aliases.

    Args:
        plain: text that no terminal or page may show is a reason too.
    """
    level, counted = [document], 0
    for _ in range(documents.DEEPEST):
        below: list[Any] = []
        for entry in level:
            if isinstance(entry, Mapping):
                below += entry.values()
            elif plain and isinstance(entry, str) and printable(entry) != entry:
                return f"a text with control characters: {one_line(entry)[:60]!r}"
            elif isinstance(entry, list):
                below += entry
            if len(below) + counted > MOST_VALUES:
                return f"more than {MOST_VALUES} values; aliases of aliases?"
        if not below:
            return None
        level, counted = below, counted + len(below)
    return "nested too deeply"


def beyond_json(value: Any, where: Where = ()) -> Iterator[tuple[Where, str]]:
    """(where, what) of values that YAML has and our JSON has not: other keys than text, NaN, …"""
    if isinstance(value, float) and not math.isfinite(value):
        yield where, f"is {value}; expected a finite number"
    elif isinstance(value, float) and abs(value) >= documents.HUGE:
        yield where, f"is {value}; expected a number below {documents.HUGE:g}"
    elif isinstance(value, int) and abs(value) > documents.LARGEST:
        yield where, "is an integer beyond 64 bits"
    elif isinstance(value, str) and documents.SURROGATE.search(value):
        yield where, "has half of a surrogate pair, which is not a character"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                yield (*where, str(key)), f"the key {key!r} is not text; put it in quotes"
            yield from beyond_json(inner, (*where, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from beyond_json(inner, (*where, str(index)))


def one_line(text: str) -> str:
    """An untrusted text on one line, without control characters and not too long."""
    shown = printable(text).replace("\n", "\\n")
    return shown if len(shown) <= LONGEST_LINE else f"{shown[: LONGEST_LINE - 3]}..."
