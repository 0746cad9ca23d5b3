"""One record as lines of the tidy tables: of its cell, points, repeats, steps, samples and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof import declarations
from siliconprof.analyse import operator_rows, study_rows
from siliconprof.hosts.sensors import sources
from siliconprof.stats import statistics
from siliconprof.store import columns, table_files
from siliconprof.store.cell import AXES, canonical_json
from siliconprof.store.record import WORDS
from siliconprof.store.table_files import Block

KEY = table_files.KEY
PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")  # of predicted memory
WARM_UP = "warmup_step_s"
# By the vendor of a GPU whose host draws power of its own: Feng et al. 2025, section 4.2, after Lewis et al.
HOST_POWER_ASSUMED_W = {"nvidia": 70.0}


def key(source: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that name a cell."""
    return {"source": source} | {axis: data["cell"][axis] for axis in AXES}


def joined(method: Mapping[str, Any] | None) -> str | None:
    """`key: value; …` of a part of the method."""
    return "; ".join(f"{k}: {v}" for k, v in method.items()) if method else None


def point_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of points.csv: medians, quartiles and the intervals that ended sampling."""
    settings = study_rows.common_settings(data["cell"])
    for index, point in enumerate(data["points"]):
        named = settings | {k: v for k, v in point["params"].items() if k in settings}
        if study_rows.lacking(data["cell"]["module"], named):
            continue
        params, times = point["params"], point["times"]
        row = key(source, data) | {
            "module": data["cell"]["module"],
            "trainer": data["cell"]["trainer"],
            "effective_precision": data["precision"]["effective"],
            "point": index,
            "params": canonical_json(
                {k: v for k, v in params.items() if k not in WORDS}
            ),  # as `compare` and the noise floor name a point
            **named,
            "flops": point["flops"],
            "bytes": point["bytes"],
            "device_peak_bytes": point["memory"].get("device_peak_bytes"),
            "device_peak_means": point["memory"].get("device_peak_means"),
            **faults_per_step(data, point.get("steps")),
            **time_per_step(point),
            "result_error": point.get("result_error"),
            "stopped_by": point.get("stopped_by"),
            "free_running_steps": point.get("free_running_steps"),
            "forward_only_over_forward": point.get("forward_only_over_forward"),
            "calls_per_time": point.get("calls_per_time"),
            "launch_bound": point.get("launch_bound"),
            "burst_mean_s": point.get("burst_mean_s"),
            "burst_reason": point.get("burst_reason"),
            **launch_columns(point),
            "loss_first": (point.get("loss") or [None])[0],
            "loss_last": (point.get("loss") or [None])[-1],
            "training_steps": len(point.get("loss") or []) or None,
            **study_rows.point_columns(data, point),
        }
        for name, quantity in declarations.quantities().items():
            if quantity.series:
                row |= summary(name, times.get(name) or [])
            elif name not in row:
                row[name] = point.get("quantities", {}).get(name)
        yield row | rates(row)


def launch_columns(point: Mapping[str, Any]) -> dict[str, Any]:
    """How a kernel's launch was timed and why a time is missing; None for every other point."""
    means, cold = point.get("means") or {}, point.get("cold") or {}
    reasons = cold.get("reasons") or {}
    return {
        "enqueue_burst": point.get("enqueue_burst"),
        "enqueue_means": means.get("enqueue"),
        "cold_means": means.get("cold"),
        "cold_processes": cold.get("processes"),
        "cold_failures": "; ".join(cold.get("failed") or []) or None,
        "cold_reason": reasons.get("cold_s"),
        "compile_and_load_reason": reasons.get("compile_and_load_s"),
    }


def faults_per_step(
    data: Mapping[str, Any], steps: Mapping[str, Sequence[Any]] | None
) -> dict[str, float | None]:
    """Median page faults of an unsplit step, in counts and bytes; None for what is no training."""
    page = data["probes"].get("page_faults", {}).get("page_size_bytes")
    row: dict[str, float | None] = {}
    for kind in ("minor", "major"):
        counts = (
            [
                count
                for step, count in zip(steps["kind"], steps[f"{kind}_faults"], strict=False)
                if step == "unsplit"
            ]
            if steps
            else []
        )
        median = statistics.median(counts) if counts else None
        row[f"{kind}_faults_per_step"] = median
        row[f"{kind}_faulted_bytes_per_step"] = (
            median * page if median is not None and page else None
        )
    return row


TIME_USE = ("cpu_s", "system_s", "waiting_s", "all_threads_cpu_s")  # see `thread_time`


def time_per_step(point: Mapping[str, Any]) -> dict[str, float | None]:
    """What an unsplit step's wall time went to, in seconds: means, since the kernel counts in ticks.

    `blocked_per_step_s` is what is left of the wall time: neither on a core nor waiting for one.
    """
    walls = point["times"].get("unsplit_step_s") or []
    row: dict[str, float | None] = {}
    for name in TIME_USE:
        used = of_unsplit_steps(point, name)
        mean = sum(used) / len(used) if used and len(used) == len(walls) else None
        row[f"{name.removesuffix('_s')}_per_step_s"] = mean
    on, waiting = row["cpu_per_step_s"], row["waiting_per_step_s"]
    wall = sum(walls) / len(walls) if on is not None else None
    left = None if wall is None or on is None or waiting is None else wall - on - waiting
    blocked = None if left is None else max(left, 0.0)
    return row | {"blocked_per_step_s": blocked, "wall_per_step_s": wall}


def of_unsplit_steps(point: Mapping[str, Any], name: str) -> list[float]:
    """One of `TIME_USE` of each unsplit step; fewer where the system did not tell."""
    steps = point.get("steps") or {}
    return [
        seconds
        for kind, seconds in zip(steps.get("kind", ()), steps.get(name, ()), strict=False)
        if kind == "unsplit" and seconds is not None
    ]


def summary(name: str, values: Sequence[float]) -> dict[str, float | int | None]:
    """n, median, quartiles and 95 % interval of one series; `forward_s` -> `forward_median_s`."""
    stem = name.removesuffix("_s")
    if not values:
        return dict.fromkeys(
            (
                f"{stem}_n",
                f"{stem}_median_s",
                f"{stem}_q25_s",
                f"{stem}_q75_s",
                f"{stem}_low_s",
                f"{stem}_high_s",
            )
        )
    low, high = statistics.median_interval(values)
    return {
        f"{stem}_n": len(values),
        f"{stem}_median_s": statistics.median(values),
        f"{stem}_q25_s": statistics.quantile(values, 0.25),
        f"{stem}_q75_s": statistics.quantile(values, 0.75),
        f"{stem}_low_s": low,
        f"{stem}_high_s": high,
    }


def rates(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Throughputs from the unsplit step where there is one, else from the synchronised call."""
    seconds = row["unsplit_step_median_s"] or row["step_median_s"]
    split = row["step_median_s"]

    def per_second(amount: float | None) -> float | None:
        return statistics.over(amount, seconds)

    return {
        "flop_per_s": per_second(row["flops"]),
        "bytes_per_s": per_second(row["bytes"]),
        "samples_per_s": per_second(row["samples_per_step"]),
        "tokens_per_s": per_second(row["tokens_per_step"]),
        "burst_flop_per_s": statistics.over(row["flops"] or None, row["burst_mean_s"]),
        "split_over_unsplit": statistics.over(split or None, row["unsplit_step_median_s"]),
        "unsplit_over_free_running": statistics.over(
            row["unsplit_step_median_s"], row["free_running_step_median_s"]
        ),
    }


def series_names() -> list[str]:
    """The raw times that tables hold: those that workloads declare, and the warm-up's."""
    declared = declarations.quantities().items()
    return [*(name for name, quantity in declared if quantity.series), WARM_UP]


def step_blocks(source: str, data: Mapping[str, Any]) -> Iterator[Block]:
    """Lines of steps.csv: every raw time, and every loss, by iteration."""
    for index, point in enumerate(data["points"]):
        times, losses = point["times"], point.get("loss") or []
        raw = [(name, "time_s", times.get(name) or []) for name in series_names()]
        for series, column, values in [*raw, ("loss", "loss", losses)]:
            empty = dict.fromkeys(("time_s", "loss"), [None] * len(values))
            yield (
                key(source, data) | {"point": index, "series": series},
                {"iteration": range(len(values)), **empty, column: values},
            )


def training_step_blocks(source: str, data: Mapping[str, Any]) -> Iterator[Block]:
    """Lines of training_steps.csv: when each step began, of what kind it was, its page faults."""
    for index, point in enumerate(data["points"]):
        steps = point.get("steps")
        if steps:
            length = len(steps["kind"])
            numbers = ("started_s", "minor_faults", "major_faults")
            yield (
                key(source, data) | {"point": index},
                {"iteration": range(length), "kind": steps["kind"]}
                | {n: [study_rows.at(steps[n], i) for i in range(length)] for n in numbers},
            )


def energy_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of energy.csv: one per source of energy of a training, or its reason.

    What the paper adds for the host of an NVIDIA GPU is an assumption, in a column that says so.
    An Apple GPU has no host beside its own chip, and the paper adds nothing there.
    """
    for index, point in enumerate(data["points"]):
        energy = point.get("energy")
        if energy is None:
            continue
        window_s, steps = energy.get("window_s"), energy.get("steps")
        for entry in energy.get("sources") or [{"reason": energy.get("reason")}]:
            if not all(entry.get(word) for word in ("name", "scope", "quality")):
                entry = {"reason": entry.get("reason") or "the record does not say of what"}
            joules = entry.get("energy_per_step_j")
            line = columns.besides_key("energy")
            line |= {name: value for name, value in entry.items() if name in line}
            line |= {"point": index, "window_s": window_s, "energy_steps": steps}
            host_w = assumed_host_w(entry.get("name"))
            if joules is not None and host_w is not None and window_s and steps:
                line["assumed_host_w"] = host_w
                line["energy_per_step_plus_assumed_host_j"] = joules + host_w * window_s / steps
            yield key(source, data) | line


def assumed_host_w(name: str | None) -> float | None:
    """What the paper assumes that the host draws beside a source of energy, in watts, or None."""
    source = sources.SOURCES.get(name or "")
    if source is None or source.scope != "gpu":
        return None
    return HOST_POWER_ASSUMED_W.get(source.vendor)


def curve_blocks(source: str, data: Mapping[str, Any]) -> Iterator[Block]:
    """Lines of curves.csv: every step of a whole training."""
    return ((key(source, data) | shared, rest) for shared, rest in study_rows.curve_blocks(data))


def evaluation_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of evaluations.csv: the loss on held-out data on the way."""
    return (key(source, data) | row for row in study_rows.evaluation_rows(data))


def text_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of texts.csv: what trained models wrote."""
    return (key(source, data) | row for row in study_rows.text_rows(data))


def probe_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of probes.csv: what each probe answered, by what means, and what it cost."""
    for name, summary in data["probes"].items():
        yield (
            key(source, data)
            | {"probe": name}
            | {
                column: value
                for column, value in summary.items()
                if isinstance(value, str | int | float | bool | None)
            }
            | {"reasons": joined(summary.get("reasons")), "limits": joined(summary.get("limits"))}
        )


def capture_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of captures.csv: each file that a tool left of a cell, or why it left none."""
    for tool, capture in (data.get("captures") or {}).items():
        capture_columns = {name: capture[name] for name in ("steps", "means", "reason")}
        for file in capture["files"] or [{}]:
            yield (
                key(source, data)
                | {
                    "tool": tool,
                    "file": file.get("path"),
                    "file_bytes": file.get("bytes"),
                    "file_sha256": file.get("sha256"),
                }
                | capture_columns
            )


def operator_lines(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of operators.csv: what a training step is made of, and how long each part takes."""
    return (key(source, data) | row for row in operator_rows.rows(data))


def sample_blocks(source: str, data: Mapping[str, Any]) -> Iterator[Block]:
    """Lines of samples.csv: the probes over time."""
    samples = data["samples"]
    names = dict.fromkeys(name for sample in samples for name in sample)
    yield key(source, data), {name: [sample.get(name) for sample in samples] for name in names}
