"""Why one training takes longer than another: the parts of both steps beside each other.

    siliconprof explain gpt2-nano-plain/torch-cpu/fp32 gpt2-nano-plain/mlx/fp32
    siliconprof explain --json gpt2-tiny-hf/fp32 gpt2-tiny-plain/torch-cpu/fp32

A training is named by words that it alone has, in any order, with `/` between: its workload,
backend, precision, scenario, trainer, device, host. Both must have done the same work a step. Where
the operators of a step were not timed, its gap is split by phase alone. Nothing is measured: the
numbers are those of results/tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.analyse import attribution
from siliconprof.analyse.attribution import CAUSE, GAP, LEFT, PHASE
from siliconprof.analyse.equal_work import WORK, work
from siliconprof.errors import UserError, stage
from siliconprof.store import results
from siliconprof.store.table_files import Row
from siliconprof.store.validation import nearest
from siliconprof.words import aligned

NAMING = ("workload", "backend", "precision", "scenario", "trainer", "device", "host")
ASKED = "asked for"  # why the two are a pair
NO_PARTS = (
    "it was measured, but its step is not taken apart: it is compiled or of a whole training, or it "
    "only checks a mechanism"
)


def chosen(points: Iterable[Row], name: str, usable: Callable[[Row], bool], lack: str) -> Row:
    """The training that the words of a name have in common.

    Args:
        lack: why trainings that are not usable are not, in words.

    Raises:
        UserError: there is none, none that is usable, or several.
    """
    trainings = [point for point in points if point["trainer"]]
    known = sorted({str(point[axis]) for point in trainings for axis in NAMING})
    words = name.split("/")
    for word in words:
        if word not in known:
            raise UserError(f"{name}: no training has {word!r}{nearest(word, known)}")
    named = [p for p in trainings if set(words) <= {str(p[axis]) for axis in NAMING}]
    if not named:
        raise UserError(f"{name}: no training has all of these")
    found = list(filter(usable, named))
    if not found:
        raise UserError(f"{name}: {lack}")
    if len(found) == 1:
        return found[0]
    names = [
        "/".join(str(point[axis]) for axis in NAMING if len({p[axis] for p in found}) > 1)
        for point in found
    ]
    raise UserError(f"{name}: {len(found)} trainings have these; add one of: {', '.join(names)}")


def lines(folder: Path, names: Sequence[str]) -> list[Row]:
    """The lines of attribution.csv for two trainings by name.

    Raises:
        UserError: see `chosen`; or they did not do the same work, or are one.
    """
    points, parts = attribution.read(results.load(folder))
    a, b = (chosen(points, name, attribution.has_parts, NO_PARTS) for name in names)
    if a is b:
        raise UserError(f"{names[0]} and {names[1]} are one training; name two")
    apart = [
        f"{name} {one} and {other}"
        for name, one, other in zip(WORK, work(a), work(b), strict=True)
        if one != other
    ]
    if apart:
        raise UserError(f"{names[0]} and {names[1]} differ in their work: {'; '.join(apart)}")
    return list(attribution.rows_of(0, attribution.ordered(a, b, ASKED), parts))


def as_text(found: Sequence[Row]) -> str:
    """A table of the causes, else of the phases, in ms a step, and what each number rests on."""

    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{1e3 * seconds:.4g}"

    gap = next(line for line in found if line["kind"] == GAP)
    fast, slow = (
        "/".join(str(gap[f"{side}_{axis}"]) for axis in ("workload", "backend", "precision"))
        for side in attribution.SIDES
    )
    text = [
        f"{slow} takes {ms(gap['seconds'])} ms more a step than {fast} "
        f"(both 95 % intervals allow {ms(gap['low_s'])} to {ms(gap['high_s'])}): {gap['verdict']}"
    ]
    table = [("part", "faster, ms", "slower, ms", "more, ms", "range, ms", "of the gap", "basis")]
    parts = CAUSE if any(line["kind"] == CAUSE for line in found) else PHASE
    for line in found:
        if line["kind"] in (parts, LEFT):
            hows = dict.fromkeys(filter(None, (line["fast_how"], line["slow_how"], line["reason"])))
            share = "-" if line["share"] is None else f"{line['share']:.0%}"
            numbers = [ms(line[name]) for name in ("fast_s", "slow_s", "seconds")]
            ends = "-" if line["low_s"] is None else f"{ms(line['low_s'])} to {ms(line['high_s'])}"
            table.append((line["part"], *numbers, ends, share, "; ".join(hows)))
    return "\n".join([*text, *aligned(table, right=range(1, 6))])


def main(argv: Sequence[str] | None = None) -> int:
    """Print it."""
    parser = options.parser("siliconprof explain", __doc__)
    parser.add_argument("a", metavar="A", help="a training, named as above")
    parser.add_argument("b", metavar="B", help="another")
    parser.add_argument("--results", type=Path, default=Path("results"), help="of a run")
    parser.add_argument("--json", action="store_true", help="the lines of attribution.csv as JSON")
    arguments = parser.parse_args(argv)
    found = lines(arguments.results, (arguments.a, arguments.b))
    print(json.dumps(found, indent=1) if arguments.json else as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
