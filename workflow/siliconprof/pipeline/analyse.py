"""Everything that is told from the tables of records, by one process that reads each table once.

    python -m siliconprof.pipeline.analyse --matrix results/matrix.json --tables results/tables \
        --registry config/devices.yaml --claims config/claims.yaml --published config/published \
        --output results/tables

The parts stand in `siliconprof.analyse` and `siliconprof.claims`.
"""

from __future__ import annotations

from siliconprof import options
from siliconprof.analyse import attribution, ceilings, prediction
from siliconprof.analyse.frames import Frames
from siliconprof.claims import judge
from siliconprof.store import table_files


def main(
    *,
    matrix: options.Matrix,
    tables: options.Tables = (),
    registry: options.Registry = options.REGISTRY_FILE,
    claims: options.Claims = options.CLAIMS,
    published: options.Published = (options.PUBLISHED,),
    output: options.Output = (),
) -> None:
    """Write all tables; later parts read what earlier ones have written."""
    made = options.tables_of(output, matrix)
    known = table_files.together(options.tables_of(tables, matrix), made)
    frames = Frames.load(matrix, known, options.folder_of(published), registry)
    ceilings.write(frames, made)
    attribution.write(frames, made)
    prediction.write(frames, made)
    judge.write(frames, claims, made)


if __name__ == "__main__":
    options.run(main)
