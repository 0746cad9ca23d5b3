"""Everything that is told from the tables of records, by one process that reads each table once.

    python -m siliconprof.pipeline.analyse --matrix results/matrix.json --tables results/tables \
        --registry config/devices.yaml --claims config/claims.yaml --published config/published \
        --output results/tables

The parts stand in `siliconprof.analyse` and `siliconprof.claims`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from siliconprof import options
from siliconprof.analyse import attribution, ceilings, prediction
from siliconprof.analyse.frames import Frames
from siliconprof.claims import judge
from siliconprof.errors import stage
from siliconprof.store import table_files

# In this order: later ones read what earlier ones have written.
STAGES = (ceilings.write, attribution.write, prediction.write, judge.write)


def main(argv: Sequence[str] | None = None) -> int:
    """Write all tables."""
    names = ("matrix", "tables", "registry", "claims", "published", "output")
    arguments = options.parsed(main, argv, *names)
    tables = table_files.together(arguments.tables, arguments.output)
    frames = Frames.load(arguments.matrix, tables, arguments.published, arguments.registry)
    for write in STAGES:
        write(frames, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
