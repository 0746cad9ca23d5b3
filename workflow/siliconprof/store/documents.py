"""Read JSON from any source: a value that every reader can use, or a ValueError.

`json.loads` alone accepts values that fail much later and far away: NaN and infinities, which JSON
does not have; halves of surrogate pairs, which no UTF-8 file can hold; nesting that ends in a
RecursionError wherever the value is walked; integers that neither a float nor a table's column
holds. Standard library only: the measuring core reads with it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

LIMIT_BYTES = 512 * 2**20  # of one file; a record has up to 30 MB for an hour of samples
DEEPEST = 60  # containers within containers; our own documents have about ten
LARGEST = 2**63 - 1  # what a column of integers holds
HUGE = 1e100  # no measured value comes near, and the product of two is still finite
SURROGATE = re.compile(r"[\ud800-\udfff]")


def parsed(content: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, or not every reader can use it; the message says why.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:  # whose own text holds the whole file
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    check(value, escapes="\\u" in text)
    return value


def read(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: see `parsed`; or the file is over `LIMIT_BYTES`.
    """
    size = path.stat().st_size
    if size > LIMIT_BYTES:
        raise ValueError(f"{size} bytes, over the limit of {LIMIT_BYTES}")
    return parsed(path.read_bytes())


def check(value: Any, escapes: bool = True) -> None:
    """Check every entry once, level by level.

    Args:
        escapes: whether a text may hold halves of surrogate pairs: its JSON has escapes.

    Raises:
        ValueError: see `parsed`; or a value is of no type that JSON has.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for entry in level:
            kind = type(entry)
            if kind is float:
                if not -HUGE < entry < HUGE:
                    problem = "is not a JSON number" if not math.isfinite(entry) else "is too large"
                    raise ValueError(f"{entry} {problem}")
            elif kind is str:
                if escapes and SURROGATE.search(entry):
                    raise ValueError("half of a surrogate pair in a text")
            elif kind is int:
                if not -LARGEST <= entry <= LARGEST:
                    raise ValueError("an integer beyond 64 bits")
            elif kind is list:
                below += entry
            elif kind is dict:
                below += entry
                below += entry.values()
            elif kind is not bool and entry is not None:
                raise ValueError(f"{kind.__name__} is no type of JSON")
        if not below:
            return
        level = below
    raise ValueError("nested too deeply")
