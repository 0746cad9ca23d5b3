"""Why one training takes longer than another: the parts of both steps beside each other.

    siliconprof explain gpt2-nano-plain/torch-cpu/fp32 gpt2-nano-plain/mlx/fp32
    siliconprof explain gpt2-tiny-hf/fp32 gpt2-tiny-plain/torch-cpu/fp32

A training is named by words that it alone has, in any order, with `/` between: its workload,
backend, precision, scenario, trainer, device, host, and of several batches `batch=128`. Where this host
has a training of that name, those of other hosts and of reference bundles are not meant. Both must
have done the same work a step. Where the operators of a step were not timed, or other processes
disturbed it, the gap is split by phase alone. Nothing is measured: the numbers are those of
results/tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import TextWrapper, fill
from typing import Annotated

import pandas as pd

from siliconprof import options
from siliconprof.analyse import attribution
from siliconprof.analyse.attribution import CAUSE, PHASE, STEP_MEDIAN, UNEXPLAINED_PART
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import Frames
from siliconprof.errors import UserError, nearest
from siliconprof.formatting import aligned
from siliconprof.store import table_files
from siliconprof.store.record import HERE

NAMING = ["workload", "backend", "precision", "scenario", "trainer", "device", "host"]
WIDTH = 110  # columns of a terminal
COPIED = TextWrapper(WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
ASKED_FOR = "asked for"  # why the two are a pair
NO_PARTS = "it was measured, but its step is not taken apart: it is compiled, or it only checks a mechanism"


def chosen(points: pd.DataFrame, name: str, usable: pd.Series, lack: str) -> int:
    """The label of the training that the words of a name have in common.

    Args:
        usable: which points are.
        lack: why trainings that are not usable are not, in words.

    Raises:
        UserError: there is none, none that is usable, or several.
    """
    trainings = points.loc[points["trainer"].notna(), NAMING].astype(str)
    batches = points.loc[trainings.index, "samples_per_step"].astype("Int64").astype(str)
    trainings["batch"] = "batch=" + batches
    known = sorted(set(trainings.to_numpy().flat))
    named = trainings
    for word in name.split("/"):
        if word not in known:
            raise UserError(f"{name}: no training has {word!r}{nearest(word, known)}")
        named = named[(named == word).any(axis=1)]
    if (own := points.loc[named.index, "source"] == HERE).any():
        named = named[own]
    if named.empty:
        cells = trainings[["workload", "backend", "precision"]].itertuples(index=False)
        raise UserError(
            f"{name}: no training has all of these{nearest(name, map('/'.join, cells))}"
        )
    found = named[usable[named.index]]
    if found.empty:
        raise UserError(f"{name}: {lack}")
    if len(found) == 1:
        return int(found.index[0])
    apart = found.loc[:, found.nunique() > 1].itertuples(index=False)
    names = ", ".join(map("/".join, apart))
    raise UserError(f"{name}: {len(found)} trainings have these; add one of: {names}")


def lines(folder: Path, names: Sequence[str]) -> pd.DataFrame:
    """The lines of attribution.csv for two trainings by name.

    Raises:
        UserError: see `chosen`; or they did not do the same work, or are one.
    """
    run = Frames.of_run(folder)
    points = run.undisturbed
    usable = attribution.has_parts(points)
    a, b = (chosen(points, name, usable, NO_PARTS) for name in names)
    if a == b:
        raise UserError(f"{names[0]} and {names[1]} are one training; name two")
    work = table_files.rows(points.loc[[a, b], [*WORK]])
    apart = [
        f"{name} {work[0][name]} and {work[1][name]}"
        for name in WORK
        if work[0][name] != work[1][name]
    ]
    if apart:
        raise UserError(f"{names[0]} and {names[1]} differ in their work: {'; '.join(apart)}")
    fast, slow = sorted((a, b), key=points[STEP_MEDIAN].__getitem__)
    pair = pd.DataFrame({"rule": [ASKED_FOR], "fast": [fast], "slow": [slow]})
    return attribution.lines(points, pair, run.results.step_parts)


def as_text(found: pd.DataFrame) -> str:
    """A table of the causes, else of the phases, in ms a step, and below it what each rests on."""

    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{1e3 * seconds:.4g}"

    gap, *rest = table_files.rows(found)
    fast, slow = (
        "/".join(str(gap[f"{side}_{axis}"]) for axis in ("workload", "backend", "precision"))
        for side in attribution.SIDES
    )
    left = next((line["share"] for line in rest if line["kind"] == UNEXPLAINED_PART), None)
    explained = gap["verdict"] if left is None else f"{max(1 - abs(left), 0):.0%} explained"
    text = (
        f"{slow} takes {ms(gap['seconds'])} ms more a step than {fast} "
        f"(both 95 % intervals allow {ms(gap['low_s'])} to {ms(gap['high_s'])}): {explained}"
    )
    table = [("part", "faster, ms", "slower, ms", "more, ms", "range, ms", "of the gap")]
    parts = CAUSE if any(line["kind"] == CAUSE for line in rest) else PHASE
    bases: dict[str, list[str]] = {}
    for line in rest:
        if line["kind"] in (parts, UNEXPLAINED_PART):
            share = "-" if line["share"] is None else f"{line['share']:.0%}"
            numbers = [ms(line[name]) for name in ("fast_s", "slow_s", "seconds")]
            ends = "-" if line["low_s"] is None else f"{ms(line['low_s'])} to {ms(line['high_s'])}"
            table.append((line["part"], *numbers, ends, share))
            for basis in filter(None, (line["fast_how"], line["slow_how"], line["reason"])):
                bases.setdefault(basis, []).append(line["part"])
    told = [f"{', '.join(dict.fromkeys(named))}: {basis}" for basis, named in bases.items()]
    return "\n".join(
        [
            fill(text, WIDTH),
            "",
            *aligned(table, right=range(1, 6)),
            "",
            *(COPIED.fill(line) for line in told),
        ]
    )


def main(
    a: Annotated[str, "a training, named as above", {"metavar": "A"}],
    b: Annotated[str, "another", {"metavar": "B"}],
    *,
    results: options.Results = Path("results"),
) -> None:
    """Print the comparison."""
    with options.spinner(f"reading the tables of {results}"):
        found = lines(results, (a, b))
    print(as_text(found))
