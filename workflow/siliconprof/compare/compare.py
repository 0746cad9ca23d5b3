"""Two sets of results, point by point: same, faster, slower, or undecided and why.

    siliconprof compare A B                        two result folders, checkouts or bundles
    siliconprof compare results --where-a backend=torch-cpu --where-b backend=mlx
    siliconprof compare results --where-a trainer=plain precision=fp32 --where-b trainer=hf precision=fp32

Cells are compared that are equal but for what is named, and points with equal parameters. The ratio
is B's time over A's, above 1 B is slower; its 95 % interval is one between processes (Welch's t on
the logarithms of their medians), so that each side needs two: `repeats: 5` in the config, or
`--configfile config/careful.yaml`.

`same`: the whole interval is within the threshold. `slower` and `faster`: the ratio is beyond the
threshold, its interval excludes 1, and it is none of the few that chance alone makes of so many
points (Benjamini and Hochberg's p-value is at most 5 %). All else is `undecided`. Where a side has one
process, a ratio beyond the threshold and beyond the intervals of both sides, as the page prints them, is
`slower in these processes` or `faster in these processes`: others of the same cells may differ by more.

The ten largest differences are shown, and all points written by `--csv FILE`.

Exit status: 0 nothing is slower but in these processes; 1 something is slower, or was measured in A and
failed in B; 2 bad input, or nothing to compare; 3 no point is decided, nor differs in these processes.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from siliconprof import formatting, options
from siliconprof.errors import UserError, nearest, printable
from siliconprof.remote.bundle_import import read_bundle
from siliconprof.stats.inference import CONFIDENCE
from siliconprof.stats.statistics import block_median_interval, median
from siliconprof.store import record, table_files, temporary
from siliconprof.store.cell import AXES, Cell, canonical_json
from siliconprof.store.contents import Record
from siliconprof.store.point import WHOLE

if TYPE_CHECKING:  # at run time where it is used, since it takes half a second to import
    import pandas as pd

COMPARED_KEYS = (*AXES, "module", "trainer", "threads")  # that a condition may name
BESIDE = ("warmup_step_s", "forward_only_s", "unsynchronised_step_s", "dispatch_s")
SAME, FASTER, SLOWER, UNDECIDED = "same", "faster", "slower", "undecided"
DECIDED, FAILED_IN_B = (SAME, FASTER, SLOWER), "failed in B"
FASTER_ONCE, SLOWER_ONCE = (f"{verdict} in these processes" for verdict in (FASTER, SLOWER))
SOMETHING_SLOWER, NOTHING_DECIDED = 1, 3
SINGLE = "1 process"
REMEDY = "`repeats: 5` in the config, or config/careful.yaml laid over it, measures more processes"
WIDTH, SHOWN_DIFFERENCES = 110, 10  # characters of a line; differences and problems that are listed
SERIES_KEY = ["key", "point", "series"]
COMPARISON_COLUMNS = [  # of the CSV file
    *("cell_a", "cell_b", "verdict", "reason", "point", "series", "processes_a", "processes_b"),
    *("a_s", "b_s", "ratio", "low", "high", "p_value"),
]


def load(source: Path, conditions: Mapping[str, str]) -> tuple[list[Record], list[str]]:
    """(records of a folder or bundle that meet all conditions; a line for each unreadable one).

    Args:
        conditions: one of `COMPARED_KEYS` -> its value.

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
        raise UserError(
            "\n".join(unreadable[:SHOWN_DIFFERENCES] or [f"{source}: no records in it"])
        )
    for key, value in conditions.items():
        values = {str(getattr(data.cell, key)) for data in records}
        if value not in values:
            raise UserError(
                f"{source}: no record has {key}={value}{nearest(value, values)}; "
                f"there are: {', '.join(sorted(values))}"
            )
        records = [data for data in records if str(getattr(data.cell, key)) == value]
    return records, unreadable


def differing(
    a: Sequence[Record], b: Sequence[Record], where_a: Mapping[str, str], where_b: Mapping[str, str]
) -> set[str]:
    """In which of `COMPARED_KEYS` two cells that are compared may differ.

    They may differ in keys in which the conditions or the only hosts of the sides differ. With another
    host or backend, device and threads may differ too; with another trainer, the workload's name.
    """
    compared = {key for key in COMPARED_KEYS if where_a.get(key) != where_b.get(key)}
    hosts = [{data.cell.host for data in side} for side in (a, b)]
    if len(hosts[0]) == len(hosts[1]) == 1 and hosts[0] != hosts[1]:
        compared.add("host")
    if compared & {"host", "device", "backend"}:
        compared |= {"device", "threads"}
    return compared | {"workload"} if "trainer" in compared else compared


def _key(cell: Cell, compared: Collection[str]) -> str:
    """A key that compared cells share; lists of sizes are left out, since they are points."""
    swept = list if cell.trainer is None else ()
    fixed = {k: v for k, v in cell.parameters.items() if not isinstance(v, swept)}
    return canonical_json(
        [str(getattr(cell, k)) for k in COMPARED_KEYS if k not in compared] + [fixed]
    )


def _sides(
    records: Sequence[Record], compared: Collection[str], side: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(cells by key, their points with the medians of each process in seconds).

    `ends` are the 95 % interval of the median of one process, or the lowest and highest median of
    several. A failed cell has no points, a disturbed one no medians. The series are the whole step of
    a training, the synchronised call of a kernel, or all times of a kernel's launch.
    """
    import pandas as pd

    cells: dict[str, Record] = {}
    points = []
    for data in records:
        key = _key(data.cell, compared)
        if key in cells:
            one, other = vars(cells[key].cell), vars(data.cell)
            name = next(name for name in COMPARED_KEYS if one[name] != other[name])
            raise UserError(
                f"{cells[key].cell.path} and {data.cell.path} are equal but for what is compared; "
                f"choose one by --where-{side} {name}={one[name]}"
            )
        cells[key] = data
        for point in data.points if data.status == "ok" else ():
            whole = next((name for name in WHOLE if point.times.get(name)), None)
            for name in [whole] if whole else [n for n in point.times if n not in BESIDE]:
                if processes := point.of_processes(name):
                    values = [median(times) for times in processes]
                    several = (min(values), max(values))
                    ends = several if len(values) > 1 else block_median_interval(processes[0])
                    sound = None if point.disturbed else values
                    points.append((key, point.name, name, sound, ends))
    columns = [f"{name}_{side}" for name in ("cell", "status", "why")]
    facts = [(d.cell.path, d.status, f"{d.status}: {d.reason}") for d in cells.values()]
    return (
        pd.DataFrame(facts, [*cells], columns),
        pd.DataFrame(points, columns=[*SERIES_KEY, f"medians_{side}", f"ends_{side}"]).reset_index(
            names=f"order_{side}"
        ),
    )


def lines(a: Sequence[Record], b: Sequence[Record], compared: Collection[str]) -> pd.DataFrame:
    """The points of both sides, not judged yet, and those that only one side has.

    Raises:
        UserError: several cells of a side are equal.
    """
    (cells_a, points_a), (cells_b, points_b) = (
        _sides(records, compared, side) for side, records in (("a", a), ("b", b))
    )
    rows = points_a.merge(points_b, "outer", SERIES_KEY).join(cells_a, "key").join(cells_b, "key")
    rows = rows.sort_values(["order_a", "order_b"]).assign(verdict=UNDECIDED, reason="")
    for side, other, of_other in (("a", "b", points_b), ("b", "a", points_a)):
        alone = rows[f"medians_{other}"].isna()
        rows.loc[alone, ["verdict", "reason"]] = [f"only in {side.upper()}", "no such point"]
        rows.loc[alone & rows[f"order_{other}"].notna(), "reason"] = "disturbed in the other"
        both = alone & rows[f"medians_{side}"].isna() & rows[f"order_{other}"].notna()
        rows.loc[both, ["verdict", "reason"]] = [UNDECIDED, "disturbed in both"]
        whole = alone & ~rows["key"].isin(of_other["key"])
        rows.loc[whole, "reason"] = rows.loc[whole, f"why_{other}"].fillna("no such cell")
        rows.loc[whole, ["point", "series"]] = ""
    failed = rows["verdict"].eq("only in A") & rows["status_b"].isin(["oom", "failed", "timeout"])
    rows.loc[failed, "verdict"] = FAILED_IN_B
    return rows.drop_duplicates(SERIES_KEY, ignore_index=True)


def _welch(
    a: Sequence[float], b: Sequence[float], ends_a: Sequence[float], ends_b: Sequence[float]
) -> tuple:
    """(seconds of A, of B, low, high, p), the last three of their ratio, and why p is missing.

    Args:
        ends_a, ends_b: what each side allows, see `_sides`, which the ends are of without p.
    """
    from scipy import stats  # here, since it takes a second to import

    if min(*a, *b) <= 0:
        return (*(math.nan,) * 5, "below clock's resolution")
    logs_a, logs_b = ([math.log(value) for value in side] for side in (a, b))
    seconds = [math.exp(math.fsum(logs) / len(logs)) for logs in (logs_a, logs_b)]
    if min(len(a), len(b)) < 2:
        return (*seconds, ends_b[0] / ends_a[1], ends_b[1] / ends_a[0], math.nan, SINGLE)
    with warnings.catch_warnings(action="ignore"):  # of times that are all equal
        test = stats.ttest_ind(logs_b, logs_a, equal_var=False)
    low, high = (math.exp(end) for end in test.confidence_interval(CONFIDENCE))
    return (*seconds, low, high, 1.0 if math.isnan(test.pvalue) else test.pvalue, "")


def judged(rows: pd.DataFrame, threshold: float) -> pd.DataFrame:
    """The lines with their figures and verdicts.

    Args:
        threshold: the smallest change that counts, as a share of 1.
    """
    import numpy as np
    import pandas as pd
    from scipy import stats

    both = rows[rows["medians_a"].notna() & rows["medians_b"].notna()]
    columns = ["a_s", "b_s", "low", "high", "p_value", "why"]
    sides = (both[f"{name}_{side}"] for name in ("medians", "ends") for side in "ab")
    made = map(_welch, *sides)
    found = pd.DataFrame([*made], both.index, columns)
    known = found["p_value"].notna()
    if known.any():
        found.loc[known, "p_value"] = stats.false_discovery_control(found["p_value"][known])
    ratio, limit = found["b_s"] / found["a_s"], math.log1p(threshold)
    ends = np.maximum(abs(np.log(found["low"])), abs(np.log(found["high"])))
    beyond = (abs(np.log(ratio)) > limit) & ~(found["low"].le(1) & found["high"].ge(1))
    chance = found["p_value"] > 1 - CONFIDENCE
    is_slower = beyond & (found["low"] > 1)
    rules = [
        *((~known & is_slower, SLOWER_ONCE, SINGLE), (~known & beyond, FASTER_ONCE, SINGLE)),
        *((~known, UNDECIDED, found["why"]), (ends <= limit, SAME, "")),
        *((beyond & chance, UNDECIDED, "may be chance"), (is_slower, SLOWER, "")),
        (beyond, FASTER, ""),
    ]
    holds, verdicts, reasons = (list(part) for part in zip(*rules, strict=True))
    verdict = np.select(holds, verdicts, UNDECIDED)
    reason = np.select(holds, reasons, "wide interval")
    judged_ = found.assign(ratio=ratio, verdict=verdict, reason=reason)
    n = {f"processes_{side}": both[f"medians_{side}"].map(len) for side in "ab"}
    rows = judged_.assign(**n).combine_first(rows).reindex(columns=COMPARISON_COLUMNS)
    return rows.astype(dict.fromkeys(n, "Int64")).fillna(dict.fromkeys(n, 0))


def as_text(rows: pd.DataFrame) -> str:
    """The largest differences, what one side lacks, and how many points have each verdict."""
    import numpy as np

    is_open = rows["verdict"] == UNDECIDED
    text_of = rows["verdict"].mask(is_open, UNDECIDED + ": " + rows["reason"])
    rows = rows.assign(text=text_of, size=abs(np.log(rows["ratio"])))
    points = rows[rows["ratio"].notna()]
    ranks = [
        points["verdict"].isin(pair) for pair in ((SLOWER, FASTER), (SLOWER_ONCE, FASTER_ONCE))
    ]
    points = points.assign(
        label=_labels(points) if len(points) else "", open=np.select(ranks, [0, 1], 2)
    )
    points = points.sort_values(["open", "size"], ascending=[True, False], kind="stable")
    table = [["B is", "B / A", "95 % interval", "A", "B", "cell and point"]]
    for row in points[:SHOWN_DIFFERENCES].to_dict("records"):
        interval = f"{row['low']:.3f} to {row['high']:.3f}" if row["low"] == row["low"] else "-"
        times = (formatting.duration(row[f"{side}_s"]) for side in "ab")
        table.append([row["text"], f"{row['ratio']:.3f}", interval, *times, row["label"]])
    text = formatting.aligned(table) if len(points) else []
    if len(points) > SHOWN_DIFFERENCES:
        text.append(f"... and {len(points) - SHOWN_DIFFERENCES} more, which --csv FILE writes")
    broken = rows[rows["verdict"] == FAILED_IN_B][:SHOWN_DIFFERENCES]
    text += list(f"{FAILED_IN_B}: " + broken["cell_b"] + ": " + broken["reason"])
    counts = rows["text"].value_counts().items()
    text.append(", ".join(f"{count} {verdict}" for verdict, count in counts))
    if rows["reason"].eq(SINGLE).any():
        text.append(f"{SINGLE}: {REMEDY}")
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in text)


def _labels(rows: pd.DataFrame) -> pd.Series:
    """A label of each line: its workload, and the axes and parameters that differ."""
    import pandas as pd

    facts = pd.DataFrame([json.loads(point) for point in rows["point"]], rows.index, dtype=object)
    own = facts.notna()
    facts = (facts.columns + "=" + facts.astype("str")).where(own, "")
    axes = rows["cell_a"].str.split("/", expand=True).set_axis([*AXES], axis=1)
    facts = pd.concat([axes, rows["series"], facts], axis=1)
    labels = []
    for workload, group in facts.groupby("workload", sort=False):
        apart = group.loc[:, group.nunique() > 1].itertuples(index=False)
        texts = [" ".join(filter(None, (str(workload), *row))) for row in apart]
        labels.append(pd.Series(texts, group.index))
    return pd.concat(labels)


def condition(text: str) -> tuple[str, str]:
    """The key and value of KEY=VALUE.

    Raises:
        UserError: it is none, or the key names nothing.
    """
    key, _, value = text.partition("=")
    if key not in COMPARED_KEYS or not value:
        keys = f"expected KEY=VALUE, and as KEY one of: {', '.join(COMPARED_KEYS)}"
        meant = "" if key in COMPARED_KEYS else nearest(key, COMPARED_KEYS)
        raise UserError(f"condition '{text}'{meant}; {keys}")
    return key, value


Conditions = Sequence[tuple[str, str]]
CONDITION = {"type": condition, "metavar": "KEY=VALUE"}


def main(
    a: Annotated[Path, "results/, a checkout, or a bundle", {"metavar": "A"}],
    b: Annotated[Path | None, "like A; A if left out", {"metavar": "B"}] = None,
    *,
    where_a: Annotated[
        Conditions, f"cells of A with these: {', '.join(COMPARED_KEYS)}", CONDITION
    ] = (),
    where_b: Annotated[Conditions, "cells of B with these", CONDITION] = (),
    threshold: Annotated[float, "that counts (default: 3)", {"metavar": "PERCENT"}] = 3,
    csv: Annotated[Path | None, "write all points there", {"metavar": "FILE"}] = None,
) -> int:
    """Compare and print; see the module for the exit status."""
    if not 0 < threshold < 100:
        raise UserError("--threshold: expected a percentage between 0 and 100")
    of_a, of_b = dict(where_a), dict(where_b)
    if of_a == of_b and b is None:
        raise UserError(f"{a}: B is missing; name B, or pass --where-a and --where-b")
    b = b or a
    with options.spinner(f"reading the records of {a} and {b}"):
        records_a, unreadable_a = load(a, of_a)
        records_b, unreadable_b = load(b, of_b)
        found = lines(records_a, records_b, differing(records_a, records_b, of_a, of_b))
        rows = judged(found, threshold / 100)
    verdicts = {*rows["verdict"]}
    if not verdicts & {*DECIDED, FASTER_ONCE, SLOWER_ONCE, UNDECIDED, FAILED_IN_B}:
        raise UserError(f"{a} and {b} have no cell or point in common")
    if csv:
        temporary.write(csv, rows.map(table_files.harmless).to_csv(index=False))
    for line in [*unreadable_a, *unreadable_b]:
        print(printable(line), file=sys.stderr)
    print("\n".join(map(printable, as_text(rows).splitlines())))
    if verdicts & {SLOWER, FAILED_IN_B}:
        return SOMETHING_SLOWER
    return 0 if verdicts & {*DECIDED, FASTER_ONCE, SLOWER_ONCE} else NOTHING_DECIDED
