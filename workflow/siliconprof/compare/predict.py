"""How long a step of a training should take that was never run, and what would make it shorter.

    siliconprof predict --model gpt2-mini --batch 2
    siliconprof predict --model gpt2-tiny --batch 4 --backend mlx --faster products=2
    siliconprof predict --model ./FOLDER --batch 1
    siliconprof predict gpt2-tiny-plain/torch-cpu/fp32 --backend torch-cpu

For every device and backend whose trainings had their operators timed, see `analyse.prediction`. A
model's operators are read from a step on this host, which is not timed; those of a measured training,
named as for `siliconprof explain`, stand in its record. `--faster` divides the time of a part of the
step. Each number comes with how far off the same prediction is for trainings that were measured there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from siliconprof import options, plugins
from siliconprof.analyse import attribution, prediction
from siliconprof.analyse.frames import Frames
from siliconprof.analyse.operator_rows import BLOCKED, PARTS, WAITING, group
from siliconprof.analyse.prediction import MODEL, PLACE, Timed
from siliconprof.cells import model_file
from siliconprof.compare import explain
from siliconprof.errors import UserError, nearest, stage
from siliconprof.memory import memory_model
from siliconprof.session import inventory
from siliconprof.store import model, table_files
from siliconprof.store.cell import PRECISIONS
from siliconprof.workloads import causal_lm

MS = 1e-3
SPEECH = {"dataset_clip_seconds": 30, "dataset_n_mels": 80}  # what Whisper is made for
PREDICTED = tuple(part for part in PARTS if part not in (BLOCKED, WAITING))

UNTIMED = (
    "it was measured, but the operators of its step were not timed, or the step is of a whole training "
    "or only checks a mechanism"
)


class Asked(NamedTuple):
    """A training, as it is predicted."""

    title: str
    model: Sequence[Any]  # see `prediction.MODEL`
    samples: float  # of a step
    operators: Callable[[Mapping[str, Any]], pd.DataFrame]  # of its step, on a place


def of_model(arguments: argparse.Namespace) -> Asked:
    """A model by name, batch size and length; its operators are read from a step on this host.

    Raises:
        UserError: no such model, or it does not take these values; one line each.
    """
    loaded = {name: plugins.load("workloads", name) for name in plugins.names("workloads")}
    known = {
        f"{module}-{size}": (module, size)
        for module, plugin in loaded.items()
        if plugin.kind == "training" and "size" in plugin.PARAMETERS
        for size in plugin.PARAMETERS["size"]["enum"]
    }
    is_yours = arguments.model not in known and "/" in arguments.model
    if arguments.model not in known and not is_yours:
        raise UserError(
            f"--model: is '{arguments.model}'; expected a hub id, a folder as ./{arguments.model}, or one "
            f"of: {', '.join(known)}{nearest(arguments.model, known)}"
        )
    module, size = ("causal_lm", None) if is_yours else known[arguments.model]
    plugin, precision = loaded[module], arguments.precision
    named = {"model": arguments.model} if is_yours else {"size": size}
    own = named | {"batch_size": arguments.batch, "lora_rank": arguments.lora}
    own |= {key: arguments.seq_len for key in ("seq_len", "target_len") if key in plugin.PARAMETERS}
    model.checked(model.model_of(plugin.PARAMETERS, (), model.Open), own, f"{arguments.model}: ")
    own = plugin.defaults() | own | {"dataset_vocab_size": memory_model.VOCAB_SIZE}
    if spec := plugin.model_spec(own):
        own |= {causal_lm.FACTS: str(model_file.of(spec, arguments.results))}

    @cache
    def read(backend: str, threads: float) -> pd.DataFrame:
        workload = plugin(own)
        inventory.require_memory(workload, precision, backend)
        step = inventory.Training(workload, SPEECH | own, backend, precision, int(threads))
        rows = pd.DataFrame(step.operators())
        rows["group"] = list(map(group, rows["kind"], rows["phase"]))
        return prediction.described(rows)

    def operators(place: Mapping[str, Any]) -> pd.DataFrame:
        return read(place["backend"], place["threads"])

    title = f"{arguments.model}, batch {arguments.batch} × {arguments.seq_len} tokens, {precision}"
    title += f", LoRA {arguments.lora}" if arguments.lora else ""
    return Asked(title, (module, "plain", arguments.lora), arguments.batch, operators)


def of_training(name: str, points: pd.DataFrame, measured: Timed) -> Asked:
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
    return Asked(title, point[MODEL], samples, lambda _: rows)


def faster(asked: Sequence[str]) -> dict[str, float]:
    """Part of a step -> how many times as fast it shall be.

    Raises:
        UserError: no such part, or no number above 0.
    """
    factors = {}
    for text in asked:
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


def answers(
    asked: Asked, measured: Timed, factors: Mapping[str, float], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """What is predicted for each device and backend that is asked about.

    Args:
        factors: from `faster`.

    Raises:
        UserError: there is none.
    """
    chosen, near = measured.trainings, ""
    for axis in ("host", "device", "backend"):
        if (wanted := getattr(arguments, axis)) is not None:
            near = near or nearest(wanted, {*measured.trainings[axis]} - {wanted})
            chosen = chosen[chosen[axis] == wanted]
    places = chosen.groupby(PLACE, sort=False).groups
    if not places:
        known = (measured.trainings["backend"] + " on " + measured.trainings["device"]).unique()
        raise UserError(
            "no such device and backend has trainings whose operators were timed undisturbed; "
            f"there are: {', '.join(known) or 'none, of any'}{near}"
        )
    lines = prediction.lines(measured)
    for labels in places.values():
        (place,) = table_files.rows(chosen.loc[labels[:1], PLACE])
        there = measured.only(measured.trainings.index.to_series().isin(labels))
        predicted = there.predict(asked.operators(place), asked.model, factors)
        errors = prediction.errors(lines.loc[labels])
        yield {
            **place,
            "seconds": None if predicted.refusal else predicted.seconds,
            "samples_per_s": None if predicted.refusal else asked.samples / predicted.seconds,
            "refusal": predicted.refusal,
            "parts": predicted.parts,
            "closure": predicted.closure,
            "shares": predicted.shares,
            "errors": errors and errors._asdict(),
        }


def as_text(answer: Mapping[str, Any]) -> str:
    """The step, its parts, what the numbers rest on."""
    where = "{backend} on {device} of {host}, {threads:.0f} threads".format_map(answer)
    if answer["refusal"]:
        return f"{where}: not predicted: {answer['refusal']}"
    parts, shares, off = answer["parts"], answer["shares"], "never tried"
    if answer["errors"]:
        errors = prediction.Errors(**answer["errors"])
        off = f"such predictions of measured trainings there are {errors}"
    text = [
        f"{where}: {answer['seconds'] / MS:.4g} ms a step, "
        f"{answer['samples_per_s']:.4g} samples/s ({off})"
    ]
    text += [
        f"  {part:24}{seconds / MS:10.4g} ms {seconds / sum(parts.values()):6.0%}"
        for part, seconds in parts.items()
        if seconds
    ]
    text.append(
        f"  times {answer['closure']:.3g}, what whole steps last over the sum of such parts; of the "
        f"operators' time {shares[prediction.TIMED]:.0%} was timed in the same shapes, "
        f"{shares[prediction.BY_LINE]:.0%} is by lines of their kinds"
    )
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Print it."""
    parser = options.parser("siliconprof predict", __doc__)
    parser.add_argument("training", nargs="?", help="of the results; else --model")
    parser.add_argument(
        "--model", help="such as gpt2-large, a hub id or a folder with a config.json"
    )
    parser.add_argument("--batch", type=int, help="samples per training step, with --model")
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS, help="with --model")
    parser.add_argument(
        "--seq-len", type=int, default=128, help="with --model: tokens of a sequence"
    )
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="with --model")
    parser.add_argument("--host", help="only there")
    parser.add_argument("--device", help="only this one")
    parser.add_argument("--backend", help="only this one")
    parser.add_argument(
        "--faster",
        nargs="+",
        default=[],
        metavar="PART=TIMES",
        help=f"of: {', '.join(PREDICTED)}",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="of a run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if bool(arguments.training) == bool(arguments.model) or (
        arguments.batch and arguments.training
    ):
        raise UserError("name one: a training of the results, or --model with --batch")
    factors = faster(arguments.faster)
    asked_model = of_model(arguments) if arguments.model else None
    frames = Frames.of_run(arguments.results)
    with options.at_work(
        f"predicting {arguments.training or arguments.model} by {arguments.results}"
    ):
        measured = prediction.trainings(frames)
        asked = asked_model or of_training(arguments.training, frames.undisturbed, measured)
        found = list(answers(asked, measured.sound, factors, arguments))
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(asked.title)
        print("\n".join(map(as_text, found)))
    return 1 if all(answer["refusal"] for answer in found) else 0


if __name__ == "__main__":
    sys.exit(stage(main))
