"""Training cells by the work that they do: which belong together, and what each is called.

A family trains one model on one amount of data a step, whoever drives it and in whatever way. Two
cells are compared only where all of `WORK` and every other circumstance but one is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.equal_work import CHOICES, WORK
from siliconprof.analyse.equal_work import as_usual as as_usual
from siliconprof.analyse.equal_work import flagged as flagged  # the page asks here
from siliconprof.analyse.equal_work import has_no_speed as has_no_speed
from siliconprof.analyse.equal_work import stem as stem
from siliconprof.analyse.equal_work import variant as variant
from siliconprof.store.records import HERE
from siliconprof.store.table_files import by, grouped

Row = dict[str, Any]
BACKEND_ORDER = ("torch-cuda", "torch-mps", "torch-cpu", "mlx")
PRECISION_ORDER = ("fp32", "tf32", "amp-fp16", "fp16", "amp-bf16", "bf16")
MANUAL_AMP = {"mlx": "(manual)"}  # MLX has no autocast: the casts are written out
# Beside the axes: what else two cells may differ in.
CIRCUMSTANCES = (
    "host",
    "device",
    "backend",
    "trainer",
    "precision",
    "threads",
    "scenario",
    "offloads",
    "zero_stage",
    "gradient_checkpointing",
    *CHOICES,
    "probes_off",
)
NO_SPEED = "mechanism check, not a cost of offloading: device and host memory are one here"


class Family(NamedTuple):
    """Training cells of one model with one amount of data a step."""

    name: str  # model and size, or the workload's name without its trainer
    n_parameters: int | None = None
    samples: int | None = None  # per step
    tokens: int | None = None  # per step
    audio_s: float | None = None  # per step
    near_capacity: bool = False  # every cell found a batch size of its own
    target_len: int | None = None  # tokens of the transcript of each sample

    @property
    def label(self) -> str:
        """`gpt2-nano: 0.20 M parameters, batch 4 × 64 tokens`."""
        if self.n_parameters is None:
            return self.name
        millions = self.n_parameters / 1e6
        size = f"{millions:.2f}" if millions < 10 else f"{millions:.0f}"
        batch = f"batch {self.samples}" if self.samples else ""
        if self.samples and self.audio_s:
            batch += f" × {self.audio_s / self.samples:g} s of audio"
            batch += f" and {self.target_len} tokens" if self.target_len else ""
        elif self.samples and self.tokens:
            batch += f" × {self.tokens // self.samples} tokens"
        if self.near_capacity:
            batch = "near capacity, each cell with the batch that it found"
        return ", ".join(filter(None, (f"{self.name}: {size} M parameters", batch)))

    @property
    def slug(self) -> str:
        """For file names and anchors."""
        numbers = (self.samples, self.tokens or self.audio_s, self.target_len)
        sizes = [f"{n:.12g}" for n in numbers if n]
        sizes += ["near-capacity"] * self.near_capacity
        return "-".join([self.name, *sizes]) if self.n_parameters else self.name

    @property
    def order(self) -> tuple:
        """Small models first."""
        numbers = (self.n_parameters, self.samples, self.tokens, self.audio_s, self.target_len)
        unknown = self.n_parameters is None
        return (unknown, numbers[0] or 0, self.near_capacity, *(n or 0 for n in numbers), self.name)


def model(row: Mapping[str, Any]) -> str:
    """Module and size of a training cell: `gpt2-nano`; the workload's name where it has none."""
    return f"{row['module']}-{row['size']}" if row.get("size") else stem(row)


def family(point: Mapping[str, Any]) -> Family:
    """The family of a measured training point."""
    near = bool(point.get("batch_size_found"))

    def whole(name: str) -> int | None:
        value = point.get(name)
        return None if value is None or (near and name != "n_parameters") else int(value)

    return Family(
        model(point),
        whole("n_parameters"),
        whole("samples_per_step"),
        whole("tokens_per_step"),
        None if near else point.get("audio_s_per_step"),
        near,
        whole("target_len"),
    )


def precision(row: Mapping[str, Any]) -> str:
    """`amp-bf16`, or `amp-bf16 (manual)` where the framework has no autocast."""
    name = str(row["precision"])
    manual = MANUAL_AMP.get(row["backend"]) if name.startswith("amp-") else None
    return f"{name} {manual}" if manual else name


def point_status(point: Mapping[str, Any]) -> str:
    """What became of a point; of a cell that has one alone nothing is said."""
    return str(point.get("point_status") or "ok")


def as_slug(text: str) -> str:
    """A part of a file name made of what sets work apart: `-lora8`."""
    return text.replace(", ", "-").replace(" ", "").lower()


def work_apart(row: Mapping[str, Any]) -> str:
    """`, LoRA 8` of trainings that compute something else than the plain one; empty for it."""
    rank, weights = row.get("lora_rank"), row.get("weights")
    parts = [f"LoRA {int(rank)}"] if rank else []
    if weights not in (None, "random"):
        parts.append(str(weights))
    return "".join(f", {word}" for word in parts)


def label(row: Mapping[str, Any]) -> str:
    """`torch-cpu · plain · fp32 · LoRA 8`."""
    names = [words.backend_name(row), row["trainer"], precision(row), *variant(row)]
    return " · ".join(filter(None, names))


def twins(rows: Sequence[Row], *names: str) -> Callable[[Row], list[Row]]:
    """What finds, of each of these rows, those that differ in the named columns, each of them,
    and in no other, in order.

    It compares no row with all others, of which there may be thousands.
    """
    others = [name for name in dict.fromkeys((*WORK, *CIRCUMSTANCES)) if name not in names]
    work = by(others)
    alike = grouped(rows, work)

    def of(row: Row) -> list[Row]:
        group = alike[work(row)]
        return [twin for twin in group if all(twin.get(name) != row.get(name) for name in names)]

    return of


def pairs(
    rows: Sequence[Row], name: str, first: Callable[[Row], Any], second: Callable[[Row], Any]
) -> list[tuple[Row, Row]]:
    """Every two rows, one of each kind, that differ in a column and in no other; see `twins`."""
    like = twins(rows, name)
    return [(a, b) for a in rows if first(a) for b in like(a) if second(b)]


def backend_place(backend: str) -> tuple[int, str]:
    """Sort key: GPUs first; backends that are not listed come last, by name."""
    return _place(backend, BACKEND_ORDER)


def _place(value: str | None, listed: tuple[str, ...]) -> tuple[int, str]:
    return (listed.index(value) if value in listed else len(listed), value or "")


def _device(row: Mapping[str, Any]) -> tuple:
    return (
        row["source"] != HERE,
        row["source"],
        row["host"],
        row["device_kind"] == "cpu",
        row["device"],
    )


def order(row: Mapping[str, Any]) -> tuple:
    """Sort key of cells and points: GPUs first, then by workload, backend, trainer, precision."""
    return (
        *_device(row),
        row["module"],
        stem(row),
        *_driver(row),
        row["scenario"],
        row.get("point") or 0,
    )


def _driver(row: Mapping[str, Any]) -> tuple:
    return (
        _place(row["backend"], BACKEND_ORDER),
        _place(row["trainer"], ("plain", "hf")),
        _place(row["precision"], PRECISION_ORDER),
    )


def family_order(row: Mapping[str, Any]) -> tuple:
    """Sort key within a family: a variant stands right below the plain training."""
    return (*_device(row), *_driver(row), variant(row), row["workload"], row["scenario"])
