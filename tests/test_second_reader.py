"""Every number of the tables and of the page is what a second reader makes of the records.

To 1e-9 in files, to the last digit in print: it knows how a number is made, and this file how it is
written. Golden tables hold what was, this holds what is right.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from html import unescape
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import second_reader
from conftest import Checkout, csv_rows
from second_reader import Row

pytestmark = pytest.mark.slow
CELL = ("backend", "workload", "scenario", "precision")
TRAINERS = {"training_run": "whole run", "epochs": "whole epochs"}
FEWEST = 8  # values of which the median has a 95 % interval
NARROW = "\u202f"
# Table -> what tells its rows apart; then those of the page.
KEYS: dict[str, tuple[str, ...]] = {
    "results": (*CELL, "point"),
    "points": (*CELL, "point"),
    "ceilings": ("backend", "precision", "quantity"),
    "checks": (*CELL, "point", "quantity"),
}
ON_PAGE: dict[str, tuple[str, ...]] = {
    "fastest": ("training", "amount"),
    "limits": ("backend_label", "precision"),
    "memory-energy": ("training", "setup"),
    "network-ratios": ("a", "b", "network"),
    "paper-table-1": ("device_label",),
    "paper-table-2": ("model", "how"),
    "paper-table-3": ("model", "device_label"),
    "paper-table-4": ("work_label", "compared"),
    "paper-table-5": ("work_label", "setup"),
    "paper-table-6": ("backend_label", "launch"),
}
# Numbers of the page: table, title of the column, its column in the file, what it is shown over.
PRINTED: list[tuple[str, str, str, float]] = [
    ("fastest", "Speed", "samples_per_s", 1),
    ("fastest", "Time per step", "whole_step_ms", 1),
    ("fastest", "In the same precision", "same_times", 1),
    ("limits", "Fastest matmul", "product", 1e9),
    ("limits", "Memory", "memory", 1e9),
    ("limits", "Cache", "cache", 1e9),
    ("limits", "Launch, among many", "launch", 1e-6),
    ("memory-energy", "Predicted", "predicted_on_device_bytes", 2**20),
    ("memory-energy", "Device peak", "device_peak_bytes", 2**20),
    ("memory-energy", "Predicted / peak", "over", 1),
    ("memory-energy", "Process grew by", "growth_bytes", 2**20),
    *(("network-ratios", f"batch {n}", f"times_{n}", 1) for n in (32, 128, 512, 1024)),
    ("network-ratios", "all sizes", "times_all", 1),
    ("paper-table-1", "Memory, found", "device_memory_bytes", 2**30),
    ("paper-table-1", "Fastest fp32 product", "measured", 1e12),
    ("paper-table-2", "16 bytes each", "theoretical_gib", 1),
    ("paper-table-2", "Measured peak, fp32", "device_peak_bytes", 2**20),
    ("paper-table-4", "First named", "first", 1),
    ("paper-table-4", "Second named", "second", 1),
    ("paper-table-4", "First / second", "times", 1),
    ("paper-table-6", "Cold", "cold_ms", 1e-3),
    ("paper-table-6", "Launch and wait", "launch_and_wait_ms", 1e-3),
    ("paper-table-6", "Amortised", "amortised_ms", 1e-3),
    ("paper-table-6", "Enqueue", "enqueue_ms", 1e-3),
]
# Columns that the second reader does not read: words, and what no record says.
UNREAD = {"source", "record", "unit", "blas", "reason", "why_not", "whose", "datasheet_reason"}
UNREAD |= {"ceiling_how", "ceiling_format", "last_level_cache_bytes"}
UNREAD |= {"main_cause", "cause_of"}  # of the parts of a step: see attribution.csv
UNREAD |= {"lora_trainable"}  # by the memory model, of trainings that were not run too
UNREAD |= set("how operation verdict against remark note same_setup".split())  # golden tables'
UNREAD |= {"product_how", "memory_how", "cache_how"}
OF_POINTS = re.compile(  # all of points.csv that is computed
    r"(?!autorange).*_(n|median_s|q25_s|q75_s|low_s|high_s)|(burst_)?flop_per_s|(bytes|samples|tokens)_per_s"
    "|flops|bytes|device_peak_bytes|n_parameters|samples_per_step|tokens_per_step|processes"
)


# -- how the second reader's numbers are written ---------------------------------------------------


def digits(value: float, n: int = 3) -> str:
    """So many significant digits, thousands set apart from 10 000 on."""
    places = max(n - 1 - math.floor(math.log10(float(f"{value:.{n - 1}e}"))), 0) if value else 0
    return f"{value:,.{places}f}".replace(",", NARROW if value >= 9999.5 else "")


def shown(row: Row, column: str, scale: float) -> str:
    """`45.6 ± 7 %`, half of the 95 % interval; of too few for one `45.6 range of 4`."""
    value, low, high = (row.get(f"{column}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return "–"
    text = digits(value / scale, 4 if column == "theoretical_gib" else 3)
    if low is None:
        return text
    half, n = (high - low) / 2, row[f"{column}_n"]
    reach = f"{100 * half / value:.0f}{NARROW}%" if half <= value else digits(half / scale)
    return f"{text} ± {reach}" if n >= FEWEST else f"{text} range of {n}"


def duration(seconds: float) -> str:
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    scale, unit = next(one for one in units if seconds >= 0.9995 * one[0])
    return f"{digits(seconds / scale)}{NARROW}{unit}"


def variant(p: Row) -> list[str]:
    """How a training runs otherwise than the plain one of its model."""
    words = [f"LoRA {p['lora_rank']}"] if p.get("lora_rank") else []
    words += [f"offload stage {p.get('zero_stage')}"] * (p["stage"] == "offload")
    words += [f"near capacity, batch {p['batch_size']}"] * (p["stage"] == "near-capacity")
    return words + ["compiled"] * p["compile"]


def setup(p: Row) -> str:
    """`torch-cpu · plain · fp32`."""
    by_hand = p["backend"] == "mlx" and p["precision"].startswith("amp-")
    precision = p["precision"] + " (manual)" * by_hand
    parts = [p["backend"], TRAINERS.get(p["trainer"], p["trainer"]), precision, *variant(p)]
    return " · ".join(filter(None, parts))


def amount(p: Row) -> str:
    """`0.20 M parameters, batch 4 × 64 tokens`."""
    millions, samples, each = p["n_parameters"] / 1e6, p["samples_per_step"], ""
    if p["audio_s_per_step"]:
        audio_s = p["audio_s_per_step"] / samples
        each = f" × {audio_s:g} s of audio and {p['target_len']} tokens"
    elif p["tokens_per_step"]:
        each = f" × {p['tokens_per_step'] // samples} tokens"
    size = f"{millions:.2f}" if millions < 10 else f"{millions:.0f}"
    return f"{size} M parameters, batch {samples}{each}"


def worded(table: str, row: Row, place: str) -> Row:
    """A row of the second reader with what its table says in words."""
    row = row | {"place": place, "device_label": place}
    if table == "fastest":
        only = " (the only one)" * row["alone"]
        row |= {"training": row["model"], "amount": amount(row), "setup": setup(row) + only}
    if table == "memory-energy":
        training = f"{row['model']}, batch {row['samples_per_step']}"
        row |= {"training": training, "setup": setup(row)}
    if table == "network-ratios":
        row |= {side: f"{place} · {row[side]['backend']}" for side in "ab"}
    if table == "paper-table-2":
        row |= {"how": f"{row['backend']}, batch {row['samples_per_step']}"}
    if table == "paper-table-4":
        compared = f"HF Trainer against plain loop, {row['backend']}"
        if row["axis"] == "backend":
            compared = f"{row['backend']} against {row['second_side']['backend']}"
        row |= {"compared": compared, "work_label": f"{row['model']}: {amount(row)}"}
    return row


def findings(made: dict[str, list[Row]]) -> list[list[str]]:
    """What each finding on the page names, in this order."""
    found = []
    for row in made["findings"]:
        ways = [p[row["axis"]] for p in row["two"] if row["axis"] != "compile"]
        times = [digits(row[f"times{end}"]) for end in ("", "_low", "_high")]
        times = times if row["times_low"] > 1 else ["no faster beyond noise"]
        steps = [duration(p["whole_step_s"][0]) for p in row["two"]]
        found.append([row["two"][0]["model"], *ways[:1], *times, *ways[1:], *steps])
    for row in made["hardware"]:
        s, low, high, _ = row["whole_step_s"]
        work, share = row["flop_per_s"] * s, row["of_ceiling"]
        ends = (work / high / row["ceiling_high"], work / low / row["ceiling_low"])
        shares = [digits(100 * share, 2 if share < 0.1 else 3), *(digits(100 * x, 2) for x in ends)]
        found.append([f"{row['model']} ({setup(row)})", *shares])
    for row in made["output"]:
        share = f"{100 * row['output_s'] / row['whole_step_s'][0]:.0f}{NARROW}%"
        found.append([f"{row['model']} ({setup(row)})", share])
    return found


def claims(made: dict[str, list[Row]]) -> dict[str, float]:
    """Claim -> the figure that it rests on: of several cases that agree the least clear one."""
    found = {}
    best, sound = made["ceilings"], [p for p in made["points"] if not p["point_disturbed"]]
    products = {(x["backend"], x["precision"]): x["value"] for x in best if x["module"] == "matmul"}
    memory = [x["value"] for x in best if x["quantity"] == "memory_bandwidth"]
    cold = [p for p in sound if p["module"] == "matvec" and p["cache"] == "cold"]
    if cold:
        shares = [
            (p["bytes_per_s"] / max(memory))
            / (p["flop_per_s"] / products[p["backend"], p["precision"]])
            for p in cold
        ]
        found["paper-matvec-bandwidth-bound"] = min(shares)
    models = [p for p in sound if p["module"] == "transformer_lm" and p["trainer"]]
    models.sort(key=lambda p: (p["backend"], p["n_embd"] / p["n_layer"]))
    both = [(wide, deep) for deep, wide in zip(models[::2], models[1::2], strict=True)]
    if both:
        peaks = [wide["device_peak_bytes"] / deep["device_peak_bytes"] for wide, deep in both]
        losses = [[[x["loss"] for x in p["raw"]["evaluations"]] for p in two] for two in both]
        least = min(min(wide) / min(deep) for wide, deep in losses)
        last = min(wide[-1] / deep[-1] for wide, deep in losses)
        found["wide-deep-report-models-differ-in-memory"] = min(
            peaks, key=lambda times: abs(times - 1)
        )
        found["wide-deep-report-wide-higher-minimum"] = least
        found["wide-deep-report-wide-higher-steady-loss"] = last
    return found


# -- what the run says -----------------------------------------------------------------------------


def text(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", html)).strip()


def printed_rows(page: str, name: str) -> list[dict[str, str]]:
    """The rows of a table of the page, by the titles of its columns; without small print."""
    figure = re.search(rf'<figure[^>]* id="{name}".*?</figure>', page, re.S)
    table = figure and re.search(r"<thead>(.*)</thead>\s*<tbody>(.*)</tbody>", figure[0], re.S)
    if not table:
        return []
    heads = re.findall(r"<th .*?</th>", table[1])
    titles = [text(re.sub(r"<span.*?</span>", "", head)) for head in heads]
    rows = [
        re.findall(r"<td.*?</td>", row, re.S) for row in re.findall(r"<tr.*?</tr>", table[2], re.S)
    ]
    bare = [[text(re.sub(r"<(small|sup).*?</\1>", "", cell)) for cell in row] for row in rows]
    return [dict(zip(titles, row, strict=True)) for row in bare]


def same(text: str, value: Any) -> bool:
    """Whether a cell of a file is this value; an empty one is None."""
    if value is None or text == "":
        return text == (value or "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.isclose(float(text), value, rel_tol=1e-9)
    return text == str(value)


def is_own(line: dict[str, str], place: str) -> bool:
    """Whether a row is of this host, and not what others print."""
    labels = [line[name] for name in ("device_label", "place", "a") if name in line]
    return any(place in label for label in labels) if labels else line.get("how") != ""


class Comparison:
    """What both readers say of one run.

    Attributes:
        wrong: table, row, column, printed, recomputed.
        counts: table -> cells of it that were compared and are not empty.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.page = (results / "report.html").read_text(encoding="utf-8")
        matrix = json.loads((results / "matrix.json").read_text(encoding="utf-8"))
        names = {device["id"]: device["name"] for device in matrix["host"]["devices"]}
        self.made = second_reader.tables(results)
        self.place = names[self.made["points"][0]["device"]]
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        for table, keys in (KEYS | ON_PAGE).items():
            self.table(table, keys)
        told = re.search(r'<ol[^>]* id="findings">.*?</ol>', self.page, re.S)
        said = [text(one) for one in re.findall(r"<p>.*?</p>", told[0], re.S)] if told else []
        for number, both in enumerate(zip_longest(said, findings(self.made), fillvalue="")):
            self.names("findings", number, *both)
        self.terminal()
        judged = {
            line["id"]: line["measured_value"] for line in csv_rows(results / "tables/claims.csv")
        }
        judged = {name: value for name, value in judged.items() if value}
        mine = claims(self.made)
        for name in judged.keys() | mine.keys():
            self.compare("claims", name, "measured", judged.get(name, ""), mine.get(name))

    def terminal(self) -> None:
        """The first table as a run ends with it: six trainings at most."""
        said = (self.results / "summary.txt").read_text(encoding="utf-8").splitlines()
        start = next(n for n, line in enumerate(said) if line.startswith("training ")) + 1
        for line, row in zip(said[start:], self.made["fastest"][:6], strict=False):
            step, half = duration(row["whole_step_s"][0]), shown(row, "whole_step_ms", 1)
            mine = [row["model"], setup(row), step, *half.split()[1:], digits(row["samples_per_s"])]
            mine = [word.replace(NARROW, " ") for word in mine]
            self.names("summary.txt", row["model"], " ".join(line.split()), mine)

    def names(self, table: str, row: Any, said: str, mine: Sequence[str]) -> None:
        """Note whether a sentence names all these, in this order."""
        right = mine and re.match(".*?".join(map(re.escape, mine)), said)
        self.compare(table, row, "line", said, said if right else mine)

    def compare(self, table: str, row: Any, column: str, said: str, mine: Any) -> None:
        self.counts[table] += said != ""
        if not same(said, mine):
            self.wrong.append(f"{table}, {row}, {column}: {said}, recomputed {mine}")

    def table(self, table: str, keys: tuple[str, ...]) -> None:
        ours: dict[tuple[str, ...], Row] = {}
        for row in self.made[table]:
            row = worded(table, row, self.place)
            key = tuple("" if row.get(name) is None else str(row[name]) for name in keys)
            ours[key] = ours.get(key, {}) | row
        page = [f"tables/page-{table}.csv", f"figures/{table}.csv"]  # of a golden run, and of any
        files = page if table in ON_PAGE else [f"{table}.csv", f"tables/{table}.csv"]
        path = next((self.results / x for x in files if (self.results / x).is_file()), None)
        printed, seen = printed_rows(self.page, table), []
        for number, line in enumerate(csv_rows(path) if path else ()):
            key = tuple(line[name].removesuffix(".0") for name in keys)
            if key not in ours:
                unread = is_own(line, self.place) and not line.get("why_not")
                self.wrong += [f"{table}, {key}: not recomputed"] if unread else []
                continue
            seen.append(key)
            for column in line.keys() - UNREAD:
                if table != "points" or OF_POINTS.fullmatch(column):
                    self.compare(table, key, column, line[column], ours[key].get(column))
            for name, title, column, scale in PRINTED:
                if name == table and title in printed[number]:
                    mine = shown(ours[key], column, scale)
                    self.compare(f"{table} on the page", key, title, printed[number][title], mine)
        self.wrong += [
            f"{table}, {key}: recomputed, and not there" for key in ours.keys() - {*seen}
        ]
        if table == "fastest":
            self.compare(table, "all", "order", str(seen), str([*ours]))


def test_the_golden_run_is_what_its_records_say(golden_run: Path) -> None:
    found = Comparison(golden_run / "results")
    assert found.wrong == []
    read = {
        *KEYS,
        *ON_PAGE,
        *(f"{name} on the page" for name, *_ in PRINTED),
        "findings",
        "claims",
        "summary.txt",
    }
    # No training of the paper's sizes and no counter of energy: these have no row of this host.
    assert {name for name, count in found.counts.items() if count} == read - {
        "paper-table-3",
        "paper-table-5",
    }
    assert found.counts.total() > 13_000
    least = {"results": 3400, "fastest": 70, "ceilings": 170, "memory-energy": 250, "findings": 5}
    assert all(found.counts[name] >= n for name, n in least.items()), found.counts


def test_a_fresh_run_is_what_its_records_say(tiny: Checkout) -> None:
    """Of few steps, whose intervals are ranges; and of launches, of which there are many."""
    found = Comparison(tiny.path / "results")
    assert found.wrong == []
    least = {"results": 60, "points": 100, "fastest": 5, "paper-table-6": 10, "findings": 1}
    assert all(found.counts[name] >= n for name, n in least.items()), found.counts


def test_a_number_that_is_not_so_is_seen(tiny: Checkout, tmp_path: Path) -> None:
    """In a file, on the page and on the terminal, when a record says something else."""
    shutil.copytree(tiny.path / "results", tmp_path / "results")
    (path,) = tmp_path.glob("results/records/*/*/mlx/nano-2/*/*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    series = record["points"][0]["times"]["whole_step_s"]
    series[:] = [2 * seconds for seconds in series]
    path.write_text(json.dumps(record), encoding="utf-8")
    wrong = "\n".join(Comparison(tmp_path / "results").wrong)
    for place in ("results, ", "points, ", "checks, ", "fastest, ", "fastest on the page, "):
        assert re.search(rf"^{place}.*recomputed", wrong, re.M), wrong
    assert "summary.txt, gpt2-nano, line" in wrong
