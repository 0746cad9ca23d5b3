"""One record as lines of the tidy tables: of its cell, points, repeats, steps, samples and probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from siliconprof import declarations
from siliconprof.analyse import study_rows
from siliconprof.memory import footprint
from siliconprof.stats import inference, statistics
from siliconprof.store import contents, table_files
from siliconprof.store import record as record_file
from siliconprof.store.contents import Cache, Check, Point, Record, Scalar
from siliconprof.store.point import EnergySource, Series
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Block, Row

PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")  # of predicted memory
WARM_UP = "warmup_step_s"
WITHIN, BETWEEN = "within one process", "between processes"  # what an interval is
SPENT_S = ("wall_s", "child_wall_s", "waited_for_lock_s", "open_s", "measure_s", "timed_s")
PARAMETERS = ("size", "lora_rank", "target_len", "weights", "attention", "adamw", "allocator")
PROBED = {
    "memory": ("rss_at_start_bytes", "rss_peak_sampled_bytes"),
    "page_faults": ("minor_faults", "major_faults", "page_size_bytes"),
    "interference": ("foreign_load_cores",),
}
OF_POINT = (  # as they are
    *("flops", "bytes", "result_error", "stopped_by", "unsynchronised_steps", "calls_per_time"),
    *("forward_only_over_forward", "launch_bound", "burst_mean_s", "burst_reason", "enqueue_burst"),
)
# In the order in which a reader asks: `checks` of a record, see `self_checks` and `quality`.
CHECKS = ("clock", "sleep", "twice_the_work", "synchronisation", "marks", "precision", "drift")


def joined(facts: Mapping[str, Scalar]) -> str | None:
    """`name: value; …`; None where there are none."""
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) or None


def _checked(record: Record) -> Row:
    """`{name}_check` and `{name}_check_reason`, None for what was not reached; the largest error."""
    verdicts: Row = {}
    for name in CHECKS:
        check = record.checks.get(name, Check())
        verdicts |= {f"{name}_check": check.verdict, f"{name}_check_reason": check.reason}
    errors = [point.result_error for point in record.points if point.result_error is not None]
    return verdicts | {"worst_result_error": max(errors, default=None)}


def cell_row(source: str, path: Path, record: Record, history: Path) -> Row:
    """One line of cells.csv."""
    cell, scenario, precision = record.cell, record.scenario, record.precision
    environment, parameters = record.environment, cell.parameters
    cache, offloaded = _last_level_cache(record), scenario.offloaded_parts_bytes
    earlier = record_file.earlier(history / cell.path, record.sha256) if source == HERE else []
    as_they_are = (
        (cell, ("module", "trainer", "device_kind", "threads", "seed")),
        (scenario, ("batch_size", "batch_size_found", "device_memory_bytes", "capacity_bytes")),
        (scenario, ("capacity_source", "confirmed_peak_bytes")),
        (environment, ("system", "python", "git_commit")),
        (environment.backend, ("framework_version", "device_name")),
    )
    row = table_files.key_of(source, cell) | {
        "status": record.status,
        "reason": record.reason,
        "scenario_derived": scenario.derived,
        "scenario_applied": scenario.applied,
        "predicted_memory_bytes": scenario.predicted_bytes,
        **{f"predicted_{part}_bytes": scenario.predicted_parts_bytes.get(part) for part in PARTS},
        "predicted_offloaded_bytes": footprint.total(offloaded) if offloaded else None,
        **contents.columns(scenario.limit, "limit_"),
        "lora_alpha": parameters.get("lora_alpha") if parameters.get("lora_rank") else None,
        **{name: study_rows.single(parameters.get(name)) for name in ("learning_rate", "seq_len")},
        "clip_seconds": parameters.get("dataset_clip_seconds"),
        "zero_stage": parameters.get("zero_stage") if scenario.applied == "offload" else None,
        **{
            name: bool(parameters.get(name)) if cell.trainer or name in parameters else None
            for name in ("gradient_checkpointing", "compile")
        },
        "offload": joined(record.method.offload),
        "kernels": joined(record.method.kernels),
        "effective_precision": precision.effective,
        "product_error": precision.evidence.product_error,
        "master_weights_dtype": precision.evidence.master_weights,
        "activations_dtype": precision.evidence.activations,
        "dataset": record.dataset.name,
        "data_sha256": record.dataset.data_sha256,
        "data_synthetic": record.dataset.synthetic,
        **contents.columns(cache),
        "points": len(record.points),
        "flags": ";".join(sorted({flag.code for flag in record.flags})),
        "flag_details": "; ".join(f"{flag.code}: {flag.detail}" for flag in record.flags),
        # What the measuring process found mapped goes before what its host declares.
        "blas": environment.backend.blas or environment.declared.get("blas"),
        "started_at": record.started_at,
        "record": path.as_posix(),
        "record_sha256": record.sha256,
        "earlier_records": len(earlier),
        **_checked(record),
    }
    row |= {name: getattr(part, name) for part, names in as_they_are for name in names}
    row |= {name: record.accounting.get(name) for name in SPENT_S}
    row |= {name: record.probed(probe, name) for probe, names in PROBED.items() for name in names}
    return row | {name: parameters.get(name) for name in PARAMETERS}


def _last_level_cache(record: Record) -> Cache:
    """Its size and who says so, of a cell that looked at it; None for any other."""
    cache = record.method.bandwidth
    rotation = next((point.rotation for point in record.points if point.rotation), None)
    if cache == Cache() and rotation:
        return Cache(
            last_level_cache_bytes=rotation.cache_bytes,
            last_level_cache_source=rotation.cache_source,
        )
    return cache


def point_rows(record: Record) -> Iterator[Row]:
    """Lines of points.csv: medians, quartiles and the intervals that ended sampling."""
    cell = record.cell
    settings = study_rows.common_settings(cell)
    for index, point in enumerate(record.points):
        named = settings | {k: v for k, v in point.params.items() if k in settings}
        row: Row = {
            "module": cell.module,
            "trainer": cell.trainer,
            "effective_precision": record.precision.effective,
            "point": index,
            "params": point.name,
            **named,
            "processes": 1 + len(point.repeats),
            "interval": (BETWEEN if point.repeats else WITHIN)
            if any(point.times.values())
            else None,
            "device_peak_bytes": point.memory.device_peak_bytes,
            "device_peak_means": point.memory.device_peak_means,
            **faults_per_step(point, record.probed("page_faults", "page_size_bytes")),
            **time_per_step(point),
            **{name: getattr(point, name) for name in OF_POINT},
            "cold_reason": point.cold.reasons.get("cold_s"),
            "loss_first": point.loss[0] if point.loss else None,
            "loss_last": point.loss[-1] if point.loss else None,
            "training_steps": len(point.curve.loss if point.curve else point.loss) or None,
            **study_rows.point_columns(point),
        }
        for name, quantity in declarations.quantities().items():
            if quantity.series:
                row |= summary(name, point.of_processes(name))
            elif name not in row:
                row[name] = point.quantities.get(name)
        yield row | rates(row)


def faults_per_step(point: Point, page_bytes: float | None) -> dict[str, float | None]:
    """Median page faults of a whole step, in counts and bytes; None for what is no training."""
    row: dict[str, float | None] = {}
    for kind in ("minor", "major"):
        counts = of_whole_steps(point, f"{kind}_faults")
        median = statistics.median(counts) if counts else None
        row[f"{kind}_faults_per_step"] = median
        row[f"{kind}_faulted_bytes_per_step"] = (
            median * page_bytes if median is not None and page_bytes else None
        )
    return row


TIME_USE = ("cpu_s", "system_s", "waiting_s", "all_threads_cpu_s")  # see `thread_time`


def time_per_step(point: Point) -> dict[str, float | None]:
    """What a whole step's wall time went to, in seconds: means, since the kernel counts in ticks.

    `blocked_per_step_s` is what is left of the wall time: neither on a core nor waiting for one.
    """
    walls = point.series("whole_step_s")
    row: dict[str, float | None] = {}
    for name in TIME_USE:
        used = of_whole_steps(point, name)
        mean = sum(used) / len(used) if used and len(used) == len(walls) else None
        row[f"{name.removesuffix('_s')}_per_step_s"] = mean
    on, waiting = row["cpu_per_step_s"], row["waiting_per_step_s"]
    left = None
    if on is not None and waiting is not None:
        left = max(sum(walls) / len(walls) - on - waiting, 0.0)
    return row | {"blocked_per_step_s": left}


def of_whole_steps(point: Point, name: str) -> list[float]:
    """A column of each whole step, such as `cpu_s`; fewer where the system did not tell."""
    return point.steps.of_whole_steps(getattr(point.steps, name)) if point.steps else []


SUMMARY = ("n", "median_s", "q25_s", "q75_s", "low_s", "high_s")


def summary(name: str, processes: Sequence[Series]) -> dict[str, float | int | None]:
    """n, median, quartiles and 95 % interval of one series; `forward_s` -> `forward_median_s`.

    With several processes the median and its interval are `inference.between_processes`.
    """
    columns = [f"{name.removesuffix('_s')}_{part}" for part in SUMMARY]
    if not processes:
        return dict.fromkeys(columns)
    values = list(chain.from_iterable(processes))
    middle, *quartiles = (statistics.quantile(values, share) for share in (0.5, 0.25, 0.75))
    low, high = statistics.median_interval(values)
    medians = [statistics.median(times) for times in processes]
    if len(medians) > 1 and min(medians) > 0:
        middle, low, high = inference.between_processes(medians)
    numbers = (len(values), middle, *quartiles, low, high)
    return dict(zip(columns, numbers, strict=True))


def rates(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Throughputs from the whole step where there is one, else from the synchronised call."""
    over, whole, split = statistics.over, row["whole_step_median_s"], row["step_median_s"]
    seconds = whole or split
    return {
        "flop_per_s": over(row["flops"], seconds),
        "bytes_per_s": over(row["bytes"], seconds),
        "samples_per_s": over(row["samples_per_step"], seconds),
        "tokens_per_s": over(row["tokens_per_step"], seconds),
        "burst_flop_per_s": over(row["flops"] or None, row["burst_mean_s"]),
        "split_over_whole_step": over(split or None, whole),
        "whole_over_unsynchronised_step": over(whole, row["unsynchronised_step_median_s"]),
    }


def step_blocks(record: Record) -> Iterator[Block]:
    """Lines of steps.csv: every raw time, and every loss, by iteration."""
    declared = declarations.quantities().items()
    times = [*(name for name, quantity in declared if quantity.series), WARM_UP]
    for index, point in enumerate(record.points):
        raw = [(name, "time_s", point.series(name)) for name in times]
        for series, column, values in [*raw, ("loss", "loss", point.loss)]:
            empty = dict.fromkeys(("time_s", "loss"), [None] * len(values))
            shared = {"point": index, "series": series}
            yield shared, {"iteration": range(len(values)), **empty, column: values}


def training_step_blocks(record: Record) -> Iterator[Block]:
    """Lines of training_steps.csv: when each step began, of what kind it was, its page faults."""
    for index, point in enumerate(record.points):
        if steps := point.steps:
            length = len(steps.kind)
            yield (
                {"point": index},
                {
                    "iteration": range(length),
                    "kind": steps.kind,
                    "started_s": study_rows.filled(steps.started_s, length),
                    "minor_faults": study_rows.filled(steps.minor_faults, length),
                    "major_faults": study_rows.filled(steps.major_faults, length),
                },
            )


def energy_rows(record: Record) -> Iterator[Row]:
    """Lines of energy.csv: one per source of energy of a training, or its reason."""
    for index, point in enumerate(record.points):
        if (energy := point.energy) is None:
            continue
        window = {"point": index, "window_s": energy.window_s, "energy_steps": energy.steps}
        for source in energy.sources or [EnergySource(reason=energy.reason)]:
            if not (source.name and source.scope and source.quality):
                reason = source.reason or "the record does not say of what"
                source = EnergySource(reason=reason)
            yield window | contents.columns(source)


def probe_rows(record: Record) -> Iterator[Row]:
    """Lines of probes.csv: what each probe answered, by what means, and what it cost."""
    for name, probe in record.probes.items():
        facts = {"reasons": joined(probe.reasons), "limits": joined(probe.limits)}
        yield {"probe": name, **probe.figures, **facts}


def sample_blocks(record: Record) -> Iterator[Block]:
    """Lines of samples.csv: the probes over time."""
    names = dict.fromkeys(name for sample in record.samples for name in sample)
    yield {}, {name: [sample.get(name) for sample in record.samples] for name in names}
