"""report/captions.yaml: the words of the page."""

from __future__ import annotations

from functools import cache
from typing import Any

from siliconprof.errors import UserError
from siliconprof.plugins import CHECKOUT
from siliconprof.store import validation

REPORT = CHECKOUT / "report"  # template, style sheet, scripts and captions
CAPTIONS = REPORT / "captions.yaml"


@cache
def load() -> dict[str, Any]:
    """The file's content.

    Raises:
        UserError: it is missing or not YAML.
    """
    content: dict[str, Any] = validation.load_yaml(CAPTIONS)
    return content


def caption_of(kind: str, key: str) -> tuple[str, str, str]:
    """(title, caption, needs) of one of `sections` or `exhibits`, the last two perhaps empty.

    `needs` is shown in place of an exhibit without rows.

    Raises:
        UserError: there is no such text.
    """
    entry = load()[kind].get(key) or {}
    if "title" not in entry:
        raise UserError(f"{CAPTIONS}: no text {kind}.{key}.title")
    caption, needs = (" ".join(str(entry.get(name) or "").split()) for name in ("caption", "needs"))
    return entry["title"], caption, needs


def flag_words() -> dict[str, str]:
    """Code of a flag -> what it means."""
    words: dict[str, str] = load()["flags"]
    return words
