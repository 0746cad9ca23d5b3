"""What a workload or a probe declares about its numbers, for the tables and the page.

A workload's `POINT` declares the parameters of its points, its `QUANTITIES` what each point yields;
a probe's `QUANTITIES` declare what its summary holds. No other file lists these names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from itertools import chain
from typing import Any, Literal, NamedTuple

from siliconprof import plugins

Settings = Mapping[str, Any]  # an entry of the config, of a workload or a data set
Bytes = dict[str, int]  # predicted memory, by part
# The first of these series that a point has is the time that it is about.
TIMES = ("whole_step", "step", "launch_and_wait")
# Below so many operations a byte the memory bounds an operation and not the speed of products: a
# library whose products are slow may be faster at it.
PRODUCT_INTENSITY = 2.0


class Parameter(NamedTuple):
    """A parameter of a point, an entry of its `params` or a setting of its cell.

    Args:
        type: as in JSON Schema: integer, number, string or boolean; a number is zero or more.
        label: what tables and sentences call it.
        unit: such as `byte` or `s`; empty for counts and words.
        identifies: a point without it cannot be told from others, and is left out.
        derived: it follows from the others, so the description of a point leaves it out.
    """

    type: str
    label: str
    unit: str = ""
    identifies: bool = True
    derived: bool = False

    def text(self, value: Any) -> str:
        """A value in a sentence: `512 MiB`, `batch 8`, `not pinned`, `host to device`."""
        if self.type == "boolean":
            return self.label if str(value) == "True" else f"not {self.label}"
        if self.type == "string":
            return str(value)
        if self.unit == "byte":
            return mebibytes(float(value))
        return f"{self.label} {value:g}{f' {self.unit}' if self.unit else ''}"


class Quantity(NamedTuple):
    """A number that a point or a probe yields.

    Args:
        label: what tables and figures call it.
        unit: SI, such as `s`, `byte/s` or `FLOP/s`; empty for ratios and counts.
        better: empty where neither is.
        series: raw values in the point's `times`, named by the quantity, in seconds; otherwise one
            number of the point itself.
    """

    label: str
    unit: str
    better: Literal["lower", "higher", ""] = ""
    series: bool = False


# -- of all plug-ins -----------------------------------------------------------------------------


def mebibytes(size_bytes: float) -> str:
    """`512 MiB`, `32 KiB`, `15 GiB`."""
    size, unit = size_bytes / 2**20, "MiB"
    if size < 1:
        size, unit = size_bytes / 2**10, "KiB"
    elif size >= 10 * 2**10:
        size, unit = size_bytes / 2**30, "GiB"
    return f"{size:.4g} {unit}"


def describe(point: Mapping[str, Any]) -> str:
    """A point in its workload's words; by name and value where that plug-in is missing."""
    plugin = workload_of(point)
    if plugin is not None:
        return plugin.describe_point(point)
    params = json.loads(point.get("params") or "{}")
    return ", ".join(f"{name} {value}" for name, value in params.items())


def workload_of(point: Mapping[str, Any]) -> Any:
    """The plug-in of a point's workload; None for one that another checkout measured."""
    if point["module"] not in plugins.names("workloads"):
        return None
    return plugins.load("workloads", point["module"])


@cache
def parameters() -> dict[str, Parameter]:
    """The parameters of the points of all workloads, by name; one name is of one type in all."""
    return _of_workloads("POINT")


@cache
def quantities() -> dict[str, Quantity]:
    """The quantities of the points of all workloads, by name; none is a parameter of another."""
    return _of_workloads("QUANTITIES")


def _of_workloads(attribute: str) -> dict[str, Any]:
    union: dict[str, Any] = {}
    for module in plugins.names("workloads"):
        for name, declared in getattr(plugins.load("workloads", module), attribute).items():
            union.setdefault(name, declared)
    return union


# These make and read data and weights, whatever trains on them.
OF_DATA = ("datasets", "safetensors", "soundfile", "soxr", "tokenizers")


@cache
def libraries() -> list[str]:
    """Distributions whose version a number may depend on: those of the plug-ins, and `OF_DATA`."""
    of_probes = [plugins.load("probes", name).LIBRARIES for name in plugins.names("probes")]
    return sorted({*libraries_but_of_probes(), *chain.from_iterable(of_probes)})


@cache
def libraries_but_of_probes() -> list[str]:
    """Those that a cell's process, or what prepares its data, may import."""
    frameworks = {plugins.load("backends", name).framework for name in plugins.names("backends")}
    return sorted({*OF_DATA, *chain.from_iterable(map(libraries_with, frameworks))})


@cache
def libraries_with(framework: str) -> list[str]:
    """Those that the cells of a framework may import: of its backends, workloads and trainers."""
    names = set[str]()
    trainers = [plugins.load("trainers", name) for name in plugins.names("trainers")]
    workloads = [plugins.load("workloads", name) for name in plugins.names("workloads")]
    for plugin in (*workloads, *trainers):
        names.update(plugin.LIBRARIES.get(framework, ()))
    for name in plugins.names("backends"):
        backend = plugins.load("backends", name)
        if backend.framework == framework:
            names.update(backend.LIBRARIES)
            if backend.features.offload is None:
                names.update(*(trainer.OFFLOAD_LIBRARIES for trainer in trainers))
    return sorted(names)


def installed_version(distribution: str) -> str | None:
    """A distribution's version from its metadata, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str | None]:
    """The version of each of `libraries`; nothing is imported."""
    return {name: installed_version(name) for name in libraries()}
