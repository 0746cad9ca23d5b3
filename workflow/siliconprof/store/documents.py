"""JSON of any source, and for it. Standard library only: the measuring process has no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HUGE = 1e100  # no measured value comes near, and the product of two is still finite


def parsed(content: bytes | str) -> Any:
    """The value of a JSON text, which is UTF-8.

    Raises:
        ValueError: it is not JSON; the message says why.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: see `parsed`.
    """
    return parsed(path.read_bytes())


def finite(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON does not have, and from `HUGE` on.

    So large is the perplexity of a training that diverged.
    """
    if isinstance(value, float):
        return value if abs(value) < HUGE else None  # which no NaN is
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value
