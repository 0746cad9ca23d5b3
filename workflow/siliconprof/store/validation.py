"""YAML files from any source, and texts of theirs on one line; see `model` for what they may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from siliconprof.errors import CONTROL_CHARACTERS, UserError, in_one_line, printable

LONGEST_LINE = 2000  # characters on one problem


# libyaml reads the registry ten times as fast, with the same result
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuses a key that stands twice: YAML would keep the last alone."""
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                problem = f"the key '{key.value}' stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def load_yaml(path: Path | str) -> Any:
    """A YAML file's content.

    Raises:
        UserError: the file is missing or not YAML; the line says where.
    """
    try:
        document = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not YAML: it is not text in UTF-8; convert it") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}: {where}not YAML: {problem}") from None
    except Exception as error:  # a tag, or a date, that does not fit its value raises anything
        raise UserError(f"{path}: not YAML: {in_one_line(error)}") from None
    if mistakes := [*control_characters(document)]:
        raise UserError("\n".join(f"{path}: {line}" for line in mistakes))
    return document


def control_characters(value: Any, where: str = "") -> Iterator[str]:
    """A line for each text of a document, keys included, that has an escape or the like in it."""
    if isinstance(value, str):
        if found := CONTROL_CHARACTERS.search(value):
            sign = ascii(found[0])[1:-1]
            yield one_line(f"{where or value}: has the control character {sign}; write it without")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from control_characters(key)
            yield from control_characters(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from control_characters(inner, f"{where}.{place}" if where else str(place))


def one_line(text: str) -> str:
    """An untrusted text on one line, without control characters and not too long."""
    shown = printable(text).replace("\n", "\\n")
    return shown if len(shown) <= LONGEST_LINE else f"{shown[: LONGEST_LINE - 3]}..."
