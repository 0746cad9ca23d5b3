"""Read JSON from any source. Standard library only: the measuring core reads with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
