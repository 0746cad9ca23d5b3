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
from siliconprof.store import columns
from siliconprof.store import record as record_file
from siliconprof.store.cell import Cell
from siliconprof.store.contents import Point, Record, Scalar
from siliconprof.store.point import WHOLE, EnergySource, OfProcess, Series
from siliconprof.store.table_files import Block, Row

T = TypeVar("T")

WARM_UP = "warmup_step_s"
PARAMETER_COLUMNS = (  # of workloads, as they are
    *("size", "lora_rank", "learning_rate", "seq_len", "target_len", "weights", "attention"),
    *("adamw", "allocator"),
)
PROBE_COLUMNS = {
    "memory": ("rss_at_start_bytes", "rss_peak_sampled_bytes"),
    "page_faults": ("minor_faults", "major_faults", "page_size_bytes"),
    "interference": ("foreign_load_cores",),
}
MOST_EARLIER = 20  # records of a cell, the newest, that a page shows
# Tukey's outer fence (Exploratory Data Analysis, 1977, section 2D): values more than three
# inter-quartile ranges above the third quartile are "far out". Where steps hardly differ, the fence
# is close to the median, so a marked step must also be a quarter longer than the median.
FENCE_IQRS = 3.0
LEAST_EXCESS = 1.25
FEWEST_STEPS_OF_A_MEDIAN = 12  # with fewer, quartiles say little about a run


def joined(facts: Mapping[str, Scalar]) -> str | None:
    """`name: value; …`; None where there are none."""
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) or None


def cell_row(source: str, path: Path, record: Record) -> Row:
    """One line of cells.csv: the columns of a record, and those computed for this table."""
    cell, environment, scenario = record.cell, record.environment, record.scenario
    parameters, offloaded = cell.parameters, scenario.offloaded_parts_bytes
    errors = [point.result_error for point in record.points if point.result_error is not None]
    return {
        "source": source,
        **columns.row(record),
        "predicted_offloaded_bytes": footprint.total(offloaded) if offloaded else None,
        **{name: single(parameters.get(name)) for name in PARAMETER_COLUMNS},
        "lora_alpha": parameters.get("lora_alpha") if parameters.get("lora_rank") else None,
        "clip_seconds": parameters.get("dataset_clip_seconds"),
        "zero_stage": parameters.get("zero_stage") if scenario.applied == "offload" else None,
        **{
            name: bool(parameters.get(name)) if cell.trainer or name in parameters else None
            for name in ("gradient_checkpointing", "compile")
        },
        "offload": joined(record.method.offload),
        "kernels": joined(record.method.kernels),
        "last_level_cache_bytes": _last_level_cache_bytes(record),
        "points": len(record.points),
        "flags": ";".join(sorted({flag.code for flag in record.flags})),
        "flag_details": "; ".join(f"{flag.code}: {flag.detail}" for flag in record.flags),
        # What the measuring process found mapped goes before what its host declares.
        "blas": environment.backend.blas or environment.declared.get("blas"),
        "record": path.as_posix(),
        "worst_result_error": max(errors, default=None),
        **{
            name: record.probed(probe, name)
            for probe, names in PROBE_COLUMNS.items()
            for name in names
        },
    }


def _last_level_cache_bytes(record: Record) -> float | None:
    """The size of the last-level cache, where the cell read it."""
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
            "interval": ("between processes" if point.repeats else inference.WITHIN)
            if any(point.times.values())
            else None,
            **columns.row(point),
            **faults_per_step(point, record.probed("page_faults", "page_size_bytes")),
            **({"gpu_limits": ", ".join(point.gpu.limits or ()) or None} if point.gpu else {}),
            "cold_reason": point.cold.reasons.get("cold_s"),
            "loss_first": point.loss[0] if point.loss else None,
            "loss_last": point.loss[-1] if point.loss else None,
            "training_steps": len(point.curve.loss if point.curve else point.loss) or None,
            "autorange_median_s": _median(point.blocked_autorange.times_s),
            "epoch_s": _median(point.epoch.epoch_s),
            "resumed_at": ";".join(map(str, point.resumed_at)) or None,
        }
        for name, quantity in declarations.quantities().items():
            if quantity.series:
                row |= summary(name, point.of_processes(name))
            elif name not in row:
                row[name] = point.quantities.get(name)
        yield row | rates(row)


def _median(values: Series) -> float | None:
    return statistics.median(values) if values else None


def common_settings(cell: Cell) -> Row:
    """A column for every point parameter of any workload, with the value that a cell's points share.

    None for a parameter that the cell's workload does not declare, or that differs between points.
    """
    settings: Row = dict.fromkeys(declarations.parameters())
    if cell.module not in plugins.names("workloads"):
        return settings
    plugin = plugins.load("workloads", cell.module)
    shared = plugin.common_settings(cell.parameters)
    return settings | {name: single(shared.get(name)) for name in plugin.POINT}


def single(value: Any) -> Any:
    """A value, or None for a list of them: a sweep's cell has no one value to show."""
    return value if isinstance(value, str | int | float) else None


def faults_per_step(point: Point, page_bytes: float | None) -> dict[str, float | None]:
    """Median page faults of a whole step, in counts and bytes; None where no step was timed."""
    row: dict[str, float | None] = {}
    for kind in ("minor", "major"):
        counts = whole_step_column(point, f"{kind}_faults")
        median = statistics.median(counts) if counts else None
        row[f"{kind}_faults_per_step"] = median
        row[f"{kind}_faulted_bytes_per_step"] = (
            median * page_bytes if median is not None and page_bytes else None
        )
    return row


def whole_step_column(process: OfProcess, name: str) -> list[float]:
    """A column of the whole steps, such as `cpu_s`, without the values that were not measured."""
    if process.steps is None:
        return []
    pairs = zip(process.steps.kind, getattr(process.steps, name), strict=False)
    return [value for kind, value in pairs if kind == "whole" and value is not None]


def summary(name: str, processes: Sequence[Series]) -> dict[str, float | int | None]:
    """n, median, quartiles and 95 % interval of one series: columns such as `forward_median_s`.

    With several processes the median and its interval are `inference.between_processes`.
    """
    names = [f"{name.removesuffix('_s')}_{part}" for part in columns.series()]
    if not processes:
        return dict.fromkeys(names)
    values = list(chain.from_iterable(processes))
    middle, *quartiles = (statistics.quantile(values, share) for share in (0.5, 0.25, 0.75))
    low, high = statistics.block_median_interval(values)
    medians = [statistics.median(times) for times in processes]
    if len(medians) > 1 and min(medians) > 0:
        middle, low, high = inference.between_processes(medians)
    numbers = (len(values), middle, *quartiles, low, high)
    return dict(zip(names, numbers, strict=True))


def rates(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Throughputs from the whole step where there is one, else from the synchronised call."""
    over, whole, split = statistics.divided, row["whole_step_median_s"], row["step_median_s"]
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
        n = len(steps.kind)
        of_step = {name: filled(values, n) for name, values in columns.row(steps).items()}
        yield {}, {"iteration": range(n), **of_step}


def energy_rows(point: Point) -> Iterator[Row]:
    """Lines of energy.csv: one per source of energy of a training, or its reason."""
    if energy := point.energy:
        for source in energy.sources or [EnergySource(reason=energy.reason)]:
            yield columns.row(energy) | columns.row(source)


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
            **{name: filled(values, steps) for name, values in columns.row(curve).items()},
            "step_s": step_s,
            "tokens_per_s": [statistics.divided(amount or None, time_s) for time_s in step_s],
            "unusual": unusual(times) or [None] * steps,
        },
    )


def filled(values: Sequence[T], length: int) -> list[T | None]:
    """The list cut or padded with None to a length."""
    return [*values[:length], *[None] * (length - len(values))]


def unusual(times: Series | None) -> list[bool] | None:
    """Whether each step took far longer than the run's own spread explains; None = too few.

    See `FENCE_IQRS`. The quartiles are of the whole run, so a slow spell shows as long as it is
    less than a quarter of it.
    """
    if not times or len(times) < FEWEST_STEPS_OF_A_MEDIAN:
        return None
    fence = statistics.quantile(times, 0.75) + FENCE_IQRS * statistics.iqr(times)
    limit = max(fence, LEAST_EXCESS * statistics.median(times))
    return [value > limit for value in times]


def history_rows(record: Record, history: Path) -> Iterator[Row]:
    """Lines of history.csv: points of this cell's ok records, oldest first; none of a single record.

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
