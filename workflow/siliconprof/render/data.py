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
from typing import Any

import pandas as pd

from siliconprof import aggregate, registry
from siliconprof.errors import UserError
from siliconprof.render.variants import Family, Row, family, family_order, label, model, order, stem

KEY = aggregate.KEY
TEXT = {
    *KEY, "module", "trainer", "device_kind", "status", "reason", "scenario_derived",
    "scenario_applied", "capacity_source", "limit_how", "limit_reason", "confirmed_by", "size",
    "weights", "allocator", "offload",
    "effective_precision", "master_weights_dtype", "activations_dtype", "dataset",
    "data_sha256", "flags", "flag_details", "hostname", "system", "python",
    "framework_version", "device_name", "blas", "git_commit", "started_at", "record",
    "record_sha256", "earlier_ok_record", "launch", "note", "burst_reason", "series",
    "device_peak_means", "kind", "name", "scope", "quality", "probe", "means", "model",
    "limits_means", "power_source", "low_power_means", "cpu_governor", "cpu_governor_driver",
    "gpu_means", "device_means", "swap_means",
}  # fmt: skip
FROM_CELL = ("status", "flags", "flag_details", "seed", "data_sha256", "dataset", "threads",
             "method_version", "device_kind", "rss_at_start_bytes", "rss_peak_sampled_bytes",
             "started_at", "hostname", "scenario_applied", "predicted_memory_bytes",
             "predicted_offloaded_bytes", "capacity_bytes", "batch_size_found", "limit_enforced",
             "limit_how", "limit_reason", "confirmed_peak_bytes", "size", "lora_rank", "weights",
             "allocator", "offload", "offloads", "minor_faults", "major_faults",
             "page_size_bytes", "probes_off")  # fmt: skip
PUBLISHED = ("table1_devices", "table2_workloads", "table3_configurations", "table4_pass_time",
             "table5_energy", "table6_kernel_launch", "seed001_statements", "seed003_speedups",
             "seed004_speedups")  # fmt: skip
TABLES = ("cells", "points", "steps", "samples", "outside", "training_steps", "energy", "probes",
          "models")  # fmt: skip
OF_CELLS = ("cells", "points", "steps", "samples", "training_steps", "energy", "probes")
SWITCHED_OFF = "switched off for this cell"  # what the sampler says of a probe left out on purpose
SERIES_OF_KIND = {"warm-up": "warmup_step_s", "split": "step_s", "unsplit": "unsplit_step_s",
                  "energy": "energy_step_s"}  # fmt: skip


@dataclass
class Traces:
    """The long tables: every raw time and loss, every training step, every sample of the probes."""

    steps: pd.DataFrame
    samples: pd.DataFrame
    training_steps: pd.DataFrame
    _timed: dict[tuple, pd.DataFrame] = field(default_factory=dict)  # courses asked for so far

    @cached_property
    def _series(self) -> dict[tuple, pd.DataFrame]:
        columns = [*KEY, "point", "series"]
        if self.steps.empty:
            return {}
        return {tuple(name): part for name, part in self.steps.groupby(columns, sort=False)}

    @cached_property
    def _samples(self) -> dict[tuple, pd.DataFrame]:
        return _by_cell(self.samples)

    @cached_property
    def _courses(self) -> dict[tuple, pd.DataFrame]:
        return _by_cell(self.training_steps)

    def series(self, point: Mapping[str, Any], name: str) -> list[float]:
        """Raw values of one series of a point, by iteration: seconds, or losses."""
        frame = self._series.get((*key(point), int(point["point"]), name))
        if frame is None:
            return []
        return frame["loss" if name == "loss" else "time_s"].tolist()

    def sampled(self, cell: Mapping[str, Any]) -> pd.DataFrame | None:
        """The probes of a cell over time, or None."""
        return self._samples.get(key(cell))

    def course(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The training steps of a point in order, or None.

        Columns: kind, started_s on the clock of `sampled`'s t_s, minor_faults, major_faults, and
        step_s, NaN where a step's time is in no series.
        """
        name = key(point)
        if name in self._timed or name not in self._courses:
            return self._timed.get(name)
        frame = self._courses[name].sort_values("iteration").reset_index(drop=True)
        frame["step_s"] = float("nan")
        for kind, series in SERIES_OF_KIND.items():
            times = self.series(point, series)
            places = frame.index[frame["kind"] == kind][: len(times)]
            frame.loc[places, "step_s"] = times[: len(places)]
        self._timed[name] = frame
        return frame


def key(row: Mapping[str, Any]) -> tuple:
    """What names a cell."""
    return tuple(row[axis] for axis in KEY)


def _by_cell(frame: pd.DataFrame) -> dict[tuple, pd.DataFrame]:
    if frame.empty:
        return {}
    return {tuple(name): part for name, part in frame.groupby(list(KEY), sort=False)}


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
    energy: list[Row] = field(default_factory=list)  # one per source of energy of a training
    probes: list[Row] = field(default_factory=list)  # one per probe of a cell
    models: list[Row] = field(default_factory=list)
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
            energy=[row for row in self.energy if kept(row)],
            probes=[row for row in self.probes if kept(row)],
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
        home: dict[str, Family] = {}  # of a workload without its trainer, else of a model
        for point in sorted(self.training(), key=family_order):
            kind = family(point)
            found.setdefault(kind, ([], []))[0].append(point)
            home.setdefault(stem(point), kind)
        for point in self.training():
            home.setdefault(model(point), family(point))
        for cell in sorted(self.cells, key=family_order):
            if cell["trainer"] and cell["status"] != "ok":
                kind = home.get(stem(cell)) or home.get(model(cell)) or Family(model(cell))
                found.setdefault(kind, ([], []))[1].append(cell)
        return dict(sorted(found.items(), key=lambda item: item[0].order))

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
    frames = {name: read_table(tables / f"{name}.csv") for name in TABLES}
    for name in OF_CELLS:
        absent = [column for column in KEY if column not in frames[name].columns]
        if absent:
            raise UserError(f"{tables / name}.csv: no column {', '.join(absent)}")
    probes = rows(frames["probes"])
    cells = sorted(rows(frames["cells"]), key=order) if len(frames["cells"]) else []
    _circumstances(cells, probes)
    results = tables.parent
    return Data(
        matrix=document,
        cells=cells,
        points=_measured(cells, rows(frames["points"])),
        traces=Traces(frames["steps"], frames["samples"], frames["training_steps"]),
        outside=rows(frames["outside"]),
        registry=registry.load(registry_),
        published=read_published(published),
        results=results,
        energy=rows(frames["energy"]),
        probes=probes,
        models=rows(frames["models"]),
        damaged=sorted((results / "damaged").glob("**/*.json")),
    )


def _circumstances(cells: Iterable[Row], probes: Iterable[Row]) -> None:
    """Tell each cell whether it was offloaded, and whether it ran without any probe on purpose."""
    means: dict[tuple, set[str]] = {}
    for probe in probes:
        means.setdefault(key(probe), set()).add(probe["means"] or "")
    for cell in cells:
        cell["offloads"] = cell.get("scenario_applied") == "offload"
        cell["probes_off"] = means.get(key(cell)) == {SWITCHED_OFF}


def _measured(cells: Iterable[Row], points: Iterable[Row]) -> list[Row]:
    """Points of cells that are ok, with what is known of their cell beside them."""
    by_key = {key(cell): cell for cell in cells}
    found = []
    for point in points:
        cell = by_key.get(key(point))
        if cell is not None and cell["status"] == "ok":
            found.append(point | {name: cell.get(name) for name in FROM_CELL})
    _tell_twins_apart([point for point in found if point["trainer"]])
    return found


def _tell_twins_apart(points: Iterable[Row]) -> None:
    """Mark training points that a family's labels would not tell apart."""
    named: dict[tuple, list[Row]] = {}
    for point in points:
        place = (point["source"], point["host"], point["device"])
        named.setdefault((family(point), *place, label(point)), []).append(point)
    for twins in named.values():
        for point in twins:
            point["twin"] = len(twins) > 1
