"""Daniel 2023's networks: step and epoch times, throughput, accuracy, and the device ratios.

Ratios themselves are made in `ratios`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import permutations
from operator import attrgetter

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import beside, ratios, tables, training, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data, grouped
from siliconprof.render.ratios import Case, Pair, Ratio, epoch, network, side_name, times
from siliconprof.render.tables import Column, Table, Value, count, missing, number, spanned, told
from siliconprof.render.variants import Row, order, point_status, precision

Cases = Mapping[Case, Sequence[Row]]


def add(data: Data, book: Book) -> None:
    """Everything of all hosts, and the article's ratios beside them."""
    if not _cells(data):
        book.note("No MLP, CNN or LSTM is part of these results.")
        return
    points = ratios.measured(data)
    cases = ratios.cases(points)
    if points:
        _figures(data, book, cases)
    else:
        failed = [cell for cell in _cells(data) if cell["status"] != "ok"]
        why = sorted({f"{cell['status']}: {cell['reason']}" for cell in failed})
        reasons = words.listing(why) or "no batch size came to its end"
        book.note(f"No figure: no network was measured ({reasons}).")
    timed = times_table(data, cases)
    book.table("classic-times", "classic-times", timed, counted="line")
    if points:
        _ratios(data, book, points)
    printed = published_table(data)
    measured = any(value.mark == "measured" for row in printed.rows for value in row)
    counted = "" if measured else "line"
    book.table("classic-published", "classic-published", printed, counted=counted)


def _cells(data: Data) -> list[Row]:
    """The cells of these networks, measured or not."""
    return [cell for cell in data.cells if cell["trainer"] == ratios.TRAINER]


def _figures(data: Data, book: Book, cases: Cases) -> None:
    """The steps of each network, device by device."""
    for name, of_network in grouped(cases.items(), lambda item: item[0].network).items():
        stepped = (group for _, group in of_network if any(p["step_median_s"] for p in group))
        rows = [point for group in stepped for point in group]
        # whatever the network, and then by batch size
        rows.sort(key=lambda p: (*order(p | {"workload": "", "point": 0}), p["batch_size"]))
        if rows:
            figure = f"classic-phases-{name.lower() if name.isupper() else name}"
            draw = partial(training.draw, data, rows, name=step_label)
            book.figure(figure, "classic-phases", draw, network=name)


def _ratios(data: Data, book: Book, points: Sequence[Row]) -> None:
    """Ratios of every two sides; with one side alone a sentence."""
    sides = list(dict.fromkeys(side_name(point) for point in points))
    pairs = ratios.pairs(data)
    if not pairs:
        why = (
            f"{sides[0]} alone trained these networks here"
            if len(sides) == 1
            else "no two devices or backends trained the same network with the same batch for a "
            "whole or extrapolated epoch"
        )
        book.note(f"No device ratios: {why}.")
        return
    every = [ratio for pair in pairs for ratio in pair.ratios]
    single = Table.of(every, RATIOS, attrgetter("rows"))
    book.table("classic-ratios", "classic-ratios", single, counted="line")


def step_label(row: Row) -> str:
    """`batch 32 · mlx · fp32`, and what multiplied."""
    remark = words.blas_remark(row)
    name = f"batch {int(row['batch_size'])} · {row['backend']} · {precision(row)}"
    return f"{name} · {remark}" if remark else name


NO_EPOCH = "no epoch was measured or extrapolated"
NO_STEP = "no unsplit step was timed"
UNRECORDED = "not recorded"
NOT_BOTH = "not both devices were measured with the same network and batch size"
ONLY_PICTURES = "other values only in a picture, not published as numbers"
ALIKE_ELSEWHERE = (
    "module",
    "n_parameters",
    "samples_per_step",
    "epoch_steps",
    "precision",
)


def _network(row: Row) -> Value:
    return Value(row["case"].network, row["case"].network, title=row["workload"])


def _batch_size(case: Case) -> Value | None:
    return Value(str(case.batch_size), float(case.batch_size)) if case.batch_size else None


NAMES = (
    told("Network", _network),
    Column("batch size", "", True, value=lambda row: _batch_size(row["case"])),
    tables.DEVICE,
    tables.BACKEND,
    told("Precision", precision, folds=True),
)


# -- times -----------------------------------------------------------------------------------------


def of_cases(cases: Mapping[Case, Iterable[Row]]) -> list[Row]:
    """The points of cases, each with its case."""
    return [row | {"case": case} for case, rows in cases.items() for row in rows]


def times_table(data: Data, cases: Mapping[Case, Sequence[Row]]) -> Table:
    """Every case: its epoch, its step with phases; what was not measured with its reason."""
    rows = [*of_cases(cases), *_unmeasured(data)]
    return Table.of(
        rows,
        TIMES,
        why_none=lambda row: row.get("why"),
        naming=len(NAMES),
        css=lambda row: "failed" if row.get("why") else "",
    )


def _unmeasured(data: Data) -> list[Row]:
    """Batch sizes and whole cells without a time, each with its reason as `why`."""
    lost = [
        (point, int(point["batch_size"]), point["point_status"], point.get("point_reason"))
        for point in data.points
        if point["trainer"] == ratios.TRAINER and point_status(point) != "ok"
    ]
    lost += [(c, 0, c["status"], c["reason"]) for c in _cells(data) if c["status"] != "ok"]
    return [
        row | {"case": Case(network(row), batch), "why": f"{status}: {why or 'no reason given'}"}
        for row, batch, status, why in lost
    ]


def _epoch(row: Row) -> Value:
    whole = epoch(row)
    if whole is None:
        return tables.quantity(row.get("epoch_s"), NO_EPOCH)
    return spanned(whole.middle, whole.low, whole.high, title=f"n = {whole.n} steps")


def _means(row: Row) -> Value:
    """`extrapolated: 40 of 1563 steps`; how many validation batches were run stands below."""
    text = row.get("epoch_means")
    if not text:
        return missing(NO_EPOCH)
    if not ratios.extrapolated(row):
        return Value(text, text)
    trained, validated = (
        _of(row, f"epoch_measured_{part}", f"epoch_{part}")
        for part in ("steps", "validation_steps")
    )
    text = f"{text}: {trained} steps" if trained else text
    return Value(text, text, f"{validated} validation batches" if validated else "", mark="bad")


def _of(row: Row, part: str, whole: str) -> str:
    """`40 of 1563`; empty where either is not known."""
    done, all_ = words.number(row.get(part)), words.number(row.get(whole))
    return f"{done:.0f} of {all_:.0f}" if done is not None and all_ else ""


WHOLE = "measured as a whole, or made from some of its steps"
OF_UNSPLIT, ENDS = "median, 95 % interval below", ("low", "high")
EPOCH = "training and validation; 95 % interval below, as wide as that of the steps"
TIMES = (
    *NAMES,
    Column("epoch", "s", True, EPOCH, "interval", value=_epoch),
    Column("Epoch is", "", False, WHOLE, "validation", value=_means),
    tables.median(
        "unsplit step", "ms", "unsplit_step", NO_STEP, OF_UNSPLIT, ENDS, 3, below="interval"
    ),
    number("samples", "1/s", "samples_per_s", NO_STEP, "of the unsplit step"),
    count("parameters", "n_parameters", UNRECORDED),
    uncertainty.COLUMN,
)


# -- ratios ----------------------------------------------------------------------------------------


OF_STEPS = "unsplit training steps, without validation"
FASTER = (
    "how many times faster a trains: epoch of b over epoch of a; what both 95 % intervals allow "
    "below"
)


def _ratio(ratio: Ratio) -> Value:
    return spanned(ratio.middle, ratio.low, ratio.high)


RATIOS = (  # every ratio with its interval, and the same of steps alone
    told("Side a", lambda ratio: side_name(ratio.a.row), folds=True),
    told("Side b", lambda ratio: side_name(ratio.b.row), folds=True),
    told("Network", attrgetter("case.network")),
    Column("batch size", "", True, value=lambda ratio: _batch_size(ratio.case)),
    number("epoch of a", "s", attrgetter("a.middle"), NO_EPOCH),
    number("epoch of b", "s", attrgetter("b.middle"), NO_EPOCH),
    Column("a over b", "×", True, FASTER, "interval", value=_ratio),
    number("by steps alone", "×", attrgetter("of_steps"), NO_STEP, OF_STEPS),
    told("Epochs are", lambda r: ratios.EXTRAPOLATED if r.extrapolated else "measured", folds=True),
)


# -- published -------------------------------------------------------------------------------------


def of_published(data: Data, row: Row) -> list[Ratio]:
    """Measured ratios of a published pair, of whatever hosts: the same network and batch.

    Of several backends of a device its fastest counts. A published `cpu` is that of the other
    device's own computer.
    """

    def work(step: Step) -> tuple:
        case = Case(network(step.row), int(step.row["batch_size"]))
        return (case, *map(step.row.get, ALIKE_ELSEWHERE))

    about = (point for point in ratios.measured(data) if _is_about(row, point))
    steps = sorted(filter(None, map(epoch, about)), key=lambda step: step.middle)
    found = []
    for alike, group in grouped(steps, work).items():
        fastest = [
            of_device[0] for of_device in grouped(group, lambda s: device_of(s.row)).values()
        ]
        for a, b in permutations(fastest, 2):
            if _published_sides(row, a.row, b.row):
                found.append(Ratio.of(alike[0], a, b))
    return found


def _is_about(row: Row, point: Row) -> bool:
    """Whether a published row is about a point's network and batch size; it may be about all."""
    model, batch = row["model"] or "all", row["batch_size"]
    return (model.startswith("all") or network(point) == model.upper()) and (
        batch is None or int(batch) == int(point["batch_size"])
    )


def _published_sides(row: Row, a: Row, b: Row) -> bool:
    """Whether two points are of a published pair's devices, in its order."""
    if row["device_b"] == "cpu":
        fits = ratios.is_cpu(b) and (a["source"], a["host"]) == (b["source"], b["host"])
    else:
        fits = b["device"] == row["device_b"]
    return bool(fits and a["device"] == row["device_a"])


def published_table(data: Data) -> Table:
    """The article's ratios, each with its mark, and what was measured of the same pair beside it."""
    columns = (
        Column("Devices a and b", below="device b", value=partial(_devices, data)),
        told("Network", lambda row: row["model"] or "not named"),
        tables.printed("batch size", "", "batch_size"),
        Column("published: a over b", "×", True, value=_published_ratio),
        told("measured: a over b", partial(_measured, data), folds=True),
        told("Statement, source, how to read it", _statement),
    )
    rows = data.published["daniel2023_speedups"]
    return Table.of(
        [row for row in rows if row["unit"] == "times" and row["device_b"]],
        columns,
        about=lambda row: None,
        notes=["The article's other values are in pictures and were not published as numbers."],
    )


def _published_ratio(row: Row) -> Value:
    low, high = row["value_min"], row["value_max"]
    text = f"at least {low}" if high is None else f"up to {high}"
    return tables.published(low if low == high else text, row["source"])


def _statement(row: Row) -> Value:
    notes = [part for part in (row["note"] or "").split("; ") if part and part != ONLY_PICTURES]
    return Value(f"{row['statement']} ({'; '.join([row['source'], *notes])})", mark="note")


def _devices(data: Data, row: Row) -> Value:
    """The registry's names of a published pair; a CPU is that of the first device's computer."""
    other = "its own CPU" if row["device_b"] == "cpu" else data.listed_name(row["device_b"])
    return Value(data.listed_name(row["device_a"]), row["device_a"], f"against {other}")


def _measured(data: Data, row: Row) -> Value:
    """Ratios measured of a published pair; the range of several."""
    if row["model"] is None and row["batch_size"] is None and "TFLOPS" in (row["note"] or ""):
        return missing("a ratio of peak TFLOPS: no measurement answers it")
    found = of_published(data, row)
    if not found:
        return missing(NOT_BOTH)
    least = min(found, key=lambda ratio: ratio.middle)
    most = max(found, key=lambda ratio: ratio.middle)
    text = str(least) if least is most else f"{least} ({least.case}) to {most} ({most.case})"
    if row["model"] and "average" in row["model"]:
        whole = Pair(found[0].a.row, found[0].b.row, found)
        text = f"{times(whole.geometric)} in the geometric mean, {text}"
    whose = dict.fromkeys(
        f"{side_name(ratio.a.row)} {beside.origin(ratio.a.row)} against {side_name(ratio.b.row)} "
        f"{beside.origin(ratio.b.row)}"
        for ratio in found
    )
    hollow = ", extrapolated epochs" if any(ratio.extrapolated for ratio in found) else ""
    return Value(f"{text}: {'; '.join(whose)}{hollow}", sort=least.middle, mark="measured")
