"""`python -m siliconprof.measure --cell JSON --output results/records/….json`, see `supervise`."""

from __future__ import annotations

import sys

from siliconprof.errors import stage
from siliconprof.measure.supervise import main

if __name__ == "__main__":
    sys.exit(stage(main, ends_itself=True))
