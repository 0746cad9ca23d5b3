"""The paper's Figure 3: forward and backward time of equal work by device, scenario and LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from siliconprof import words
from siliconprof.render import beside, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.paper_bars import (
    Bar,
    Panel,
    Span,
    by_kind,
    by_place,
    draw,
    figures,
    filled,
    place,
    portions,
)
from siliconprof.render.tables import Column, Table, Value, integer, missing
from siliconprof.render.variants import PRECISION_ORDER, Row, as_usual, has_no_speed, model, variant

MS = 1e-3
PICTURE = "published only as a picture, not as numbers"
STEP = {"trace": 25, "forward": 60, "backward": 100}  # of the backend's colour, as in the training
NAMES = {"trace": "building the graph (MLX)", "forward": "forward", "backward": "backward"}
PANELS = {  # what the paper trains in each panel, and the scenario that Table 3 gives it
    "(a)(1)": ("pre-training Whisper", "Whisper-medium", "1"),
    "(a)(2)": ("GPT-2 without LoRA", "GPT2-large", "1"),
    "(a)(3)": ("GPT-2 with LoRA", "GPT2-large", "1"),
    "(b)(1)": ("Whisper, ZeRO-Offload", "Whisper-medium", "2"),
    "(b)(2)": ("GPT-2 without LoRA, ZeRO-Offload", "GPT2-XL", "2"),
    "scenario 3": ("near capacity", "Whisper-large", "3"),
}
OF_MODULE = {"whisper": ("(a)(1)", "(b)(1)"), "gpt2": ("(a)(2)", "(b)(2)")}
ADAPTED, NEAR = "(a)(3)", "scenario 3"
XL = "gpt2-xl"  # the paper trains it in its offload panel alone


class Work(NamedTuple):
    """What the trainings of one panel have in common: all but the batch, the device and the way."""

    panel: str
    model: str
    n_parameters: int
    tokens: float | None  # per sample
    audio_s: float | None  # per sample
    target_len: float | None
    checkpointed: bool
    weights: str
    method: int


def per_sample(point: Row, stem: str) -> Span | None:
    """Seconds of a phase, or of the unsplit step, by sample of the batch.

    Where the host's noise floor gives how far processes differ, a phase's interval is no narrower
    than the unsplit step's, relative to the median.
    """
    samples = words.number(point["samples_per_step"])
    middle, low, high = (
        words.number(point.get(f"{stem}_{part}_s")) for part in ("median", "low", "high")
    )
    if not samples or not middle:
        return None
    if low is None or high is None:
        return Span(middle / samples)
    step, *ends = (
        words.number(point.get(f"unsplit_step_{part}_s")) for part in ("median", "low", "high")
    )
    if step and all(ends) and uncertainty.origin(point) == uncertainty.BETWEEN:
        low = min(low, middle * ends[0] / step)  # type: ignore[operator]
        high = max(high, middle * ends[1] / step)  # type: ignore[operator]
    return Span(middle / samples, low / samples, high / samples)


def applied(point: Row) -> str:
    """The scenario that a training ran in."""
    return point.get("scenario_applied") or point["scenario"]


def usable(point: Row) -> bool:
    """Whether a point is a training of the paper's models whose phases were timed."""
    return (
        point["module"] in OF_MODULE
        and not has_no_speed(point)
        and as_usual(point)
        and per_sample(point, "forward") is not None
        and per_sample(point, "backward") is not None
    )


def works(points: Iterable[Row]) -> dict[Work, list[Row]]:
    """The panels with their rows, in the paper's order; offloaded work beside the same that fits."""
    usable_points = [point for point in points if usable(point)]
    offloaded = {
        _work(p, "") for p in usable_points if applied(p) == "offload" and not p["lora_rank"]
    }
    by_work: dict[Work, list[Row]] = {}
    for point in usable_points:
        for panel in _panels(point, _work(point, "") in offloaded):
            by_work.setdefault(_work(point, panel), []).append(point)
    order = list(PANELS)
    by_work = {work: _one_precision(rows) for work, rows in by_work.items()}
    return dict(
        sorted(
            by_work.items(),
            key=lambda item: (order.index(item[0].panel), -item[0].n_parameters, item[0][1:2]),
        )
    )


def _panels(point: Row, is_offloaded_somewhere: bool) -> list[str]:
    fits, offloads = OF_MODULE[point["module"]]
    if applied(point) == "near-capacity":
        return [NEAR]
    if point["lora_rank"]:
        return [ADAPTED] if applied(point) == "fits" else []
    if applied(point) == "offload":
        return [offloads]
    if model(point) == XL:
        return [offloads]
    return [fits, offloads] if is_offloaded_somewhere else [fits]


def _work(point: Row, panel: str) -> Work:
    samples = point["samples_per_step"]

    def each(name: str) -> float | None:
        whole = words.number(point.get(name))
        return whole / samples if whole else None

    return Work(
        panel,
        model(point),
        int(point["n_parameters"]),
        each("tokens_per_step"),
        each("audio_s_per_step"),
        words.number(point.get("target_len")),
        bool(point.get("gradient_checkpointing")),
        str(point.get("weights") or "random"),
        int(point["method_version"]),
    )


def _one_precision(rows: Sequence[Row]) -> list[Row]:
    """The rows in fp32, the paper's; in the first other precision where none is."""
    best = min((row["precision"] for row in rows), key=PRECISION_ORDER.index)
    return [row for row in rows if row["precision"] == best]


def add(data: Data, book: Book) -> None:
    """The figure, the table, and those of the paper's own trainings that are in neither."""
    book.heading("Figure 3: forward and backward time", anchor="paper-figure-3")
    by_work = works(data.training())
    if by_work:
        rows = [row for part in by_work.values() for row in part]
        are_the_papers = {_is_the_papers(data, work, part) for work, part in by_work.items()}
        parts = figures([p for work, part in by_work.items() for p in panels(data, work, part)])
        used = [phase for phase in STEP if any(per_sample(row, phase) for row in rows)]
        entries: list[style.Entry] = [
            *((style.swatch(style.shade("grey", STEP[phase])), NAMES[phase]) for phase in used),
            (style.sample(None, "-", color=style.INK, linewidth=0.9), "95 % interval of a part"),
        ]
        for index, part in enumerate(parts):
            book.figure(
                "paper-figure-3" + (f"-{index + 1}" if index else ""),
                "paper-figure-3",
                partial(draw, part, entries, 2),
                whose="Workloads of the paper are named as such, the others are this run's"
                if True in are_the_papers
                else "All of them are this run's workloads, none is the paper's",
                intervals=uncertainty.origin_text(rows),
            )
        many = len(rows) > 12
        book.table(
            "paper-figure-3",
            "paper-figure-3",
            table(data, by_work),
            folded=words.count(len(rows), "line") if many else "",
        )
    else:
        book.note(
            "No figure: no GPT-2 or Whisper training was timed phase by phase on any host. "
            "That takes a cell of module gpt2 or whisper with trainer hf or plain."
        )
    lines = absent(data, by_work)
    if lines:
        book.listing(lines, f"Not measured of the paper's own bars, which are {PICTURE}:")


def panels(data: Data, work: Work, rows: Sequence[Row]) -> list[Panel]:
    """A panel of one work; more than one where there are too many devices."""
    batches = {int(row["samples_per_step"]) for row in rows}
    length_text = (
        beside.length(rows[0]) if work.panel != NEAR else beside.memory_and_length(rows[0])
    )
    remark = [length_text, rows[0]["precision"]]
    if len(batches) == 1:
        remark.insert(0, f"batch {batches.pop()}")
        batches.clear()
    if work.checkpointed and work.panel != NEAR:
        remark.insert(1, "checkpointed")
    if work.weights != "random":
        remark.append(work.weights)
    remark.append("the paper's" if _is_the_papers(data, work, rows) else "this run's")
    title = f"{work.panel} {work.model}"
    title += {ADAPTED: ", LoRA", "(b)(1)": ", offload", "(b)(2)": ", offload"}.get(work.panel, "")
    title += ", near capacity" if work.panel == NEAR else ""
    kinds = by_kind(rows)
    chunks = [
        portions(
            [
                (name, [_bar(data, row, len(batches) > 1) for row in part])
                for name, part in by_place(data, kind).items()
            ]
        )
        for kind in kinds
    ]
    unit = "time of one sample / ms"
    if all(len(parts) == 1 for parts in chunks):
        return [Panel(title, ", ".join(remark), [parts[0] for parts in chunks], unit, MS)]
    return [
        Panel(title, ", ".join(remark), [groups], unit, MS) for parts in chunks for groups in parts
    ]


def _bar(data: Data, row: Row, with_batch: bool) -> Bar:
    spans = {phase: span for phase in STEP if (span := per_sample(row, phase))}
    forward, backward = spans["forward"], spans["backward"]
    remark = way(row)
    if with_batch:
        remark += f" · batch {int(row['samples_per_step'])}"
    caution = words.caution(row)
    times_text = "; ".join(f"{phase} {span.text(MS, 'ms')}" for phase, span in spans.items())
    numbers = " + ".join(words.significant(span.middle / MS) for span in (forward, backward))
    return Bar(
        remark,
        [(span, filled(style.shade(row["backend"], STEP[phase]))) for phase, span in spans.items()],
        numbers + (" (flagged)" if caution else ""),
        f"{row['workload']}, {place(data, row)}, {remark}, {row['precision']}, per sample: {times_text}"
        + (f"; {caution}" if caution else ""),
        row,
    )


def way(row: Row) -> str:
    """`torch-cuda · hf · offload stage 3`: what tells bars of one device apart."""
    apart = [part for part in variant(row) if not part.startswith(("LoRA", "checkpointed"))]
    apart = [part.partition(", batch")[0] for part in apart if part != str(row.get("weights"))]
    apart = [part for part in apart if part != "near capacity"]
    return " · ".join([words.backend_name(row), row["trainer"], *apart])


def _is_the_papers(data: Data, work: Work, rows: Sequence[Row]) -> bool:
    """Whether a work has a model and a batch size of Table 3."""
    for printed in data.published["table3_configurations"]:
        if work.n_parameters == beside.n_parameters(data, printed["workload"]) or (
            work.panel == ADAPTED and model_of(printed["workload"]) == work.model
        ):
            if any(row["samples_per_step"] == float(printed["batch_size"]) for row in rows):
                return True
    return False


def model_of(workload: str) -> str:
    """A workload of the paper as ours are named: `gpt2-large`."""
    return "-".join(beside.model_and_size(workload))


def absent(data: Data, by_work: dict[Work, list[Row]]) -> list[str]:
    """One line for each panel: on which of the paper's devices its work was not measured."""
    lines = []
    for panel, (what, workload, scenario) in PANELS.items():
        printed = [
            row
            for row in data.published["table3_configurations"]
            if (row["workload"], row["scenario"]) == (workload, scenario)
        ]
        batch = float(printed[0]["batch_size"]) if printed else None
        measured = {
            row["device"]
            for work, rows in by_work.items()
            if work.panel == panel and work.model == model_of(workload)
            for row in rows
            if row["trainer"] == "hf" and row["samples_per_step"] == batch
        }
        missing_ = {r["device_as_printed"]: r for r in printed if r["device"] not in measured}
        if missing_:
            lines.append(
                f"{panel} {what}: {workload}, batch {batch:g}, on {words.listing(missing_)}."
            )
    return lines


def table(data: Data, by_work: dict[Work, list[Row]]) -> Table:
    """The numbers of every bar, by sample."""
    result = Table(
        [
            Column("Panel"),
            Column("Model"),
            Column("Device"),
            Column("Host", folds=True),
            Column("Backend"),
            Column("Trainer"),
            Column("Precision", folds=True),
            Column("Ran as"),
            Column("batch", "", True),
            Column("forward", "ms per sample", True, "median, 95 % interval below"),
            Column("backward", "ms per sample", True, "median, 95 % interval below"),
            Column("both", "ms per sample", True),
            Column("backward / forward", "", True),
            Column("published", folds=True, help="the paper's bar"),
        ]
    )
    for work, rows in by_work.items():
        for row in rows:
            forward, backward = per_sample(row, "forward"), per_sample(row, "backward")
            assert forward and backward
            total = forward.middle + backward.middle
            result.add(
                work.panel,
                Value(work.model, sort=float(work.n_parameters), below=beside.length(row)),
                data.device_name(row),
                _host(row),
                words.backend_name(row),
                row["trainer"],
                row["precision"],
                applied(row),
                integer(row["samples_per_step"], "not recorded"),
                spanned(forward, MS),
                spanned(backward, MS),
                Value(words.significant(total / MS), sort=total / MS),
                Value(
                    words.significant(backward.middle / forward.middle),
                    sort=backward.middle / forward.middle,
                ),
                missing(f"not published: {PICTURE}"),
                of=row,
            )
    return result


def _host(row: Row) -> Value:
    return Value(row["host"], sort=row["host"], badge=words.SOURCE_BADGES.get(row["source"], ""))


def spanned(span: Span | None, scale: float, reason: str = "not timed") -> Value:
    """A value with its interval below."""
    if span is None:
        return missing(reason)
    value = span.middle / scale
    below = "–".join(
        words.significant(end / scale) for end in (span.low, span.high) if end is not None
    )
    return Value(words.significant(value), sort=value, below=below)
