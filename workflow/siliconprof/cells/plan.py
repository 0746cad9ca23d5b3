"""What a run would do, before it does it: cells, scenario, memory and time.

`siliconprof plan` prints tables of 100 columns, `--json` the same as data. Which cells are due, and
why, is Snakemake's answer (`snakemake measured --summary`).
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from siliconprof import formatting, options
from siliconprof.cells import cluster, config, expected, matrix, model_file
from siliconprof.errors import UserError
from siliconprof.hosts import host_file, registry, remedies
from siliconprof.store import record
from siliconprof.store.contents import Record

NEVER = "never measured"
# What a row of the plan says of its scenario under the same name, see `ResolvedCell.scenario`.
OF_THE_SCENARIO = (
    *("batch_size", "batch_size_found", "batch_size_asked"),
    *("capacity_bytes", "capacity_source"),
)
WIDTH = 100  # columns of the text
HEAD = ("backend", "workload", "precision", "scenario", "batch", "MiB", "s", "state")


def due_files(options_given: Sequence[str]) -> dict[str, str]:
    """Return file -> why Snakemake would make it, for all files that records need.

    Args:
        options_given: of Snakemake, as they were written.

    Raises:
        UserError: Snakemake cannot tell; its own lines.
    """
    command = [sys.executable, "-m", "snakemake", "measured", "--summary", *options_given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip() or "snakemake measured --summary: it failed")
    lines = csv.DictReader(done.stdout.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    why = {"ok": "what it reads is made again"}
    return {
        one["output_file"]: why.get(one["status"], one["status"])
        for one in lines
        if one["plan"] == "update pending"
    }


def row(planned: matrix.PlannedCell, due: Mapping[str, str]) -> dict[str, Any]:
    """Return one cell of the plan; `due` as from `due_files`."""
    cell = planned.cell
    path = Path(planned.record)
    earlier: Record | None = None
    why = due.get(planned.record)
    if not path.exists():
        why = NEVER
    else:
        try:
            earlier = record.load(path, in_place=True)
        except UserError as error:
            damaged = str(error)
    refusal = planned.resolved.refusal()
    if refusal:
        state = refusal[0]
    elif why:
        state = "to measure"
    elif earlier is None:
        state = "damaged"
    else:
        state = "measured" if earlier.status == "ok" else earlier.status
    scenario = planned.resolved.scenario()
    return {
        "cell": json.loads(cell.to_json()),
        "environment": dict(planned.environment),
        "record": path.as_posix(),
        "state": state,
        "due": why is not None,
        "why": refusal[1] if refusal else why or (earlier.reason if earlier else damaged),
        "scenario_derived": scenario["derived"],
        "scenario_applied": scenario["applied"],
        "predicted_memory_bytes": scenario["predicted_bytes"],
        **{name: scenario[name] for name in OF_THE_SCENARIO},
        "smaller_batch": planned.resolved.smaller_batch,
        "expected_s": 0.0 if refusal else expected.seconds(planned, earlier),
    }


def on_cluster(
    experiment: Mapping[str, Any], devices: registry.Registry, due: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What a run through a profile would measure, by label; `due` as for `row`.

    `cells` is None where no node has been detected yet; `not_measured` says why a detected node
    has no cells.
    """
    plans = []
    results = matrix.results_folder(experiment)
    for label in cluster.chosen(experiment):
        file = Path(results) / "hosts" / f"{label}.json"
        cells: list[dict[str, Any]] | None = None
        missing: list[dict[str, str]] = []
        if file.exists():
            expansion = matrix.Expansion(experiment, devices, host_file.load(file))
            cells = [row(planned, due) for planned in expansion.cells]
            missing = expansion.not_measured
        device = experiment["cluster"][label]["device"]
        about = {"label": label, "device": device, "how": cluster.CLUSTER_COMMAND}
        plans.append(about | {"cells": cells, "not_measured": missing})
    return plans


def make(
    experiment: Mapping[str, Any],
    devices: registry.Registry,
    host: Mapping[str, Any] | None,
    due_files: Mapping[str, str],
) -> Any:
    """The whole plan as data; without a host for a run on a cluster.

    Args:
        due_files: what Snakemake would make, and why.
    """
    expansion = matrix.Expansion(experiment, devices, host) if host else None
    rows = [row(planned, due_files) for planned in expansion.cells] if expansion else []
    data = (
        Path(matrix.results_folder(experiment)) / "data" / name for name in experiment["datasets"]
    )
    due = [entry for entry in rows if entry["due"]]
    return {
        "experiment": experiment["experiment"],
        "host": host["label"] if host else None,
        "cells": rows,
        "not_measured": expansion.not_measured if expansion else [],
        "cluster": on_cluster(experiment, devices, due_files),
        "data_due": {
            folder.as_posix(): due_files[file]
            for folder in data
            if (file := (folder / "dataset.json").as_posix()) in due_files and folder.exists()
        },
        "emulated": _emulated(host, rows) if host else [],
        "backends_unavailable": {
            name: {key: entry.get(key) for key in ("available", "reason", "fix")}
            for name, entry in (host["backends"].items() if host else ())
            if entry["reason"]
        },
        "totals": {
            "cells": len(rows),
            "due": len(due),
            "expected_s": sum(entry["expected_s"] for entry in due),
        },
    }


def _emulated(host: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each precision of cells on the CPU that it has no instructions for."""
    asked = [entry["cell"]["precision"] for entry in rows if entry["cell"]["device_kind"] == "cpu"]
    reasons = (remedies.emulation(host["cpu"], precision) for precision in asked)
    return list(dict.fromkeys(filter(None, reasons)))


def mebibytes(value: int | None) -> str:
    """A size for a table column."""
    if value is None:
        return "-"
    return f"{value / 2**20:,.{0 if value >= 100 * 2**20 else 1}f}"


def remarks(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks on a cell, beside its numbers."""
    applied, derived = entry["scenario_applied"], entry["scenario_derived"]
    if entry["why"] not in (None, NEVER):
        yield entry["why"]
    if derived not in (None, applied):
        yield f"by the memory model its scenario is '{derived}'"
    if entry["batch_size_found"]:
        yield "the memory model has found its batch size"
    if entry["smaller_batch"]:
        yield f"{entry['cell']['workload']}: {entry['smaller_batch']}"
    if entry["capacity_bytes"] is not None:
        yield f"{entry['cell']['device']}: {mebibytes(entry['capacity_bytes'])} MiB may be used"


def as_text(plan: Mapping[str, Any]) -> str:
    """The plan for a person: what it comes to, a table for each device, notes, what is missing."""
    lines, notes = [*_summary(plan)], Counter[str]()
    for device in dict.fromkeys(entry["cell"]["device"] for entry in plan["cells"]):
        rows = [entry for entry in plan["cells"] if entry["cell"]["device"] == device]
        table = formatting.aligned([HEAD, *map(_line, rows)])
        lines += [
            "",
            f"{device}: {formatting.count(len(rows), 'cell')}",
            *(f"  {row}" for row in table),
        ]
        notes.update(remark for entry in rows for remark in remarks(entry))
    lines += ["", *(f"{formatting.count(n, 'cell')}: {remark}" for remark, n in notes.items())]
    lines += _missing(plan)
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines).strip()


def _line(entry: Mapping[str, Any]) -> tuple[str, ...]:
    cell, memory = entry["cell"], mebibytes(entry["predicted_memory_bytes"])
    named = (cell["backend"], cell["workload"], cell["precision"], entry["scenario_applied"])
    batch_size, expected_s = str(entry["batch_size"] or "-"), f"{entry['expected_s']:.0f}"
    return (*named, batch_size, memory, expected_s, _state(entry))


def _state(entry: Mapping[str, Any]) -> str:
    return "new" if entry["why"] == NEVER else entry["state"]


def _summary(plan: Mapping[str, Any]) -> Iterator[str]:
    """What a run would do in all, and how many cells are in which state."""
    totals = plan["totals"]
    if plan["host"] is None:
        return
    cells = formatting.count(totals["cells"], "cell")
    yield (
        f"{totals['due']} of {cells} would run on host '{plan['host']}': about "
        f"{totals['expected_s']:.0f} s of measuring"
    )
    states = Counter(map(_state, plan["cells"]))
    yield ", ".join(f"{count} {state}" for state, count in states.most_common())


def _missing(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about data that are prepared again, cluster nodes, and missing devices and backends."""
    yield from plan["emulated"]
    for folder, reason in plan["data_due"].items():
        yield f"prepared again: {folder}: {reason}"
    for nodes in plan["cluster"]:
        cells = nodes["cells"]
        status = "a node is looked at first"
        if cells is not None:
            status = f"{sum(entry['due'] for entry in cells)} of {formatting.count(len(cells), 'cell')} would run"
        where = f"cluster's nodes '{nodes['label']}' ({nodes['device']})"
        yield f"{where}: {status}, through a profile: {nodes['how']}"
    there = [missing for nodes in plan["cluster"] for missing in nodes["not_measured"]]
    for missing in [*plan["not_measured"], *there]:
        yield f"not measured: {missing['device']}: {missing['reason']}"
    for name, entry in plan["backends_unavailable"].items():
        fix = f"; {entry['fix']}" if entry["fix"] else ""
        cannot = "" if entry["available"] else " is not available"
        yield f"backend {name}{cannot}: {entry['reason']}{fix}"


def main(
    *,
    configfile: Annotated[
        Sequence[str],
        f"laid over {config.DEFAULT}, a later one over an earlier one",
        {"metavar": "FILE"},
    ] = (),
    replace_workflow_config: Annotated[bool, f"in place of {config.DEFAULT}"] = False,
    config_: Annotated[
        Sequence[str],
        "laid over the files, such as model=Qwen/Qwen3-0.6B lora=8",
        {"metavar": "KEY=VALUE"},
    ] = (),
    json_: options.Json = False,
) -> None:
    """Print the plan."""
    experiment = config.resolved_experiment(configfile, replace_workflow_config, config_)
    given = ["--configfile", *configfile] if configfile else []
    given += ["--replace-workflow-config"] if replace_workflow_config else []
    given += ["--config", *config_] if config_ else []
    devices = registry.load(registry.shipped())
    with options.spinner("looking at this host and its records"):
        for spec in matrix.model_specs(experiment).values():
            model_file.facts_file(spec, Path(matrix.results_folder(experiment)))
        host = None
        if not experiment["cluster"]:
            host = host_file.resolve(matrix.results_folder(experiment), experiment["host"], devices)
        # These say in a line what Snakemake says in ten.
        if host:
            matrix.tested(experiment, devices, host)
        else:
            results = Path(matrix.results_folder(experiment))
            cluster.check(experiment, devices, host_file.label(results, experiment["host"]))
        plan = make(experiment, devices, host, due_files(given))
    print(json.dumps(plan, indent=1) if json_ else as_text(plan))
