"""The results of a run as one labelled frame of cells and one of points: what all analysis selects from.

`cells` has a row for each cell, `points` one for each measured point with its cell's columns. A
cell that is not `ok` has no points: a time that was not measured as its cell says is no result. Rows
are in the page's order, this host and GPUs first; labels are the rows of cells.csv and points.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from siliconprof import formatting, plugins
from siliconprof.analyse import throughputs
from siliconprof.analyse.equal_work import (
    CHOICES,
    DISTURBED,
    NO_GAP,
    NO_SPEED_FLAG,
    WHOLE_TRAININGS,
    WORK,
    flagged,
    setting_labels,
    variant_label,
)
from siliconprof.declarations import describe
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import matrix_file, published, results, table_files
from siliconprof.store.matrix_file import Matrix
from siliconprof.store.record import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import KEY, Tables

CELL = list(KEY)
POINT = [*CELL, "point"]
DEVICE = throughputs.DEVICE
BACKENDS = ("torch-cuda", "torch-mps", "torch-cpu", "mlx")
TRAINERS = ("plain", "hf")
PRECISIONS = ("fp32", "tf32", "amp-fp16", "fp16", "amp-bf16", "bf16")
# What two trainings of equal work may still differ in.
CIRCUMSTANCES = (
    *("host", "device", "backend", "trainer", "precision", "threads", "scenario", "offloads"),
    *("zero_stage", "gradient_checkpointing", "probes_off", *CHOICES),
)
PATH = ("host", "device", "backend", "threads")  # what differs between two devices
NAMES = [  # columns that `Frames.table` adds from a line's point or cell
    *("device_kind", "device_label", "place", "whose", "backend_label", "setup", "model"),
    *("trainer", "module", "stage", "variant", "disturbed", "is_mechanism_check", "flags", "here"),
    *("work_label", "order", "family_order", "work"),
]
SIZE = ("n_parameters", "samples_per_step", "tokens_per_step", "audio_s_per_step", "target_len")
TEXTS = (  # columns made here whose type pandas would not know of an empty frame
    *("device_label", "place", "whose", "backend_label", "stem", "model", "stage"),
    *("apart", "variant", "setup"),
)
# From this share of the step on, dispatching it is what bounds it: the GPU waits for the host.
LAUNCH_BOUND_SHARE = 0.9
SWITCHED_OFF = "switched off for this cell"  # what the sampler says of a probe left out on purpose


@dataclass(eq=False)
class Frames:
    """All results of a run."""

    results: Results
    sheets: DataSheets
    matrix: Matrix
    published_folder: Path
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, init=False)

    @classmethod
    def load(cls, matrix: Path, tables: Tables, published: Path, devices: Path) -> Frames:
        """Read the matrix and the device registry; tables are read when they are first used.

        Raises:
            UserError: a file is missing or damaged.
        """
        document = matrix_file.read(matrix)
        sheets = DataSheets(registry.load(devices), document.host)
        return cls(Results(tables), sheets, document, published)

    @classmethod
    def of_run(cls, folder: Path) -> Frames:
        """Load the results in a folder, with this checkout's data sheets.

        Raises:
            UserError: the folder has no results; one line.
        """
        tables, config = results.load(folder).tables, plugins.CHECKOUT / "config"
        matrix = folder / "matrix.json"
        return cls.load(matrix, tables, config / "published", config / "devices.yaml")

    @cached_property
    def _labelled_cells(self) -> pd.DataFrame:
        """`cells` in the order of cells.csv, without the flags of checks.csv, which may not exist yet."""
        cells, probes = self.results.frame("cells"), self.results.frame("probes")
        off = probes["means"].eq(SWITCHED_OFF).groupby([probes[name] for name in CELL]).all()
        cells = cells.join(off.rename("probes_off"), CELL)
        cells["probes_off"] = holds(cells, "probes_off")
        rows = table_files.rows(cells)
        label = [device_label(self.sheets, row) for row in rows]
        whose = [formatting.foreign_host(row) for row in rows]
        stem = [row["workload"].removesuffix(f"-{row['trainer']}") for row in rows]
        apart_ = [variant_label(row) for row in rows]
        peaks = [self.sheets.peak(row, row["precision"]) for row in rows]
        elsewhere = ", " + cells["host"] + ", " + cells["source"]
        backend = cells["backend"] + elsewhere.mask(cells["source"] == HERE, "")
        labels: dict[str, Any] = {
            "here": cells["source"].eq(HERE),
            "device_label": label,
            "whose": whose,
            "place": [f"{a} [{b}]" if b else a for a, b in zip(label, whose, strict=True)],
            "where": cells["device"] + " (" + backend + ")",
            "backend_label": [formatting.backend_name(row) for row in rows],
            "stem": stem,
            "model": (cells["module"] + "-" + cells["size"]).where(cells["size"].notna(), stem),
            "stage": cells["scenario_applied"].fillna(cells["scenario"]),
            "offloads": cells["scenario_applied"].eq("offload").fillna(False).astype(bool),
            "lora": throughputs.nonzero(cells["lora_rank"]),
            "disturbed": flagged(cells, DISTURBED),
            "is_mechanism_check": flagged(cells, NO_SPEED_FLAG),
            "apart": apart_,
            "variant": [
                " · ".join([of] * bool(of) + setting_labels(row))
                for of, row in zip(apart_, rows, strict=True)
            ],
            "registry_id": [self.sheets.registry_id(row) for row in rows],
            "peak": [peak.value for peak in peaks],
            "no_peak": [peak.reason for peak in peaks],
        }
        of_cells = pd.DataFrame(labels, cells.index).astype({"peak": float})
        cells = pd.concat([cells, of_cells], axis=1).copy()  # in one block: more are added
        cells["setup"] = _setup(cells)
        whole, offloaded = cells["predicted_memory_bytes"], cells["predicted_offloaded_bytes"]
        cells["predicted_on_device_bytes"] = whole.mask(cells["offloads"], offloaded).astype(float)
        order = cells[["here", "source", "host", "device", "module", "stem", "variant", "scenario"]]
        order = order.assign(
            here=~order["here"],
            gpu=cells["device_kind"].eq("cpu"),
            backend=rank(cells["backend"], BACKENDS),
            trainer=rank(cells["trainer"], TRAINERS),
            precision=rank(cells["precision"], PRECISIONS),
        )
        by = ["here", "source", "host", "gpu", "device", "module", "stem", "backend", "trainer"]
        order = order.sort_values([*by, "precision", "variant", "scenario"], kind="stable")
        cells["order"] = pd.Series(range(len(order)), order.index)
        return cells.astype(dict.fromkeys(TEXTS, "str")).copy()

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row for each cell in the page's order; labels are rows of cells.csv.

        Beside its columns: `here`, `order` (of the page), `device_label`, `place` (with its host where
        that is another), `whose` (`other host: x`), `where` (`cpu-x (mlx)`), `backend_label`, `model`
        (module and size), `variant` (LoRA, offload, compiled …), `setup` (`torch-cpu · plain · fp32 ·
        LoRA 8`), `stage` (the scenario applied), `offloads`, `lora` (whether adapters are trained),
        `predicted_on_device_bytes` (without what is offloaded), `probes_off`, `disturbed`,
        `is_mechanism_check` (no speed is said of it), the device's `registry_id` where it is known,
        its listed `peak` in the cell's precision in FLOP/s or `no_peak`, the reason. `flags` and
        `flag_details` have those of checks.csv too.
        """
        cells, checks = self._labelled_cells, self.results.frame("checks")
        flags = checks["verdict"].map(throughputs.FLAG_OF_VERDICT)
        details = flags + ": " + checks["reason"].fillna("")
        found = checks[CELL].assign(flags=flags, flag_details=details).dropna(subset="flags")
        for name, between in (("flags", ";"), ("flag_details", "; ")):
            more = found.groupby(CELL)[name].unique().map(between.join).rename("more")
            both = cells[name].fillna("") + between + cells.join(more, CELL)["more"].fillna("")
            both = both.str.strip(between).replace("", None).astype(object)
            cells = cells.assign(**{name: both})
        return cells.sort_values("order").copy()

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row for each point in the page's order, with its cell's columns; labels are rows of points.csv.

        Beside them: `how`, its setting in words; `cache_bytes` of the last level, where any record of
        the device tells; `work` (a number, equal for equal work), `work_label` (`gpt2-nano: 0.20 M
        parameters, batch 4 × 64 tokens`), `family_order`, `is_launch_bound`; of each series `x_s`
        `x_ms`, `x_ms_low` and `x_ms_high`, in ms. `order` is the point's place on the page; a `setup`
        tells all trainings of a family on a device apart.
        """
        points = self.results.of_ok_cells(
            self._labelled_cells
        ).copy()  # in one block: more are added
        near = holds(points, "batch_size_found")
        cache_bytes = points.groupby(DEVICE)["last_level_cache_bytes"].transform("last")
        dispatching = points["dispatch_median_s"] / points["whole_step_median_s"]
        labels = {
            "disturbed": points["disturbed"] | points["point_disturbed"].notna(),
            "how": pd.Series(map(describe, table_files.rows(points)), points.index, "str"),
            "cache_bytes": cache_bytes.astype(float),
            "work": points.groupby(list(WORK), dropna=False, sort=False).ngroup(),
            "work_label": pd.Series(_work_labels(points, near), points.index, dtype="str"),
            "is_launch_bound": dispatching >= LAUNCH_BOUND_SHARE,
        }
        points = points.assign(**labels)
        families = points[[*SIZE, "model", "work_label"]].assign(near=near)
        families = families.sort_values([SIZE[0], "near", *SIZE[1:], "model", "work_label"])
        points["family_order"] = rank(points["work_label"], [*families["work_label"].unique()])
        ends = {"median_s": "", "low_s": "_low", "high_s": "_high"}
        milliseconds = {
            f"{name.removesuffix(f'_{end}')}_ms{suffix}": points[name] * 1e3
            for end, suffix in ends.items()
            for name in points.columns[points.columns.str.endswith(f"_{end}")]
        }
        # Between processes there is an interval of two.
        in_one = ~points["processes"].gt(1)
        counts = points.columns[points.columns.str.endswith("_n")]
        milliseconds |= {f"{name[:-2]}_ms_n": points[name].where(in_one) for name in counts}
        points = pd.concat([points, pd.DataFrame(milliseconds, points.index)], axis=1)
        points = points.sort_values(["order", "point"], kind="stable")
        # Trainings that a family's labels would not tell apart get the names of their workloads.
        twins = points.duplicated([*DEVICE, "work_label", "setup"], keep=False) & timed_by_phase(
            points
        )
        for name in ("setup", "variant"):
            apart = (points[name] + " · " + points["stem"]).str.removeprefix(" · ")
            points[name] = points[name].mask(twins, apart)
        return points.assign(order=range(len(points))).copy()  # in one block: exhibits add columns

    @property
    def undisturbed(self) -> pd.DataFrame:
        """Points in the order of points.csv, without operations that other processes disturbed."""
        return self.points[self.points["point_disturbed"].isna()].sort_index()

    @property
    def trainings(self) -> pd.DataFrame:
        """Points that a trainer drove and timed phase by phase: `timed_by_phase`."""
        return self.points[timed_by_phase(self.points)]

    @property
    def steps(self) -> pd.DataFrame:
        """All trainings whose whole step was timed and says something about speed."""
        frame = self.points[self.points["trainer"].notna()]
        return frame[frame["whole_step_ms"].gt(0) & ~frame["is_mechanism_check"]]

    @cached_property
    def flags_of_all(self) -> frozenset[str]:
        """Flags that all measured cells of this host have; the page shows them once."""
        own = self.cells[self.cells["here"] & self.cells["status"].eq("ok")]
        codes = [frozenset(row.split(";")) for row in own["flags"].fillna("")]
        return frozenset.intersection(*codes) - {""} if len(codes) > 1 else frozenset()

    def table(self, name: str) -> pd.DataFrame:
        """Another table, with the `NAMES` of each line's point or cell if it has their key."""
        if name not in self._tables:
            frame = self.results.frame(name)
            if set(POINT) <= set(frame):
                frame = named(frame, self.points, POINT)
            elif set(CELL) <= set(frame):
                frame = named(frame, self.cells, CELL)
            self._tables[name] = frame
        return self._tables[name]

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """The lines of attribution.csv with names, the most telling pair of each work first.

        `fast` and `slow` are rows of `points`; `fast_name` and `slow_name` have the host where that is
        another, and the device where its host has several; `device` to `precision` are the slow
        side's; `rank` is the place of the pair: another device or backend, all else alike, first;
        nothing disturbed and no gap within noise before anything sound.
        """
        lines = self.results.frame("attribution")
        points = self.points[self.points["trainer"].notna()]
        for side in ("fast", "slow"):
            key = [f"{side}_{name}" for name in POINT]
            names = points[POINT].set_axis(key, axis=1).assign(**{side: points.index})
            lines = lines.merge(names, on=key, how="inner")
        several = points.groupby(DEVICE[:2])["device"].transform("nunique") > 1
        host = (points["host"] + " · ").mask(points["here"], "")
        device = points["device_label"] + " · "
        named = host + device.where(several, "") + points["setup"]
        fast, slow = (points.loc[lines[side]].reset_index(drop=True) for side in ("fast", "slow"))
        of_path, of_rest = ["host", "device", "backend"], ["trainer", "precision", "variant"]
        path = (fast[of_path] != slow[of_path]).any(axis=1)
        only = path & (fast[of_rest] == slow[of_rest]).all(axis=1)
        plain = (fast[["trainer", "precision"]] == ["plain", "fp32"]).all(axis=1)
        lines = lines.assign(
            work_label=fast["work_label"],
            family_order=fast["family_order"],
            fast_name=lines["fast"].map(named).astype("str"),
            slow_name=lines["slow"].map(named).astype("str"),
            disturbed=fast["disturbed"] | slow["disturbed"],
            **{name: slow[name] for name in ("place", *CELL)},
        )
        of_pair = lines[lines["kind"] == "gap"].set_index("pair")
        lines["rank"] = np.select([only & plain, only, path], [0, 1, 2], 3)
        lines["is_noise"] = lines["pair"].map(of_pair["verdict"]).eq(NO_GAP)
        lines["gap_s"] = lines["pair"].map(of_pair["seconds"])
        by = ["family_order", "is_noise", "disturbed", "rank", "gap_s", "pair"]
        order = [True, True, True, True, False, True]
        return lines.sort_values(by, ascending=order, kind="stable", ignore_index=True)

    def published(self, name: str) -> pd.DataFrame:
        """A published table, its values as they were printed; an absent one is NA.

        A device that the registry knows has its name in `device_label`, `device_a_label` …

        Raises:
            UserError: see `published.read`.
        """
        frame = published.read(self.published_folder, name).astype("string")
        names = {device: entry["name"] for device, entry in self.sheets.registry["devices"].items()}
        devices = [column for column in frame if column in ("device", "device_a", "device_b")]
        return frame.assign(**{f"{column}_label": frame[column].map(names) for column in devices})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries; missing values stay as they are, unlike in `table_files.rows`."""
    rows: list[Any] = frame.to_dict("records")
    return rows


def holds(frame: pd.DataFrame, column: str) -> pd.Series:
    """Mask of the rows where a column is true; all False if the frame lacks the column."""
    if column not in frame:
        return pd.Series(False, frame.index)
    return frame[column].eq(True).fillna(False).astype(bool)


def timed_by_phase(frame: pd.DataFrame) -> pd.Series:
    """Mask of the trainings that are timed phase by phase."""
    return frame["trainer"].notna() & ~frame["trainer"].isin(WHOLE_TRAININGS)


def uses_defaults(frame: pd.DataFrame) -> pd.Series:
    """Mask of the trainings that run eagerly, with their framework's defaults and with all probes."""
    chosen = frame[[name for name in CHOICES if name != "compile"]]
    is_default = (chosen.isna() | chosen.isin(["default"])).all(axis=1)
    return is_default & ~frame["compile"].eq(True) & ~frame["probes_off"]


def named(frame: pd.DataFrame, of: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """Join the `NAMES` of other rows, in the page's order; rows without a match are dropped."""
    names = [name for name in NAMES if name in of and name not in frame]
    joined = frame.merge(of[[*on, *names]], on=list(on), how="inner")
    return joined.sort_values("order", kind="stable", ignore_index=True)


def group_numbers(frame: pd.DataFrame, *axes: str) -> pd.Series:
    """Number the groups of rows with equal work and circumstances, apart from some axes."""
    same = [name for name in (*WORK, *CIRCUMSTANCES) if name in frame and name not in axes]
    return frame.groupby(same, dropna=False, sort=False).ngroup()


def pairs(frame: pd.DataFrame, *axes: str) -> pd.DataFrame:
    """Pair rows of equal work and circumstances that differ in every one of some axes.

    Columns of the second row end in `_other`. Each pair comes twice, once from either side.
    """
    frame = frame.assign(alike=group_numbers(frame, *axes))
    joined = frame.merge(frame, on="alike", suffixes=("", "_other"))
    return joined[np.logical_and.reduce([joined[axis] != joined[f"{axis}_other"] for axis in axes])]


def rank(values: pd.Series, first: Sequence[str]) -> pd.Series:
    """Rank names: those listed in `first` come first, others follow in alphabetic order."""
    others = sorted(set(values.dropna()) - set(first))
    place = {name: number for number, name in enumerate((*first, *others))}
    return values.map(place).fillna(len(place)).astype(int)


def device_label(sheets: DataSheets, row: Mapping[str, Any]) -> str:
    """The name of a row's device in the registry, else in this host's file, else its id."""
    if entry := sheets.entry(row):
        return str(entry["name"])
    own = {device["id"]: device["name"] for device in sheets.host["devices"]}
    return str(own.get(row["device"], row["device"]) if row["source"] == HERE else row["device"])


def _setup(frame: pd.DataFrame) -> list[str]:
    """`torch-cpu · plain · fp32 · LoRA 8`; mixed precision of MLX, which has no autocast, is `manual`."""
    is_manual = frame["backend"].eq("mlx") & frame["precision"].str.startswith("amp-")
    precision = frame["precision"].mask(is_manual, frame["precision"] + " (manual)")
    parts = frame[["backend_label", "trainer", "variant"]].fillna("")
    parts["trainer"] = parts["trainer"].replace(formatting.TRAINER_WORDS)
    parts.insert(2, "precision", precision)
    return [
        " · ".join(filter(None, (backend, trainer, precision, variant)))
        for backend, trainer, precision, variant in parts.itertuples(index=False)
    ]


def _work_labels(points: pd.DataFrame, near: pd.Series) -> list[str]:
    """`gpt2-nano: 0.20 M parameters, batch 4 × 64 tokens` of each point."""
    labels = []
    for (model, *numbers), found in zip(
        points[["model", *SIZE]].itertuples(index=False, name=None), near, strict=True
    ):
        parameters, samples, tokens, audio_s, target_len = map(formatting.number, numbers)
        if parameters is None:
            labels.append(model)
            continue
        millions = parameters / 1e6
        batch = f", batch {samples:.0f}" if samples else ""
        if found:
            batch = ", near capacity, largest batch that fits"
        elif samples and audio_s:
            batch += f" × {audio_s / samples:g} s of audio"
            batch += f" and {target_len:.0f} tokens" if target_len else ""
        elif samples and tokens:
            batch += f" × {tokens // samples:.0f} tokens"
        size = f"{millions:.2f}" if millions < 10 else f"{millions:.0f}"
        labels.append(f"{model}: {size} M parameters{batch}")
    return labels
