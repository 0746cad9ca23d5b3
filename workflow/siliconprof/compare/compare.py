"""Two sets of results, point by point: same, faster, slower, or undecided and why.

    siliconprof compare A B                        two result folders, checkouts or bundles
    siliconprof compare results --where-a backend=torch-cpu --where-b backend=mlx
    siliconprof compare results --where-a trainer=plain --where-b trainer=hf precision=fp32

Cells are compared that are equal but for what is named, and points with equal parameters. The ratio
is B's time over A's, above 1 B is slower; its 95 % interval is one between processes (Welch's t on
the logarithms of their medians), so that each side needs two: `repeats: 5` in the config, or
`--configfile config/careful.yaml`.

`same`: the whole interval is within the threshold. `slower` and `faster`: the ratio is beyond the
threshold, its interval excludes 1, and it is none of the few that chance alone makes of so many
points (Benjamini and Hochberg's p-value is at most 5 %). All else is `undecided`.

The ten largest differences are shown, and all points written by `--csv FILE`.

Exit status: 0 nothing is slower; 1 something is slower, or was measured in A and failed in B;
2 bad input, or nothing to compare; 3 no point is decided.
"""

from __future__ import annotations

import fnmatch
import json
import math
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from siliconprof import options, words
from siliconprof.errors import UserError, printable, stage
from siliconprof.remote.bundle_check import read_bundle
from siliconprof.stats.statistics import median
from siliconprof.store import record, temporary
from siliconprof.store.cell import AXES, Cell, canonical_json
from siliconprof.store.contents import Record
from siliconprof.store.point import WHOLE
from siliconprof.store.table_files import grouped
from siliconprof.store.validation import nearest

CONFIDENCE = 0.95
KEYS = (*AXES, "module", "trainer", "threads")  # that a condition may name
BESIDE = ("warmup_step_s", "forward_only_s", "free_running_step_s", "handed_over_s")
SAME, FASTER, SLOWER, UNDECIDED = "same", "faster", "slower", "undecided"
DECIDED, FAILED = (SAME, FASTER, SLOWER), "failed in B"
SOMETHING_SLOWER, NOTHING_DECIDED = 1, 3
SINGLE = "1 process"
REMEDY = "`repeats: 5` in the config, or config/careful.yaml laid over it, measures more processes"
WIDTH, SHOWN = 110, 10  # characters of a line; differences and problems that are listed


@dataclass(frozen=True)
class Row:
    """One point of two cells, or a cell that one side lacks; the columns of the CSV file."""

    cell_a: str
    cell_b: str
    verdict: str
    reason: str = ""
    point: str = ""  # its parameters as canonical JSON
    series: str = ""
    processes_a: int = 0
    processes_b: int = 0
    a_s: float | None = None  # geometric mean of the processes' medians, in seconds
    b_s: float | None = None
    ratio: float | None = None  # B over A
    low: float | None = None
    high: float | None = None
    p_value: float | None = None  # adjusted for the number of points

    @property
    def log(self) -> float:
        """By how much the sides differ, whichever is slower: the ratio's logarithm, without sign."""
        return abs(math.log(self.ratio)) if self.ratio else 0.0

    @property
    def text(self) -> str:
        """`slower`, or `undecided: 1 process`."""
        return f"{UNDECIDED}: {self.reason}" if self.verdict == UNDECIDED else self.verdict


def load(source: Path, conditions: Mapping[str, str]) -> tuple[list[Record], list[str]]:
    """(records of a folder or bundle that meet all conditions; a line for each unreadable one).

    Args:
        conditions: one of `KEYS` -> the value or pattern that it must match.

    Raises:
        UserError: there are none, or a condition names nothing.
    """
    records, unreadable = [], []
    folder = source / "results" if (source / "results").is_dir() else source
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if zipfile.is_zipfile(source):
        records = list(read_bundle(source).records.values())
    elif source.is_file():
        raise UserError(f"{source}: neither a folder nor a bundle (a zip)")
    for path in sorted((folder / "records").glob("*/" * (len(AXES) - 1) + "*.json")):
        try:
            records.append(record.load(path, in_place=True))
        except UserError as error:
            unreadable.append(str(error))
    if not records:
        raise UserError("\n".join(unreadable[:SHOWN] or [f"{source}: no records in it"]))
    for key, pattern in conditions.items():
        values = {str(getattr(data.cell, key)) for data in records}
        records = [d for d in records if fnmatch.fnmatchcase(str(getattr(d.cell, key)), pattern)]
        if not records:
            raise UserError(
                f"{source}: no record has {key}={pattern}{nearest(pattern, values)}; "
                f"there are: {', '.join(sorted(values))}"
            )
    return records, unreadable


def pairs(
    a: Sequence[Record], b: Sequence[Record], where_a: Mapping[str, str], where_b: Mapping[str, str]
) -> list[tuple[Record | None, Record | None]]:
    """Records of equal cells, or None on the side that has no such cell.

    Equal are the parameters, and all `KEYS` but those in which the conditions, or the only host of
    each side, differ; with another host or backend, device and threads differ, with another trainer
    the workload's name. Lists of sizes are points, which are matched one by one.

    Raises:
        UserError: several cells of one side are equal.
    """
    compared = {key for key in KEYS if where_a.get(key) != where_b.get(key)}
    hosts = [{data.cell.host for data in side} for side in (a, b)]
    if len(hosts[0]) == len(hosts[1]) == 1 and hosts[0] != hosts[1]:
        compared.add("host")
    if compared & {"host", "device", "backend"}:
        compared |= {"device", "threads"}
    if "trainer" in compared:
        compared.add("workload")

    def key_of(cell: Cell) -> tuple[str, ...]:
        swept = list if cell.trainer is None else ()
        fixed = {k: v for k, v in cell.parameters.items() if not isinstance(v, swept)}
        same = (str(getattr(cell, key)) for key in KEYS if key not in compared)
        return (*same, canonical_json(fixed))

    sides = [grouped(side, lambda data: key_of(data.cell)) for side in (a, b)]
    for name, side in zip("ab", sides, strict=True):
        for first, *others in side.values():
            if others:
                one, other = vars(first.cell), vars(others[0].cell)
                key = next(key for key in KEYS if one[key] != other[key])
                raise UserError(
                    f"{first.cell.path} and {others[0].cell.path} are equal but for what is "
                    f"compared; choose one by --where-{name} {key}={one[key]}"
                )
    return [
        (sides[0].get(key, [None])[0], sides[1].get(key, [None])[0])
        for key in dict.fromkeys([*sides[0], *sides[1]])
    ]


def figures(data: Record | None) -> dict[tuple[str, str], list[float]]:
    """(point, series) -> the median of each process, in seconds; nothing of a cell that failed.

    The series are the whole step of a training, the synchronised call of a kernel, or all times of
    a kernel's launch.
    """
    medians = {}
    for point in data.points if data and data.status == "ok" else ():
        whole = next((name for name in WHOLE if point.times.get(name)), None)
        names = [whole] if whole else [name for name in point.times if name not in BESIDE]
        for name in names:
            if values := [median(times) for times in point.of_processes(name)]:
                medians[point.name, name] = values
    return medians


def rows_of(a: Record | None, b: Record | None) -> Iterable[Row]:
    """The points of two cells, not judged yet; what only one side has, if it was measured there."""
    pair = Row(a.cell.path if a else "", b.cell.path if b else "", UNDECIDED)
    of_a, of_b = figures(a), figures(b)
    if not of_a or not of_b:
        side, other = ("A", b) if of_a else ("B", a)
        failed = side == "A" and other and other.status in ("oom", "failed", "timeout")
        why = f"{other.status}: {other.reason}" if other else "no such cell"
        if of_a or of_b:
            yield replace(pair, verdict=FAILED if failed else f"only in {side}", reason=why)
        return
    for key in dict.fromkeys([*of_a, *of_b]):
        row = replace(pair, point=key[0], series=key[1])
        if a and b and key in of_a and key in of_b:
            yield _compared(row, a, b, of_a[key], of_b[key])
        else:
            verdict = f"only in {'A' if key in of_a else 'B'}"
            yield replace(row, verdict=verdict, reason="no such point")


def _compared(
    row: Row, a: Record, b: Record, medians_a: Sequence[float], medians_b: Sequence[float]
) -> Row:
    """The row with its figures, and where the two can have no verdict the reason."""
    from scipy import stats  # here, since it takes a second to import

    row = replace(row, processes_a=len(medians_a), processes_b=len(medians_b))
    if min(*medians_a, *medians_b) <= 0:
        return replace(row, reason="below clock's resolution")
    logs_a, logs_b = ([math.log(value) for value in side] for side in (medians_a, medians_b))
    a_s, b_s = (math.exp(math.fsum(logs) / len(logs)) for logs in (logs_a, logs_b))
    row = replace(row, a_s=a_s, b_s=b_s, ratio=b_s / a_s)
    if a.sha256 == b.sha256:
        return replace(row, reason="the same record")
    if min(len(logs_a), len(logs_b)) < 2:
        return replace(row, reason=SINGLE)
    with warnings.catch_warnings(action="ignore"):  # of times that are all equal
        test = stats.ttest_ind(logs_b, logs_a, equal_var=False)
    low, high = (math.exp(end) for end in test.confidence_interval(CONFIDENCE))
    return replace(row, low=low, high=high, p_value=1.0 if math.isnan(test.pvalue) else test.pvalue)


def judged(rows: Sequence[Row], threshold: float) -> list[Row]:
    """The rows with their verdicts.

    Args:
        threshold: the smallest change that counts, as a share of 1.
    """
    from scipy import stats

    known = [row.p_value for row in rows if row.p_value is not None]
    adjusted = iter(stats.false_discovery_control(known) if known else [])
    limit = math.log1p(threshold)
    result = []
    for row in rows:
        if row.low is not None and row.high is not None:
            verdict, reason, p_value = UNDECIDED, "wide interval", float(next(adjusted))
            if max(abs(math.log(row.low)), abs(math.log(row.high))) <= limit:
                verdict, reason = SAME, ""
            elif row.log > limit and not row.low <= 1 <= row.high:
                verdict, reason = SLOWER if row.low > 1 else FASTER, ""
                if p_value > 1 - CONFIDENCE:
                    verdict, reason = UNDECIDED, "may be chance"
            row = replace(row, verdict=verdict, reason=reason, p_value=p_value)
        result.append(row)
    return result


def as_text(rows: Sequence[Row]) -> str:
    """The largest differences, what one side lacks, and how many points have each verdict."""
    points = [row for row in rows if row.ratio]
    points.sort(key=lambda row: (row.verdict not in (SLOWER, FASTER), -row.log))
    lines = [["B is", "B / A", "95 % interval", "A", "B", "cell and point"]]
    names = _labels(points)
    for row in points[:SHOWN]:
        interval = f"{row.low:.3f} to {row.high:.3f}" if row.low is not None else "-"
        times = (words.duration(seconds) for seconds in (row.a_s or 0.0, row.b_s or 0.0))
        lines.append([row.text, f"{row.ratio:.3f}", interval, *times, names[row]])
    text = words.aligned(lines) if points else []
    if len(points) > SHOWN:
        text.append(f"... and {len(points) - SHOWN} more, which --csv FILE writes")
    broken = [row for row in rows if row.verdict == FAILED]
    text += [f"{FAILED}: {row.cell_b}: {row.reason}" for row in broken[:SHOWN]]
    counts = Counter(row.text for row in rows).most_common()
    text.append(", ".join(f"{count} {verdict}" for verdict, count in counts))
    if any(row.reason == SINGLE for row in rows):
        text.append(f"{UNDECIDED}: {SINGLE}: {REMEDY}")
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in text)


def _labels(rows: Sequence[Row]) -> dict[Row, str]:
    """What tells each row from the others: its workload, and the axes and parameters that differ."""
    labels = {}
    for workload, group in grouped(rows, lambda row: row.cell_a.split("/")[3]).items():
        facts = {
            row: dict(zip(AXES, row.cell_a.split("/"), strict=True))
            | {"series": row.series}
            | json.loads(row.point)
            for row in group
        }
        for row, own in facts.items():
            differing = [
                str(value) if key in (*AXES, "series") else f"{key}={value}"
                for key, value in own.items()
                if any(other.get(key) != value for other in facts.values())
            ]
            labels[row] = " ".join([workload, *differing])
    return labels


# -- command line ------------------------------------------------------------------------------


def condition(text: str) -> tuple[str, str]:
    """The key and value of KEY=VALUE.

    Raises:
        UserError: it is none, or the key names nothing.
    """
    key, _, value = text.partition("=")
    if key not in KEYS or not value:
        keys = f"expected KEY=VALUE, and as KEY one of: {', '.join(KEYS)}"
        raise UserError(f"condition '{text}'{nearest(key, KEYS)}; {keys}")
    return key, value


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; see the module for the exit status."""
    parser = options.parser("siliconprof compare", __doc__)
    parser.add_argument("a", type=Path, metavar="A", help="results/, a checkout, or a bundle")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="like A; A if left out")
    where: dict[str, Any] = {"nargs": "+", "type": condition, "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--where-a", **where, help=f"cells of A with these: {', '.join(KEYS)}")
    parser.add_argument("--where-b", **where, help="cells of B with these")
    parser.add_argument(
        "--threshold", type=float, default=3, metavar="PERCENT", help="that counts (default: 3)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all points there")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.threshold < 100:
        raise UserError("--threshold: expected a percentage between 0 and 100")
    where_a, where_b = dict(arguments.where_a), dict(arguments.where_b)
    if where_a == where_b and arguments.b is None:
        raise UserError(f"{arguments.a}: B is missing; name B, or pass --where-a and --where-b")
    a, unreadable_a = load(arguments.a, where_a)
    b, unreadable_b = load(arguments.b or arguments.a, where_b)
    found = [row for pair in pairs(a, b, where_a, where_b) for row in rows_of(*pair)]
    rows = judged(found, arguments.threshold / 100)
    verdicts = {row.verdict for row in rows}
    if not verdicts & {*DECIDED, UNDECIDED, FAILED}:
        raise UserError(
            f"{arguments.a} and {arguments.b or arguments.a} have no cell or point in common"
        )
    if arguments.csv:
        import pandas  # here, since it takes half a second to import

        temporary.write(arguments.csv, pandas.DataFrame(rows).to_csv(index=False))
    for line in [*unreadable_a, *unreadable_b]:
        print(printable(line), file=sys.stderr)
    print("\n".join(map(printable, as_text(rows).splitlines())))
    if verdicts & {SLOWER, FAILED}:
        return SOMETHING_SLOWER
    return 0 if verdicts & {*DECIDED} else NOTHING_DECIDED


if __name__ == "__main__":
    sys.exit(stage(main))
