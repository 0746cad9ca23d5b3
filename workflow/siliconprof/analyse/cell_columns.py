"""One record as a line of cells.csv, with the verdicts and figures of its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.analyse import study_rows
from siliconprof.analyse.record_rows import PARTS, joined, key
from siliconprof.errors import UserError
from siliconprof.memory import footprint
from siliconprof.store import record
from siliconprof.store.records import HERE

# In the order in which a reader asks: `checks` of a record, see `truth` and `quality`.
NAMES = ("clock", "sleep", "twice_the_work", "synchronisation", "marks", "precision", "drift")


def of(checks: Mapping[str, Mapping[str, Any]], points: Sequence[Mapping]) -> dict[str, Any]:
    """`{name}_check`, `{name}_check_reason` and figures; None for what was not reached.

    A wrong result ends its cell before it is timed: its error here is a figure, and no verdict.
    """
    columns: dict[str, Any] = {}
    for name in NAMES:
        check = checks.get(name, {})
        columns |= {
            f"{name}_check": check.get("verdict"),
            f"{name}_check_reason": check.get("reason"),
        }
    clock, sleep, marks, drift = (
        checks.get(name, {}) for name in ("clock", "sleep", "marks", "drift")
    )
    kernels = checks.get("twice_the_work", {}).get("kernels", [])
    shares = checks.get("synchronisation", {}).get("waited_shares", {})
    ratios = {kernel["kernel"]: kernel["ratio"] for kernel in reversed(kernels)}
    errors = [point["result_error"] for point in points if point.get("result_error") is not None]
    return columns | {
        "clock_resolution_s": clock.get("resolution_s"),
        "clock_reading_cost_s": clock.get("reading_cost_s"),
        "sleep_asked_s": sleep.get("asked_s"),
        "sleep_measured_s": sleep.get("measured_s"),
        "sleep_ratio": sleep.get("ratio"),
        "twice_product_ratio": ratios.get("product"),
        "twice_sum_ratio": ratios.get("sum"),
        "marks_ratio": marks.get("ratio"),
        "waited_share": min(shares.values(), default=None),
        "worst_result_error": max(errors, default=None),
        "results_compared": len(errors) or None,
        "worst_drift_ratio": drift.get("worst_ratio"),
        "attempts_given_up": drift.get("given_up"),
    }


def cell_row(source: str, path: Path, data: Mapping[str, Any], history: Path) -> dict[str, Any]:
    """One line of cells.csv."""
    cell, probes, accounting = data["cell"], data["probes"], data["accounting"]
    environment = data["environment"]
    flags = [*data["flags"], *study_rows.flags(data)]
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
        **{
            name: bool(parameters.get(name)) if cell["trainer"] or name in parameters else None
            for name in ("gradient_checkpointing", "compile")
        },
        **{name: parameters.get(name) for name in ("attention", "adamw", "allocator")},
        "offload": joined(data["method"].get("offload")),
        "kernels": joined(data["method"].get("kernels")),
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
        "system": environment.get("system"),
        "python": environment.get("python"),
        "framework_version": (environment.get("backend") or {}).get("framework_version"),
        "device_name": (environment.get("backend") or {}).get("device_name"),
        # What the measuring process found mapped goes before what its host declares.
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
        **of(data.get("checks") or {}, data["points"]),
    }


def _offloaded_bytes(scenario: Mapping[str, Any]) -> int | None:
    """What is predicted to stay on the device of an offloaded cell; None for any other."""
    parts = scenario.get("offloaded_parts_bytes")
    return footprint.total(parts) if parts else None


def _last_level_cache(data: Mapping[str, Any]) -> dict[str, Any]:
    """Its size and who says so, of a cell that looked at it; None for any other."""
    cache = data["method"].get("bandwidth") or {}
    rotations = [point["rotation"] for point in data["points"] if point.get("rotation")]
    if not cache and rotations:
        cache = {
            f"last_level_{name}": rotations[0][name] for name in ("cache_bytes", "cache_source")
        }
    return {name: cache.get(name) for name in ("last_level_cache_bytes", "last_level_cache_source")}


def _earlier_ok(paths: Sequence[Path]) -> str | None:
    """The newest earlier record of a cell that was measured without fault."""
    for path in paths:
        try:
            data = record.read(path, check_schema=False)
            same_cell = path.parent.as_posix().endswith(f"/{record.cell_path(data)}")
            if data.get("status") == "ok" and same_cell:
                return path.as_posix()
        except UserError:
            continue  # the history is a courtesy; the report does not fall over it
    return None
