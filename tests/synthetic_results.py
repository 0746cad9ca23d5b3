"""Results that nobody measured, for tests of what comes after measuring: SYNTHETIC, every number.

Records are made here in the project's own format; the real aggregation and page make the rest.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "workflow") not in sys.path:
    sys.path.insert(0, str(ROOT / "workflow"))

from parsed_page import Page  # noqa: E402
from siliconprof import plugins  # noqa: E402
from siliconprof.analyse import (  # noqa: E402
    aggregate,
    attribution,
    ceilings,
    prediction,
)
from siliconprof.analyse.frames import Frames  # noqa: E402
from siliconprof.claims import judge  # noqa: E402
from siliconprof.hosts import registry  # noqa: E402
from siliconprof.pipeline import cli  # noqa: E402
from siliconprof.render import page  # noqa: E402
from siliconprof.store import record, table_files  # noqa: E402

READ_ONCE = cache(registry.load)
CONFIG = ROOT / "config"
STAGES = [aggregate, ceilings, attribution, prediction, judge]
SHA = "ab" * 32
CPU = {
    "id": "cpu-x",
    "registry_id": None,
    "name": "Example CPU",
    "kind": "cpu",
    "vendor": "amd",
    "memory_bytes": 2**34,
    "memory_kind": "system",
    "index": 0,
    "gpu_cores": None,
    "driver": None,
    "backends": ["torch-cpu", "mlx"],
}
H200 = CPU | {
    "id": "h200",
    "registry_id": "h200",
    "name": "NVIDIA H200",
    "kind": "gpu",
    "vendor": "nvidia",
    "memory_bytes": 140 * 2**30,
    "memory_kind": "dedicated",
    "backends": ["torch-cuda", "mlx"],
}
GPU = {"device": "h200", "backend": "torch-cuda", "device_kind": "gpu"}
AWAY = GPU | {"host": "gpu-box", "device": "rtx-4090"}
A6000 = GPU | {"host": "gpu-box", "device": "rtx-a6000"}
ULTRA = GPU | {"host": "mac", "device": "m2-ultra-76", "backend": "torch-mps"}
METERS = {"nvml-counter": "gpu", "rapl-package": "cpu-package"}  # what each counts
SAMPLED = {"samples": 40, "share_of_wall": 2e-4}
SAMPLED |= {"sample_cost_median_s": 2e-5, "sample_cost_p95_s": 9e-5}
PHASES = {"data_s": 0.01, "forward_s": 0.3, "backward_s": 0.5, "optimizer_s": 0.17, "other_s": 0.02}


# -- records -----------------------------------------------------------------------------------


def host_file(devices: Sequence[Mapping[str, Any]] = (CPU,), **own: Any) -> dict[str, Any]:
    """A host file's content; `own` in the place of what stands here."""
    machine = {"cpu_model": "Example CPU", "architecture": "x86_64"}
    system = {"system": "Linux", "release": "6.1", "machine": "x86_64"}
    cores = {"physical_cores": 2, "logical_cores": 2, "usable_cores": 2}
    no_driver = {"reason": "no NVIDIA GPU or driver", "fix": "install a driver"}
    return {
        "schema_version": 2,
        "label": "desk",
        "fingerprint": SHA,
        "fingerprint_parts": {"machine_id_sha256": None} | machine,
        "os": system | {"distribution": "Debian GNU/Linux 12"},
        "cpu": cores
        | {"model": "Example CPU", "memory_bytes": 2**34, "features": ["avx2", "avx512_bf16"]},
        "devices": list(devices),
        "backends": {
            "torch-cpu": {"available": True, "reason": None, "fix": None, "devices": ["cpu-x"]},
            "torch-cuda": {"available": False, "devices": []} | no_driver,
        },
        "packages": {"python": "3.11.7", "torch": "2.13.0+cpu", "triton": None},
        "blas": {"torch": "oneMKL 2024.2", "mlx": None},
        "driver": dict.fromkeys(("nvidia", "macos", "cuda_runtime", "rocm_runtime", "cublas")),
        "quick_facts_sha256": SHA,
    } | own


def host_of(label: str, *devices: dict[str, Any]) -> dict[str, Any]:
    """A host file made by hand: another computer, as far as the matrix can tell."""
    backends = {
        name: {"available": True, "reason": None, "fix": None}
        | {"devices": [one["id"] for one in devices if name in one["backends"]]}
        for name in sorted({name for one in devices for name in one["backends"]})
    }
    host = host_file(devices, label=label, backends=backends)
    return host | {"cpu": host["cpu"] | {"memory_bytes": 64 * 2**30}}


def host_with(names: Sequence[str], known: registry.Registry) -> dict[str, Any]:
    """A host with these devices, `local` left out, of the memory that the registry gives them."""
    devices = []
    for name in [name for name in names if name != "local"]:
        entry = known["devices"][name]
        own = {key: entry[key] for key in ("kind", "vendor", "backends", "memory_kind")}
        own |= dict.fromkeys(("id", "registry_id", "name"), name)
        devices.append(H200 | own | {"memory_bytes": int(entry["memory_gib"]["value"]) * 2**30})
    return host_of("fake", *devices)


def base_record(module: str, workload: str, **axes: Any) -> dict[str, Any]:
    """A record without points, status ok."""
    where = {"host": "desk", "device": "cpu-x", "backend": "torch-cpu"}
    what = {"workload": workload, "scenario": "auto", "precision": "fp32", "module": module}
    device = {"device_kind": "cpu", "device_index": 0, "device_memory_bytes": 2**34, "threads": 2}
    how = {"trainer": None, "seed": 0, "dataset": None, "parameters": {}, "timing": {}}
    cell = where | what | device | how | axes
    scenario = {"requested": cell["scenario"], "derived": "fits", "applied": "fits"}
    memory = {"predicted_bytes": 10**6, "device_memory_bytes": 2**34, "capacity_bytes": 2**34}
    memory |= {"capacity_source": "the device's memory"}
    format_, evidence = cell["precision"], {"evidence": {"product_error": 2e-7}}
    machine = {"node": "0123456789ab", "system": "Linux-6.1", "python": "3.11.7"}
    code = {"git_commit": "c" * 40, "declared": {"blas": "oneMKL 2024.2"}}
    framework = {"framework_version": "2.13.0", "device_name": None}
    return {
        "schema_version": 6,
        "method_version": 2,
        "cell": cell,
        "status": "ok",
        "reason": None,
        "started_at": "2026-01-02T03:04:05+00:00",
        "scenario": scenario | memory | {"predicted_parts_bytes": {}},
        "precision": {"requested": format_, "effective": format_} | evidence,
        "points": [],
        "samples": [],
        "probes": {},
        "flags": [],
        "dataset": None,
        "method": {},
        "code": {"fingerprint": SHA, "modules": {}},
        "modules_loaded": [],
        "progress": None,
        "environment": machine | code | {"backend": framework},
        "accounting": {"wall_s": 5.0, "child_wall_s": 4.9, "timed_s": 3.0},
    }


def around(seconds: float) -> list[float]:
    """Thirty times that lie within 1 % of as many seconds."""
    return [seconds * (1 + 0.001 * (i % 11 - 5)) for i in range(30)]


def training(step_s: float, losses: Sequence[float] = (6.0, 5.5, 5.25), **axes: Any) -> dict:
    """A measured training cell whose whole steps lie within 1 % of `step_s`.

    Args:
        axes: of the cell; besides `samples` of a step, `parameters` of the workload, and
            `trained`, the number of parameters that are.
    """
    trainer, samples = axes.setdefault("trainer", "plain"), axes.pop("samples", 4)
    trained = axes.pop("trained", 198400)
    usual = {"size": "nano", "lora_rank": 0, "weights": "random", "allocator": "default"}
    axes["parameters"] = usual | axes.pop("parameters", {})
    module, workload = axes.pop("module", "gpt2"), axes.pop("workload", f"gpt2-nano-{trainer}")
    made = base_record(module, workload, **axes)
    sizes = {"batch_size": samples, "samples_per_step": samples}
    sizes |= {"tokens_per_step": 64 * samples, "audio_s_per_step": None}
    made["dataset"] = {"name": "text", "data_sha256": SHA, "vocab_size": 512}
    made["samples"] = [
        {"t_s": 0.1 * i, "rss_bytes": 2.0e8 + 1e6 * i, "minor_faults": 10 * i}
        | {"major_faults": 0, "device_memory_bytes": None}
        for i in range(5)
    ]
    # Two warm-up steps that touch much, then 30 split and whole steps in turn.
    kinds = ["warm-up", "warm-up", *["split", "whole"] * 30]
    steps = {"kind": kinds, "started_s": [0.05 + step_s * i for i in range(len(kinds))]}
    steps |= {"minor_faults": [5000, 900, *[40] * 60], "major_faults": [0] * len(kinds)}
    made["points"] = [
        {
            "params": sizes | {"n_parameters": 198400, "n_trainable_parameters": trained},
            "times": {
                "step_s": around(1.02 * step_s),
                "whole_step_s": around(step_s),
                "unsynchronised_step_s": [step_s / 1.25] * 3,
                "warmup_step_s": [step_s * 3, step_s],
                **{name: around(share * 1.02 * step_s) for name, share in PHASES.items()},
            },
            "flops": 2.0e8,
            "bytes": None,
            "loss": list(losses),
            "memory": {"device_bytes": None, "device_peak_bytes": None},
            "steps": steps,
            "unsynchronised_steps": 4,
        }
    ]
    return made


def metered(made: dict[str, Any], joules: Mapping[str, float]) -> dict[str, Any]:
    """The same cell with the energy of a step by some meters."""
    sources = [
        {"name": name, "scope": METERS[name], "quality": "counter", "means": "a meter"}
        | {"energy_j": 100 * j, "updates": 200, "reason": None}
        | {"energy_per_step_j": j, "energy_per_sample_j": j / 4, "net_energy_per_step_j": j - 5.5}
        | {"idle_before_w": 50.0, "idle_after_w": 60.0}
        for name, j in joules.items()
    ]
    energy = {"window_s": 10.0, "steps": 100, "reason": None, "sources": sources}
    made["points"][0]["energy"] = energy
    return made


def probed(made: dict[str, Any], **summaries: Any) -> dict[str, Any]:
    """The same cell with what probes answer."""
    for name, summary in summaries.items():
        made["probes"][name] = {"available": True, "means": f"reads {name}"} | summary | SAMPLED
    return made


def of_the_paper(
    module: str, size: str, samples: int, step_s: float = 0.4, joules: float = 0, **axes: Any
) -> dict[str, Any]:
    """A training of one of the paper's models, with the counts that its workload gives.

    Args:
        joules: of a step, by the GPU's counter; 0 = it has none.
    """
    plugin = plugins.load("workloads", module)
    shape = {"size": size, "batch_size": samples}
    shape |= {"dataset_clip_seconds": 30} if module == "whisper" else {"dataset_vocab_size": 512}
    workload = plugin(plugin.defaults() | shape)
    made = training(
        step_s,
        module=module,
        samples=samples,
        parameters=workload.parameters,
        trained=workload.weights.n_trainable_parameters(),
        **{"trainer": "hf", "workload": f"{module}-{size}"} | axes,
    )
    made["points"][0]["params"] |= {
        "n_parameters": workload.weights.n_parameters(),
        "tokens_per_step": workload.tokens_per_step(),
        "audio_s_per_step": workload.audio_s_per_step(),
    }
    made["scenario"] |= {"batch_size": samples}
    return metered(made, {"nvml-counter": joules, "rapl-package": 55.0}) if joules else made


def point(params: Mapping[str, Any], seconds: float, **more: Any) -> dict[str, Any]:
    """A measured point whose single calls lie within 1 % of `seconds`."""
    return {
        "params": dict(params),
        "flops": None,
        "bytes": None,
        "memory": {},
        "result_error": 2e-7,
        "times": {"step_s": around(seconds)},
        "stopped_by": "interval",
        "burst_mean_s": 0.98 * seconds,
    } | more


def matmul(**axes: Any) -> dict[str, Any]:
    """A measured matrix product cell of two shapes, the second without a burst."""
    made = base_record("matmul", "matmul-small", **axes)
    reason = "110 launches would take about 0.6 s, the budget is 0.5 s"
    small, large = {"burst_mean_s": 9e-5}, {"burst_mean_s": None, "burst_reason": reason}
    for n, seconds, burst in ((64, 1e-4, small), (512, 5e-3, large)):
        shape = {"batch": 1, "m": n, "k": n, "n": n}
        made["points"].append(point(shape, seconds, flops=2.0 * n**3, bytes=12 * n * n, **burst))
    return made


def kernel_launch(**axes: Any) -> dict[str, Any]:
    """A measured launch cell."""
    made = base_record("kernel_launch", "kernel-launch", **axes)
    times = {"launch_and_wait_s": 3e-6, "enqueue_s": 2e-6, "amortised_s": 2.5e-6}
    made["points"] = [
        {
            "params": {"launch": "dispatch", "note": "a + 1 on one element", "burst": 100},
            "times": {"cold_s": [1e-4]} | {name: [value] * 9 for name, value in times.items()},
            "flops": None,
            "bytes": None,
            "memory": {},
        }
    ]
    return made


def repeated(made: dict[str, Any], *factors: float) -> dict[str, Any]:
    """The same cell with further processes, each so many times as slow as the first."""
    made = json.loads(json.dumps(made))
    for point in made["points"]:
        point["repeats"] = [
            {"times": {name: [f * t for t in times] for name, times in point["times"].items()}}
            for f in factors
        ]
    return made


def flagged(made: dict[str, Any], **details: str) -> dict[str, Any]:
    """The same cell with flags: code -> detail."""
    return made | {"flags": [{"code": code, "detail": said} for code, said in details.items()]}


def without_result(made: dict[str, Any], status: str, reason: str) -> dict[str, Any]:
    """The same cell, not measured."""
    return made | {"status": status, "reason": reason, "points": [], "samples": []}


def bundle_of(files: Mapping[str, bytes], **manifest: Any) -> bytes:
    """A bundle of these files."""
    told = json.dumps({"bundle_version": 2, "siliconprof_version": "0.1"} | manifest).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, "manifest.json": told}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, compresslevel=1)
    return target.getvalue()


# -- from records to the page -------------------------------------------------------------------


def put(records: Path, made: dict[str, Any], history: Path | None = None) -> Path:
    """Write a record to its place in a folder of records, and to a history; its path."""
    path = records / f"{record.cell_path(made)}.json"
    record.write(made, path, history)
    return path


def make(
    folder: Path,
    own: Sequence[dict[str, Any]],
    foreign: Sequence[dict[str, Any]] = (),
    reference: Sequence[dict[str, Any]] = (),
    devices: Sequence[Mapping[str, Any]] = (CPU,),
    last: ModuleType = prediction,
    **more: Any,
) -> Path:
    """Records, matrix and tables as the pipeline leaves them; the results folder.

    Args:
        last: the stage after which nothing is looked at. Claims take nearly as long to judge as all
            that goes before, so that their table is empty unless this is `judge`.
        more: parts of the matrix.
    """
    results = folder / "results"
    cells = []
    for kind, group in (
        ("records", own),
        ("records", foreign),
        ("reference/lab/records", reference),
    ):
        for made in group:
            path = put(results / kind, made, results / "history" if group is own else None)
            if group is own:
                cells.append({"cell": made["cell"], "record": path.as_posix()})
    document = {
        "experiment": {"experiment": "test", "report": {"title": "A test"}},
        "host": host_file(devices),
        "cells": cells,
        "not_measured": [],
    } | more
    document.setdefault("hosts", [document["host"]])
    matrix, tables = results / "matrix.json", results / "tables"
    matrix.parent.mkdir(parents=True, exist_ok=True)
    matrix.write_text(json.dumps(document), encoding="utf-8")
    for stage in STAGES[: STAGES.index(last) + 1]:
        if stage is aggregate:
            bundles = [results / "reference/lab"] if reference else []
            stage.main(matrix=matrix, reference=bundles)
        else:
            run(stage, results)
    if last is not judge:
        table_files.write(tables / "claims.csv", [])
    return results


def run(stage: ModuleType, results: Path, claims: Path = CONFIG / "claims.yaml") -> None:
    """Run a part of `pipeline.analyse`."""
    more = {"claims": claims} if stage is judge else {}
    stage.write(load(results), output=results / "tables", **more)


def table(results: Path, name: str) -> list[dict[str, Any]]:
    """Lines of a table, as the stages read them."""
    return table_files.rows(table_files.read(results / f"tables/{name}.csv"))


def shown_table(results: Path, name: str) -> list[dict[str, str]]:
    """Lines of an exhibit's file."""
    text = (results / f"figures/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def command(*said: Any, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`siliconprof …` as a user calls it, in this process: most of the time goes into starting one."""
    argv = [*map(str, said)]
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        patch.dict(os.environ),  # what it sets is its own process's
        patch.object(sys, "argv", ["siliconprof", *argv]),
        patch.object(registry, "load", READ_ONCE),
    ):
        try:
            status = cli.main()
        except SystemExit as ended:  # of argparse
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(argv, status, out.getvalue(), errors.getvalue())


def make_page(results: Path) -> None:
    """Make the page."""
    with patch.object(registry, "load", READ_ONCE):
        page.main(matrix=results / "matrix.json")


def render(results: Path) -> Page:
    """Make the page and read it."""
    make_page(results)
    return Page((results / "report.html").read_text(encoding="utf-8"))


def load(results: Path) -> Frames:
    """What exhibits query."""
    files = (results / "matrix.json", results / "tables")
    with patch.object(registry, "load", READ_ONCE):
        return Frames.load(*files, CONFIG / "published", CONFIG / "devices.yaml")
