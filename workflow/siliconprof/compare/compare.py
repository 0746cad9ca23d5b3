"""Two result sets, point by point: same, faster, slower, or ambiguous and why.

    siliconprof compare A B                               two folders or bundles
    siliconprof compare results/replicates/NAME           both sides of `siliconprof replicate`
    siliconprof compare results@desk results@laptop       two hosts of one folder
    siliconprof compare results results --where-a torch=2.12.0 --where-b torch=2.13.0
    siliconprof compare results results --where-a commit=1c21c74 --where-b commit=844646c

A and B are a checkout, its results/, a bundle, or a folder of `siliconprof replicate`. The ratio
is B's time over A's, so that above 1 B is slower; its interval is a 95 % one.

The interval of one process knows nothing of the next process. So a verdict rests on at least
five processes a side, measured in turn; or, on two hosts, five on each; or on the noise floor of
the host (`siliconprof noise-floor`). With none of these it is ambiguous.

`slower` and `faster`: beyond the threshold, the whole interval beyond 1, and so unlikely by
chance that among all points together it would be said in 2 of 100 comparisons of equals at most.
`same`: the whole interval within the threshold. Everything else is `ambiguous`.

Exit status: 0 nothing is slower; 1 something is slower, or was measured in A and failed in B;
2 bad input, or nothing to compare; 3 every point is ambiguous.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof.compare import matching, result_sets
from siliconprof.compare.comparison import Comparison, compare
from siliconprof.errors import UserError, stage
from siliconprof.store import noise_floors

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))

# -- for a person ------------------------------------------------------------------------------


def quantity(value: float, metric: str) -> str:
    """Four digits with a unit."""
    units = BYTES if metric.endswith("_bytes") else SECONDS
    scale, unit = next((entry for entry in units if value >= entry[0]), units[-1])
    return f"{value / scale:.4g} {unit}"


def _geometric_mean(values: Sequence[float]) -> float:
    if min(values) <= 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def as_text(found: Comparison) -> str:
    """A table, what had no counterpart, and a line of counts."""
    text = []
    for name, side in (("A", found.a), ("B", found.b)):
        facts = side.describe()
        narrowed = "".join(f" {key}={value}" for key, value in facts["conditions"].items())
        commits = ", ".join(commit[:12] for commit in facts["commits"])
        text.append(
            f"{name}: {facts['source']}{narrowed}: host {', '.join(facts['hosts'])}; "
            f"{', '.join(facts['versions']) or 'no framework'}; commit {commits}; "
            f"{facts['cells']} cells, {facts['processes']} processes"
        )
    text.append(
        "ratio: B's over A's, above 1 is slower; 95 % interval; threshold "
        f"{100 * found.threshold:g} %"
    )
    lines = [("cell", "point", "metric", "A", "B", "n", "ratio", "interval", "verdict", "reason")]
    for row in found.rows:
        same_path = row.cell_a.split("/")[1:] == row.cell_b.split("/")[1:]
        lines.append(
            (
                "/".join(row.cell_a.split("/")[1:]) if same_path else f"{row.cell_a} {row.cell_b}",
                matching.label(row.point),
                row.metric,
                quantity(_geometric_mean(row.figures_a), row.metric),
                quantity(_geometric_mean(row.figures_b), row.metric),
                f"{len(row.figures_a)}+{len(row.figures_b)}",
                "-" if row.ratio is None else f"{row.ratio:.3f}",
                "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}",
                row.verdict,
                row.reason,
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    if found.rows:
        for line in lines:
            cells = [word.ljust(width) for word, width in zip(line, widths, strict=False)]
            text.append("  ".join([*cells, line[-1]]).rstrip())
    for path, notes in {row.cell_a: row.notes for row in found.rows}.items():
        if notes:
            text.append(f"note: {path}: {'; '.join(notes)}")
    for entry in found.unmatched:
        word = "FAILED IN B" if entry.broken else f"only in {entry.side}"
        text.append(f"{word}: {entry.path}: {entry.reason}")
    text += [f"left out: {line}" for line in (*found.a.left_out, *found.b.left_out)]
    broken = sum(entry.broken for entry in found.unmatched)
    counts = ", ".join(f"{count} {word}" for word, count in found.counts.items())
    text.append(
        f"{len(found.rows)} points: {counts}; {len(found.unmatched)} without a counterpart"
        + (f", {broken} of them failed in B" if broken else "")
    )
    return "\n".join(text)


# -- command line ------------------------------------------------------------------------------


def conditions(option: str, words: Sequence[str], host: str | None) -> dict[str, str]:
    """KEY=VALUE words as a mapping.

    Raises:
        UserError: a word is none, or a key is given twice.
    """
    found = {"host": host} if host else {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{option} {word}: expected KEY=VALUE, such as torch=2.13.0")
        if key in found:
            raise UserError(f"{option}: {key} is given twice")
        found[key] = value
    return found


def located(text: str) -> tuple[Path, str | None]:
    """(folder or bundle, host) of `A` or `A@host`."""
    path, at, host = text.rpartition("@")
    if at and path and host and not Path(text).exists():
        return Path(path), host
    return Path(text), None


def percentage(text: str) -> float:
    """A share of 1 from per cents, with or without the sign.

    Raises:
        argparse.ArgumentTypeError: no number between 0 and 100.
    """
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value < 100:
        raise argparse.ArgumentTypeError(f"{text}: expected per cents, between 0 and 100")
    return value / 100


def known_floors(sources: Sequence[Path], given: Sequence[Path]) -> dict[str, noise_floors.Floor]:
    """Host -> noise floor: those given, else those beside the records.

    Raises:
        UserError: one is damaged or missing.
    """
    found: dict[str, noise_floors.Floor] = {}
    for source in sources:
        if not source.is_dir():
            continue
        folder = result_sets.results_folder(source)
        # results/replicates/NAME/a lies in the results/ whose floor it is
        for place in (folder, *folder.resolve().parents[:3]):
            for path in sorted((place / "noise-floor").glob("*.json")):
                floor = noise_floors.read(path)
                found.setdefault(floor.host, floor)
    for path in given:
        floor = noise_floors.read(path)
        found[floor.host] = floor
    return found


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="siliconprof compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="folder or bundle, or FOLDER@HOST")
    parser.add_argument("b", metavar="B", nargs="?", help="the same; may be left out, see above")
    parser.add_argument("--host-a", metavar="HOST", help="A's host, where it has several")
    parser.add_argument("--host-b", metavar="HOST", help="B's host")
    where = "host, device, backend, workload, ..., commit, python, or a package's name"
    parser.add_argument("--where-a", nargs="+", default=[], metavar="KEY=VALUE", help=where)
    parser.add_argument("--where-b", nargs="+", default=[], metavar="KEY=VALUE", help=where)
    parser.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="only cells whose path host/device/backend/workload/scenario/precision fits",
    )
    parser.add_argument(
        "--threshold",
        type=percentage,
        default=0.03,
        metavar="PERCENT",
        help="change that matters (3)",
    )
    parser.add_argument("--memory", action="store_true", help="compare the memory's peak as well")
    parser.add_argument(
        "--noise-floor",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="instead of the noise-floor/ in the folders of A and B",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; see the module for the exit status."""
    arguments = arguments_of(argv)
    path_a, host_a = located(arguments.a)
    narrowed_b = arguments.host_b or arguments.where_b
    both = result_sets.sides(path_a)
    if arguments.b is not None:
        path_b, host_b = located(arguments.b)
    elif both and not narrowed_b:
        (path_a, path_b), host_b = both, None
    elif narrowed_b:
        path_b, host_b = path_a, None
    else:
        raise UserError(f"{path_a}: compare it with what? Name B, or say --where-a and --where-b")
    sides = []
    for option, path, host, words in (
        ("--where-a", path_a, arguments.host_a or host_a, arguments.where_a),
        ("--where-b", path_b, arguments.host_b or host_b, arguments.where_b),
    ):
        sides.append(result_sets.load(path, conditions(option, words, host), arguments.cells))
    floors = known_floors([path_a, path_b], arguments.noise_floor)
    found = compare(sides[0], sides[1], arguments.threshold, floors, arguments.memory)
    print(json.dumps(found.document(), indent=1) if arguments.json else as_text(found))
    return found.exit_status


if __name__ == "__main__":
    sys.exit(stage(main))
