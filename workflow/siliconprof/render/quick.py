"""A first answer: tables and a page of one screen from the records of the workloads under `quick`.

    python -m siliconprof.render.quick --matrix results/matrix.json --page results/quick.html \
        --output-dir results/quick

The matrix, the tables and `summary.txt` of these cells alone go into the folder. The records are those
of the whole run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from siliconprof import options
from siliconprof.analyse import aggregate
from siliconprof.pipeline import analyse
from siliconprof.render import page
from siliconprof.store import documents, matrix_file, temporary

MOST_EXHIBITS = 3  # the answer's table, all devices on one axis, sentences


def main(
    *,
    matrix: options.Matrix,
    registry: options.Registry = options.REGISTRY_FILE,
    published: options.Published = (options.PUBLISHED,),
    claims: options.Claims = options.CLAIMS,
    page_: Annotated[Path, "the page"],
    output_dir: Annotated[Path, "the folder"],
) -> None:
    """Write the folder and the page."""
    matrix_file.read(matrix)  # says what is wrong with it
    document = documents.read(matrix)
    quick = document["experiment"]["quick"]
    document["cells"] = [one for one in document["cells"] if one["cell"]["workload"] in quick]
    own = output_dir / "matrix.json"
    output_dir.mkdir(parents=True, exist_ok=True)
    temporary.write(own, json.dumps(document, indent=1, sort_keys=True) + "\n")
    aggregate.main(matrix=own)
    analyse.main(matrix=own, registry=registry, published=published, claims=claims)
    page.main(
        matrix=own,
        registry=registry,
        published=published,
        output=(page_, output_dir / "summary.txt", output_dir / "figures"),
        most_exhibits=MOST_EXHIBITS,
    )


if __name__ == "__main__":
    options.run(main)
