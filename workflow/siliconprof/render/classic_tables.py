"""Tables of seed 004's networks: times, accuracy, ratios measured here, ratios published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from siliconprof import words
from siliconprof.render import ratios, uncertainty
from siliconprof.render.data import Data
from siliconprof.render.ratios import Case, Foretold, Pair, Ratio, epoch, side_name
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.training import MS, PHASES
from siliconprof.render.variants import Row, precision

CLASSES = 10  # of the last layer of each of the seed's networks
CHANCE = 1 / CLASSES
Z_95 = 1.959964  # of a normal distribution
NO_EPOCH = "no epoch was measured or extrapolated"
NO_STEP = "no unsplit step was timed"
NO_TEST = "the network was not run on the test data"
NAMES = [
    Column("Network"),
    Column("batch size", "", True),
    Column("Device", folds=True),
    Column("Backend"),
    Column("Precision", folds=True),
]


def _names(case: Case, row: Row) -> list[Value | str | None]:
    return [
        Value(case.network, case.network, title=row["workload"]),
        Value(str(case.batch_size), float(case.batch_size)),
        row["device"],
        words.backend_name(row),
        precision(row),
    ]


def times(data: Data, cases: Mapping[Case, Sequence[Row]]) -> Table:
    """Every case: its epoch, its step with phases; what was not measured with its reason."""
    table = Table(
        [
            *NAMES,
            Column(
                "epoch",
                "s",
                True,
                "training and validation; 95 % interval below, as wide as that of the steps",
                "interval",
            ),
            Column(
                "Epoch is",
                help="measured as a whole, or made from some of its steps",
                below="validation",
            ),
            Column("training", "s", True, "of the epoch"),
            Column("validation", "s", True, "of the epoch"),
            Column("unsplit step", "ms", True, "median, 95 % interval below", "interval"),
            *(Column(phase, "ms", True, "median and quartiles of split steps") for phase in PHASES),
            Column("samples", "1/s", True, "of the unsplit step"),
            Column("parameters", "", True),
            Column("95 % interval", help=uncertainty.HELP, folds=True),
        ]
    )
    for case, points in cases.items():
        for row in points:
            table.add(
                *_names(case, row),
                _epoch(row),
                _means(row),
                quantity(row.get("epoch_train_s"), NO_EPOCH),
                quantity(row.get("epoch_validation_s"), NO_EPOCH),
                ranged(row, "unsplit_step", MS, NO_STEP, "low", "high", 3),
                *(ranged(row, phase, MS, f"no {phase} phase is marked") for phase in PHASES),
                quantity(row["samples_per_s"], NO_STEP),
                integer(row["n_parameters"], "not recorded"),
                uncertainty.value(row),
                of=row,
            )
    n_values = len(table.columns) - len(NAMES)
    for names, why, row in _unmeasured(data):
        table.add(*names, *[missing(why)] * n_values, css="failed", of=row)
    return table


def _unmeasured(data: Data) -> list[tuple[list[Value | str | None], str, Row]]:
    """Names and reasons of batch sizes and of whole cells without a time, and their rows."""
    unmeasured: list[tuple[list[Value | str | None], str, Row]] = []
    for row in data.points:
        if row["trainer"] == ratios.TRAINER and row.get("point_status") not in (None, "ok"):
            case = Case(ratios.network(row), int(row["batch_size"]))
            why = f"{row['point_status']}: {row.get('point_reason') or 'no reason given'}"
            unmeasured.append((_names(case, row), why, row))
    for cell in data.cells:
        if cell["trainer"] == ratios.TRAINER and cell["status"] != "ok":
            names = [
                Value(ratios.network(cell), title=cell["workload"]),
                None,
                cell["device"],
                words.backend_name(cell),
                precision(cell),
            ]
            why = f"{cell['status']}: {cell['reason'] or 'no reason given'}"
            unmeasured.append((names, why, cell))
    return unmeasured


def _epoch(row: Row) -> Value:
    whole = epoch(row)
    if whole is None:
        return quantity(row.get("epoch_s"), NO_EPOCH)
    ends = "–".join(words.significant(end) for end in (whole.low, whole.high))
    return Value(words.significant(whole.middle), whole.middle, ends, title=f"n = {whole.n} steps")


def _means(row: Row) -> Value:
    """`extrapolated: 40 of 1563 steps`; how many validation batches were run stands below."""
    if not row.get("epoch_means"):
        return missing(NO_EPOCH)
    text = str(row["epoch_means"])
    if not ratios.extrapolated(row):
        return Value(text, text)
    trained, validated = (
        _of(row, f"epoch_measured_{part}", f"epoch_{part}")
        for part in ("steps", "validation_steps")
    )
    if trained:
        text += f": {trained} steps"
    below = f"{validated} validation batches" if validated else ""
    return Value(text, text, below, mark="bad")


def _of(row: Row, part: str, whole: str) -> str:
    """`40 of 1563`; empty where either is not known."""
    done, all_ = words.number(row.get(part)), words.number(row.get(whole))
    return f"{done:.0f} of {all_:.0f}" if done is not None and all_ else ""


# -- accuracy --------------------------------------------------------------------------------------


def trained_steps(row: Row) -> int | None:
    """How many steps the network was trained before it was tested."""
    steps = words.number(row.get("test_trained_steps")) or words.number(row.get("training_steps"))
    return int(steps) if steps else None


def accuracy_interval(row: Row) -> tuple[float, float] | None:
    """95 % interval of a test accuracy over test samples (Wilson 1927), None without their number.

    It says how far other test images might move it, and nothing of other seeds.
    """
    share, n = words.number(row.get("test_accuracy")), words.number(row.get("test_samples"))
    if share is None or not n:
        return None
    widened = 1 + Z_95**2 / n
    middle = (share + Z_95**2 / (2 * n)) / widened
    reach = Z_95 / widened * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n))
    return middle - reach, middle + reach


def accuracy(cases: Mapping[Case, Sequence[Row]]) -> Table:
    """What each network learned in the steps that it was given."""
    table = Table(
        [
            *NAMES,
            Column("trained", "steps", True, "every step before the test, warm-up included"),
            Column(
                "samples seen, at most",
                "",
                True,
                "steps × batch size; an epoch's last batch may be smaller",
            ),
            Column(
                "test accuracy",
                "%",
                True,
                "95 % interval over the test images below; other seeds are not tried",
                "interval",
            ),
            Column("chance", "%", True, f"one of {CLASSES} classes", folds=True),
            Column("over chance", "", True),
            Column("test loss", "nats", True),
            Column("test images", "", True, folds=True),
            Column("Data", folds=True),
        ]
    )
    for case, points in cases.items():
        for row in points:
            steps, share = trained_steps(row), words.number(row.get("test_accuracy"))
            table.add(
                *_names(case, row),
                integer(steps, "not recorded"),
                integer(steps * case.batch_size if steps else None, "not recorded"),
                _accuracy(row),
                Value(words.significant(100 * CHANCE), 100 * CHANCE),
                Value(ratios.times(share / CHANCE), share / CHANCE)
                if share is not None
                else missing(NO_TEST),
                quantity(row.get("test_loss"), NO_TEST),
                integer(row.get("test_samples"), NO_TEST),
                f"{row.get('dataset')} (synthetic)" if synthetic(row) else row.get("dataset"),
                of=row,
            )
    return table


def synthetic(row: Row) -> bool:
    """Whether the images of a cell were generated."""
    return str(row.get("data_synthetic")) == "True"


def _accuracy(row: Row) -> Value:
    value = quantity(row.get("test_accuracy"), NO_TEST, 0.01)
    ends = accuracy_interval(row)
    if value.reason or not ends:
        return value
    return replace(value, below="–".join(words.significant(100 * end) for end in ends))


# -- ratios ----------------------------------------------------------------------------------------


def ratios_table(pairs: Sequence[Pair]) -> Table:
    """Every ratio with its interval, and the same of steps alone."""
    table = Table(
        [
            Column("Side a", folds=True),
            Column("Side b", folds=True),
            Column("Network"),
            Column("batch size", "", True),
            Column("epoch of a", "s", True),
            Column("epoch of b", "s", True),
            Column(
                "a over b",
                "×",
                True,
                "how many times as fast a trains: epoch of b over epoch "
                "of a; what both 95 % intervals allow below",
                "interval",
            ),
            Column("by steps alone", "×", True, "unsplit training steps, without validation"),
            Column("Epochs are", folds=True),
        ]
    )
    for pair in pairs:
        for ratio in pair.ratios:
            table.add(
                side_name(pair.a),
                side_name(pair.b),
                ratio.case.network,
                Value(str(ratio.case.batch_size), float(ratio.case.batch_size)),
                quantity(ratio.a.middle, NO_EPOCH),
                quantity(ratio.b.middle, NO_EPOCH),
                _ratio(ratio),
                quantity(ratio.of_steps, NO_STEP),
                ratios.EXTRAPOLATED if ratio.extrapolated else "measured",
                of=ratio.rows,
            )
    return table


def _ratio(ratio: Ratio) -> Value:
    ends = "–".join(words.significant(end) for end in (ratio.low, ratio.high))
    return Value(words.significant(ratio.middle), ratio.middle, ends)


def ranges(data: Data, pairs: Sequence[Pair]) -> Table:
    """Least, means and most of each pair, network by network, beside what TFLOPS say."""
    table = Table(
        [
            Column("Side a", folds=True),
            Column("Side b", folds=True),
            Column("Network"),
            Column("cases", "", True),
            Column("min", "×", True, "its batch size below", "case"),
            Column("geometric mean", "×", True, "the mean that suits ratios"),
            Column("arithmetic mean", "×", True, "an average as the seed gives one"),
            Column("max", "×", True, "its batch size below", "case"),
            Column(
                "by products",
                "×",
                True,
                "fastest matrix product of a over that of b, measured here; GFLOP/s below",
                "GFLOP/s",
            ),
            Column(
                "by data sheets",
                "×",
                True,
                "peak of a over peak of b; GFLOP/s below",
                "GFLOP/s",
                folds=True,
            ),
        ]
    )
    for pair in pairs:
        names = list(dict.fromkeys(ratio.case.network for ratio in pair.ratios))
        predictions = [ratios.by_products(data, pair), ratios.by_sheets(data, pair)]
        for name in [*names, *(["all"] if len(names) > 1 else [])]:
            part = pair if name == "all" else pair.of_network(name)
            table.add(
                side_name(pair.a),
                side_name(pair.b),
                name,
                Value(str(len(part.ratios)), float(len(part.ratios))),
                _end(part.least, name == "all"),
                quantity(part.geometric, NO_EPOCH),
                quantity(part.arithmetic, NO_EPOCH),
                _end(part.most, name == "all"),
                *map(_foretold, predictions),
                of=[row for ratio in part.ratios for row in ratio.rows],
            )
    return table


def _end(ratio: Ratio, with_network: bool) -> Value:
    case = str(ratio.case) if with_network else f"batch {ratio.case.batch_size}"
    return Value(words.significant(ratio.middle), ratio.middle, case)


def _foretold(foretold: Foretold) -> Value:
    value = quantity(foretold.ratio, foretold.reason)
    if not (foretold.a and foretold.b):
        return value
    rates = " / ".join(words.significant(rate / 1e9) for rate in (foretold.a, foretold.b))
    return replace(value, below=rates)
