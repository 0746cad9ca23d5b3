"""What `snakemake --report` says of each figure and table: section, number and caption.

The page's writer stores them in `index.json` beside the files. Snakemake's report looks them up by
file name, after the run: its `category`, `subcategory` and `labels` may be functions of wildcards,
and its captions are templates that see the job's parameters (Snakemake 9,
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
    """The index of a folder of figures and tables, read at every use."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INDEX

    def __str__(self) -> str:
        return self._path.as_posix()

    def _entry(self, name: str) -> dict[str, Any]:
        """The index's entry of a file, named without its suffix."""
        return json.loads(self._path.read_text(encoding="utf-8"))[name]

    def category(self, wildcards: Any) -> str:
        """The section, numbered, since Snakemake sorts categories by name."""
        entry = self._entry(wildcards.name)
        return f"{entry['section_number']:02d} {entry['section']}"

    def subcategory(self, wildcards: Any) -> str:
        """`Figures` or `Tables`, which divide a section."""
        return f"{self._entry(wildcards.name)['kind'].capitalize()}s"

    def labels(self, wildcards: Any) -> dict[str, str]:
        """The columns of Snakemake's list, by which it sorts."""
        entry = self._entry(wildcards.name)
        return {
            "number": f"{entry['kind'].capitalize()} {entry['number']:03d}",
            "shows": entry["caption"].split(". ")[0].rstrip("."),
        }

    def caption(self, name: str) -> str:
        """The caption as one paragraph of reStructuredText in which nothing is markup."""
        entry = self._entry(name)
        text = f"{entry['kind'].capitalize()} {entry['number']}. {entry['caption']}"
        return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
