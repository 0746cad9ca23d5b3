"""What the page is made of: the tables of `aggregate`, the matrix, the registry, the published.

Rows are plain dictionaries in which a missing value is None; the long tables (steps, samples)
stay pandas frames. A cell that is not `ok` keeps its row and loses its points: a time that was
measured under another name than it was asked for is no result.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from siliconprof import aggregate, registry
from siliconprof.errors import UserError

KEY = aggregate.KEY
Row = dict[str, Any]
TEXT = {
    *KEY, "module", "trainer", "device_kind", "status", "reason", "scenario_derived",
    "effective_precision", "master_weights_dtype", "activations_dtype", "dataset",
    "tokens_sha256", "flags", "flag_details", "hostname", "system", "python",
    "framework_version", "device_name", "blas", "git_commit", "started_at", "record",
    "record_sha256", "earlier_ok_record", "launch", "note", "burst_reason", "series",
}  # fmt: skip
FROM_CELL = ("status", "flags", "flag_details", "seed", "tokens_sha256", "dataset", "threads",
             "method_version", "device_kind", "rss_at_start_bytes",
             "rss_peak_sampled_bytes", "started_at", "hostname")  # fmt: skip
BACKEND_ORDER = ("torch-cuda", "torch-mps", "torch-cpu", "mlx")
PRECISION_ORDER = ("fp32", "tf32", "amp-fp16", "fp16", "amp-bf16", "bf16")
PUBLISHED = ("table1_devices", "table2_workloads", "table3_configurations", "table4_pass_time",
             "table5_energy", "table6_kernel_launch", "seed001_statements", "seed003_speedups",
             "seed004_speedups")  # fmt: skip


class Family(NamedTuple):
    """Training cells that do the same work: one model, one batch, whoever trains it."""

    name: str  # the workload's name without its trainer
    n_parameters: int | None
    samples: int | None  # per step
    tokens: int | None  # per step

    @property
    def label(self) -> str:
        """`gpt2-nano: 0.20 M parameters, batch 4 × 64 tokens`."""
        if self.n_parameters is None:
            return self.name
        millions = self.n_parameters / 1e6
        size = f"{millions:.2f}" if millions < 10 else f"{millions:.0f}"
        batch = f"batch {self.samples}" if self.samples else ""
        if self.samples and self.tokens:
            batch += f" × {self.tokens // self.samples} tokens"
        return ", ".join(filter(None, (f"{self.name}: {size} M parameters", batch)))

    @property
    def slug(self) -> str:
        """For file names and anchors."""
        sizes = [str(n) for n in (self.samples, self.tokens) if n]
        return "-".join([self.name, *sizes]) if self.n_parameters else self.name


@dataclass
class Traces:
    """The long tables: every raw time and loss, every sample of the probes."""

    steps: pd.DataFrame
    samples: pd.DataFrame

    @cached_property
    def _series(self) -> dict[tuple, pd.DataFrame]:
        columns = [*KEY, "point", "series"]
        if self.steps.empty:
            return {}
        return {tuple(key): frame for key, frame in self.steps.groupby(columns, sort=False)}

    @cached_property
    def _samples(self) -> dict[tuple, pd.DataFrame]:
        if self.samples.empty:
            return {}
        return {tuple(key): frame for key, frame in self.samples.groupby(list(KEY), sort=False)}

    def series(self, point: Mapping[str, Any], name: str) -> list[float]:
        """Raw values of one series of a point, by iteration: seconds, or losses."""
        key = (*(point[axis] for axis in KEY), int(point["point"]), name)
        frame = self._series.get(key)
        if frame is None:
            return []
        return frame["loss" if name == "loss" else "time_s"].tolist()

    def sampled(self, cell: Mapping[str, Any]) -> pd.DataFrame | None:
        """The probes of a cell over time, or None."""
        return self._samples.get(tuple(cell[axis] for axis in KEY))


@dataclass
class Data:
    """Everything that was read."""

    matrix: Mapping[str, Any]
    cells: list[Row]
    points: list[Row]  # of cells whose status is ok, with what FROM_CELL names beside them
    traces: Traces
    outside: list[Row]
    registry: Mapping[str, Any]
    published: dict[str, list[Row]]
    results: Path
    damaged: list[Path] = field(default_factory=list)

    @property
    def host(self) -> Mapping[str, Any]:
        """The host file's content."""
        return self.matrix["host"]

    def only(self, source: str, host: str | None = None) -> Data:
        """The same, with the measurements of one source, and of one of its hosts, alone."""

        def kept(row: Mapping[str, Any]) -> bool:
            return row["source"] == source and host in (None, row["host"])

        return replace(
            self,
            cells=[row for row in self.cells if kept(row)],
            points=[row for row in self.points if kept(row)],
        )

    def hosts(self) -> list[tuple[str, str]]:
        """(source, host) of the records that are not this host's."""
        pairs = {(row["source"], row["host"]) for row in self.cells}
        return sorted(pair for pair in pairs if pair[0] != aggregate.HERE)

    def of_module(self, module: str) -> list[Row]:
        """Measured points of one workload module, in the page's order."""
        return sorted((p for p in self.points if p["module"] == module), key=order)

    def training(self) -> list[Row]:
        """Measured points of training cells."""
        return sorted((p for p in self.points if p["trainer"]), key=order)

    def families(self) -> dict[Family, tuple[list[Row], list[Row]]]:
        """Family -> (measured points, cells that were not measured)."""
        found: dict[Family, tuple[list[Row], list[Row]]] = {}
        for point in self.training():
            found.setdefault(family(point), ([], []))[0].append(point)
        for cell in sorted(self.cells, key=order):
            if cell["trainer"] and cell["status"] != "ok":
                name = stem(cell)
                home = next((key for key in found if key.name == name), None)
                home = home or Family(name, None, None, None)
                found.setdefault(home, ([], []))[1].append(cell)
        return dict(sorted(found.items(), key=lambda item: (item[0].n_parameters or 0, item[0])))

    def device(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The registry's entry of a row's device, None when there is none."""
        devices = self.registry["devices"]
        if row["source"] == aggregate.HERE:
            for device in self.host["devices"]:
                if device["id"] == row["device"]:
                    return devices.get(device["registry_id"])
        name = row["device"]
        return devices.get(name) or devices.get(name.rpartition("-")[0])  # the second of a kind

    def peak_flop_per_s(self, row: Mapping[str, Any]) -> float | None:
        """The data sheet's peak for a row's precision, None when nobody knows it."""
        entry = self.device(row)
        peak = registry.peak_tflops(dict(entry), row["precision"]) if entry else None
        return None if peak is None else peak * 1e12

    def device_name(self, row: Mapping[str, Any]) -> str:
        """What people call a row's device."""
        entry = self.device(row)
        if entry:
            return entry["name"]
        if row["source"] == aggregate.HERE:
            for device in self.host["devices"]:
                if device["id"] == row["device"]:
                    return device["name"]
        return row["device"]


def stem(row: Mapping[str, Any]) -> str:
    """A training workload's name without its trainer: `gpt2-nano` of `gpt2-nano-hf`."""
    return row["workload"].removesuffix(f"-{row['trainer']}")


def family(point: Mapping[str, Any]) -> Family:
    """The family of a measured training point."""
    sizes = (point.get(n) for n in ("n_parameters", "samples_per_step", "tokens_per_step"))
    return Family(stem(point), *(None if size is None else int(size) for size in sizes))


def order(row: Mapping[str, Any]) -> tuple:
    """Sort key of cells and points: GPUs first, then by workload, backend, trainer, precision."""

    def place(value: str | None, known: tuple[str, ...]) -> tuple[int, str]:
        return (known.index(value) if value in known else len(known), value or "")

    return (
        row["source"] != aggregate.HERE,
        row["source"],
        row["host"],
        row["device_kind"] == "cpu",
        row["device"],
        row["module"],
        stem(row),
        place(row["backend"], BACKEND_ORDER),
        place(row["trainer"], ("plain", "hf")),
        place(row["precision"], PRECISION_ORDER),
        row["scenario"],
        row.get("point") or 0,
    )


def rows(frame: pd.DataFrame) -> list[Row]:
    """A frame as dictionaries; what is not there is None."""
    plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in plain]


def read_table(path: Path) -> pd.DataFrame:
    """One table of `aggregate`; names stay text, whatever they look like.

    Raises:
        UserError: it is missing or no table.
    """
    try:
        return pd.read_csv(
            path, dtype=dict.fromkeys(TEXT, "object"), keep_default_na=False, na_values=[""]
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not a table ({' '.join(str(error).split())})") from None


def read_published(folder: Path) -> dict[str, list[Row]]:
    """The published tables by file name; an empty cell is None.

    Raises:
        UserError: a file is missing; all of them, one line each.
    """
    found, mistakes = {}, []
    for name in PUBLISHED:
        path = folder / f"{name}.csv"
        try:
            with open(path, encoding="utf-8", newline="") as stream:
                found[name] = [
                    {key: value or None for key, value in row.items()}
                    for row in csv.DictReader(stream)
                ]
        except (OSError, ValueError) as error:
            mistakes.append(f"{path}: cannot be read ({getattr(error, 'strerror', error)})")
    if mistakes:
        raise UserError("\n".join(mistakes))
    return found


def load(matrix: Path, tables: Path, published: Path, registry_: Path) -> Data:
    """Everything, checked as far as the page needs it.

    Raises:
        UserError: a file is missing or damaged.
    """
    try:
        document = json.loads(matrix.read_text(encoding="utf-8"))
        missing = {"experiment", "host", "cells", "not_measured"} - set(document)
    except FileNotFoundError:
        raise UserError(f"{matrix}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError, TypeError) as error:
        raise UserError(f"{matrix}: damaged ({error}); delete it to have it made again") from None
    if missing:
        raise UserError(f"{matrix}: damaged (no {', '.join(sorted(missing))}); delete it")
    frames = {name: read_table(tables / f"{name}.csv")
              for name in ("cells", "points", "steps", "samples", "outside")}  # fmt: skip
    for name in ("cells", "points", "steps", "samples"):
        absent = [column for column in KEY if column not in frames[name].columns]
        if absent:
            raise UserError(f"{tables / name}.csv: no column {', '.join(absent)}")
    cells = sorted(rows(frames["cells"]), key=order) if len(frames["cells"]) else []
    results = tables.parent
    return Data(
        matrix=document,
        cells=cells,
        points=_measured(cells, rows(frames["points"])),
        traces=Traces(frames["steps"], frames["samples"]),
        outside=rows(frames["outside"]),
        registry=registry.load(registry_),
        published=read_published(published),
        results=results,
        damaged=sorted((results / "damaged").glob("**/*.json")),
    )


def _measured(cells: Iterable[Row], points: Iterable[Row]) -> list[Row]:
    """Points of cells that are ok, with what is known of their cell beside them."""
    by_key = {tuple(cell[axis] for axis in KEY): cell for cell in cells}
    found = []
    for point in points:
        cell = by_key.get(tuple(point[axis] for axis in KEY))
        if cell is not None and cell["status"] == "ok":
            found.append(point | {name: cell.get(name) for name in FROM_CELL})
    return found
