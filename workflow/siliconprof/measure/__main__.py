"""`python -m siliconprof.measure --cell JSON --output results/records/….json`, see `supervise`."""

from __future__ import annotations

import sys

from siliconprof.errors import stage
from siliconprof.measure.descendants import guarded


def supervised() -> int:
    """Measure a cell; the exit status."""
    from siliconprof.measure.supervise import main  # the guard stays small without it

    return stage(main, ends_itself=True)


if __name__ == "__main__":
    sys.exit(guarded(supervised))
