"""One record as lines of the tidy tables: of its cell, points, steps, samples, probes, trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from siliconprof import declarations, plugins
from siliconprof.declarations import TIMES
from siliconprof.errors import UserError
from siliconprof.memory import footprint
from siliconprof.stats import inference, statistics
from siliconprof.store import record as record_file
from siliconprof.store import table_files
from siliconprof.store.cell import Cell
from siliconprof.store.contents import Check, Point, Record, Scalar
from siliconprof.store.point import WHOLE, EnergySource, GpuState, Series
from siliconprof.store.table_files import Block, Row

T = TypeVar("T")

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
MOST_EARLIER = 20  # records of a cell, the newest, that a page shows
# Tukey's outer fence (Exploratory Data Analysis, 1977, section 2D): what lies more than three
# inter-quartile ranges above the third quartile is "far out". Where steps hardly differ, that is
# near the median, so a step must also take a quarter longer than the median to be worth a mark.
FENCE_IQRS = 3.0
LEAST_EXCESS = 1.25
FEWEST_STEPS = 12  # below which quartiles say little of a run
# In the order in which a reader asks: `checks` of a record, see `self_checks` and `quality`.
CHECKS = (
    "clock",
    "sleep",
    "twice_the_work",
    "synchronisation",
    "marks",
    "precision",
    "drift",
    "work",
    "trained",
)


def joined(facts: Mapping[str, Scalar]) -> str | None:
    """`name: value; …`; None where there are none."""
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) or None


def cell_row(source: str, path: Path, record: Record) -> Row:
    """One line of cells.csv."""
    cell, scenario, precision = record.cell, record.scenario, record.precision
    environment, parameters = record.environment, cell.parameters
    offloaded = scenario.offloaded_parts_bytes
    errors = [point.result_error for point in record.points if point.result_error is not None]
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
        "limit_enforced": scenario.limit.enforced,
        "lora_alpha": parameters.get("lora_alpha") if parameters.get("lora_rank") else None,
        **{name: single(parameters.get(name)) for name in ("learning_rate", "seq_len")},
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
        "dataset": record.dataset.name,
        "data_sha256": record.dataset.data_sha256,
        "data_synthetic": record.dataset.synthetic,
        "last_level_cache_bytes": _last_level_cache_bytes(record),
        "points": len(record.points),
        "flags": ";".join(sorted({flag.code for flag in record.flags})),
        "flag_details": "; ".join(f"{flag.code}: {flag.detail}" for flag in record.flags),
        # What the measuring process found mapped goes before what its host declares.
        "blas": environment.backend.blas or environment.declared.get("blas"),
        "started_at": record.started_at,
        "record": path.as_posix(),
        "record_sha256": record.sha256,
        **{f"{name}_check": record.checks.get(name, Check()).verdict for name in CHECKS},
        "worst_result_error": max(errors, default=None),
    }
    row |= {name: getattr(part, name) for part, names in as_they_are for name in names}
    row |= {name: record.accounting.get(name) for name in SPENT_S}
    row |= {name: record.probed(probe, name) for probe, names in PROBED.items() for name in names}
    return row | {name: parameters.get(name) for name in PARAMETERS}


def _last_level_cache_bytes(record: Record) -> float | None:
    """Of a cell that looked at it; None for any other."""
    rotation = next((point.rotation for point in record.points if point.rotation), None)
    size = record.method.bandwidth.last_level_cache_bytes
    return rotation.cache_bytes if size is None and rotation else size


def point_rows(record: Record) -> Iterator[Row]:
    """Lines of points.csv: medians, quartiles and the intervals that ended sampling."""
    cell = record.cell
    settings = common_settings(cell)
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
            **{name: getattr(point, name) for name in OF_POINT},
            **_gpu_columns(point.gpu),
            "cold_reason": point.cold.reasons.get("cold_s"),
            "loss_first": point.loss[0] if point.loss else None,
            "draws": bool(point.draws),
            "loss_last": point.loss[-1] if point.loss else None,
            "training_steps": len(point.curve.loss if point.curve else point.loss) or None,
            **_study_columns(point),
        }
        for name, quantity in declarations.quantities().items():
            if quantity.series:
                row |= summary(name, point.of_processes(name))
            elif name not in row:
                row[name] = point.quantities.get(name)
        yield row | rates(row)


def _gpu_columns(gpu: GpuState) -> Row:
    if gpu.measured_s is None:
        return {}
    return {f"gpu_{name}": value for name, value in gpu} | {
        "gpu_limits": ", ".join(gpu.limits or ()) or None
    }


def _study_columns(point: Point) -> Row:
    """Columns of points of sweeps and whole trainings, None where a point is of another kind."""
    autorange, epoch = point.blocked_autorange, point.epoch
    return {
        "point_status": point.status,
        "point_reason": point.reason,
        "point_disturbed": point.disturbed,
        "predicted_peak_bytes": point.memory.predicted_bytes,
        "autorange_median_s": _median(autorange.times_s),
        "autorange_min_run_time_s": autorange.min_run_time_s,
        "autorange_reason": autorange.reason,
        "epoch_s": _median(epoch.epoch_s),
        **{f"epoch_{name}": value for name, value in epoch if name != "epoch_s"},
        "resumed_at": ";".join(map(str, point.resumed_at)) or None,
        **{f"test_{name}": value for name, value in point.test},
        "diverged": point.outcome.diverged,
        "outcome_reason": point.outcome.reason,
        "final_loss": point.outcome.final_loss,
    }


def _median(values: Series) -> float | None:
    return statistics.median(values) if values else None


def common_settings(cell: Cell) -> Row:
    """Columns for the parameters of all workloads' points, with what a cell's points share.

    None for what its workload does not declare or does not have as one value.
    """
    columns: Row = dict.fromkeys(declarations.parameters())
    if cell.module not in plugins.names("workloads"):
        return columns
    plugin = plugins.load("workloads", cell.module)
    shared = plugin.common_settings(cell.parameters)
    return columns | {name: single(shared.get(name)) for name in plugin.POINT}


def single(value: Any) -> Any:
    """A value, or None for a list of them: a sweep's cell has no one value to show."""
    return value if isinstance(value, str | int | float) else None


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


def of_whole_steps(point: Point, name: str) -> list[float]:
    """A column of each whole step, such as `cpu_s`; fewer where the system did not tell."""
    if point.steps is None:
        return []
    pairs = zip(point.steps.kind, getattr(point.steps, name), strict=False)
    return [value for kind, value in pairs if kind == "whole" and value is not None]


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
    low, high = statistics.block_median_interval(values)
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


def step_blocks(point: Point) -> Iterator[Block]:
    """Lines of steps.csv: every raw time, and every loss, by iteration."""
    declared = declarations.quantities().items()
    times = [*(name for name, quantity in declared if quantity.series), WARM_UP]
    raw = [(name, "time_s", point.series(name)) for name in times]
    for series, column, values in [*raw, ("loss", "loss", point.loss)]:
        empty = dict.fromkeys(("time_s", "loss"), [None] * len(values))
        yield {"series": series}, {"iteration": range(len(values)), **empty, column: values}


def training_step_blocks(point: Point) -> Iterator[Block]:
    """Lines of training_steps.csv: when each step began, of what kind it was, its page faults."""
    if steps := point.steps:
        names = ("started_s", "minor_faults", "major_faults")
        columns = {name: filled(getattr(steps, name), len(steps.kind)) for name in names}
        yield {}, {"iteration": range(len(steps.kind)), "kind": steps.kind, **columns}


def energy_rows(point: Point) -> Iterator[Row]:
    """Lines of energy.csv: one per source of energy of a training, or its reason."""
    if energy := point.energy:
        window = {"window_s": energy.window_s, "energy_steps": energy.steps}
        for source in energy.sources or [EnergySource(reason=energy.reason)]:
            yield window | dict(source)


def probe_rows(record: Record) -> Iterator[Row]:
    """Lines of probes.csv: what each probe answered, by what means, and what it cost."""
    for name, probe in record.probes.items():
        facts = {"reasons": joined(probe.reasons), "limits": joined(probe.limits)}
        yield {"probe": name, **probe.figures, **facts}


def samples(record: Record) -> dict[str, list[Any]]:
    """Columns of samples.csv: the probes over time."""
    names = dict.fromkeys(name for sample in record.samples for name in sample)
    return {name: [sample.get(name) for sample in record.samples] for name in names}


def curve_blocks(point: Point) -> Iterator[Block]:
    """Lines of curves.csv: one per step of a whole training."""
    if (curve := point.curve) is None:
        return
    steps = len(curve.loss)
    series = (point.series(name) for name in WHOLE)
    times = next((values for values in series if values and len(values) == steps), None)
    step_s: Sequence[float | None] = times or [None] * steps
    tokens = point.params.get("tokens_per_step")
    amount = tokens if isinstance(tokens, int | float) else None
    yield (
        {},
        {
            "step": range(steps),
            "loss": curve.loss,
            "gradient_norm": filled(curve.gradient_norm, steps),
            "learning_rate": filled(curve.learning_rate, steps),
            "step_s": step_s,
            "tokens_per_s": [statistics.over(amount or None, time_s) for time_s in step_s],
            "unusual": unusual(times) or [None] * steps,
        },
    )


def filled(values: Sequence[T], length: int) -> list[T | None]:
    """A list of this length; None beyond the end of one that is shorter."""
    return [*values[:length], *[None] * (length - len(values))]


def unusual(times: Series | None) -> list[bool] | None:
    """Whether each step took far longer than the run's own spread explains; None = too few.

    See `FENCE_IQRS`. The quartiles are of the whole run, so a slow spell shows as long as it is
    less than a quarter of it.
    """
    if not times or len(times) < FEWEST_STEPS:
        return None
    fence = statistics.quantile(times, 0.75) + FENCE_IQRS * statistics.iqr(times)
    limit = max(fence, LEAST_EXCESS * statistics.median(times))
    return [value > limit for value in times]


def history_rows(record: Record, history: Path) -> Iterator[Row]:
    """Lines of history.csv: points of this cell's records that are ok, oldest first; none of one alone.

    An earlier record that cannot be read is passed over.
    """
    records = [record]
    for path in record_file.earlier(history / record.cell.path, record.sha256)[:MOST_EARLIER]:
        with suppress(UserError):
            records.append(record_file.load(path))
    ok = sorted((one for one in records if one.status == "ok"), key=lambda one: one.started_at)
    for one in ok if len(ok) > 1 else ():
        for point in point_rows(one):
            series = next((name for name in TIMES if point[f"{name}_median_s"]), None)
            if series is not None:
                yield {
                    "point": point["point"],
                    "started_at": one.started_at,
                    "framework_version": one.environment.backend.framework_version,
                    "git_commit": one.environment.git_commit,
                    "code_sha256": one.code.fingerprint,
                    "step_s": point[f"{series}_median_s"],
                    "step_low_s": point[f"{series}_low_s"],
                    "step_high_s": point[f"{series}_high_s"],
                    "flags": ";".join(sorted(one.codes)),
                }
