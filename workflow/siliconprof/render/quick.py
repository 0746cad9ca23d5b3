"""A first answer: tables and a page of one screen from the records of the workloads under `quick`.

    python -m siliconprof.render.quick --matrix results/matrix.json --page results/quick.html \
        --output-dir results/quick

The matrix, the tables and `summary.txt` of these cells alone go into the folder. The records are those
of the whole run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.analyse import aggregate
from siliconprof.errors import stage
from siliconprof.pipeline import analyse
from siliconprof.render import page
from siliconprof.store import documents, matrix_file, temporary

MOST_EXHIBITS = 3  # the answer's table, all devices on one axis, sentences


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder and the page."""
    parser = options.parser("siliconprof.render.quick", __doc__)
    shipped = ("registry", "published", "claims")
    for name in ("matrix", *shipped):
        parser.add_argument(f"--{name}", type=Path, **options.OPTIONS[name])
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    arguments = options.filled(parser.parse_args(argv))
    matrix_file.read(arguments.matrix)  # says what is wrong with it
    document = documents.read(arguments.matrix)
    quick = document["experiment"]["quick"]
    document["cells"] = [one for one in document["cells"] if one["cell"]["workload"] in quick]
    folder: Path = arguments.output_dir
    matrix = folder / "matrix.json"
    matrix.parent.mkdir(parents=True, exist_ok=True)
    temporary.write(matrix, json.dumps(document, indent=1, sort_keys=True) + "\n")
    of_these = ["--matrix", str(matrix)]
    known = {name: [f"--{name}", str(getattr(arguments, name))] for name in shipped}
    aggregate.main(of_these)
    analyse.main([*of_these, *known["registry"], *known["published"], *known["claims"]])
    made = map(str, (arguments.page, folder / "summary.txt", folder / "figures"))
    exhibits = ["--most-exhibits", str(MOST_EXHIBITS), "--output", *made]
    page.main([*of_these, *known["registry"], *known["published"], *exhibits])
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
