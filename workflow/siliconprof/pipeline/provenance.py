"""What `snakemake --report` says of each figure and table: section, number and caption.

The page's writer leaves them in `index.json` beside the files. Snakemake's report asks by file
name, after the run: its `category`, `subcategory` and `labels` may be functions of wildcards, and
its captions are templates that see the job's parameters (Snakemake 9,
`snakemake/report/__init__.py`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

INDEX = "index.json"
_SPECIAL = re.compile(r"([\\*`|_<>])")  # what reStructuredText would read as markup


class Shown:
    """The index of a folder of figures and tables, read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INDEX

    def __str__(self) -> str:
        return self._path.as_posix()

    def _entry(self, name: str) -> dict[str, Any]:
        """What is known of a file without its suffix; of a folder without an index, nothing."""
        try:
            index = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return index.get(name, {})

    def category(self, wildcards: Any) -> str | None:
        """The section, numbered, since Snakemake sorts categories by name."""
        found = self._entry(wildcards.name)
        return f"{found['section_number']:02d} {found['section']}" if found else None

    def subcategory(self, wildcards: Any) -> str | None:
        """Figures and tables of a section apart."""
        found = self._entry(wildcards.name)
        return f"{found['kind'].capitalize()}s" if found else None

    def labels(self, wildcards: Any) -> dict[str, str] | None:
        """The columns of Snakemake's list, by which it sorts."""
        found = self._entry(wildcards.name)
        if not found:
            return None
        return {
            "number": f"{found['kind'].capitalize()} {found['number']:03d}",
            "shows": found["caption"].split(". ")[0].rstrip("."),
        }

    def caption(self, name: str) -> str:
        """The caption as one paragraph of reStructuredText in which nothing is markup."""
        found = self._entry(name)
        if not found:
            return ""
        origin = f"[{found['origin']}] " if found["origin"] else ""
        text = f"{found['kind'].capitalize()} {found['number']}. {origin}{found['caption']}"
        return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
