"""The paper's Figure 3: forward and backward time of equal work by device, scenario and LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse.published_values import model_and_size
from siliconprof.render import beside, chart, hover, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import PRECISION_ORDER, Row, as_usual, has_no_speed, model, variant
from siliconprof.store.records import HERE

MS = 1e-3
PICTURE = "published only as a picture, not as numbers"
STEP = {"trace": 25, "forward": 60, "backward": 100}  # of the backend's colour, as in the training
NAMES = {"trace": "building the graph (MLX)", "forward": "forward", "backward": "backward"}
PANELS = ("(a)(1)", "(a)(2)", "(a)(3)", "(b)(1)", "(b)(2)", "scenario 3")  # in the paper's order
OF_MODULE = {"whisper": ("(a)(1)", "(b)(1)"), "gpt2": ("(a)(2)", "(b)(2)")}
ADAPTED, NEAR = "(a)(3)", "scenario 3"
MORE_TITLE = {
    ADAPTED: ", LoRA",
    "(b)(1)": ", offload",
    "(b)(2)": ", offload",
    NEAR: ", near capacity",
}
XL = "gpt2-xl"  # the paper trains it in its offload panel alone
ROWS_PER_PANEL, ROWS_PER_FIGURE = 24, 48


class Span(NamedTuple):
    """A value with the ends of its 95 % interval; an end is None where there is none."""

    middle: float
    low: float | None = None
    high: float | None = None


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


def per_sample(point: Row, stem: str) -> Span | None:
    """Seconds of a phase, or of the unsplit step, by sample of the batch."""
    samples = words.number(point["samples_per_step"])
    middle, low, high = _times(point, stem)
    if not samples or not middle:
        return None
    if low is None or high is None:
        return Span(middle / samples)
    return Span(middle / samples, low / samples, high / samples)


def _times(point: Row, stem: str) -> list[float | None]:
    return [words.number(point.get(f"{stem}_{part}_s")) for part in ("median", "low", "high")]


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
    own = [point for point in points if usable(point)]
    offloaded = {_work(p, "") for p in own if applied(p) == "offload" and not p["lora_rank"]}
    pairs = [
        (_work(point, panel), point)
        for point in own
        for panel in _panels(point, _work(point, "") in offloaded)
    ]
    pairs.sort(key=lambda one: (PANELS.index(one[0].panel), -one[0].n_parameters, one[0].model))
    return {
        work: _one_precision([point for _, point in group])
        for work, group in grouped(pairs, itemgetter(0)).items()
    }


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
    )


def _one_precision(rows: Sequence[Row]) -> list[Row]:
    """The rows in fp32, the paper's; in the first other precision where none is."""
    best = min((row["precision"] for row in rows), key=PRECISION_ORDER.index)
    return [row for row in rows if row["precision"] == best]


def add(data: Data, book: Book) -> None:
    """The figure; Table 3 says which of the paper's own trainings were measured."""
    book.heading("Figure 3: forward and backward time", anchor="paper-figure-3")
    by_work = works(data.training())
    if by_work:
        _add_figures(data, book, by_work)
    else:
        book.note(
            "No figure: no GPT-2 or Whisper training was timed phase by phase on any host. "
            "That takes a cell of module gpt2 or whisper with trainer hf or plain."
        )


def _add_figures(data: Data, book: Book, by_work: Mapping[Work, Sequence[Row]]) -> None:
    """Figures of panels, as many as a page can show in one."""
    rows = [row for part in by_work.values() for row in part]
    used = [phase for phase in STEP if any(per_sample(row, phase) for row in rows)]
    interval = style.sample(None, "-", color=style.INK, linewidth=0.9)
    legend = [
        *((style.swatch(style.shade("grey", STEP[phase])), NAMES[phase]) for phase in used),
        (interval, "95 % interval of a part"),
    ]
    any_of_the_papers = any(_is_the_papers(data, *item) for item in by_work.items())
    figures: list[list[Panel]] = []
    for panel in (panel for item in by_work.items() for panel in panels(data, *item)):
        if figures and sum(len(p.labels) for p in [*figures[-1], panel]) <= ROWS_PER_FIGURE:
            figures[-1].append(panel)
        else:
            figures.append([panel])
    for index, shown in enumerate(figures, 1):
        book.figure(
            "paper-figure-3" + (f"-{index}" if index > 1 else ""),
            "paper-figure-3",
            Chart(shown, legend, 2).figure,
            intervals=uncertainty.origin_text(rows),
            whose="Workloads of the paper are named as such, the others are this run's"
            if any_of_the_papers
            else "All of them are this run's workloads, none is the paper's",
        )


def panels(data: Data, work: Work, rows: Sequence[Row]) -> list[Panel]:
    """The panels of one work, this host's devices first, in portions that a panel can show.

    Accelerators and CPUs are apart: on one axis the former would vanish beside the latter.
    """
    portions: list[list[Row]] = []
    for cpu in (False, True):
        own = [row for row in rows if (row["device_kind"] == "cpu") == cpu]
        full = True
        for group in grouped(
            sorted(own, key=lambda row: row["source"] != HERE), data.place
        ).values():
            if full or len(portions[-1]) + len(group) > ROWS_PER_PANEL:
                portions.append([])
            portions[-1] += group
            full = False
    near = work.panel == NEAR
    batches = {int(row["samples_per_step"]) for row in rows}
    remark = [
        f"batch {min(batches)}" if len(batches) == 1 else "",
        "checkpointed" if work.checkpointed and not near else "",
        beside.memory_and_length(rows[0]) if near else beside.length(rows[0]),
        rows[0]["precision"],
        work.weights if work.weights != "random" else "",
        "the paper's" if _is_the_papers(data, work, rows) else "this run's",
    ]
    title = f"{work.panel} {work.model}{MORE_TITLE.get(work.panel, '')}"
    several = len(batches) > 1
    return [
        _panel(data, part, several, title, ", ".join(filter(None, remark))) for part in portions
    ]


def _panel(data: Data, rows: Sequence[Row], with_batch: bool, title: str, remark: str) -> Panel:
    """Bars under the names of their devices."""
    labels: list[str] = []
    headings: dict[int, str] = {}
    shown: list[Mark] = []
    for place, group in grouped(rows, data.place).items():
        headings[len(labels)] = place
        labels.append("")
        for row in group:
            batch = f" · batch {int(row['samples_per_step'])}" if with_batch else ""
            label = f"{way(row)}{batch}"
            shown += _bar(row, len(labels), f"{row['workload']}, {place}, {label}")
            labels.append(label)
    return Panel(
        shown,
        Scale("time of one sample / ms", zero=True, most=4, unit=MS),
        labels=labels,
        headings=headings,
        title=title,
        remark=remark,
        row_in=chart.ROW_IN,
    )


def _bar(row: Row, y: int, name: str) -> Iterator[Mark]:
    """The phases of a step end to end, their intervals, and the numbers at their end."""
    spans = {phase: span for phase in STEP if (span := per_sample(row, phase))}
    caution = words.caution(row)
    times = "; ".join(f"{phase} {hover.spanned(*s, 'ms', MS)}" for phase, s in spans.items())
    text = f"{name}, {row['precision']}, per sample: {times}" + (f"; {caution}" if caution else "")
    start = end = 0.0
    for phase, span in spans.items():
        look = {"facecolor": style.shade(row["backend"], STEP[phase]), "edgecolor": style.PAPER}
        yield chart.bar(y, start, start + span.middle, row, text, 0.66, linewidth=0.4, **look)
        if span.low is not None and span.high is not None:
            ends = [start + span.low, start + span.high]
            yield chart.line(ends, [y, y], row, color=style.INK)
        end = max(end, start + max(span.middle, span.high or 0.0))
        start += span.middle
    numbers = (words.significant(spans[phase].middle / MS) for phase in ("forward", "backward"))
    shown = " + ".join(numbers) + (" (flagged)" if caution else "")
    yield chart.beside(end, y, shown, row, color=style.INK)


def way(row: Row) -> str:
    """`torch-cuda · hf · offload stage 3`: what tells bars of one device apart."""
    shared = ("LoRA", "checkpointed", "near capacity", str(row.get("weights")))
    apart = [part.partition(", batch")[0] for part in variant(row) if not part.startswith(shared)]
    return " · ".join([words.backend_name(row), row["trainer"], *apart])


def _is_the_papers(data: Data, work: Work, rows: Sequence[Row]) -> bool:
    """Whether a work has a model and a batch size of Table 3."""
    batches = {float(row["samples_per_step"]) for row in rows}
    return any(
        float(printed["batch_size"]) in batches
        and (
            work.n_parameters == beside.n_parameters(data, printed["workload"])
            or (
                work.panel == ADAPTED
                and work.model == "-".join(model_and_size(printed["workload"]))
            )
        )
        for printed in data.published["table3_configurations"]
    )
