"""Names that files and people give: how long they may be, and what they become in a file's name.

Standard library only: the measuring core reads with it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator

LONGEST_LABEL = 64  # characters of a label
LABEL = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_LABEL - 1}}}"
# The same, for a person.
LABEL_RULE = f"at most {LONGEST_LABEL} letters, digits, '.', '_' and '-', a letter or digit first"
_DIGITS = 8  # of the hash


def slug(text: str) -> str:
    """A text as a file's name without suffix: a-z, 0-9, `.`, `_` and `-`, no dot first.

    What is not such a name already gets one with digits of its hash, so that no two texts share
    a file: `a/b` and `a b` do not, nor `Net` and `net` where a file system ignores case.
    """
    words = re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")
    if text and text == cut(words):
        return text
    return f"{cut(words or 'x', LONGEST_LABEL - _DIGITS - 1)}-{_hash(text)}"


def case_collision(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(an earlier name or folder, a later one) that differ in case alone: one file on a Mac."""
    known: dict[str, str] = {}
    for name in names:
        for part in itertools.accumulate(name.split("/"), "{}/{}".format):
            if (other := known.setdefault(part.casefold(), part)) != part:
                yield other, part
                break


def cut(name: str, longest: int = LONGEST_LABEL) -> str:
    """The name, where it is too long its beginning and digits of its hash."""
    if len(name) <= longest:
        return name
    return f"{name[: longest - _DIGITS - 1].rstrip('-._')}-{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
