"""The device registry: vendors' figures, and how a detected device is matched to an entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof import plugins
from siliconprof.errors import UserError, nearest
from siliconprof.hosts import models
from siliconprof.store import model, names, validation
from siliconprof.store.cell import PRECISIONS

Registry = Mapping[str, Any]  # {"sources": {key: source}, "devices": {id: entry}}

GIB = 2**30
# Drivers reserve some memory and vendors print round numbers (an 80 GB card answers 79.1 GiB,
# a 141 GB one 140.4); the sizes in which one product is sold lie further apart.
MEMORY_TOLERANCE = 0.15
# The number format of each precision's products; amp differs only in the copies that it keeps.
PEAK_OF_PRECISION = {precision: precision.removeprefix("amp-") for precision in PRECISIONS}
# What marketing and firmware add to a CPU's name and an id leaves out.
CPU_NAME_NOISE = re.compile(r"\(r\)|\(tm\)|\bcpu\b|\b\d+-core\b|\bprocessor\b|\bwith\b.*|@.*", re.I)


def shipped() -> Path:
    """The registry that comes with this package."""
    return plugins.shipped("config/devices.yaml")


def load(path: Path | str) -> dict[str, Any]:
    """The registry of a YAML file, `{"sources": …, "devices": …}`.

    Raises:
        UserError: all mistakes at once, one line each.
    """
    document = validation.load_yaml(path)
    mistakes = model.problems(models.Registry, document)
    mistakes += map(validation.one_line, _beyond_types(document))
    if mistakes:
        raise UserError("\n".join(f"{path}: {line}" for line in mistakes))
    return model.validated(models.Registry, document).model_dump(exclude_unset=True)


def _part(document: Any, name: str) -> dict[str, Any]:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


def _beyond_types(document: Any) -> Iterator[str]:
    """Mistakes: sources that are not there, and devices that no host recognises."""
    sources = _part(document, "sources")
    for device_id, entry in _part(document, "devices").items():
        where = f"devices.{device_id}"
        for place, source in _sources(entry, where):
            if source not in sources:
                yield f"{place}: is '{source}'; expected a key of sources{nearest(source, sources)}"
        if not isinstance(entry, dict):
            continue
        own = {"chip", "gpu_cores"} if entry.get("vendor") == "apple" else {"names"}
        for key in sorted(own ^ (_part(entry, "match").keys() & {"chip", "gpu_cores", "names"})):
            what = "is missing" if key in own else "is another vendor's"
            yield f"{where}.match.{key}: {what}; vendor apple has chip and gpu_cores, others names"
        if "unsupported" in entry and entry.get("backends"):
            yield f"{where}.unsupported: it has backends; leave this out"
        if "unsupported" not in entry and entry.get("backends") == []:
            yield f"{where}.backends: is []; expected a list of at least 1, or `unsupported`"


def _sources(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """(where, source) of every `source` below a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, str):
                yield f"{where}.source", inner
            else:
                yield from _sources(inner, f"{where}.{key}")


def recognise(registry: Registry, facts: Mapping[str, Any]) -> str | None:
    """The registry id of a device, None when no entry, or more than one, fits.

    It never guesses between two variants: their peaks differ, and every efficiency with them.

    Args:
        facts: `kind`, `name`, `gpu_cores` (Apple, None when unknown) and `memory_bytes`
            of one device as `detect` lists it. On Apple the name is the chip's.
    """
    fitting = [
        (device_id, entry["match"])
        for device_id, entry in registry["devices"].items()
        if entry["kind"] == facts["kind"]
        and facts["name"] in (*entry["match"].get("names", ()), entry["match"].get("chip"))
        and _same_memory(entry, facts.get("memory_bytes"))
    ]
    cores = facts.get("gpu_cores")
    exact = [fit for fit in fitting if cores and fit[1].get("gpu_cores") == cores]
    any_cores = [fit for fit in fitting if fit[1].get("gpu_cores") is None]
    chosen = exact or any_cores
    return chosen[0][0] if len(chosen) == 1 else None


def _same_memory(entry: Mapping[str, Any], memory_bytes: int | None) -> bool:
    """Whether memory sizes agree; unified memory comes in many sizes and always agrees."""
    printed = entry["memory_gib"]
    if entry["memory_kind"] == "unified" or printed is None or memory_bytes is None:
        return True
    return abs(memory_bytes / GIB / printed["value"] - 1) <= MEMORY_TOLERANCE


def generic_id(name: str, kind: str = "gpu") -> str:
    """An id for a device without an entry: `cpu-amd-epyc`, `gpu-nvidia-geforce-rtx-5090`."""
    if kind == "cpu":
        name = CPU_NAME_NOISE.sub(" ", name)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return names.cut(f"{kind}-{slug or 'unknown'}", names.LONGEST_LABEL - len("-99"))


def kind_of(device_id: str) -> str:
    """The id of a device's kind: of `rtx-4090-2`, the second of its kind, `rtx-4090`."""
    return re.sub(r"-\d+$", "", device_id)
