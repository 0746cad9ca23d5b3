"""One record as a line of cells.csv, with the verdicts of its checks."""

from __future__ import annotations

from pathlib import Path

from siliconprof.analyse import study_rows
from siliconprof.analyse.record_rows import PARTS, joined
from siliconprof.memory import footprint
from siliconprof.store import contents, table_files
from siliconprof.store import record as record_file
from siliconprof.store.contents import Cache, Check, Record
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row

SPENT_S = ("wall_s", "child_wall_s", "waited_for_lock_s", "open_s", "measure_s", "timed_s")
# In the order in which a reader asks: `checks` of a record, see `self_checks` and `quality`.
NAMES = ("clock", "sleep", "twice_the_work", "synchronisation", "marks", "precision", "drift")


def _checked(record: Record) -> Row:
    """`{name}_check` and `{name}_check_reason`, None for what was not reached; the largest error."""
    verdicts: Row = {}
    for name in NAMES:
        check = record.checks.get(name, Check())
        verdicts |= {f"{name}_check": check.verdict, f"{name}_check_reason": check.reason}
    errors = [point.result_error for point in record.points if point.result_error is not None]
    return verdicts | {"worst_result_error": max(errors, default=None)}


def cell_row(source: str, path: Path, record: Record, history: Path) -> Row:
    """One line of cells.csv."""
    cell, scenario, precision = record.cell, record.scenario, record.precision
    environment, probed, spent_s = record.environment, record.probed, record.accounting
    parameters, cache = cell.parameters, _last_level_cache(record)
    offloaded = scenario.offloaded_parts_bytes
    earlier = record_file.earlier(history / cell.path, record.sha256) if source == HERE else []
    return table_files.key_of(source, cell) | {
        "module": cell.module,
        "trainer": cell.trainer,
        "device_kind": cell.device_kind,
        "status": record.status,
        "reason": record.reason,
        "scenario_derived": scenario.derived,
        "scenario_applied": scenario.applied,
        "predicted_memory_bytes": scenario.predicted_bytes,
        **{f"predicted_{part}_bytes": scenario.predicted_parts_bytes.get(part) for part in PARTS},
        "device_memory_bytes": scenario.device_memory_bytes,
        "capacity_bytes": scenario.capacity_bytes,
        "capacity_source": scenario.capacity_source,
        "batch_size": scenario.batch_size,
        "batch_size_found": scenario.batch_size_found,
        "predicted_offloaded_bytes": footprint.total(offloaded) if offloaded else None,
        **contents.columns(scenario.limit, "limit_"),
        "confirmed_peak_bytes": scenario.confirmed_peak_bytes,
        "size": parameters.get("size"),
        "lora_rank": parameters.get("lora_rank"),
        "lora_alpha": parameters.get("lora_alpha") if parameters.get("lora_rank") else None,
        "learning_rate": study_rows.single(parameters.get("learning_rate")),
        "seq_len": study_rows.single(parameters.get("seq_len")),
        "target_len": parameters.get("target_len"),
        "clip_seconds": parameters.get("dataset_clip_seconds"),
        "zero_stage": parameters.get("zero_stage") if scenario.applied == "offload" else None,
        "weights": parameters.get("weights"),
        **{
            name: bool(parameters.get(name)) if cell.trainer or name in parameters else None
            for name in ("gradient_checkpointing", "compile")
        },
        **{name: parameters.get(name) for name in ("attention", "adamw", "allocator")},
        "offload": joined(record.method.offload),
        "kernels": joined(record.method.kernels),
        "effective_precision": precision.effective,
        "product_error": precision.evidence.product_error,
        "master_weights_dtype": precision.evidence.master_weights,
        "activations_dtype": precision.evidence.activations,
        "threads": cell.threads,
        "seed": cell.seed,
        "dataset": record.dataset.name,
        "data_sha256": record.dataset.data_sha256,
        "data_synthetic": record.dataset.synthetic,
        **contents.columns(cache),
        "points": len(record.points),
        "flags": ";".join(sorted({flag.code for flag in record.flags})),
        "flag_details": "; ".join(f"{flag.code}: {flag.detail}" for flag in record.flags),
        "rss_at_start_bytes": probed("memory", "rss_at_start_bytes"),
        "rss_peak_sampled_bytes": probed("memory", "rss_peak_sampled_bytes"),
        "minor_faults": probed("page_faults", "minor_faults"),
        "major_faults": probed("page_faults", "major_faults"),
        "page_size_bytes": probed("page_faults", "page_size_bytes"),
        "foreign_load_cores": probed("interference", "foreign_load_cores"),
        **{name: spent_s.get(name) for name in SPENT_S},
        "system": environment.system,
        "python": environment.python,
        "framework_version": environment.backend.framework_version,
        "device_name": environment.backend.device_name,
        # What the measuring process found mapped goes before what its host declares.
        "blas": environment.backend.blas or environment.declared.get("blas"),
        "git_commit": environment.git_commit,
        "started_at": record.started_at,
        "record": path.as_posix(),
        "record_sha256": record.sha256,
        "earlier_records": len(earlier),
        **_checked(record),
    }


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
