"""Inputs that nobody meant: valid documents with something else in them, files with damage.

Every choice is made by the `random.Random` that is handed in, so a seed makes the same input again.
"""

from __future__ import annotations

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


def put(value: Any, path: Sequence[Any], new: Any) -> Any:
    """A copy with another node at a path; only what lies on the way is copied."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new) if path[1:] else new
    return copy


def changed(value: Any, chance: Random) -> tuple[Any, str]:
    """(a copy with one node replaced, dropped or renamed, its path)."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        new = chance.choice(VALUES)
        return new, f" = {new!r:.60}"
    named = isinstance(value, dict)
    key = chance.choice(list(value)) if named else chance.randrange(len(value))
    copy = dict(value) if isinstance(value, dict) else list(value)
    how = chance.choice(["drop", "rename", *8 * ["inside"]])
    if how == "drop":
        del copy[key]
    elif how == "rename" and named:
        copy[chance.choice(["x", "", "a\nb", "\x1b[2J", "x" * 300, MARKUP, "é"])] = copy.pop(key)
    else:
        copy[key], how = changed(value[key], chance)
    return copy, f"{key}.{how}"


def document(value: Any, chance: Random) -> tuple[Any, str]:
    """(a document with one to four things changed, what was done)."""
    said = []
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3, 4])):
        value, what = changed(value, chance)
        said.append(what)
    return value, "; ".join(said)


def damaged(content: bytes, chance: Random) -> tuple[bytes, str]:
    """(a file with one to three places of damage, what was done)."""
    said = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        how = chance.choice(["flip", "cut", "remove", "insert"])
        spot = chance.randrange(len(content) + 1)
        if how == "flip" and spot < len(content):
            byte = content[spot] ^ (1 << chance.randrange(8))
            content = content[:spot] + bytes([byte]) + content[spot + 1 :]
        elif how == "cut":
            content = content[:spot]
        elif how == "remove":
            content = content[:spot] + content[spot + chance.choice([1, 8, 512]) :]
        else:
            content = content[:spot] + chance.choice(TOKENS) + content[spot:]
        said.append(f"{how} at {spot}")
    return content, "; ".join(said)
