"""Which device for a training: which has enough memory, how fast, at which energy and price.

    siliconprof advise --model gpt2-large --batch 16
    siliconprof advise --model gpt2-xl --batch 16 --budget 5000
    siliconprof advise --parameters 1.5e9 --batch 8 --seq-len 512 --precision amp-bf16 --json

It covers every device of the registry and of this host, and shows those of which it has a figure: that
are here, or have a speed or a price. Measurements, of this host or others, come from results/tables;
where there is none, from the paper's Tables 4 and 5, or from the operators of other trainings there,
as `siliconprof predict` has them; else a value is unknown. The prices of devices and electricity come
from the config. A device that no backend can use is named, with the reason.

--json prints an object: question, n_parameters, flops_per_step, flops_source, conclusion,
price_per_kwh, unsupported (the reason by device), and devices, all others, the most useful first. Of
a device: device, name, this_host, backend, scenario (fits, near-capacity, offload, unknown, cannot),
why, need_bytes, offloaded_bytes, capacity_bytes, capacity_source, step_s and samples_per_s (low, value, high, evidence, basis),
energy_per_1000_steps_j by scope (likewise; "at most": a bound), electricity_per_1000_steps_usd,
price_usd, price_of, price_source, within_budget (yes, no, unknown). What is unknown is null.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.advice import ranking
from siliconprof.advice.parts import Facts
from siliconprof.advice.ranking import Advice, Answer
from siliconprof.advice.words import two_digits
from siliconprof.analyse import money, prediction, published_values
from siliconprof.cells import advice_question, config
from siliconprof.errors import UserError, stage
from siliconprof.hosts import registry
from siliconprof.store import matrix_file, table_files
from siliconprof.store.results import Results
from siliconprof.store.validation import nearest
from siliconprof.words import aligned

REGISTRY = Path("config/devices.yaml")
PUBLISHED = Path("config/published")
TABLES = ("table4_pass_time", "table5_energy")
WIDTH = 100
SHORT = {"near-capacity": "near"}
HOST_MISSING = (
    "This host's own devices are left out: the results have no matrix.json; a run makes it."
)


def read_facts(folder: Path, devices: registry.Registry) -> Facts:
    """What the results of a run say, every file of which may be missing, and what is published."""
    published = {name: published_values.read_table(PUBLISHED / f"{name}.csv") for name in TABLES}
    matrix, tables = folder / "matrix.json", folder / "tables"
    host = matrix_file.read(matrix).host if matrix.is_file() else None
    if not (tables / "points.csv").is_file():
        return Facts((), (), host, published, devices, ())
    results = Results(tables)
    points, energy = table_files.rows(results.of_ok_cells()), results.rows("energy")
    timed = prediction.sound(prediction.trainings(results))
    return Facts(points, energy, host, published, devices, timed)


# -- the table -----------------------------------------------------------------------------------


HEAD = (
    *("device", "backend", "GiB", "memory", "samples/s", "h", "kWh", "USD", "price", "evidence"),
)
NUMBERS = (2, *range(4, 9))  # columns of numbers, which end below each other


def as_text(advice: Advice, price_per_kwh: float | None, has_host: bool) -> str:
    """The conclusion, a table of at most `WIDTH` characters, and notes on its numbers."""
    question = advice.question
    text = [
        f"{question.title}: {advice_question.millions(advice.n_parameters)} parameters, "
        f"{float(f'{advice.flops / 1e12:.3g}'):,.10g} TFLOP a step",
        *(line for sentence in advice.conclusion for line in _wrapped(f"- {sentence}")),
        "",
    ]
    notes: list[str] = []
    lines = [HEAD, *(_line(one, notes) for one in advice.shown if one.scenario != "cannot")]
    if len(lines) > 1:
        text += [*aligned(lines, NUMBERS, " "), ""]
    cannot = [one for one in advice.answers if one.scenario == "cannot"]
    if cannot:
        ids = ", ".join(one.candidate.id for one in cannot)
        first = "the first because" if len(cannot) > 1 else "because"
        text += _wrapped(f"Cannot run it: {ids}; {first}: {cannot[0].why}.")
    for device, why in advice.unsupported.items():
        text += _wrapped(f"Not supported: {device}: {why}.")
    text += [line for index, note in enumerate(notes) for line in _wrapped(f"[{index + 1}] {note}")]
    if question.shape_assumption():
        text += _wrapped(f"Note: {question.shape_assumption()}.")
    tariff = "no price of electricity (report.price_per_kwh is null)"
    if price_per_kwh is not None:
        tariff = f"electricity at {price_per_kwh:g} USD a kWh, from report.price_per_kwh"
    text += _wrapped(
        "GiB: predicted need/memory that a training may use. h, kWh, USD: for 1,000 steps; "
        f"≤ is a bound by the board's power; {tariff}. Price in USD: of the card alone for NVIDIA, "
        "of a whole computer (c) for Apple, at launch; ? = unknown; ! = over the budget; * = this host's."
    )
    if not has_host:
        text += _wrapped(HOST_MISSING)
    return "\n".join(text)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def _line(one: Answer, notes: list[str]) -> tuple[str, ...]:
    """The line of one device; the basis of its speed becomes a numbered note in `notes`, once."""
    energy = one.widest()
    bound = "≤" if energy and energy[0] == money.AT_MOST else ""
    joules = (energy[1].value or energy[1].high) if energy else None
    kwh = None if joules is None else joules * ranking.STEPS / money.J_PER_KWH
    price = "?" if one.price.usd is None else f"{one.price.usd:,.0f}"
    price += "c" if one.price.usd is not None and one.price.of == money.COMPUTER else ""
    price += "!" if one.budget == "no" else ""
    note = one.step.basis
    if energy and energy[0] != money.AT_MOST:
        note += f"; energy: {energy[1].evidence}, {energy[1].basis}"
    if note not in notes:
        notes.append(note)
    return (
        textwrap.shorten(f"{'*' if one.candidate.here else ''}{one.candidate.id}", 22),
        one.backend,
        f"{(one.need_bytes or 0) / 2**30:.3g}/{(one.capacity_bytes or 0) / 2**30:.3g}",
        SHORT.get(one.scenario, one.scenario),
        _or_dash(one.samples_per_s),
        _or_dash(one.step.times(ranking.STEPS / 3600).value),
        _or_dash(kwh, bound),
        _or_dash(one.cost_usd(joules), bound),
        price,
        f"{one.step.evidence or 'unknown'} [{notes.index(note) + 1}]",
    )


def _or_dash(value: float | None, bound: str = "") -> str:
    return "-" if value is None else f"{bound}{two_digits(value)}"


# -- the command ---------------------------------------------------------------------------------


def _number(option: str, text: str | None, whole: bool) -> float | int | None:
    """An option's number.

    Raises:
        UserError: the text is no number.
    """
    if text is None:
        return None
    try:
        return int(text) if whole else float(text.removesuffix("USD").replace(",", ""))
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise UserError(f"{option}: is '{text}'; expected {kind}") from None


OPTION_OF = {
    "batch_size": "--batch",
    "seq_len": "--seq-len",
    "lora_rank": "--lora",
    "budget_usd": "--budget",
}


def question_of(arguments: argparse.Namespace) -> advice_question.Question:
    """The question of a command line.

    Raises:
        UserError: its mistakes, one line each.
    """
    entry: dict[str, Any] = {
        "model": arguments.model,
        "batch_size": _number("--batch", arguments.batch, True),
        "precision": arguments.precision,
        "seq_len": _number("--seq-len", arguments.seq_len, True),
        "lora_rank": _number("--lora", arguments.lora, True),
        "trainer": arguments.trainer,
        "budget_usd": _number("--budget", arguments.budget, False),
    }
    if arguments.parameters is not None:
        entry["parameters"] = advice_question.number_of_parameters(arguments.parameters)
        if entry["parameters"] is None:
            raise UserError(
                f"--parameters: is '{arguments.parameters}'; expected a number such as 1.5e9, 774M"
            )
    question, mistakes = advice_question.read(entry)
    if question is None:
        raise UserError(
            "\n".join(f"{OPTION_OF.get(key, f'--{key}')}: {what}" for key, what in mistakes)
        )
    return question


def check_devices(ids: Sequence[str], facts: Facts) -> None:
    """Check that devices exist.

    Args:
        ids: of the registry, or of this host.

    Raises:
        UserError: one does not, one line each.
    """
    possible = [name for c in facts.candidates for name in dict.fromkeys((c.id, *c.own_ids))]
    unknown = [name for name in ids if name not in possible]
    if unknown:
        raise UserError(
            "\n".join(
                f"--device: is '{name}', which is neither in {REGISTRY} nor on this host"
                f"{nearest(name, possible)}"
                for name in unknown
            )
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the advice."""
    parser = options.parser("siliconprof advise", __doc__)
    parser.add_argument("--model", help="such as gpt2-large or whisper-medium; else --parameters")
    parser.add_argument("--parameters", help="such as 1.5e9 or 774M: a decoder of GPT-2's kind")
    parser.add_argument("--batch", required=True, help="samples per training step")
    parser.add_argument("--precision", default="fp32", help="default: fp32")
    parser.add_argument("--seq-len", help="tokens of a sequence or transcript (default: 128)")
    parser.add_argument("--lora", metavar="RANK", help="rank of LoRA adapters (default: none)")
    parser.add_argument("--trainer", default="plain", help="plain (default) or hf")
    parser.add_argument("--budget", metavar="USD", help="the most that the device may cost")
    parser.add_argument("--device", nargs="+", default=[], metavar="ID", help="only these devices")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--configfile", default="config/config.yaml", help="config with the prices")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args(argv)
    question = question_of(arguments)
    file = arguments.configfile
    settings = config.resolve(config.read(file), file)["report"]
    devices = registry.load(REGISTRY)
    facts = read_facts(arguments.results, devices)
    check_devices(arguments.device, facts)
    tariff = settings["price_per_kwh"]
    advice = ranking.answer(question, facts, settings["prices"], tariff, arguments.device)
    if arguments.json:
        document = advice.as_dict() | {"price_per_kwh": tariff}
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        print(as_text(advice, tariff, facts.host is not None))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
