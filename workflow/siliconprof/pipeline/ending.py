"""How a run ends: it fails where its page leaves something out.

python -m siliconprof.pipeline.ending results/errors.txt
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.errors import UserError, stage

SUMMARY = "summary.txt"  # beside the page: what a run ends with
ERRORS = "errors.txt"  # beside the page: a line for each box that stands for a section or figure


def main(argv: Sequence[str] | None = None) -> int:
    """Refuse a page that leaves something out."""
    parser = options.parser("siliconprof.pipeline.ending", __doc__)
    parser.add_argument("errors", type=Path, help="what could not be drawn, a line each")
    errors = parser.parse_args(argv).errors.read_text(encoding="utf-8")
    if errors:
        raise UserError(f"{errors}the page stands, but for what could not be drawn")
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
