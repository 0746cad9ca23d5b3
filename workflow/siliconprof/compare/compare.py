"""Two result sets, point by point: same, faster, slower, or ambiguous and why.

    siliconprof compare A B                               two folders or bundles
    siliconprof compare results/replicates/NAME           both sides of `siliconprof replicate`
    siliconprof compare results@desk results@laptop       two hosts of one folder
    siliconprof compare results --across-devices          each device with each other
    siliconprof compare results results --where-a torch=2.12.0 --where-b torch=2.13.0
    siliconprof compare results results --where-a commit=1c21c74 --where-b commit=844646c

A and B are a checkout, its results/, a bundle, or a folder of `siliconprof replicate`. The ratio
is B's time over A's, so that above 1 B is slower; its interval is a 95 % one.

The interval of one process does not cover the difference to the next process. So a verdict needs
at least five processes a side, measured in turn; or, on two hosts, five on each; or the noise floor
of the host (`siliconprof noise-floor`). Without any of these it is at best `probably slower` or
`probably faster`: beyond the 25 % by which processes are assumed to differ, and undisturbed.

`slower` and `faster`: the ratio is beyond the threshold and its whole interval beyond 1; if A and B
were equal, at most 2 of 100 comparisons would report this for any of their points. `same`: the
whole interval is within the threshold. Everything else is `ambiguous`. Each reason stands once.

Exit status: 0 nothing is slower; 1 something is slower, or was measured in A and failed in B;
2 bad input, or nothing to compare; 3 no point is decided: all are ambiguous or probable.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import options, words
from siliconprof.compare import matching, result_sets
from siliconprof.compare.comparison import Comparison, compare
from siliconprof.errors import UserError, stage
from siliconprof.stats import inference
from siliconprof.store import noise_floors

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
MOST_NAMED = 3  # cells of one note

# -- as text -----------------------------------------------------------------------------------


def quantity(value: float, metric: str) -> str:
    """A value in seconds or bytes, with four digits and a unit."""
    units = BYTES if metric.endswith("_bytes") else SECONDS
    scale, unit = next((entry for entry in units if value >= entry[0]), units[-1])
    return f"{value / scale:.4g} {unit}"


def as_text(comparison: Comparison) -> str:
    """A table of the points, those without a counterpart, and a line of counts."""
    text = []
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        facts = side.describe()
        condition_text = "".join(f" {key}={value}" for key, value in facts["conditions"].items())
        commits = ", ".join(commit[:12] for commit in facts["commits"])
        text.append(
            f"{name}: {facts['source']}{condition_text}: host {', '.join(facts['hosts'])}; "
            f"{', '.join(facts['versions']) or 'no framework'}; commit {commits}; "
            f"{facts['cells']} cells, {facts['processes']} processes"
        )
    text.append(
        "ratio: B's over A's, above 1 is slower; 95 % interval; threshold "
        f"{100 * comparison.threshold:g} %"
    )
    lines: list[tuple[str, ...]] = [
        ("cell", "point", "metric", "A", "B", "n", "ratio", "interval", "verdict")
    ]
    reasons = list(dict.fromkeys(row.reason for row in comparison.rows))
    for row in comparison.rows:
        same_path = row.cell_a.split("/")[1:] == row.cell_b.split("/")[1:]
        lines.append(
            (
                "/".join(row.cell_a.split("/")[1:]) if same_path else f"{row.cell_a} {row.cell_b}",
                matching.label(row.point),
                row.metric,
                *(
                    quantity(inference.geometric_mean(side), row.metric)
                    for side in (row.figures_a, row.figures_b)
                ),
                f"{len(row.figures_a)}+{len(row.figures_b)}",
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}",
                row.text + (f" [{1 + reasons.index(row.reason)}]" if len(reasons) > 1 else ""),
            )
        )
    text += words.aligned(lines) if comparison.rows else []
    for number, reason in enumerate(reasons, 1):
        text.append(f"[{number}] {reason}" if len(reasons) > 1 else f"why: {reason}")
    noted: dict[str, list[str]] = {}
    for cells, notes in {(row.cell_a, row.cell_b): row.notes for row in comparison.rows}.items():
        for note in notes:
            noted.setdefault(note, []).append(" ".join(dict.fromkeys(cells)))
    for note, paths in noted.items():
        more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
        text.append(f"note: {note}: {', '.join(paths[:MOST_NAMED])}{more}")
    for entry in comparison.unmatched:
        word = "FAILED IN B" if entry.broken else f"only in {entry.side}"
        text.append(f"{word}: {entry.path}: {entry.reason}")
    text += [f"left out: {line}" for line in (*comparison.a.left_out, *comparison.b.left_out)]
    broken = sum(entry.broken for entry in comparison.unmatched)
    counts = ", ".join(f"{count} {word}" for word, count in comparison.counts.items() if count)
    text.append(
        f"{len(comparison.rows)} points: {counts}; {len(comparison.unmatched)} without a counterpart"
        + (f", {broken} of them failed in B" if broken else "")
    )
    return "\n".join(text)


# -- command line ------------------------------------------------------------------------------


def conditions(option: str, given: Sequence[str], host: str | None) -> dict[str, str]:
    """What was given as KEY=VALUE as a mapping.

    Raises:
        UserError: one is not KEY=VALUE, or a key occurs twice.
    """
    mapping = {"host": host} if host else {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{option} {word}: expected KEY=VALUE, such as torch=2.13.0")
        if key in mapping:
            raise UserError(f"{option}: {key} is given twice")
        mapping[key] = value
    return mapping


def split_host(text: str) -> tuple[Path, str | None]:
    """(folder or bundle, host) of `A` or `A@host`."""
    path, at, host = text.rpartition("@")
    if at and path and host and not Path(text).exists():
        return Path(path), host
    return Path(text), None


def percentage(text: str) -> float:
    """A share of 1 from a percentage, with or without the sign.

    Raises:
        argparse.ArgumentTypeError: it is no number between 0 and 100.
    """
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value < 100:
        raise argparse.ArgumentTypeError(f"{text}: expected a percentage between 0 and 100")
    return value / 100


def read_floors(source: Path, files: Sequence[Path]) -> dict[str, noise_floors.Floor]:
    """Host -> noise floor: from the files, else from the folder of the records.

    Raises:
        UserError: a file is damaged or missing.
    """
    floors: dict[str, noise_floors.Floor] = {}
    if source.is_dir():
        folder = result_sets.results_folder(source)
        # the floor of results/replicates/NAME/a is in the results/ above it
        for place in (folder, *folder.resolve().parents[:3]):
            floors = noise_floors.by_host(sorted((place / "noise-floor").glob("*.json"))) | floors
    return floors | noise_floors.by_host(files)


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = options.parser("siliconprof compare", __doc__)
    parser.add_argument("a", metavar="A", help="folder or bundle, or FOLDER@HOST")
    parser.add_argument("b", metavar="B", nargs="?", help="like A; may be left out, see above")
    where = "host, device, backend, workload, ..., commit, python, or a package's name"
    parser.add_argument("--where-a", nargs="+", default=[], metavar="KEY=VALUE", help=where)
    parser.add_argument("--where-b", nargs="+", default=[], metavar="KEY=VALUE", help=where)
    parser.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only cells whose path host/device/backend/workload/scenario/precision matches",
    )
    parser.add_argument(
        "--threshold",
        type=percentage,
        default=0.03,
        metavar="PERCENT",
        help="smallest change that counts (default: 3)",
    )
    parser.add_argument(
        "--across-devices",
        action="store_true",
        help="compare cells of different devices that do the same work by any backend; "
        "without B, those of A with each other",
    )
    parser.add_argument("--memory", action="store_true", help="compare the peak of memory too")
    parser.add_argument(
        "--noise-floor",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a noise floor to use instead of those in the folders of A and B; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; see the module for the exit status."""
    arguments = arguments_of(argv)
    path_a, host_a = split_host(arguments.a)
    selects_b = arguments.where_b or arguments.across_devices
    both = result_sets.sides(path_a)
    if arguments.b is not None:
        path_b, host_b = split_host(arguments.b)
    elif both and not selects_b:
        (path_a, path_b), host_b = both, None
    elif selects_b:
        path_b, host_b = path_a, None
    else:
        raise UserError(f"{path_a}: B is missing; name B, or pass --where-a and --where-b")
    where_a = conditions("--where-a", arguments.where_a, host_a)
    where_b = conditions("--where-b", arguments.where_b, host_b)
    a = result_sets.load(path_a, where_a, arguments.cells)
    b = result_sets.load(path_b, where_b, arguments.cells)
    floors = [read_floors(path, arguments.noise_floor) for path in (path_a, path_b)]
    more = arguments.threshold, floors, arguments.memory, arguments.across_devices
    comparison = compare(a, b, *more)
    print(json.dumps(comparison.document(), indent=1) if arguments.json else as_text(comparison))
    return comparison.exit_status


if __name__ == "__main__":
    sys.exit(stage(main))
