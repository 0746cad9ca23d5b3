"""`siliconprof remeasure --flagged contended`: measure flagged cells again, and make the report.

    siliconprof remeasure --flagged CODE [CODE ...] [--list] [arguments of Snakemake]

Only cells of the last run that this host measures are taken. Their records go to results/history,
as those of any cell that is measured again.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.errors import UserError, nearest
from siliconprof.pipeline import run
from siliconprof.store import matrix_file, record
from siliconprof.store.matrix_file import Matrix
from siliconprof.words import FLAG_WORDS

MATRIX = Path("results/matrix.json")


def flagged(matrix: Matrix, codes: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """(record, its flags of these) of each cell of a run that has any."""
    for planned in matrix.cells:
        path = Path(planned.record)
        try:
            found = record.load(path, in_place=True).codes
        except UserError:
            continue  # none, or one that cannot be read
        if shared := [code for code in found if code in codes]:
            yield planned.record, shared


def main(argv: Sequence[str] | None = None) -> int:
    """Name the cells, and run Snakemake with their records due."""
    parser = options.parser("siliconprof remeasure", __doc__)
    parser.add_argument("--flagged", nargs="+", required=True, metavar="CODE", help="any of these")
    parser.add_argument("--list", action="store_true", help="name the cells and measure nothing")
    arguments, others = parser.parse_known_args(argv)
    for code in arguments.flagged:
        if code not in FLAG_WORDS:
            raise UserError(
                f"--flagged: '{code}' is no flag; expected any of: {', '.join(sorted(FLAG_WORDS))}"
                f"{nearest(code, FLAG_WORDS)}"
            )
    if not MATRIX.is_file():
        raise UserError(f"{MATRIX}: no such file; run `make report` first")
    with options.at_work("reading the records of the last run"):
        cells = dict(flagged(matrix_file.read(MATRIX), arguments.flagged))
    for path, codes in cells.items():
        print(f"{path}: {', '.join(codes)}")
    if not cells:
        print(f"no cell of the last run is flagged {' or '.join(arguments.flagged)}")
    if arguments.list or not cells:
        return 0
    print("measuring them again by Snakemake ...", flush=True)
    return run.main(["--cores", "1", *others, "--forcerun", *cells, "--", "report"])


if __name__ == "__main__":
    sys.exit(main())
