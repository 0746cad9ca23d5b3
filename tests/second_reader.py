"""A second reading of a run: its tables computed anew from its records, by what the docs say of them.

Nothing of the package is imported: a mistake would have to be made twice. A row has its table's columns
and more. Of cells of one device, measured in one process each; no energy, data sheets or words.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median, pvariance, quantiles
from typing import Any

Row = dict[str, Any]
ORDER = ["torch-cuda", "torch-mps", "torch-cpu", "mlx", "plain", "hf"]  # backends, trainers and
ORDER += ["fp32", "tf32", "amp-fp16", "fp16", "amp-bf16", "bf16"]  # precisions; others after them
WHOLE = ("training_run", "epochs")  # trainers without split steps
WORK = ["n_parameters", "samples_per_step", "tokens_per_step", "audio_s_per_step", "target_len"]
WORK += ["module", "n_trainable_parameters", "data_sha256", "seed", "weights", "max_gradient_norm"]
WAYS = ["backend", "trainer", "precision", "compile", "threads", "scenario", "stage", "zero_stage"]
WAYS += ["gradient_checkpointing", "attention", "adamw", "allocator"]
SIDES = {"backend": None, "precision": "fp32", "trainer": "plain", "compile": None}
CHECK = "offload_on_cpu"  # the flag of a check of a mechanism, of which no speed is said
RATES = ("flop_per_s", "bytes_per_s")


def over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def ends(name: str, of: Sequence[float], unit: float = 1.0) -> Row:
    """A number, the ends of its interval and of how many it is, as the tables name them."""
    row = {f"{name}{end}": x / unit for end, x in zip(("", "_low", "_high"), of, strict=False)}
    return row | {f"{name}_n": of[3]}


def summary(name: str, values: list[float]) -> Row:
    """n, median, quartiles and the ends of the median's 95 % interval; of few values their range."""
    n, s, ordered, wider, variance = len(values), median(values), sorted(values), 1.276, 0.0
    if n > 40:  # how much more the number below the median varies than of independent values
        side = [(value > s) - (value < s) for value in values]
        mean, variance = sum(side) / n, pvariance(side)
    if variance:
        lag = sum(a * b for a, b in zip(side, side[1:], strict=False)) / (n - 1) - mean**2
        r = min(max(lag / variance, 0.0), 0.99)
        longer = max((math.sqrt(6) * r / (1 - r**2)) ** (2 / 3), 1.0)
        size = min(max(round(longer * n ** (1 / 3)), 2), n // 4)
        blocks = [sum((side + side)[i : i + size]) for i in range(n)]
        wider = max(wider, math.sqrt(pvariance(blocks) / (size * variance)))
    rank = max(math.floor((n - 1) / 2 - wider * 1.96 * math.sqrt(n) / 2), 0)
    low, high = ordered[rank], ordered[n - 1 - rank]
    q25, _, q75 = quantiles(values, n=4, method="inclusive") if n > 1 else values * 3
    row = {"n": n, "median_s": s, "q25_s": q25, "q75_s": q75, "low_s": low, "high_s": high}
    row = {f"{name}_{part}": value for part, value in row.items()}
    return row | {f"{name}_s": (s, low, high, n)} | ends(f"{name}_ms", (s, low, high, n), 1e-3)


def times(name: str, slow: Row, fast: Row, of: str = "whole_step_s") -> Row:
    """How many times as long one takes as the other, and what both intervals allow."""
    (a, a_low, a_high, n), (b, b_low, b_high, m) = slow[of], fast[of]
    return ends(name, (a / b, a_low / b_high, a_high / b_low, min(n, m)))


def read(results: Path) -> Iterator[Row]:
    """A row for each point, its rates over the whole step, else the call; and for each other cell."""
    for path in sorted(results.glob("records/**/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        cell, scenario, memory = record["cell"], record["scenario"], record["probes"].get("memory")
        own, stage, trainer = cell["parameters"] | cell, scenario["applied"], cell["trainer"]
        own |= {name: scenario[name] for name in ("batch_size", "batch_size_found")}
        own |= {"status": record["status"], "stage": stage, "point": None}
        own |= {"compile": own.get("compile", False), "backend_label": cell["backend"]}
        own["apart"] = own.get("lora_rank") or 0  # adapters set a training apart, not how it runs
        variant = (own["apart"], stage or "", own["compile"])
        stem = cell["workload"].removesuffix(f"-{trainer}")
        own["model"] = f"{cell['module']}-{own['size']}" if own.get("size") else stem
        own["way"] = way = (cell["backend"], trainer, cell["precision"], *variant)
        rank = [ORDER.index(x) if x in ORDER else 99 for x in way[:3]]
        own["order"] = (cell["module"], stem, *rank, *variant, cell["scenario"])
        own["key"] = tuple(cell[x] for x in ("backend", "workload", "scenario", "precision"))
        own["data_sha256"] = (record["dataset"] or {}).get("data_sha256")
        own["codes"] = sorted({flag["code"] for flag in record["flags"]})
        parts = scenario["offloaded_parts_bytes"] if stage == "offload" else None
        need = sum((parts or scenario["predicted_parts_bytes"] or {}).values()) or None
        own["predicted_on_device_bytes"] = need
        if memory and memory["rss_peak_sampled_bytes"]:
            own["growth_bytes"] = memory["rss_peak_sampled_bytes"] - memory["rss_at_start_bytes"]
        points = record["points"] if record["status"] == "ok" else []
        yield from [] if points else [own]
        for index, point in enumerate(points):
            row = dict.fromkeys(WORK) | own | point["params"] | {"point": index, "raw": point}
            for name, values in point["times"].items():
                row |= summary(name.removesuffix("_s"), values) if values else {}
            s = row.get("whole_step_median_s") or row.get("step_median_s")
            flops, moved, spoilt = point["flops"], point["bytes"], point.get("disturbed")
            row |= {"flops": flops, "bytes": moved, "point_disturbed": spoilt, "processes": 1}
            row |= {"flop_per_s": over(flops, s), "bytes_per_s": over(moved, s)}
            row |= {f"{x}_per_s": over(row[f"{x}_per_step"], s) for x in ("samples", "tokens")}
            row |= {"burst_flop_per_s": over(flops, point.get("burst_mean_s"))}
            row |= {
                "by_memory": (flops or 0) < 2 * (moved or 0),
                "status": point.get("status", "ok"),
            }
            row |= {"disturbed": bool(spoilt) or "contended" in own["codes"]}
            row["device_peak_bytes"] = peak = point["memory"]["device_peak_bytes"]
            row |= {"over": None if CHECK in own["codes"] or own["compile"] else over(need, peak)}
            row["theoretical_gib"] = 16 * (row["n_parameters"] or 0) / 2**30
            row["label"] = [row[name] for name in WORK[:6]]
            yield row


def limits(points: list[Row], cache: int) -> tuple[list[Row], list[Row]]:
    """The best of each backend and format; rates over that, of bytes those that no cache can hold."""
    found: list[Row] = []
    for p in points:
        kernel, size = p.get("kernel"), p.get("working_set_bytes")
        alike = [o for o in points if kernel and (o["key"], o.get("kernel")) == (p["key"], kernel)]
        names = {"matmul": ["matmul"]}.get(
            p["module"], ["amortised"] * (p.get("launch") == "dispatch")
        )
        if kernel and size == max(o["working_set_bytes"] for o in alike) >= 2 * cache:
            names = [f"{kernel}_bandwidth", "memory_bandwidth"]
        elif kernel and size <= cache and p["cache"] == "warm":
            names = ["cache_bandwidth"]
        for name in names:
            s, low, high, n = value = p["amortised_s" if name == "amortised" else "step_s"]
            if name != "amortised":
                rate = p[RATES[name != "matmul"]]
                value = (rate, rate * s / high, rate * s / low, n)
            line = {"quantity": name, "n": n, "error": (value[2] - value[1]) / 2 / value[0]}
            found.append(p | line | ends("value", value) | {"ends": value})
    found.sort(key=lambda x: -x["value"] if x["quantity"] == "amortised" else x["value"])
    products = {x["precision"]: x for x in found if x["quantity"] == "matmul"}
    memory = {x["quantity"]: x for x in found}.get("memory_bandwidth")
    lines: list[Row] = []
    for p in points:
        own, moved = p["precision"].removeprefix("amp-"), p["bytes"]
        tops = [products.get(x) for x in (own, own if own == p["precision"] else "fp32")]
        top = None if p["by_memory"] or None in tops else max(tops, key=lambda x: x["value"])
        rates = [(name, p[name], top) for name in ("flop_per_s", "burst_flop_per_s")]
        if moved and p["module"] != "first_touch":
            used = min(p.get("working_set_bytes", moved), moved)
            through = max(p.get("working_set_bytes", used), 2 * cache * (p.get("cache") == "cold"))
            rest = max(p["bytes_per_s"] * used / moved * (1 - cache / through), 0.0) or None
            rates.append(("bytes_per_s", rest, rest and memory))
        for name, rate, top in rates:
            line = p | {"quantity": name, "value": p[name], "compared_value": rate}
            line |= ends("ceiling", top["ends"]) if top else {"ceiling": None}
            lines += [line | {"of_ceiling": over(rate, line["ceiling"])}] if p[name] else []
    best = {(x["backend"], x["precision"], x["quantity"]): x for x in found}.values()
    return sorted(best, key=lambda x: x["value"]), lines


def fastest(points: list[Row]) -> Iterator[Row]:
    """The fastest setup of each training, against the best of any other backend."""
    timed = [
        p for p in points if p["trainer"] and "whole_step_s" in p and not p["batch_size_found"]
    ]
    timed = [p for p in timed if CHECK not in p["codes"]]
    plain = [p["label"] for p in timed if not p["apart"]]
    works: dict[Any, list[Row]] = {}
    for p in sorted(timed, key=lambda p: (p["disturbed"], p["whole_step_s"])):
        most = max(o["samples_per_step"] for o in timed if o["key"] == p["key"])
        if p["samples_per_step"] == most and not (p["apart"] and p["label"] in plain):
            works.setdefault(tuple(p[name] for name in WORK), []).append(p)
    for work in sorted(works, key=lambda work: [x or 0 for x in work[:5]], reverse=True):
        best, *others = works[work]
        rivals = [o for o in others if o["backend"] != best["backend"]]
        same = [o for o in rivals if o["precision"] == best["precision"]]
        row = best | {"alone": len({o["way"] for o in works[work]}) == 1}
        row |= times("rival_times", rivals[0], best) if rivals else {}
        if same and same[0] is not rivals[0]:
            row |= times("same_times", same[0], best)
        yield row


def pairs(rows: list[Row], axis: str, side: str | None = None) -> Iterator[list[Row]]:
    """Every two rows of equal work that differ in this alone: one of this side, else the first, leads."""
    for i, a in enumerate(rows):
        for b in rows if side else rows[i + 1 :]:
            differ = [name for name in WORK + WAYS if a.get(name) != b.get(name)]
            if differ == [axis] and side in (None, a[axis]):
                yield [a, b]


def output_s(operators: Row) -> float:
    """Seconds of a step in its output layer and its loss; 0 of a model without one."""
    rows = [row for row in operators.get("rows", ()) if row["phase"] in ("forward_s", "backward_s")]
    if not any(row["role"] == "lm_head" for row in rows):
        return 0.0
    heads = ("lm_head", "ForCausalLM", "LMHeadModel")  # the class itself takes the loss
    return sum(
        median(row["seconds"])
        for row in rows
        if row["seconds"] and row["role"].endswith(heads) and "." not in row["role"]
    )


def tables(results: Path) -> dict[str, list[Row]]:
    """Table -> its rows."""
    rows = sorted(read(results), key=lambda row: row["order"])
    points = [row for row in rows if row["point"] is not None]
    caches = [c for p in points if (c := (p["raw"].get("rotation") or {}).get("cache_bytes"))]
    best, lines = limits([p for p in points if not p["point_disturbed"]], (*caches, 2**28)[0])
    found: dict[str, list[Row]] = defaultdict(list)
    found |= {"points": points, "ceilings": best, "checks": lines, "fastest": [*fastest(points)]}
    for x in best:
        title = {"matmul": "product", "amortised": "launch"}.get(x["quantity"], x["quantity"][:-10])
        row = {"backend_label": x["backend"], "precision": x["precision"]}
        found["limits"].append(row | ends(title, x["ends"]))
    products = [x for x in best if x["quantity"] == "matmul" and x["precision"] == "fp32"]
    found["paper-table-1"] = [x | ends("measured", x["ends"]) for x in products[-1:]]
    shares = {(x["key"], x["point"], x["quantity"]): x["of_ceiling"] for x in lines}
    above = {x["key"] for x in lines if (x["of_ceiling"] or 0) > 1.25}
    for p in rows:
        name = next((x for x in ("whole_step", "step", "launch_and_wait") if f"{x}_s" in p), "")
        ms = zip(("step_ms", "step_low_ms", "step_high_ms"), p.get(f"{name}_s", ()), strict=False)
        row = p | {x: 1e3 * s for x, s in ms} | {"step_n": p.get(f"{name}_n")}
        row["gflop_per_s"], row["gb_per_s"] = (over(p.get(x), 1e9) for x in RATES)
        which = RATES[p.get("by_memory", False) or not p.get("flop_per_s")]
        row["share_of_ceiling"] = shares.get((p["key"], p["point"], which))
        row["peak_memory_mib"] = over(p.get("device_peak_bytes"), 2**20)
        unsaid = ("_ms", "_per_s", "_ceiling") if CHECK in p["codes"] else ()
        row = {x: value for x, value in row.items() if not x.endswith(unsaid)}
        row["flags"] = ";".join(p["codes"] + ["above_ceiling"] * (p["key"] in above))
        found["results"].append(row)
    trained = [p for p in points if p["trainer"]]
    split = [p for p in trained if p["trainer"] not in WHOLE and CHECK not in p["codes"]]
    split.sort(key=lambda p: -p["n_parameters"])
    for axis, side in SIDES.items():
        both = sorted(pairs(split, axis, side), key=lambda two: any(x["disturbed"] for x in two))
        for fast, slow in (sorted(two, key=lambda p: p["whole_step_s"]) for two in both[:1]):
            found["findings"] += [times("times", slow, fast) | {"axis": axis, "two": (fast, slow)}]
    close = [x for x in lines if x["of_ceiling"] and x["quantity"] == RATES[0] and x["trainer"]]
    close = [x for x in close if x["precision"] == "fp32" and x["trainer"] not in WHOLE]
    found["hardware"] = sorted(close, key=lambda x: (x["disturbed"], -x["of_ceiling"]))[:1]
    scored = [
        p | {"output_s": s} for p in split if (s := output_s(p["raw"].get("operators") or {}))
    ]
    found["output"] = sorted(scored, key=lambda p: p["disturbed"])[:1]
    fits = [p for p in split if (p["precision"], p["stage"], p["apart"]) == ("fp32", "fits", 0)]
    papers = [p for p in fits if p["module"] in ("gpt2", "whisper") and not p["compile"]]
    first = {(p["model"], p["backend"]): p for p in papers[::-1] if p["device_peak_bytes"]}
    found |= {"paper-table-2": [*first.values()], "memory-energy": trained}
    for axis, side, other in (("backend", "mlx", "plain"), ("trainer", "plain", "hf")):
        for b, a in pairs(papers, axis, side):
            both = ends("first", a["whole_step_s"], 1e-3) | ends("second", b["whole_step_s"], 1e-3)
            row = a | both | times("times", a, b) | {"axis": axis, "second_side": b}
            found["paper-table-4"] += [row] if a["trainer"] == other else []
    found["paper-table-6"] = [p for p in points if p["module"] == "kernel_launch"]
    epochs = [p for p in trained if p["trainer"] == "epochs"]
    ratios: dict[Any, Row] = {}
    speed: dict[str, float] = defaultdict(float)
    for p in epochs:
        s = median(p["raw"]["epoch"]["epoch_s"]) / p["whole_step_median_s"]
        p["epoch"] = [s * x for x in p["whole_step_s"][:3]] + [p["whole_step_n"]]
        speed[p["backend"]] += math.log(p["epoch"][0])
    for two in pairs(epochs, "backend"):
        a, b = sorted(two, key=lambda p: speed[p["backend"]])
        row = ratios.setdefault(a["network"], {"network": a["network"], "a": a, "b": b, "each": []})
        row |= times(f"times_{a['batch_size']}", b, a, "epoch")
        row["each"].append(row[f"times_{a['batch_size']}"])
        row["times_all"] = geometric_mean(row["each"])
    return found | {"network-ratios": [*ratios.values()]}
