"""MLP, CNN and LSTM of Daniel 2023: steps, epochs and how many times as fast one side trains as another."""

import math

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.answer import STEP
from siliconprof.analyse.frames import DEVICE, PATH, Frames, group_numbers, rank
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import PLACE_TEXTS, Column, Num, Text, exhibit
from siliconprof.render.exhibits.studies.grid import integers_as_text

NETWORKS_TRAINER = "epochs"
ARTICLES_ORDER = ("MLP", "CNN", "LSTM")


def trained(frames: Frames) -> pd.DataFrame:
    """Points with `title` and `epoch_s`, whose interval is as wide as that of its steps."""
    frame = frames.points[frames.points["trainer"] == NETWORKS_TRAINER]
    frame = frame[~frame["is_mechanism_check"]]
    names = frame["network"].fillna(frame["module"]).str.upper()
    several = frame.groupby(names)["workload"].transform("nunique") > 1
    ends = {f"epoch_s{end}": frame[f"{STEP}{end}"] / frame[STEP] for end in ("_low", "_high")}
    return frame.assign(
        title=names + (" (" + frame["workload"] + ")").where(several, ""),
        network_order=rank(names, ARTICLES_ORDER),
        place_order=frame.groupby(DEVICE)["order"].transform("min"),
        **{name: frame["epoch_s"] * share for name, share in ends.items()},
        epoch_s_n=frame[f"{STEP}_n"],
    ).sort_values(["network_order", "title", "place_order", "batch_size", "order"])


EPOCH_PART_LABELS = {
    "data_ms": "data",
    "trace_ms": "building the graph (MLX)",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
    "other_ms": "other",
}
EPOCH = "training and validation; its interval is as wide as that of the steps"


@exhibit(
    "networks",
    figure=StackedBars(
        panel="panel",
        group="place",
        row="row",
        parts=EPOCH_PART_LABELS,
        x="time of a step / ms",
        dot=(STEP, "whole step, timed by itself"),
    ),
    table=(
        Text("title", "Network"),
        Num("batch_size", "Batch", integer=True),
        *PLACE_TEXTS,
        Num("epoch_s", "Epoch", "s", help=EPOCH),
        Text("epoch_means", "Epoch is", below="made"),
        Num(STEP, "Whole step", "ms"),
        Num("samples_per_s", "Speed", "samples/s"),
        Num("n_parameters", "Parameters", integer=True),
    ),
    folded="Steps and epochs",
)
def networks(frames: Frames) -> pd.DataFrame:
    """MLP, CNN and LSTM of Daniel 2023: a step by batch size, its parts, and the epoch that it makes.

    Each network and batch size; one that was not measured has its reason.
    """
    cells = frames.cells
    lost = cells[cells["trainer"].eq(NETWORKS_TRAINER) & cells["status"].ne("ok")]
    lost = lost.assign(title=lost["module"].str.upper())
    frame = pd.concat([trained(frames), lost], ignore_index=True).copy()
    status = frame["point_status"].fillna(frame["status"])
    reason = frame["point_reason"].fillna(frame["reason"]).fillna("no reason given")
    why = (status.map(formatting.STATUS_WORDS) + ": " + reason).where(status != "ok")
    steps = part_of_total(frame, "epoch_measured_steps", "epoch_steps") + " steps"
    validated = part_of_total(frame, "epoch_measured_validation_steps", "epoch_validation_steps")
    made = steps + ", " + validated + " validation batches"
    setup = frame["backend_label"] + " · " + frame["precision"]
    return frame.assign(
        why_not=why,
        panel=frame["title"].where(why.isna()),  # what was not measured is in the table alone
        row="batch " + integers_as_text(frame["batch_size"]) + ", " + setup,
        made=made.where(frame["epoch_means"] == "extrapolated", ""),
    )


def part_of_total(frame: pd.DataFrame, part: str, every: str) -> pd.Series:
    """`24 of 1563`."""
    return integers_as_text(frame[part]) + " of " + integers_as_text(frame[every])


OF_EPOCHS = "training and validation; the first table has the ratio of a training step"
ROW = ["a", "b", "network", "published", "source_text"]
EVERY = "all"  # batch sizes


def columns(frame: pd.DataFrame) -> list[Column]:
    """One for each batch size."""
    names = {name.split("_")[1] for name in map(str, frame) if name.startswith("times_")}
    sizes = sorted(names - {EVERY}, key=int)
    return [
        Text("a", "Trains an epoch", prose=True, help=OF_EPOCHS),
        Text("b", "so many times as fast as", prose=True),
        Text("network", "Network"),
        *(
            Num(f"times_{size}", f"batch {size}", "×", below=f"times_{size}_bound")
            for size in sizes
        ),
        Num(f"times_{EVERY}", "all sizes", "×", help="geometric mean", below="times_all_bound"),
    ]


@exhibit("network-ratios", table=columns)
def network_ratios(frames: Frames) -> pd.DataFrame:
    """MLP, CNN and LSTM: how many times as fast one side trains as another, beside Daniel 2023's ratios.

    A side is a device and a backend. Across hosts a device stands for its fastest backend.

    A row for each two sides and network, and of each batch size its ratio with its interval.
    """
    ratios = measured(frames)
    if ratios.empty:
        return ratios
    logs = ratios["times"].map(math.log)
    mean = logs.groupby([ratios[name] for name in ROW], sort=False).mean()
    means = mean.map(math.exp).reset_index().assign(batch=EVERY)
    long = pd.concat([ratios, means, printed(frames)], ignore_index=True)
    values = ["times", "times_low", "times_high", "times_n", "times_bound"]
    wide = long.reindex(columns=[*ROW, "batch", *values]).pivot(index=ROW, columns="batch")
    wide.columns = wide.columns.map(lambda pair: pair[0].replace("times", f"times_{pair[1]}"))
    frame = wide.reindex(pd.MultiIndex.from_frame(long[ROW].drop_duplicates())).reset_index()
    why = frame["published"].map({True: "not printed", False: "not measured with this batch size"})
    return frame.assign(why_not=why)


def measured(frames: Frames) -> pd.DataFrame:
    """Ratios of epochs of equal work: of a GPU over a CPU, else of the faster over the slower."""
    frame = trained(frames)
    frame = frame[frame["epoch_s_low"].gt(0)]
    epochs = ["epoch_s", "epoch_s_low", "epoch_s_high", "epoch_s_n"]
    names = ["source", "host", "network_order", "title", "batch_size", *epochs]
    work = group_numbers(frame, *PATH)
    own = [frame[name] for name in DEVICE]
    sides = frame[names].assign(
        work=work,
        side=frame["place"] + " · " + frame["backend_label"],
        side_order=frame.groupby([*own, frame["backend"]])["order"].transform("min"),
        is_cpu=frame["device_kind"].eq("cpu"),
        is_fastest=frame["epoch_s"] == frame.groupby([*own, work])["epoch_s"].transform("min"),
    )
    both = sides.merge(sides, on="work", suffixes=("", "_b")).query("side != side_b")
    at_home = both["source"].eq(both["source_b"]) & both["host"].eq(both["host_b"])
    abroad = both["is_fastest"] & both["is_fastest_b"] & both["is_cpu"].eq(both["is_cpu_b"])
    both = both[at_home | abroad]
    times = both["epoch_s_b"] / both["epoch_s"]
    faster = times.map(math.log).groupby([both["side"], both["side_b"]]).transform("mean")
    first = faster.gt(0) | (faster.eq(0) & both["side_order"].lt(both["side_order_b"]))
    first = first.where(both["is_cpu"] == both["is_cpu_b"], both["is_cpu_b"])
    found = pd.DataFrame(
        {
            "a": both["side"],
            "b": both["side_b"],
            "network": both["title"],
            "published": False,
            "source_text": "",
            "batch": integers_as_text(both["batch_size"]),
            "times": times,
            "times_low": both["epoch_s_low_b"] / both["epoch_s_high"],
            "times_high": both["epoch_s_high_b"] / both["epoch_s_low"],
            "times_n": both[["epoch_s_n", "epoch_s_n_b"]].min(axis=1),
        }
    )
    by = ["side_order", "side_order_b", "network_order", "title", "batch_size"]
    return found.loc[both[first].sort_values(by).index]


def printed(frames: Frames) -> pd.DataFrame:
    """The article's numbers; where it only says faster or slower, it prints none."""
    frame = frames.published("daniel2023_speedups")
    low, high = frame["value_min"].astype(float), frame["value_max"].astype(float)
    unsaid = (low.isna() & high.eq(1)) | (high.isna() & low.eq(1))
    named = frame[["device_b", "model"]].notna().all(axis=1) & frame["unit"].eq("times")
    frame = frame.assign(times=high.fillna(low))[named & ~unsaid]
    return pd.DataFrame(
        {
            "a": frame["device_a_label"],
            "b": frame["device_b_label"].fillna("its own CPU"),
            "network": frame["model"],
            "published": True,
            "source_text": frame["source"] + ": " + frame["statement"],
            "batch": frame["batch_size"].fillna(EVERY),
            "times": frame["times"],
            "times_bound": frame["value_min"].isna().map({True: "at most", False: ""}),
        }
    )
