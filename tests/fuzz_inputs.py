"""Inputs that nobody meant: valid documents with something else in them, files with damage.

Every choice is made by the `random.Random` that is handed in, so a seed makes the same input again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

MARKUP = "<script>alert(1)</script>&\"'`$(touch pwned)"
DEEP: Any = 1
for _ in range(70):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63 - 1, 2**63, -(2**70), 10**400,
    1.5, -0.0, 1e-320, 1e-99, 1e300, -1e300, float("nan"), float("inf"), float("-inf"),
    "", "x", "0", "1e999", "auto", "none", "a b", "é", "\u202e", "\x1b[2Jx", "a\nb", "a\x00b",
    "\ud800", "x" * 3000, "x" * 65, "9999-99-99T99:99:99+00:00", "0001-01-01T00:00:00+00:00",
    "a/b", ".hidden", "/etc/passwd", "ｎｅｔ∕ｗｏｒｋ", MARKUP, "../up", "; touch pwned",
    "`touch pwned`", "--version", "{x}", "%s", "${HOME}", "\\input{x}_&%$#", "NaN",
    [], {}, [None], [[]], [1], ["x"], ["x", 1], {"": 1}, {"a": {}}, {"a": [1, "x"]}, [1e300] * 3,
    [-1], DEEP, {"__proto__": 1}, [0.1] * 50, {"k" * 300: 1}, {"a\nb": 1}, {"\x1b[31m": "x"},
]  # fmt: skip
TOKENS = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"9" * 5000,
    b"[" * 3000, b'{"a":' * 3000, b"null", b"true", b'""', b"{}", b"[]", b",", b":", b'"', b"\n",
    b"\r", b"\x1b[2J", b"<script>", b"../", b"\xef\xbb\xbf", b"&a [*a]", b"*x",
    b"!!python/object:os.system ", b"\t", b"- ", b"!!timestamp ", b"!!int ", b"!!binary ", b"? ",
    b"<<: ", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06",
]  # fmt: skip


def place(value: Any, chance: Random, deep: bool = False) -> tuple[Any, ...]:
    """The path of some node; `deep` = rather of one far down."""
    path: list[Any] = []
    further = 0.95 if deep else 0.8
    while isinstance(value, dict | list) and value and (not path or chance.random() < further):
        named = isinstance(value, dict)
        key = chance.choice(list(value)) if named else chance.randrange(len(value))
        path.append(key)
        value = value[key]
    return tuple(path)


def at(value: Any, path: Sequence[Any]) -> Any:
    """The node at a path."""
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: Sequence[Any], new: Any, how: str = "replace") -> Any:
    """A copy with another node at a path; only what lies on the way is copied."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = put(value[key], rest, new, how)
    elif how == "drop":
        del copy[key]
    elif how == "double" and isinstance(copy, list):
        copy.insert(key, copy[key])
    elif how == "double":
        copy[new] = copy[key]
    elif how == "rename":
        copy[new] = copy.pop(key)
    else:
        copy[key] = new
    return copy


def retyped(value: Any) -> Any:
    """The same as another type."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return {str(index): entry for index, entry in enumerate(value)}
    if isinstance(value, dict):
        return list(value.values())
    return "None"


def changed(document: Any, chance: Random, deep: bool = False) -> tuple[Any, str]:
    """(a document with one thing changed, what was done)."""
    path = place(document, chance, deep)
    how = chance.choice("drop replace replace replace double retype swap rename".split())
    where = ".".join(map(str, path))
    if not path or how == "replace":
        new = chance.choice(VALUES)
        return put(document, path, new), f"{where} = {new!r:.60}"
    if how == "retype":
        return put(document, path, retyped(at(document, path))), f"{where} retyped"
    if how == "swap":
        other = place(document, chance)
        return put(document, path, at(document, other)), f"{where} = {'.'.join(map(str, other))}"
    parent = at(document, path[:-1])
    new = chance.choice(["x", "", "a\nb", "\x1b[2J", "x" * 300, MARKUP, "é"])
    if how == "rename" and not isinstance(parent, dict):
        how = "drop"
    return put(document, path, new, how), f"{where} {how} {new!r:.30}"


def document(originals: Sequence[Any], chance: Random, deep: bool = False) -> tuple[Any, str]:
    """(one of some documents with one to four things changed, what was done)."""
    value, said = chance.choice(originals), []
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3, 4])):
        value, what = changed(value, chance, deep)
        said.append(what)
    return value, "; ".join(said)


def as_json(value: Any, chance: Random) -> bytes:
    """A document as a file, characters spelt out or not."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.7)
    return text.encode("utf-8", "surrogatepass")


def damaged(content: bytes, chance: Random) -> tuple[bytes, str]:
    """(a file with one to three places of damage, what was done)."""
    said = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        how = chance.choice("flip cut remove insert insert splice zero append".split())
        spot = chance.randrange(len(content) + 1)
        length = chance.choice([1, 2, 8, 64, 512])
        if how == "flip" and spot < len(content):
            byte = content[spot] ^ (1 << chance.randrange(8))
            content = content[:spot] + bytes([byte]) + content[spot + 1 :]
        elif how == "cut":
            content = content[:spot]
        elif how == "remove":
            content = content[:spot] + content[spot + length :]
        elif how == "insert":
            content = content[:spot] + chance.choice(TOKENS) + content[spot:]
        elif how == "splice":
            start = chance.randrange(len(content) + 1)
            content = content[:spot] + content[start : start + length] + content[spot:]
        elif how == "zero":
            content = content[:spot] + bytes(length) + content[spot + length :]
        else:
            content += chance.choice(TOKENS)
        said.append(f"{how} at {spot}")
    return content, "; ".join(said)
