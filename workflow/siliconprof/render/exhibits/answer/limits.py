"""What stands behind the answer: the hardware's limits, memory and energy, checks, how to make it again."""

from typing import Any

import numpy as np
import pandas as pd

from siliconprof import __version__, formatting
from siliconprof.analyse import step_work, throughputs
from siliconprof.analyse.frames import (
    CELL,
    DEVICE,
    POINT,
    PRECISIONS,
    Frames,
    holds,
    rank,
    records,
    timed_by_phase,
)
from siliconprof.analyse.scaling import AMORTISED
from siliconprof.analyse.throughputs import PLACE
from siliconprof.formatting import GIGA, MIB
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.render import summary
from siliconprof.render.axes import text
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import PLACE_TEXTS, Num, Text, exhibit
from siliconprof.stats import inference

CEILING_WORDS = {
    "matmul": "product",
    "memory_bandwidth": "memory",
    "cache_bandwidth": "cache",
    AMORTISED: "launch",
}
CEILING_COLUMNS = {  # of ceilings.csv -> what ends a column of the table
    **{"value": "", "value_low": "_low", "value_high": "_high", "n": "_n", "how": "_how"},
    **{"datasheet_value": "_sheet", "share": "_share", "datasheet_source": "_source"},
    **{"datasheet_reason": "_sheet_why", "workload": "_workload"},
}


@exhibit(
    "limits",
    table=(
        *PLACE_TEXTS,
        Num("product", "Fastest matmul", "GFLOP/s", scale=GIGA, below="product_how"),
        Num("product_sheet", "Data sheet", "GFLOP/s", scale=GIGA, published=True, folds=True),
        Num("product_share", "Share of peak matmul", percent=True, folds=True),
        Num("memory", "Memory", "GB/s", scale=GIGA, below="memory_how"),
        Num("memory_sheet", "Data sheet", "GB/s", scale=GIGA, published=True, folds=True),
        Num("memory_share", "Share of it", percent=True, folds=True),
        Num("cache", "Cache", "GB/s", scale=GIGA, below="cache_how", folds=True),
        Num("launch", "Launch, among many", "µs", scale=1e-6),
    ),
)
def limits(frames: Frames) -> pd.DataFrame:
    """What the hardware does at most: products, bandwidth and launches measured here, and the data sheet."""
    lines, cells = frames.table("ceilings"), frames.cells
    lines = lines[lines["quantity"].isin(CEILING_WORDS)]
    disturbed = lines["record"].isin(cells.loc[cells["disturbed"], "record"])
    lines = lines.assign(
        column=lines["quantity"].map(CEILING_WORDS),
        how=lines["how"].mask(disturbed, lines["how"] + ", disturbed"),
    )
    by = [*PLACE, "precision", "column"]
    frame = pd.DataFrame(lines.set_index(by)[[*CEILING_COLUMNS]].unstack("column"))
    pairs: list[Any] = list(frame.columns)
    frame.columns = pd.Index([f"{name}{CEILING_COLUMNS[column]}" for column, name in pairs])
    every = [f"{name}{end}" for name in CEILING_WORDS.values() for end in CEILING_COLUMNS.values()]
    names = [*PLACE, "device_label", "whose", "backend_label", "place", "order"]
    frame = (
        frame.reindex(columns=every)
        .reset_index()
        .merge(cells[names].drop_duplicates(PLACE), on=PLACE)
    )
    sheets = throughputs.with_datasheet(frame[DEVICE], frames.sheets.bandwidth)
    frame = frame.assign(
        memory_sheet=sheets["datasheet_value"],
        nth=rank(frame["precision"], PRECISIONS),
        workload=frame["product_workload"].fillna(frame["memory_workload"]),
        source_text=frame["product_source"].fillna(sheets["datasheet_source"]),
        product_share_why=frame["product_sheet_why"],
        memory_share_why=sheets["datasheet_reason"],
    )
    return frame.sort_values(["order", "nth"], kind="stable", ignore_index=True)


OPERATIONS = ("matmul", "matvec", "vjp")
TRAINING = "training"
SHAPED = ("transformer_grid", "transformer_lm", "optimizer_sweep")  # that `step_work` can count
WORKLOAD_WORDS = {
    "matmul": "matrix product",
    "matvec": "matrix-vector product",
    "vjp": "gradients of a product",
    TRAINING: "training step, FLOP per byte at most",
}
MOST_DOTS = 160  # of a panel; above it a cell has the one that is nearest to its roof


@exhibit(
    "roofline",
    figure=Scatter(
        x="intensity",
        y="speed",
        x_label="FLOP per byte",
        y_label="GFLOP/s",
        name="name",
        roofs=("level", "slope", "roof"),
        panel="number_format",
        high_in=2.4,
    ),
)
def roofline(frames: Frames) -> pd.DataFrame:
    """Roofline: operations a byte and a second of products and trainings, under what was measured at most.

    Williams, Waterman and Patterson 2009, Roofline: a computation runs no faster than the fastest
    product, and no faster than its operations a byte times the bandwidth: of the cache for what fits it,
    of the memory for all else. All three are measured on the device, by whichever backend is the fastest, as
    in checks.csv.
    """
    frame = under_roofs(frames)
    if frame.empty:
        return frame
    frame = frame.assign(
        # What markers tell apart.
        place=frame["place"] if frame["place"].nunique() > 1 else frame["kind"].map(WORKLOAD_WORDS),
        speed=frame["flop_per_s"] / GIGA,
        level=frame["product"] / GIGA,
        slope=(frame["bandwidth"] / GIGA).fillna(np.inf),  # unknown: the products alone
        roof=frame["place"]
        + ", "
        + frame["product_format"].fillna(frame["number_format"])
        + ", "
        + frame["bound"],
    )
    crowded = frame.groupby("number_format")["share"].transform("size") > MOST_DOTS
    nearest = frame.sort_values("share", ascending=False).drop_duplicates([*CELL, "kind"])
    frame = frame[~crowded | frame.index.isin(nearest.index)]
    share = [formatting.percent(share) if share == share else "no part" for share in frame["share"]]
    frame = frame.assign(
        name=frame["workload"]
        + (", " + frame["setup"]).where(frame["kind"] == TRAINING, ", " + frame["how"]),
        hover=pd.Series(share, frame.index) + " of the roof",
    )
    return pd.concat([frame, _sheets(frame, frames)])


def under_roofs(frames: Frames) -> pd.DataFrame:
    """Every point whose operations and bytes are known; no operation that was disturbed.

    Columns beside those of the point: `kind`, `number_format`, `intensity` (FLOP/byte; of a training
    the most that it can be), `in_cache`; of its roof `product` (FLOP/s) and `bandwidth` (bytes/s)
    with `bound`, whose that is, and `roof`, the lesser of what both allow; `share` of it. The product is
    `throughputs.fastest_product`.
    """
    frame = frames.points[frames.points["point_disturbed"].isna()]
    frame = frame.assign(number_format=frame["precision"].map(PEAK_OF_PRECISION))
    lines = frames.table("ceilings")
    frame = pd.concat([_operations(frame, frames.table("checks")), _trainings(frame)])
    frame = frame[frame["intensity"].gt(0) & frame["flop_per_s"].gt(0)].copy()
    products = throughputs.fastest_product(frame, lines)
    frame = frame.assign(product=products["ceiling"], product_format=products["ceiling_format"])
    # Memory and caches know neither backends nor number formats.
    for name in ("memory", "cache"):
        best = lines[lines["quantity"] == f"{name}_bandwidth"].groupby(DEVICE)["value"].max()
        frame = frame.join(best.rename(f"{name}_bandwidth"), on=DEVICE)
    bandwidth = frame["memory_bandwidth"].mask(frame["in_cache"], frame["cache_bandwidth"])
    below = frame["intensity"] * bandwidth
    roof = frame[["product"]].assign(below=below).min(axis=1).where(frame["product"].notna())
    return frame.assign(
        bandwidth=bandwidth,
        bound=np.where(frame["in_cache"], "cache", "memory"),
        roof=roof,
        share=frame["flop_per_s"] / roof,
    )


def _operations(frame: pd.DataFrame, checks: pd.DataFrame) -> pd.DataFrame:
    frame = frame[frame["module"].isin(OPERATIONS)]
    in_cache = checks["quantity"].eq("bytes_per_s") & checks["compared_value"].isna()
    return frame.assign(
        kind=frame["module"],
        intensity=frame["flops"] / frame["bytes"],
        in_cache=frame["order"].isin(checks.loc[in_cache, "order"]),
    )


def _trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Trainings with the least bytes that a step must move; these are unknown when it offloads."""
    is_training = timed_by_phase(frame) | frame["module"].isin(SHAPED)
    frame = frame[is_training & ~holds(frame, "offloads")]
    least = [_least(row) for row in records(frame)]
    moved, working_set = pd.DataFrame(least, frame.index, ["moved", "set"]).T.to_numpy(float)
    return frame.assign(
        kind=TRAINING,
        intensity=frame["flops"] / moved,
        in_cache=frame["cache_bytes"] >= working_set,
    )


def _least(row: dict[str, Any]) -> tuple[float, float]:
    """(least bytes that a step must move, bytes that it works on); NaN where they are unknown."""
    shape = [formatting.number(row.get(name)) for name in step_work.SHAPE]
    if row["module"] in SHAPED and None not in shape:
        least = step_work.least_bytes(row)
        return least.fixed + least.activations, least.working_set
    # AdamW's passes over what is trained, and the kept activations written and read once: reading
    # the weights and all gradients are left out.
    width = 2 if step_work.way(row["precision"]) == "pure" else 4
    kept, trained = row["predicted_activations_bytes"], row["n_trainable_parameters"]
    moved = width * trained * step_work.ADAMW_PASSES + 2 * kept
    return moved, width * (row["n_parameters"] + 3 * trained) + kept


def _sheets(frame: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The roof by the data sheet, with a mark where both its parts meet."""
    one = frame.drop_duplicates([*DEVICE, "number_format"])
    sheets = frames.sheets
    both = [
        (sheets.peak(row, row["number_format"]).value, sheets.bandwidth(row).value)
        for row in records(one)
    ]
    printed = pd.DataFrame(both, one.index, ["level", "slope"], float) / GIGA
    printed = printed.assign(
        number_format=one["number_format"],
        intensity=printed["level"] / printed["slope"],
        speed=printed["level"],
        roof="the data sheet, " + one["device_label"],
        name="data sheet",
        published=True,
    )
    return printed.dropna(subset=["intensity"])


CHECK = "a mechanism check: it says nothing about memory or energy"
JOULES = ["energy_per_step_j", "energy_per_sample_j", "net_energy_per_step_j"]
ENERGY_COLUMNS = [*POINT, "source_of_energy", "reason", *JOULES]


@exhibit(
    "memory-energy",
    table=(
        Text("training", "Training"),
        Text("place", "Device", folds=True, prose=True),
        Text("setup", "Setup", prose=True),
        Num("predicted_on_device_bytes", "Predicted", "MiB", scale=MIB),
        Num("device_peak_bytes", "Device peak", "MiB", scale=MIB),
        Num("over", "Predicted / peak"),
        Num("growth_bytes", "Process grew by", "MiB", scale=MIB),
        Num("energy_per_step_j", "Energy", "J a step"),
        Num("energy_per_sample_j", "Energy", "J a sample", folds=True),
        Num("net_energy_per_step_j", "Above idle", "J a step", folds=True),
        Text("source_of_energy", "Counted by", folds=True),
    ),
)
def memory_energy(frames: Frames) -> pd.DataFrame:
    """Memory and energy of each training; of several sources of energy a row each."""
    points = frames.points[frames.points["trainer"].notna()]
    lines = frames.table("energy")
    is_read = lines["energy_per_step_j"].notna()
    named = lines["name"] + " (" + lines["scope"] + ", " + lines["quality"] + ")"
    lines = lines.assign(source_of_energy=named.where(is_read))
    # Where nothing was read, one line says why.
    silent = lines[~is_read & ~lines["order"].isin(lines.loc[is_read, "order"])]
    lines = pd.concat([lines[is_read], silent.drop_duplicates("order")])[ENERGY_COLUMNS]
    frame = points.merge(lines, on=POINT, how="left", suffixes=("", "_of_energy"))
    check = frame["is_mechanism_check"].map({True: CHECK, False: None})
    why = check.fillna(frame["reason_of_energy"]).fillna("not read")
    batch = frame["samples_per_step"].map(", batch {:.0f}".format).astype("str")
    predicted, peak = frame["predicted_on_device_bytes"], frame["device_peak_bytes"]
    # What is predicted is an eager step's, which keeps more than a compiled one; a mechanism check's
    # peak holds what it offloads.
    is_like = ~frame["is_mechanism_check"] & ~holds(frame, "compile") & predicted.gt(0) & peak.gt(0)
    frame = frame.assign(
        training=frame["model"] + batch.where(frame["samples_per_step"].notna(), ""),
        predicted_on_device_bytes_why="nothing was predicted for it",
        device_peak_bytes_why=frame["device_peak_means"].fillna("its backend counts no memory"),
        over=(predicted / peak).where(is_like),
        over_why=check.fillna("one of the two is missing, or the step is compiled"),
        growth_bytes=frame["rss_peak_sampled_bytes"] - frame["rss_at_start_bytes"],
        growth_bytes_why="the memory probe was not available",
        **{name: frame[name].mask(frame["is_mechanism_check"]) for name in JOULES},
        **{f"{name}_why": why for name in JOULES},
    )
    by = ["family_order", "order"]
    return frame.sort_values(by, ascending=[False, True], kind="stable", ignore_index=True)


LONGEST_REASON = 100  # of a reason; the table of all cells has the whole
DRIFT = "drift_check"  # of how repeats scatter, not of what is true


@exhibit(
    "checks",
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("backend_label", "Backend"),
        Num("ok", "Measured", "cells", integer=True, below="planned"),
        Num("passed", "Checks passed", integer=True, below="made"),
        Text("failed", "Checks failed", prose=True, folds=True),
        Text("largest_error", "Largest error", help="of a result against float64"),
        Num("disturbed", "Disturbed", "cells", integer=True),
        Text("intervals", "95 % intervals"),
        Text("lost", "Not measured", prose=True),
    ),
)
def checks(frames: Frames) -> pd.DataFrame:
    """Can I trust it: what was measured on each device and backend, what not, and what its cells checked.

    Checks are of the clock, the waiting and the arithmetic; how much repeats drift is in cells.csv.
    """
    checks = frames.cells.filter(regex="_check$").drop(columns=DRIFT, errors="ignore")
    processes = frames.points.groupby(CELL)["processes"].max()
    cells = frames.cells.join(processes, on=CELL)
    cells = cells.assign(
        ok=cells["status"].eq("ok"),
        passed=(checks == "ok").sum(axis=1),
        checked=checks.isin(["ok", "failed"]).sum(axis=1),
        between=cells["processes"] > 1,
        status=cells["status"].map(formatting.STATUS_WORDS),
        reason=[formatting.shortened(text(reason), LONGEST_REASON) for reason in cells["reason"]],
    )
    first = {name: (name, "first") for name in ("device_label", "whose", "backend_label", "order")}
    sums = {name: (name, "sum") for name in ("ok", "passed", "checked", "disturbed", "between")}
    most = ("worst_result_error", "max")
    frame = cells.groupby(PLACE).agg(**first, **sums, n=("ok", "size"), error=most)
    names = {column: str(column).removesuffix("_check").replace("_", " ") for column in checks}
    failed = cells.melt(PLACE, list(checks), "check", "outcome").replace({"check": names})
    between = [f"between processes in {k} of {n}" for k, n in frame[["between", "ok"]].to_numpy()]
    frame = frame.assign(
        planned=frame["n"].map(lambda n: f"of {formatting.count(n, 'cell')}"),
        made=frame["checked"].map("of {}".format),
        failed=_listed(failed[failed["outcome"] == "failed"], ["check"], "{check}: {n}"),
        lost=_listed(cells[~cells["ok"]], ["status", "reason"], "{n} {status}: {reason}"),
        largest_error=[
            formatting.scientific(error) if error == error else "" for error in frame["error"]
        ],
        intervals=pd.Series(between, frame.index).where(frame["between"] > 0, inference.WITHIN),
    )
    frame = frame.sort_values("order").reset_index()
    return pd.concat([frame, _absent(frames)], ignore_index=True)


def _listed(cells: pd.DataFrame, by: list[str], form: str) -> pd.Series:
    """Counts of the cells of each backend by some columns, in words."""
    counts = cells.groupby([*PLACE, *by], sort=False).size().rename("n").reset_index()
    counts["text"] = [form.format(**row) for row in records(counts)]
    return counts.groupby(PLACE)["text"].agg("; ".join)


def _absent(frames: Frames) -> pd.DataFrame:
    """Backends of this host that do not work, and devices that the experiment names and none has."""
    host, names = frames.matrix.host, frames.sheets.registry["devices"]
    rows_ = [
        {"device_label": f"none on {host['label']}", "backend_label": name, "lost": state["reason"]}
        for name, state in host["backends"].items()
        if state["reason"]
    ]
    rows_ += [
        {"device_label": names.get(id_, {}).get("name", id_), "lost": one["reason"]}
        for one in frames.matrix.not_measured
        for id_ in [one["device"]]
    ]
    return pd.DataFrame(rows_).assign(why_not="not measured")


ANALYSE_AGAIN = (
    "snakemake --cores 1 report --configfile results/experiment.json --replace-workflow-config"
)


@exhibit("reproduce", facts=True)
def reproduce(frames: Frames) -> pd.DataFrame:
    """How to make it again: the command, the code, the versions, the hosts and when."""
    host, experiment, cells = frames.matrix.host, frames.matrix.experiment, frames.cells
    own, others = cells[cells["here"]], cells[~cells["here"]]
    machine = host["os"]
    facts = {
        "Command": ANALYSE_AGAIN,
        "Experiment": str(experiment.get("experiment") or ""),
        "Code": _commits(own),
        "Measured": summary.when(own),
        "Host": summary.host_line(host),
        "System": f"{machine['system']} {machine['release']}, {machine['machine']}",
        "Driver": _versions(host["driver"]),
        "Packages": _versions(host["packages"]),
        "BLAS": _versions(host["blas"]),
        "BLAS of MLX": _given(own),
        "Page": f"made by siliconprof {__version__}",
        **{
            str(whose).capitalize(): f"{_commits(rows_)}, {summary.when(rows_)}"
            for whose, rows_ in others.groupby("whose", sort=False)
        },
    }
    known = [(name, value) for name, value in facts.items() if value]
    return pd.DataFrame(known, columns=["name", "value"])


def _commits(cells: pd.DataFrame) -> str:
    commits = sorted(cells["git_commit"].dropna().unique())
    short = [c[:12] + (" with changes" if c.endswith("+changes") else "") for c in commits]
    return formatting.listing(short) or "unknown (not a git checkout)"


def _given(cells: pd.DataFrame) -> str:
    """The OpenBLAS that MLX's processes on a CPU loaded in place of their wheel's own BLAS."""
    of_mlx = cells[cells["backend"].eq("mlx") & cells["blas"].str.startswith("OpenBLAS", na=False)]
    libraries = formatting.listing(of_mlx["blas"].unique())
    return f"{libraries}, given to MLX in place of the slower one in its wheel" if libraries else ""


def _versions(names: dict[str, str | None]) -> str:
    """`numpy 2.4.6, torch 2.13.0`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {names[name]}" for name in sorted(names) if names[name]
    )
