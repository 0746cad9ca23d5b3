"""`python -m siliconprof.measure --cell JSON --output results/records/….json`, see `supervise`."""

from __future__ import annotations

from siliconprof import options
from siliconprof.measure.supervise import main

if __name__ == "__main__":
    options.run(main, "siliconprof.measure", ends_itself=True)
