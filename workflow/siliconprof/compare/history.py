"""`siliconprof history`: a cell's time over versions and commits, from results/history.

    siliconprof history                          every cell that was measured more than once
    siliconprof history '*/gpt2-nano-plain/*'    cells whose path host/device/backend/… matches
    siliconprof history --json

Each line is a record, with its change against the one before: `faster, 1.30 ×` where the noise
floor of the host tells it, `probably faster, 1.30 ×` where the change is beyond the 25 % by which
processes are assumed to differ, else no difference beyond noise; see `siliconprof compare`. Records
of one label that are perhaps of two machines are told apart by no noise floor. Records of another
method are left out.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from siliconprof import options, words
from siliconprof.analyse import history
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.compare import comparison, matching
from siliconprof.errors import UserError, stage
from siliconprof.stats import inference
from siliconprof.stats.inference import AMBIGUOUS, SAME
from siliconprof.store import noise_floors
from siliconprof.store.cell import AXES
from siliconprof.store.noise_floors import Floor
from siliconprof.store.table_files import Row, grouped, point_key

THRESHOLD = 0.03  # the smallest change that counts
FIRST, NOISE = "first", "no difference beyond noise"
ELSEWHERE = ", perhaps on another machine"
COLUMNS = ("when", "framework", "commit", "step", "interval", "change", "flags")


def changes(lines: Sequence[Row], floors: Mapping[str, Floor]) -> Iterator[Row]:
    """Each line with `ratio`, `verdict`, `change`, `reason`: against the one before of its point.

    Args:
        lines: see `history.lines`.
    """
    before: dict[tuple, Row] = {}
    for line in lines:
        place = (*point_key(line)[:-1], line["params"], line["series"])
        old = before.get(place)
        before[place] = line
        yield line | (
            _change(old, line, floors.get(line["host"]))
            if old
            else {"ratio": None, "verdict": None, "change": FIRST, "reason": None}
        )


def _change(old: Row, new: Row, floor: Floor | None) -> Row:
    ratio = new["step_s"] / old["step_s"]
    disturbed = any(flagged(line, DISTURBED) for line in (old, new))
    moved = old["node"] != new["node"]
    noise = None
    if floor and not moved:  # it is of one machine
        noise = floor.deviation(new, new["params"], new["series"])
    a, b = ([(line["started_at"], line["step_s"])] for line in (old, new))
    estimate, reason = comparison.estimate(a, b, not moved, [noise, noise])
    if estimate:
        verdict, reason = inference.verdict(estimate, estimate.p_value(), 1, THRESHOLD)
    else:
        verdict, reason = comparison.without_error(ratio, reason, disturbed)
    change = comparison.worded(verdict, ratio)
    if verdict in (SAME, AMBIGUOUS):
        change = "disturbed by other processes" if disturbed else NOISE
    if moved:
        change += ELSEWHERE
    return {"ratio": ratio, "verdict": verdict, "change": change, "reason": reason}


def read(results: Path, pattern: str) -> list[Row]:
    """The lines of every cell that was measured more than once and whose path matches.

    Raises:
        UserError: there is no history, or no cell matches; one line.
    """
    folder = results / "history"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; `snakemake --cores 1 report` makes it")
    paths = sorted(folder.glob("/".join(["*"] * len(AXES)) + "/*.json"))
    cells = grouped(paths, lambda path: path.parent.relative_to(folder).as_posix())
    chosen = fnmatch.filter(cells, pattern)
    if not chosen:
        some = ", ".join(list(cells)[:3]) or "there are none"
        raise UserError(f"{folder}: no cell matches '{pattern}'; its cells: {some}")
    return [line for cell in chosen for line in history.lines(cells[cell])]


def as_text(lines: Sequence[Row]) -> str:
    """A table for each point of a cell."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for line in lines:
        path, point = "/".join(line[axis] for axis in AXES), matching.label(line["params"])
        ends = [f"{1e3 * line[f'step_{end}_s']:.4g}" for end in ("low", "high")]
        groups.setdefault(f"{path} {point}", [COLUMNS]).append(
            (
                line["started_at"][:16].replace("T", " "),
                line["framework_version"] or "-",
                (line["git_commit"] or f"code {line['code_sha256'] or 'unknown'}")[:12],
                f"{1e3 * line['step_s']:.4g} ms",
                "–".join(ends),
                line["change"],
                line["flags"].replace(";", ", ") or "-",
            )
        )
    text = []
    for head, rows in groups.items():
        text += [head, *(f"  {line}" for line in words.aligned(rows))]
    return "\n".join(text) or "no cell was measured more than once"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the history."""
    parser = options.parser("siliconprof history", __doc__)
    parser.add_argument("pattern", nargs="?", default="*", metavar="CELL-PATTERN")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    paths = sorted((arguments.results / "noise-floor").glob("*.json"))
    floors = noise_floors.by_host(paths)
    lines = list(changes(read(arguments.results, arguments.pattern), floors))
    print(json.dumps(lines, indent=1) if arguments.json else as_text(lines))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
