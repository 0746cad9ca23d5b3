"""How long a step of a training should take that was never run, and what would make it shorter.

    siliconprof predict --model gpt2-mini --batch 2
    siliconprof predict --model gpt2-tiny --batch 4 --backend mlx --faster products=2
    siliconprof predict --model gpt2-nano --batch 8 --on h200-server
    siliconprof predict --model ./FOLDER --batch 1 --measure
    siliconprof predict gpt2-tiny-plain/torch-cpu/fp32 --backend torch-cpu

For every device and backend whose trainings had their operators timed, up to three answers, each with
how far off the same answer is for trainings that were measured there:

  at least, and likely   by the fastest product, the bandwidth and the launches that were measured there
  by operators           by the times of the same operators in other trainings, see `analyse.prediction`;
                         where these tell too little of them, it is refused
  --measure              by the model's own operators, each distinct one timed alone on this host's CPU:
                         half a minute for each backend, on a host where nothing else runs

A model is never built: its operators are told by a step on arrays without memory. Those of a measured
training, named as for `siliconprof explain`, stand in its record. `--faster` divides the time of a part
of the step that is predicted by operators.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from siliconprof import formatting, options, plugins
from siliconprof.analyse import attribution, bound, prediction
from siliconprof.analyse.frames import POINT, Frames
from siliconprof.analyse.operator_rows import BLOCKED, PARTS, WAITING, group
from siliconprof.analyse.prediction import MODEL, PLACE_WITH_THREADS, TimedTrainings
from siliconprof.cells import model_file
from siliconprof.compare import explain
from siliconprof.compare.own_operators import TrainingRequest, cell_of, predict_by_own_operators
from siliconprof.datasets.dataset_spec import MIN_VOCAB_SIZE
from siliconprof.errors import UserError, in_one_line, nearest
from siliconprof.memory import memory_model
from siliconprof.session import inventory
from siliconprof.store import model, table_files
from siliconprof.store.cell import PRECISIONS
from siliconprof.workloads import causal_lm

MS = 1e-3
SPEECH = {"dataset_clip_seconds": 30, "dataset_n_mels": 80}  # what Whisper is made for
PREDICTED = tuple(part for part in PARTS if part not in (BLOCKED, WAITING))

# Of the operators' time, by lines of their kinds: such a prediction is of another kind.
MAIN_PART_SHARE = 0.5
MEASURES = "--measure times its own operators on this host"
NOT_KNOWN = (
    "its operators are those of a step on a CPU: which of them a GPU fuses, and what its own kernels of "
    "attention and recurrent layers take, as cuDNN's, is not known"
)

UNTIMED = (
    "it was measured, but the operators of its step were not timed, or the step is of a whole training "
    "or only checks a mechanism"
)


def request_of_model(
    name: str, batch: int | None, precision: str, seq_len: int, lora: int, results: Path
) -> TrainingRequest:
    """A model by name, batch size and length.

    Raises:
        UserError: no such model, or it does not take these values; one line each.
    """
    loaded = {name: plugins.load("workloads", name) for name in plugins.names("workloads")}
    known = {
        f"{module}-{size}": (module, size)
        for module, plugin in loaded.items()
        if plugin.kind == "training"
        for size in plugin.vocab_sizes
    }
    is_yours = name not in known and "/" in name
    if name not in known and not is_yours:
        raise UserError(
            f"--model: is '{name}'; expected a hub id, a folder as ./{name}, or one "
            f"of: {', '.join(known)}{nearest(name, known)}"
        )
    module, size = ("causal_lm", None) if is_yours else known[name]
    plugin = loaded[module]
    named = {"model": name} if is_yours else {"size": size}
    own = named | {"batch_size": batch, "lora_rank": lora}
    defaults = plugin.defaults()
    own |= {key: seq_len for key in ("seq_len", "target_len") if key in defaults}
    model.checked(model.model_of(plugin.Parameters, model.Open), own, f"{name}: ")
    n_tokens = MIN_VOCAB_SIZE["text"] if is_yours else memory_model.VOCAB_SIZE
    own = defaults | own | {"dataset_vocab_size": n_tokens}
    if spec := plugin.model_spec(own):
        own |= {causal_lm.MODEL_FILE_KEY: str(model_file.facts_file(spec, results))}

    @cache
    def read(backend: str) -> pd.DataFrame:
        found = inventory.calls(plugin(own), SPEECH | own, backend, precision, threads=1)
        counts = Counter(call.operator for call in found)
        return operators_frame([one._asdict() | {"count": count} for one, count in counts.items()])

    def operators(place: Mapping[str, Any]) -> pd.DataFrame:
        return read(place["backend"])

    title = f"{name}, batch {batch} × {seq_len} tokens, {precision}"
    title += f", LoRA {lora}" if lora else ""
    of_model = module, "plain", lora, precision
    flops, _ = plugin(SPEECH | own).flops_per_step()
    return TrainingRequest(title, of_model, own["batch_size"], operators, SPEECH | own, flops)


def operators_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The operators of a step, as `TimedTrainings.predict` takes them."""
    frame = pd.DataFrame(rows)
    return prediction.with_kinds(
        frame.assign(group=list(map(group, frame["kind"], frame["phase"])))
    )


def request_of_training(
    name: str, points: pd.DataFrame, measured: TimedTrainings
) -> TrainingRequest:
    """A training of the results.

    Args:
        points: of all cells that are ok.

    Raises:
        UserError: see `explain.chosen`; or its operators were not timed.
    """
    usable = attribution.has_parts(points) & points.index.isin(measured.trainings.index)
    label = explain.chosen(points, name, usable, UNTIMED)
    point: Any = measured.trainings.loc[label]
    title = f"the operators of {point['workload']}/{point['backend']}/{point['precision']}"
    rows = measured.operators[measured.operators["training"] == label]
    samples = points["samples_per_step"].astype(float)[label]
    return TrainingRequest(title, [*point[MODEL]], samples, lambda _: rows)


def factors_of(faster: Sequence[str]) -> dict[str, float]:
    """Parse `--faster`: part of a step -> speed-up.

    Raises:
        UserError: no such part, or no number above 0.
    """
    factors = {}
    for text in faster:
        part, _, number = text.partition("=")
        if part not in PREDICTED:
            raise UserError(
                f"--faster: {part!r} is no part of a step; expected one of: {', '.join(PREDICTED)}"
                f"{nearest(part, PREDICTED)}"
            )
        try:
            factors[part] = float(number)
        except ValueError:
            factors[part] = math.nan
        if not 0 < factors[part] < math.inf:
            raise UserError(f"--faster: {text}: expected a number above 0, as in {part}=2")
    return factors


def places(
    measured: TimedTrainings, named: Mapping[str, str | None]
) -> list[tuple[dict[str, Any], TimedTrainings]]:
    """The devices and backends to predict for, each with its trainings.

    Raises:
        UserError: there is none.
    """
    chosen, near = measured.trainings, ""
    for axis, wanted in named.items():
        if wanted is not None:
            near = near or nearest(wanted, {*measured.trainings[axis]} - {wanted})
            chosen = chosen[chosen[axis] == wanted]
    found = chosen.groupby(PLACE_WITH_THREADS, sort=False).groups
    if not found:
        every = measured.trainings
        known = (every["backend"] + " on " + every["device"] + " of " + every["host"]).unique()
        raise UserError(
            "no such host, device and backend has trainings whose operators were timed undisturbed; "
            f"there are: {', '.join(known) or 'none, of any'}{near}"
        )
    return [
        (place, measured.only(measured.trainings.index.to_series().isin(labels)))
        for labels in found.values()
        for place in table_files.rows(chosen.loc[labels[:1], PLACE_WITH_THREADS])
    ]


def answer(
    request: TrainingRequest,
    place: Mapping[str, Any],
    there: TimedTrainings,
    frames: Frames,
    factors: Mapping[str, float],
    measures: bool,
) -> dict[str, Any]:
    """What is predicted for a device and backend.

    Args:
        there: its trainings.
        factors: from `faster`.
        measures: on this host's CPU, where its own operators are timed too.
    """
    of_cpu = request.parameters is not None and inventory.is_for_gpu(place["backend"])
    found: dict[str, Any] = {**place, "seconds": None, "bound": None, "measured": None}
    found["not_known"] = NOT_KNOWN if of_cpu else None
    if measures:
        try:
            found["measured"] = predict_by_own_operators(request, place, there, frames)
            own = operators_frame(found["measured"].pop("rows"))
            request = request._replace(operators=lambda _: own)  # which take as long to find out
        except UserError as error:
            found["not_measured"] = str(error)
    limits = bound.ceilings(frames.results.frame("ceilings"), there, request.precision)
    try:
        rows = request.operators(place)
    except (UserError, ImportError) as error:
        why = str(error) if isinstance(error, UserError) else in_one_line(error)
        least = bound.bound_of_products(request.flops, limits)
        return found | {"refusal": why, "bound": least and least._asdict()}
    predicted = there.predict(rows, request.model, factors)
    least = bound.bound_of_step(rows, there, limits, request.precision)
    held = there.trainings[POINT].merge(frames.results.frame("predicted"), on=POINT)
    by_lines = predicted.shares[prediction.BY_LINE] >= MAIN_PART_SHARE
    errors = prediction.errors(
        held[(held["line_share"].astype(float) >= MAIN_PART_SHARE) == by_lines]
    )
    seconds = None if predicted.refusal else predicted.seconds
    return found | {
        "seconds": seconds,
        "samples_per_s": seconds and request.samples / seconds,
        "refusal": predicted.refusal,
        "parts": predicted.parts,
        "closure": predicted.closure,
        "shares": predicted.shares,
        "errors": errors and errors._asdict(),
        "bound": least and least._asdict(),
    }


def is_answered(found: Mapping[str, Any]) -> bool:
    """Whether anything is predicted."""
    return bool(found["seconds"] or found["bound"] or found["measured"])


def as_text(found: Mapping[str, Any], measures: bool) -> str:
    """The predictions in order of cost, each with its basis.

    Args:
        measures: whether its operators could be timed here.
    """
    text = ["{backend} on {device} of {host}, {threads:.0f} threads:".format_map(found)]
    if found["bound"]:
        text.append("  " + _bound_text(bound.Bound(**found["bound"])))
    if found["refusal"]:
        tells = "parts" in found and "not_measured" not in found  # its operators are known
        untried = measures and tells and not found["measured"]
        instead = f"; {MEASURES}" if untried else ""
        text.append(f"  by operators: not predicted: {found['refusal']}{instead}")
    else:
        text += _operators_text(found)
    if found["not_known"]:
        text.append("  " + found["not_known"])
    if reason := found.get("not_measured"):
        text.append(f"  by its own operators: not timed: {reason}")
    if found["measured"]:
        text.append("  " + _measured_text(found["measured"]))
    return "\n".join(text)


def _bound_text(least: bound.Bound) -> str:
    text = f"at least {formatting.duration(least.seconds)} a step by the ceilings there"
    if least.low_s is None or least.high_s is None:
        return f"{text}; no training there tells how near a step comes to them"
    if least.trainings == 1:
        times = least.high_s / least.seconds
        return f"{text}; the one training there, {least.nearest}, takes {times:.3g} times its own"
    return (
        f"{text}; likely {formatting.duration(least.low_s)} to {formatting.duration(least.high_s)} ({least.within} "
        f"of {least.trainings} trainings there are within such a range of the others)"
    )


def _operators_text(found: Mapping[str, Any]) -> Iterator[str]:
    parts, shares = found["parts"], found["shares"]
    how = (
        "lines of their kinds"
        if shares[prediction.BY_LINE] >= MAIN_PART_SHARE
        else "the same shapes"
    )
    off = f"no training there was predicted mostly by {how}"
    if found["errors"]:
        off = f"such predictions, mostly by {how}, are {prediction.Errors(**found['errors'])}"
    yield (
        f"  by operators: {found['seconds'] / MS:.4g} ms a step, "
        f"{found['samples_per_s']:.4g} samples/s ({off})"
    )
    for part, seconds in parts.items():
        if seconds:
            share = seconds / sum(parts.values())
            yield f"    {part:22}{seconds / MS:10.4g} ms {share:6.0%}"
    yield (
        f"    times {found['closure']:.3g}, what whole steps last over the sum of such parts; of the "
        f"operators' time {shares[prediction.TIMED_ELSEWHERE]:.0%} was timed in the same shapes, "
        f"{shares[prediction.BY_LINE]:.0%} is by lines of their kinds"
    )


def _measured_text(own: Mapping[str, Any]) -> str:
    checks = ", ".join(
        f"{one['workload']} {formatting.change(one['error'])}" for one in own["checks"]
    )
    held = f"held against measured steps in the same way: {checks}" if checks else "never tried"
    return (
        f"by its own operators, timed alone now: {own['seconds'] / MS:.4g} ms a step, by their quartiles "
        f"{own['low_s'] / MS:.4g} to {own['high_s'] / MS:.4g} ms ({held}); "
        f"{own['operators']:,} operators, {own['distinct']} of them distinct, and "
        f"{own['host_s'] / MS:.3g} ms of the host between them"
    )


def main(
    training: Annotated[str | None, "of the results; else --model"] = None,
    *,
    model_: Annotated[
        str | None, "such as gpt2-large, a hub id or a folder with a config.json"
    ] = None,
    batch: Annotated[int | None, "samples per training step, with --model"] = None,
    precision: Annotated[str, "with --model", {"choices": PRECISIONS}] = "fp32",
    seq_len: Annotated[int, "with --model: tokens of a sequence"] = 128,
    lora: Annotated[int, "with --model", {"metavar": "RANK"}] = 0,
    host: Annotated[
        str | None, "only there, a reference's too", {"flags": ("--on",), "dest": "host"}
    ] = None,
    device: Annotated[str | None, "only this one"] = None,
    backend: Annotated[str | None, "only this one"] = None,
    faster: Annotated[Sequence[str], f"of: {', '.join(PREDICTED)}", {"metavar": "PART=TIMES"}] = (),
    measure: Annotated[bool, "with --model: time its own operators too"] = False,
    results: options.Results = Path("results"),
    json_: options.Json = False,
) -> int:
    """Print the predictions; return 1 where there is none."""
    if bool(training) == bool(model_) or (batch and training):
        raise UserError("name one: a training of the results, or --model with --batch")
    if measure and not model_:
        raise UserError("--measure: times the operators of a --model; a training has been measured")
    factors = factors_of(faster)
    model_request = (
        request_of_model(model_, batch, precision, seq_len, lora, results) if model_ else None
    )
    frames = Frames.of_run(results)
    with options.spinner(f"predicting {training or model_} by {results}"):
        measured = prediction.trainings(frames)
        request = model_request or request_of_training(str(training), frames.undisturbed, measured)
        chosen_places = places(measured.sound, {"host": host, "device": device, "backend": backend})
        able = [cell_of(place, frames) is not None for place, _ in chosen_places]
        if measure and not any(able):
            raise UserError(
                "--measure: operators are timed on the CPU of the host whose results these are; "
                "without it, the ceilings and the operators of other trainings tell"
            )
        found = []
        for (place, there), can in zip(chosen_places, able, strict=True):
            found.append(answer(request, place, there, frames, factors, measure and can))
    if json_:
        print(json.dumps(found, indent=1))
    else:
        print(request.title)
        for one, can in zip(found, able, strict=True):
            print(as_text(one, can and bool(model_)))
    return 0 if any(map(is_answered, found)) else 1
