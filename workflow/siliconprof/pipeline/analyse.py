"""Everything that is told from the tables of records, by one process that reads each table once.

    python -m siliconprof.pipeline.analyse --matrix results/matrix.json \
        --registry config/devices.yaml --claims config/claims.yaml --published config/published

The parts stand in `siliconprof.analyse` and `siliconprof.claims`.
"""

from __future__ import annotations

from siliconprof import options
from siliconprof.analyse import attribution, ceilings, prediction
from siliconprof.analyse.frames import Frames
from siliconprof.claims import judge


def main(
    *,
    matrix: options.Matrix,
    registry: options.Registry = options.REGISTRY_FILE,
    claims: options.Claims = options.CLAIMS,
    published: options.Published = options.PUBLISHED,
) -> None:
    """Write all tables; later parts read what earlier ones have written."""
    frames = Frames.load(matrix, published, registry)
    ceilings.write(frames)
    attribution.write(frames)
    prediction.write(frames)
    judge.write(frames, claims)


if __name__ == "__main__":
    options.run(main)
