"""Config, registry and host -> cells. A pure function; the Snakefile and every tool ask it.

    python -m siliconprof.cells.matrix --experiment F --host-file F --output F

writes the same expansion as a file, `results/matrix.json`, which the later stages read.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from siliconprof import fingerprint, lifetime, options, plugins
from siliconprof.cells import cluster, method
from siliconprof.datasets import dataset_spec, model_facts, weights
from siliconprof.hosts import host_file, node_check, registry, remedies
from siliconprof.memory import memory_model
from siliconprof.session.resolved_cell import BATCH_ASKED, ResolvedCell
from siliconprof.store import documents, temporary
from siliconprof.store.cell import Cell, canonical_json, identity
from siliconprof.store.experiment import Workload
from siliconprof.store.record import METHOD_VERSION

# Why cells are left out.
NOT_FORKED = (
    "its process would import its libraries anew, since none is forked here, which takes seconds: left out "
    "by only_forked of the config; `only_forked: []` measures it"
)
NO_DEEPSPEED = (
    "ZeRO-Offload needs DeepSpeed, which is in no pin of envs/apple.txt, since it was never tried on a "
    "Mac: pip install deepspeed==0.19.8 measures it"
)
MODEL_LIBRARIES = ("mlx-lm", "peft", "torch", "transformers")  # by which a model is looked at
Axes = tuple[str, str, str, str, str]  # device, backend, workload, scenario, precision


@dataclass(frozen=True)
class PlannedCell:
    """A cell, and what its rule needs to know besides."""

    cell: Cell
    results: str  # the folder that its record and its data go to
    environment: Mapping[str, Any]  # versions that the cell uses; a change reruns it
    code: fingerprint.Fingerprint  # of the method: a change measures the cell anew
    resolved: ResolvedCell = field(compare=False)  # made of the cell
    data: Sequence[str]  # what the prepared data are, with checksums: a change reruns the cell
    weights: Sequence[str] = ()  # files of pretrained weights in a folder; none of the hub's
    expected: Mapping[str, Any] | None = None  # the device that a node must have, see node_check
    forked: bool = False  # its process, see `forks`

    @cached_property
    def arguments(self) -> str:
        """Return the options of `measure` for this cell, quoted; it is measured again when they change."""
        words = ["--cell", canonical_json(identity(vars(self.cell)))]
        words += ["--environment", canonical_json(self.environment)]
        words += ["--method", f"{METHOD_VERSION}:{self.code.sha256}", "--results", self.results]
        if self.expected is not None:
            words += ["--expect", canonical_json(self.expected)]
        return shlex.join(words)

    @property
    def record(self) -> str:
        """Where its record lies."""
        return f"{self.results}/records/{self.cell.path}.json"

    def to_document(self) -> dict[str, Any]:
        """What later stages read of it, see `matrix_file`."""
        return {"cell": asdict(self.cell), "record": self.record, "expected": self.expected}


def model_specs(experiment: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a model's file -> what it is of, for the entries of a resolved experiment that need one."""
    found = {}
    for entry in experiment["workloads"].values():
        if spec := plugins.load("workloads", entry["module"]).model_spec(entry):
            found[model_facts.name(spec)] = spec
    return found


class Expansion:
    """The cells of a resolved experiment on a host, or on the nodes of a label, in a stable order.

    Raises:
        UserError: the experiment names a device that nobody knows.
    """

    def __init__(
        self, experiment: Mapping[str, Any], registry: Mapping[str, Any], host: Mapping[str, Any]
    ) -> None:
        devices, self.not_measured = tested(experiment, registry, host)  # device, reason
        own = with_fitting_batches(experiment, host, devices)
        self.places = {at: place for place, at in enumerate(axes(own, devices))}
        self.planned = cache(partial(planned, own, host))

    @property
    def cells(self) -> list[PlannedCell]:
        """All of them, each planned once."""
        return [*map(self.planned, self.places)]


def results_folder(experiment: Mapping[str, Any]) -> str:
    """The folder of all that a run makes, relative to the one that Snakemake runs in."""
    return (Path(experiment["prefix"]) / "results").as_posix()


def select_devices(
    experiment: Mapping[str, Any], registry: Mapping[str, Any], host: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[dict[str, str]]]:
    """(the host's devices under test, those asked for that it lacks or that no backend can use).

    Raises:
        UserError: a device is neither in the registry nor on the host.
    """
    present = {device["id"]: device for device in host["devices"]}
    where, reason = (
        f"on this host ({', '.join(present)})",
        f"host '{host['label']}' has no such device",
    )
    missing = cluster.absent(experiment, registry["devices"], present, where, reason)
    for entry in missing:
        if why_not := registry["devices"][entry["device"]].get("unsupported"):
            entry["reason"] = f"not supported: {why_not}"
    asked = (present if one == "local" else [one] for one in experiment["devices"])
    chosen = [name for name in dict.fromkeys(chain.from_iterable(asked)) if name in present]
    unused = [present[name] for name in chosen if not present[name]["backends"]]
    missing += [{"device": one["id"], "reason": remedies.unused(one)} for one in unused]
    return [present[name] for name in chosen], missing


def tested(
    experiment: Mapping[str, Any], registry: Mapping[str, Any], host: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[dict[str, str]]]:
    """(devices under test on a host or on a label's node, those asked for that it does not have).

    Raises:
        UserError: the experiment names a device that nobody knows.
    """
    entry = experiment["cluster"].get(host["label"])
    if entry is None:
        return select_devices(experiment, registry, host)
    return cluster.device_of(host["label"], entry, host)


def axes(experiment: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Iterator[Axes]:
    """All cells of a resolved experiment on devices under test, in the config's order."""
    for device in devices:
        for name, workload in experiment["workloads"].items():
            if device["kind"] in workload["device_kinds"]:
                for backend in device["backends"]:
                    if backend in workload["backends"]:
                        for scenario in workload["scenarios"]:
                            for precision in workload["precisions"]:
                                yield device["id"], backend, name, scenario, precision


def with_fitting_batches(
    experiment: Mapping[str, Any], host: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the experiment with the batches of entries that have `fit_batch` cut to what this host's devices hold.

    Entries that train the same have one batch, on all devices, backends and precisions of the host, so
    that equal work stays equal: the largest of their own and the powers of two below it that fits
    wherever any of them does. What holds none of them is left as it is, to be offloaded or skipped.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, entry in experiment["workloads"].items():
        if entry.get("fit_batch"):
            work = [entry["module"], entry.get("dataset"), _parameters(experiment, entry)]
            groups.setdefault(canonical_json(work), {})[name] = entry
    fitted: dict[str, Any] = {}
    for entries in groups.values():
        group = {**experiment, "workloads": entries}
        resolved_cells = [ResolvedCell(_cell(group, host, at)) for at in axes(group, devices)]
        (asked,) = {entry["batch_size"] for entry in entries.values()}
        batch_size = min(
            filter(None, (resolved.fitting_batch() for resolved in resolved_cells)), default=asked
        )
        if batch_size < asked:
            own = {"batch_size": batch_size, BATCH_ASKED: asked}
            fitted |= {name: {**entry, **own} for name, entry in entries.items()}
    return {**experiment, "workloads": {**experiment["workloads"], **fitted}}


def planned(
    experiment: Mapping[str, Any],
    host: Mapping[str, Any],
    at: Axes,
) -> PlannedCell:
    """One cell and what its rule needs.

    Args:
        experiment: resolved, `with_fitting_batches`.
        at: the cell's place, of `axes`.
    """
    cell, (device_id, backend, *_) = _cell(experiment, host, at), at
    device, results = _device(host, device_id), results_folder(experiment)
    resolved, is_node = ResolvedCell(cell), host["label"] in experiment["cluster"]
    return PlannedCell(
        cell,
        results,
        host_file.environment_slice(host, device_id, backend, resolved.packages, resolved.offloads),
        fingerprint.fingerprint_of(method.code_roots(cell)),
        resolved,
        _data(experiment, cell),
        weights.local_files(cell.parameters),
        node_check.expectation(device) if is_node else None,
        forks(host, device, backend) and not is_node and not cell.parameters.get("capture"),
    )


def _data(experiment: Mapping[str, Any], cell: Cell) -> list[str]:
    """The files of a cell's data, all that `prepare` makes of them, and that of its model."""
    of_model = filter(None, [cell.parameters.get("model_file")])
    if not cell.dataset:
        return [*of_model]
    kind = experiment["datasets"][experiment["workloads"][cell.workload]["dataset"]]["kind"]
    return [*(f"{cell.dataset}/{name}" for name in dataset_spec.files(kind)), *of_model]


def _device(host: Mapping[str, Any], device_id: str) -> Mapping[str, Any]:
    return next(one for one in host["devices"] if one["id"] == device_id)


def _cell(
    experiment: Mapping[str, Any],
    host: Mapping[str, Any],
    at: Axes,
) -> Cell:
    device_id, backend, name, scenario, precision = at
    device, entry = _device(host, device_id), experiment["workloads"][name]
    parameters = _parameters(experiment, entry)
    if entry.get("capture"):  # only then is it part of the cell
        parameters["capture"] = entry["capture"]
    if entry.get("repeats", 1) > 1:
        parameters["repeats"] = entry["repeats"]
    if reason := _skipped(experiment, host, device, at):
        parameters["skip"] = reason
    dataset, threads, cpu = entry.get("dataset"), experiment["cpu_threads"], host["cpu"]
    if threads == "auto":
        threads = cpu.get("threads") or cpu["usable_cores"]
    return Cell(
        host=host["label"],
        device=device["id"],
        backend=backend,
        workload=name,
        scenario=scenario,
        precision=precision,
        module=entry["module"],
        trainer=entry.get("trainer"),
        device_kind=device["kind"],
        device_index=device["index"],
        device_memory_bytes=device["memory_bytes"],
        threads=threads,
        seed=experiment["seed"],
        dataset=f"{results_folder(experiment)}/data/{dataset}" if dataset else None,
        parameters=parameters,
        timing=entry["timing"],
        device_usable=memory_model.usable(device),
        device_capability=device.get("compute_capability"),
    )


def _skipped(
    experiment: Mapping[str, Any],
    host: Mapping[str, Any],
    device: Mapping[str, Any],
    at: Axes,
) -> str | None:
    """Why the experiment leaves a cell out on this host; None where it does not."""
    _, backend, name, scenario, precision = at
    if name in experiment["only_forked"] and not forks(host, device, backend):
        return NOT_FORKED
    features = plugins.load("backends", backend).features
    system = host["os"]["system"]
    is_offloaded = scenario == "offload" and features.offload is None
    if is_offloaded and system == "Darwin" and not host["packages"].get("deepspeed"):
        return NO_DEEPSPEED
    measured = experiment["emulated_workloads"]
    if device["kind"] != "cpu" or measured is None or name in measured:
        return None
    dtype, why = precision.removeprefix("amp-"), remedies.emulation(host["cpu"], precision)
    if features.emulates_on_cpu(dtype, system):
        why = why or f"{backend} computes {dtype} on a CPU without instructions for it"
    return why and f"{why}; measured in {', '.join(measured) or 'no workload'} alone"


def forks(host: Mapping[str, Any], device: Mapping[str, Any], backend: str) -> bool:
    """Whether the process of a cell on this host is forked from one that has imported its libraries."""
    may_fork = plugins.load("backends", backend).features.may_fork(device["kind"])
    return host["os"]["system"] == "Linux" and may_fork and not lifetime.forks_off()


def _parameters(experiment: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a workload entry's parameters for its module, with the shapes of its data as `dataset_KEY`."""
    parameters = {key: value for key, value in entry.items() if key not in Workload.model_fields}
    plugin = plugins.load("workloads", entry["module"])
    for name in plugin.swept:
        parameters[name] = _ordered(parameters[name])
    if spec := plugin.model_spec(parameters):
        name = f"{model_facts.name(spec)}.json"
        parameters["model_file"] = (
            f"{results_folder(experiment)}/{model_facts.MODELS_FOLDER}/{name}"
        )
    if entry.get("dataset"):
        asked = experiment["datasets"][entry["dataset"]]
        for key in dataset_spec.SHAPE_KEYS[asked["kind"]]:
            parameters[f"dataset_{key}"] = asked[key]
    return parameters


def _ordered(swept: Any) -> Any:
    """Sort a list whose entries are separate points, or a mapping to such lists.

    The order in a config is then no part of what is measured.
    """
    if isinstance(swept, Mapping):
        return {name: _ordered(values) for name, values in swept.items()}
    if not isinstance(swept, list):
        return swept
    return sorted(swept, key=lambda value: (value is not None, isinstance(value, str), value))


def main(
    *,
    experiment: Annotated[Path, "the resolved config"],
    host_file_: Annotated[Sequence[Path], "the hosts that this run measures"],
    focus: Annotated[
        Path | None,
        "the host that the page is about; default: the first with cells",
        {"nargs": "?"},
    ] = None,
    registry_: options.Registry = options.REGISTRY_FILE,
    output: Annotated[Path, "the file"],
) -> None:
    """Write the expansion as a file."""
    resolved, devices = documents.read(experiment), registry.load(registry_)
    found = [host_file.load(path) for path in host_file_]
    parts = [Expansion(resolved, devices, host) for host in found]
    with_cells = [host for host, part in zip(found, parts, strict=True) if part.places]
    missing = cluster.missing(resolved, devices) if resolved["cluster"] else []
    document = {
        "experiment": resolved,
        "host": host_file.load(focus) if focus else [*with_cells, *found][0],
        "hosts": found,
        "cells": [planned.to_document() for part in parts for planned in part.cells],
        "not_measured": [*missing, *(m for p in parts for m in p.not_measured)],
    }
    temporary.write(output, json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    options.run(main)
