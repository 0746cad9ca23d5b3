"""What the drawing of the stack shows: which boxes there are and which lines join them.

Five layers, from what is trained to what it runs on. A line joins two boxes where at least one
cell was measured through both, in the colour of its backend; it is grey where every cell that
would pass through both is unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from siliconprof import plugins, words
from siliconprof.analyse import throughputs
from siliconprof.render.data import Data
from siliconprof.render.variants import Row, backend_place
from siliconprof.store.records import HERE
from siliconprof.workloads.base import KernelWorkload

FAMILY_ORDER = ("GPT-2", "Whisper", "Transformers", "MLP, CNN, LSTM")  # then others, operations
LAYERS = ("Workload", "Trainer", "Framework", "Backend", "Device")
TRAINERS = {
    None: "no trainer",
    "plain": "plain loop",
    "hf": "Hugging Face Trainer",
    "epochs": "epoch loop",
    "training_run": "whole training",
}
DEEPSPEED = "DeepSpeed"
FRAMEWORKS = {"torch": "torch", "mlx": "MLX"}
LIBRARY_OF = {"torch-cuda": "CUDA", "torch-mps": "MPS"}  # of a GPU, by backend
MLX_LIBRARY = {"apple": "Metal", "nvidia": "CUDA"}  # and of MLX on it, by the GPU's vendor
MOST_DEVICES, MOST_SOFTWARE = 5, 5  # boxes of a layer; more are put together
SOFTWARE, DEVICE = 2, 4  # first layer that is put together, and the last one
JOINED = {2: "versions", 3: "libraries", DEVICE: "devices"}
OK, UNSUPPORTED = "ok", "unsupported"


class Box(NamedTuple):
    """One box: its layer and its two lines of text."""

    layer: int
    title: str
    below: str = ""
    badge: str = ""  # of another host or a reference


@dataclass
class Stack:
    """Boxes of every layer with their cells, and the cells of each pair of neighbours."""

    layers: list[dict[Box, list[Row]]] = field(default_factory=lambda: [{} for _ in LAYERS])
    pairs: dict[tuple[Box, Box], list[Row]] = field(default_factory=dict)


def build(data: Data) -> Stack:
    """Every cell's way through the layers; boxes put together where there are too many."""
    versions = _versions(data)
    ways = [(row, way(data, row, versions)) for row in data.cells]
    joined = []
    for layer in range(len(LAYERS)):
        members: dict[Box, set[str]] = {}  # of a device's box the devices that it stands for
        for row, boxes in ways:
            device = str(row["device"]) if layer == DEVICE else ""
            members.setdefault(boxes[layer], set()).add(device)
        joined.append(_joined({box: len(devices) for box, devices in members.items()}, layer))
    stack = Stack()
    for row, boxes in ways:
        placed = [names.get(box, box) for names, box in zip(joined, boxes, strict=True)]
        for layer, box in enumerate(placed):
            stack.layers[layer].setdefault(box, []).append(row)
        for pair in zip(placed, placed[1:], strict=False):
            stack.pairs.setdefault(pair, []).append(row)
    return stack


def way(data: Data, row: Row, versions: dict[tuple, str]) -> list[Box]:
    """The five boxes of one cell."""
    backend, kind = row["backend"], family_of(row)
    trainer = DEEPSPEED if row.get("offloads") else TRAINERS.get(row["trainer"], row["trainer"])
    framework = framework_of(backend)
    version = row.get("framework_version") or versions.get((row["source"], row["host"], framework))
    entry = data.device(row)
    vendor = (entry or {}).get("vendor") or _vendor(data, row)
    badge = words.SOURCE_BADGES.get(row["source"], "")
    memory = words.number(row.get("device_memory_bytes"))
    name = data.device_name(row)
    return [
        Box(0, kind),
        Box(1, str(trainer)),
        Box(2, framework, str(version) if version else "version not recorded"),
        Box(3, backend, _library(row, vendor)),
        Box(
            DEVICE,
            _short(name),
            f"{words.mebibytes(memory) if memory else 'memory unknown'} · {row['host']}",
            badge,
        ),
    ]


def family_of(row: Row) -> str:
    """What a cell's workload belongs to; its module where the plug-in is not here."""
    workload = throughputs.workload_of(row)
    return str(row["module"]) if workload is None else str(workload.family)


def framework_of(backend: str) -> str:
    """What a backend computes with; its own name where the plug-in is not here."""
    if backend not in plugins.names("backends"):
        return str(backend)
    framework = plugins.load("backends", backend).framework
    return FRAMEWORKS.get(framework, framework)


def _versions(data: Data) -> dict[tuple, str]:
    """(source, host, framework) -> the version that its measured cells name; the first of them."""
    versions: dict[tuple, str] = {}
    for row in data.cells:
        version = row.get("framework_version")
        if version:
            framework = framework_of(row["backend"])
            versions.setdefault((row["source"], row["host"], framework), str(version))
    return versions


def _vendor(data: Data, row: Row) -> str | None:
    """Of a device of this host that is not in the registry."""
    if row["source"] != HERE:
        return None
    return next((d["vendor"] for d in data.host["devices"] if d["id"] == row["device"]), None)


def _library(row: Row, vendor: str | None) -> str:
    """What a backend multiplies with: on a CPU the BLAS that was mapped, on a GPU its interface."""
    if row["device_kind"] == "cpu":
        return f"CPU, {row['blas']}" if row.get("blas") else "CPU, BLAS not recorded"
    return LIBRARY_OF.get(row["backend"]) or MLX_LIBRARY.get(vendor or "") or "GPU"


def _joined(counts: Mapping[Box, int], layer: int) -> dict[Box, Box]:
    """Box -> the one that stands for it, where a layer has more than can be told apart.

    Devices are put together by vendor, software by its name; this host's stay apart from others'.
    Equal devices of one host are one box from the start, which says how many they are.
    """
    several = {box: box._replace(title=f"{n} × {box.title}") for box, n in counts.items() if n > 1}
    if len(counts) <= (MOST_DEVICES if layer == DEVICE else MOST_SOFTWARE) or layer < SOFTWARE:
        return several
    groups: dict[tuple[str, str], list[Box]] = {}
    for box in counts:
        title = _family(box.title) if layer == DEVICE else box.title
        groups.setdefault((title, box.badge), []).append(box)
    for (title, badge), group in groups.items():
        if len(group) > 1:
            names = _few([box.title if layer == DEVICE else box.below for box in group])
            title_of_all = f"{title}: {sum(counts[box] for box in group)} {JOINED[layer]}"
            several |= dict.fromkeys(group, Box(layer, title_of_all, names, badge))
    return several


def _short(name: str) -> str:
    """A device's name with one word of its vendor at most."""
    return re.sub(r"^(NVIDIA) GeForce ", r"\1 ", name).replace(" GPU cores", "")


def _family(name: str) -> str:
    """What devices of one kind share of their names: the first word, `NVIDIA`, `Apple`."""
    return re.split(r"[\s,]", name, maxsplit=1)[0]


def _few(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:2]) + (f", and {len(names) - 2} more" if len(names) > 2 else "")


def line_of(rows: Sequence[Row]) -> str | None:
    """How a pair is joined: `ok`, `unsupported`, or None, where nothing was measured."""
    statuses = {row["status"] for row in rows}
    if OK in statuses:
        return OK
    return UNSUPPORTED if UNSUPPORTED in statuses else None


def backends_of(stack: Stack) -> list[str]:
    """Backends with a measured cell, in the page's order."""
    backends = {
        row["backend"] for rows in stack.layers[0].values() for row in rows if row["status"] == OK
    }
    return sorted(backends, key=backend_place)


def strands(stack: Stack, backends: Sequence[str]) -> list[tuple[Box, Box, str | None, list[Row]]]:
    """(upper box, lower box, backend or None where all is unsupported, its cells) of every line."""
    lines: list[tuple[Box, Box, str | None, list[Row]]] = []
    for (upper, lower), rows in stack.pairs.items():
        kind = line_of(rows)
        if kind == OK:
            for name in backends:
                own = [row for row in rows if row["backend"] == name and row["status"] == OK]
                if own:
                    lines.append((upper, lower, name, own))
        elif kind == UNSUPPORTED:
            lines.append((upper, lower, None, [r for r in rows if r["status"] == UNSUPPORTED]))
    return lines


def line_text(upper: Box, lower: Box, backend: str | None, rows: Sequence[Row]) -> str:
    """What is shown beside the pointer on a line."""
    between = f"{upper.title} to {lower.title}"
    if backend is None:
        reasons = sorted({str(row["reason"]) for row in rows})
        return f"{between}: {words.count(len(rows), 'cell')} unsupported ({'; '.join(reasons)})"
    return f"{between}, {backend}: {words.count(len(rows), 'cell')} measured"


def ordered(stack: Stack) -> list[list[Box]]:
    """Boxes of each layer from left to right: under what they are joined with, on the mean."""

    def family_place(box: Box) -> tuple[bool, int, str]:
        known = box.title in FAMILY_ORDER
        place = FAMILY_ORDER.index(box.title) if known else len(FAMILY_ORDER)
        return (box.title == KernelWorkload.family, place, box.title)

    layers = [sorted(stack.layers[0], key=family_place)]
    for boxes in stack.layers[1:]:
        above = {box: index for index, box in enumerate(layers[-1])}
        means = {}
        for box in boxes:
            ends = [above[upper] for upper, lower in stack.pairs if lower == box]
            means[box] = sum(ends) / len(ends)
        layers.append(sorted(boxes, key=means.__getitem__))
    return layers
