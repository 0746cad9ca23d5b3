"""One record as lines of the tidy tables: of its cell, points, repeats, steps, samples and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof import (
    check_columns,
    footprint,
    incomplete,
    record,
    result_sets,
    sensors,
    statistics,
    study_rows,
)
from siliconprof.cell import AXES, canonical_json
from siliconprof.errors import UserError
from siliconprof.timing import PHASES

HERE, IMPORTED, REFERENCE = "this host", "another host", "reference"
KEY = ("source", *AXES)
PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")  # of predicted memory
SERIES = (
    *PHASES, "step_s", "unsplit_step_s", "warmup_step_s", "energy_step_s", "forward_only_s",
    "cold_s", "launch_and_wait_s", "enqueue_s", "amortised_s", "import_s", "context_s",
    "other_kernel_s", "compile_and_load_s", "first_pass_s", "second_pass_s", "partial_step_s",
)  # fmt: skip
SUMMARISED = tuple(name for name in SERIES if name != "warmup_step_s")
PARAMS = ("batch", "m", "k", "n", "of", "count", "cache", "forward", "kernel", "working_set_bytes",
          "direction", "pinned", "transfer_bytes", "pages", "page_size_bytes", "batch_size",
          "n_parameters", "n_trainable_parameters", "samples_per_step", "tokens_per_step",
          "audio_s_per_step", "launch", "note", "burst")  # fmt: skip
ENERGY = (
    "name", "scope", "quality", "energy_j", "updates", "energy_per_step_j", "energy_per_sample_j",
    "idle_before_w", "idle_after_w", "net_energy_per_step_j", "reason",
)  # fmt: skip
# By the vendor of a GPU whose host draws power of its own: seed 001, section 4.2, after Lewis et al.
HOST_POWER_ASSUMED_W = {"nvidia": 70.0}


def key(source: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that name a cell."""
    return {"source": source} | {axis: data["cell"][axis] for axis in AXES}


def cell_row(source: str, path: Path, data: Mapping[str, Any], history: Path) -> dict[str, Any]:
    """One line of cells.csv."""
    cell, probes, accounting = data["cell"], data["probes"], data["accounting"]
    environment = data["environment"]
    flags = [*data["flags"], *incomplete.flags(data)]
    evidence = data["precision"]["evidence"]
    memory, faults = probes.get("memory", {}), probes.get("page_faults", {})
    parameters, limit = cell["parameters"], data["scenario"].get("limit") or {}
    earlier = record.earlier(data, history) if source == HERE else []
    return key(source, data) | {
        "module": cell["module"],
        "trainer": cell["trainer"],
        "device_kind": cell["device_kind"],
        "status": data["status"],
        "reason": data["reason"],
        "scenario_derived": data["scenario"]["derived"],
        "scenario_applied": data["scenario"]["applied"],
        "predicted_memory_bytes": data["scenario"]["predicted_bytes"],
        **{
            f"predicted_{part}_bytes": (data["scenario"].get("predicted_parts_bytes") or {}).get(
                part
            )
            for part in PARTS
        },
        "device_memory_bytes": data["scenario"]["device_memory_bytes"],
        "capacity_bytes": data["scenario"].get("capacity_bytes"),
        "capacity_source": data["scenario"].get("capacity_source"),
        "batch_size": data["scenario"].get("batch_size"),
        "batch_size_found": data["scenario"].get("batch_size_found"),
        "predicted_offloaded_bytes": _offloaded_bytes(data["scenario"]),
        "limit_enforced": limit.get("enforced"),
        "limit_how": limit.get("how"),
        "limit_reason": limit.get("reason"),
        "confirmed_peak_bytes": data["scenario"].get("confirmed_peak_bytes"),
        "size": parameters.get("size"),
        "lora_rank": parameters.get("lora_rank"),
        "lora_alpha": parameters.get("lora_alpha") if parameters.get("lora_rank") else None,
        "learning_rate": study_rows.single(parameters.get("learning_rate")),
        "seq_len": study_rows.single(parameters.get("seq_len")),
        "target_len": parameters.get("target_len"),
        "clip_seconds": parameters.get("dataset_clip_seconds"),
        "zero_stage": parameters.get("zero_stage")
        if data["scenario"]["applied"] == "offload"
        else None,
        "weights": parameters.get("weights"),
        "gradient_checkpointing": bool(parameters.get("gradient_checkpointing"))
        if cell["trainer"] or "gradient_checkpointing" in parameters
        else None,
        "allocator": parameters.get("allocator"),
        "offload": _line(data["method"].get("offload")),
        "effective_precision": data["precision"]["effective"],
        "product_error": evidence.get("product_error"),
        "master_weights_dtype": evidence.get("master_weights"),
        "activations_dtype": evidence.get("activations"),
        "threads": cell["threads"],
        "seed": cell["seed"],
        "dataset": (data["dataset"] or {}).get("name"),
        "data_sha256": (data["dataset"] or {}).get("data_sha256"),
        "data_synthetic": (data["dataset"] or {}).get("synthetic"),
        **_last_level_cache(data),
        "points": len(data["points"]),
        "flags": ";".join(sorted({flag["code"] for flag in flags})),
        "flag_details": "; ".join(f"{flag['code']}: {flag['detail']}" for flag in flags),
        "rss_at_start_bytes": memory.get("rss_at_start_bytes"),
        "rss_peak_sampled_bytes": memory.get("rss_peak_sampled_bytes"),
        "minor_faults": faults.get("minor_faults"),
        "major_faults": faults.get("major_faults"),
        "page_size_bytes": faults.get("page_size_bytes"),
        "foreign_load_cores": probes.get("interference", {}).get("foreign_load_cores"),
        "wall_s": accounting.get("wall_s"),
        "child_wall_s": accounting.get("child_wall_s"),
        "waited_for_lock_s": accounting.get("waited_for_lock_s"),
        "open_s": accounting.get("open_s"),
        "measure_s": accounting.get("measure_s"),
        "timed_s": accounting.get("timed_s"),
        "hostname": environment.get("hostname"),
        "system": environment.get("system"),
        "python": environment.get("python"),
        "framework_version": (environment.get("backend") or {}).get("framework_version"),
        "device_name": (environment.get("backend") or {}).get("device_name"),
        # What the measuring process found mapped, before what its host was said to have.
        "blas": (environment.get("backend") or {}).get("blas")
        or (environment.get("declared") or {}).get("blas"),
        "git_commit": environment.get("git_commit"),
        "started_at": data["started_at"],
        "schema_version": data["schema_version"],
        "method_version": data["method_version"],
        "record": path.as_posix(),
        "record_sha256": data["sha256"],
        "earlier_records": len(earlier),
        "earlier_ok_record": _earlier_ok(earlier) if data["status"] != "ok" else None,
        **check_columns.of(data.get("checks") or {}),
    }


def _offloaded_bytes(scenario: Mapping[str, Any]) -> int | None:
    """What is predicted to stay on the device of an offloaded cell; None for any other."""
    parts = scenario.get("offloaded_parts_bytes")
    return footprint.total(parts) if parts else None


def _last_level_cache(data: Mapping[str, Any]) -> dict[str, Any]:
    """Its size and who says so, of a cell that looked at it; None for any other."""
    told = data["method"].get("bandwidth") or {}
    rotations = [point["rotation"] for point in data["points"] if point.get("rotation")]
    if not told and rotations:
        told = {
            f"last_level_{name}": rotations[0][name] for name in ("cache_bytes", "cache_source")
        }
    return {name: told.get(name) for name in ("last_level_cache_bytes", "last_level_cache_source")}


def _line(method: Mapping[str, Any] | None) -> str | None:
    """`key: value; …` of a part of the method."""
    return "; ".join(f"{k}: {v}" for k, v in method.items()) if method else None


def _earlier_ok(paths: Sequence[Path]) -> str | None:
    """The newest earlier record of a cell that was measured without fault."""
    for path in paths:
        try:
            if record.read(path, check_schema=False)["status"] == "ok":
                return path.as_posix()
        except UserError:
            continue  # the history is a courtesy; the report does not fall over it
    return None


def point_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of points.csv: medians, quartiles and the intervals that ended sampling."""
    for index, point in enumerate(data["points"]):
        if incomplete.lacking(data, point):
            continue
        params, times = point["params"], point["times"]
        row = key(source, data) | {
            "module": data["cell"]["module"],
            "trainer": data["cell"]["trainer"],
            "effective_precision": data["precision"]["effective"],
            "point": index,
            "params": canonical_json(
                {k: v for k, v in params.items() if k not in result_sets.WORDS}
            ),  # as `compare` and the noise floor name a point
            **{name: params.get(name) for name in PARAMS},
            "flops": point["flops"],
            "bytes": point["bytes"],
            "device_peak_bytes": point["memory"].get("device_peak_bytes"),
            "device_peak_means": point["memory"].get("device_peak_means"),
            **faults_per_step(data, point.get("steps")),
            "result_error": point.get("result_error"),
            "fault_s_per_page": point.get("fault_s_per_page"),
            "stopped_by": point.get("stopped_by"),
            "forward_only_over_forward": point.get("forward_only_over_forward"),
            "burst_mean_s": point.get("burst_mean_s"),
            "burst_reason": point.get("burst_reason"),
            **launch_columns(point),
            "loss_first": (point.get("loss") or [None])[0],
            "loss_last": (point.get("loss") or [None])[-1],
            "training_steps": len(point.get("loss") or []) or None,
            **study_rows.columns(data, point),
        }
        for name in SUMMARISED:
            row |= summary(name, times.get(name) or [])
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
        counts = [
            count
            for step, count in zip(steps["kind"], steps[f"{kind}_faults"], strict=False)
            if step == "unsplit"
        ] if steps else []  # fmt: skip
        median = statistics.median(counts) if counts else None
        row[f"{kind}_faults_per_step"] = median
        row[f"{kind}_faulted_bytes_per_step"] = (
            median * page if median is not None and page else None
        )
    return row


def summary(name: str, values: Sequence[float]) -> dict[str, float | int | None]:
    """n, median, quartiles and 95 % interval of one series; `forward_s` -> `forward_median_s`."""
    stem = name.removesuffix("_s")
    if not values:
        return dict.fromkeys((f"{stem}_n", f"{stem}_median_s", f"{stem}_q25_s", f"{stem}_q75_s",
                              f"{stem}_low_s", f"{stem}_high_s"))  # fmt: skip
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
        return amount / seconds if amount is not None and seconds else None

    return {
        "flop_per_s": per_second(row["flops"]),
        "bytes_per_s": per_second(row["bytes"]),
        "samples_per_s": per_second(row["samples_per_step"]),
        "tokens_per_s": per_second(row["tokens_per_step"]),
        "burst_flop_per_s": row["flops"] / row["burst_mean_s"]
        if row["flops"] and row["burst_mean_s"]
        else None,
        "split_over_unsplit": split / row["unsplit_step_median_s"]
        if split and row["unsplit_step_median_s"]
        else None,
    }


def step_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of steps.csv: every raw time, and every loss, by iteration."""
    for index, point in enumerate(data["points"]):
        for series in SERIES:
            for iteration, value in enumerate(point["times"].get(series) or []):
                yield key(source, data) | {
                    "point": index, "series": series, "iteration": iteration,
                    "time_s": value, "loss": None,
                }  # fmt: skip
        for iteration, value in enumerate(point.get("loss") or []):
            yield key(source, data) | {
                "point": index, "series": "loss", "iteration": iteration,
                "time_s": None, "loss": value,
            }  # fmt: skip


def training_step_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of training_steps.csv: when each step began, of what kind it was, its page faults."""
    for index, point in enumerate(data["points"]):
        steps = point.get("steps") or {"kind": []}
        for iteration, kind in enumerate(steps["kind"]):
            yield (
                key(source, data)
                | {"point": index, "iteration": iteration, "kind": kind}
                | {
                    name: study_rows.at(steps[name], iteration)
                    for name in ("started_s", "minor_faults", "major_faults")
                }
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
        for found in energy.get("sources") or [{"reason": energy.get("reason")}]:
            if not all(found.get(word) for word in ("name", "scope", "quality")):
                found = {"reason": found.get("reason") or "the record does not say of what"}
            joules = found.get("energy_per_step_j")
            host_w, host_j = assumed_host_w(found.get("name")), None
            if joules is not None and host_w is not None and window_s and steps:
                host_j = host_w * window_s / steps
            yield (
                key(source, data)
                | {"point": index, "window_s": window_s, "energy_steps": steps}
                | {name: found.get(name) for name in ENERGY}
                | {
                    "assumed_host_w": None if host_j is None else host_w,
                    "energy_per_step_plus_assumed_host_j": None
                    if host_j is None
                    else joules + host_j,
                }
            )


def assumed_host_w(name: str | None) -> float | None:
    """What the paper assumes that the host draws beside a source of energy, in watts, or None."""
    source = sensors.SOURCES.get(name or "")
    if source is None or source.scope != "gpu":
        return None
    return HOST_POWER_ASSUMED_W.get(source.vendor)


def curve_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of curves.csv: every step of a whole training."""
    return (key(source, data) | row for row in study_rows.curve_rows(data))


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
            | {"reasons": _line(summary.get("reasons")), "limits": _line(summary.get("limits"))}
        )


def capture_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of captures.csv: each file that a tool left of a cell, or why it left none."""
    for tool, found in (data.get("captures") or {}).items():
        told = {name: found[name] for name in ("steps", "means", "reason")}
        for file in found["files"] or [{}]:
            yield key(source, data) | {
                "tool": tool,
                "file": file.get("path"),
                "file_bytes": file.get("bytes"),
                "file_sha256": file.get("sha256"),
            } | told  # fmt: skip


def sample_rows(source: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of samples.csv: the probes over time."""
    for sample in data["samples"]:
        yield key(source, data) | sample
