"""Which device for a training: which has the memory, how fast, at which energy and price.

    siliconprof advise --model gpt2-large --batch 16
    siliconprof advise --model gpt2-xl --batch 16 --budget 5000
    siliconprof advise --parameters 1.5e9 --batch 8 --seq-len 512 --precision amp-bf16 --json

Every device of the registry and of this host is gone through. What was measured, here or elsewhere,
is read from results/tables; beside it stand the paper's Tables 4 and 5, and predictions as ranges.
What none of them can tell stays unknown. Prices, and that of electricity, are the config's.

--json prints an object: question, n_parameters, flops_per_step, flops_source, conclusion,
price_per_kwh, and devices, the most useful first. Of a device: device, name, this_host, backend,
scenario (fits, near-capacity, offload, unknown, cannot), why, need_bytes, offloaded_bytes,
capacity_bytes, capacity_source, step_s and samples_per_s (low, value, high; value is null of a
range), energy_per_1000_steps_j by scope ("at most": a bound), electricity_per_1000_steps_usd,
price_usd, price_of, price_source, within_budget (yes, no, unknown). What is unknown is null.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.advice import ranking
from siliconprof.advice.parts import Estimate, Results
from siliconprof.advice.ranking import Advice, Answer
from siliconprof.advice.words import two_digits
from siliconprof.analyse import money, published_values
from siliconprof.analyse.record_rows import KEY
from siliconprof.cells import advice_question, plan
from siliconprof.errors import UserError, stage
from siliconprof.hosts import registry
from siliconprof.store import matrix_file, table_files
from siliconprof.store.validation import nearest

REGISTRY = Path("config/devices.yaml")
PUBLISHED = Path("config/published")
PUBLISHED_TABLES = ("table4_pass_time", "table5_energy")
FROM_CELL = (
    "size",
    "lora_rank",
    "seq_len",
    "target_len",
    "clip_seconds",
    "scenario_applied",
    "gradient_checkpointing",
    "flags",
)
WIDTH = 100
SHORT = {"near-capacity": "near"}
HOST_UNKNOWN = "Not asked about this host's own devices: no results/matrix.json; a run makes it."


def published_tables(folder: Path = PUBLISHED) -> dict[str, list[dict[str, str]]]:
    """The tables of the paper that advice cites."""
    return {name: published_values.read_table(folder / f"{name}.csv") for name in PUBLISHED_TABLES}


def read_results(folder: Path, devices: registry.Registry) -> Results:
    """What was measured, as far as a run has left it; nothing of it need be there."""
    host = None
    matrix = folder / "matrix.json"
    if matrix.is_file():
        host = matrix_file.read(matrix)["host"]
    tables = folder / "tables"
    points: list[dict[str, Any]] = []
    energy: list[dict[str, Any]] = []
    if (tables / "points.csv").is_file():
        cells, points, energy = (
            table_files.rows(table_files.read(tables / f"{name}.csv"))
            for name in ("cells", "points", "energy")
        )
        by_key = {_key(cell): cell for cell in cells if cell["status"] == "ok"}
        points = [
            {name: by_key[_key(point)].get(name) for name in FROM_CELL}
            | {name: value for name, value in point.items() if value is not None}
            for point in points
            if _key(point) in by_key
        ]
    return Results(points, energy, host, published_tables(), devices)


def _key(row: Mapping[str, Any]) -> tuple:
    return tuple(row.get(axis) for axis in KEY)


# -- the table -----------------------------------------------------------------------------------


def as_text(found: Advice, price_per_kwh: float | None, host_known: bool) -> str:
    """The conclusion, a table of at most `WIDTH` columns, and what stands behind its numbers."""
    head = (
        "device",
        "backend",
        "GiB",
        "memory",
        "samples/s",
        "h",
        "kWh",
        "USD",
        "price",
        "evidence",
    )
    asked = found.question
    notes: list[str] = []
    lines: list[tuple[str, ...]] = [head]
    able = [one for one in found.answers if one.scenario != "cannot"]
    for one in able:
        lines.append(_line(one, notes))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        f"{asked.title}: {advice_question.millions(found.n_parameters)} parameters, "
        f"{float(f'{found.flops / 1e12:.3g}'):,.10g} TFLOP a step",
        *(line for one in found.conclusion for line in _wrapped(f"- {one}")),
        "",
        *(
            " ".join(
                word.ljust(width) if index < 2 or index in (3, 9) else word.rjust(width)
                for index, (word, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ),
        "",
    ]
    if not able:
        text = text[: -len(lines) - 1]
    cannot = [one for one in found.answers if one.scenario == "cannot"]
    if cannot:
        named = ", ".join(one.candidate.id for one in cannot)
        first = "the first because" if len(cannot) > 1 else "because"
        text += _wrapped(f"Cannot: {named}; {first}: {cannot[0].why}.")
    text += [line for index, note in enumerate(notes) for line in _wrapped(f"[{index + 1}] {note}")]
    if found.question.said_of_shape():
        text += _wrapped(f"Note: {found.question.said_of_shape()}.")
    tariff = "no price of electricity (report.price_per_kwh is null)"
    if price_per_kwh is not None:
        tariff = f"electricity at {price_per_kwh:g} USD a kWh, from report.price_per_kwh"
    text += _wrapped(
        "GiB: predicted need/what a training may use. h, kWh, USD: of 1,000 steps; "
        f"≤ is a bound by the board's power; {tariff}. Price in USD: of the card alone for NVIDIA, "
        "of a whole computer (c) for Apple, at launch; ? = unknown; ! = over the budget; * = this host's."
    )
    if not host_known:
        text += _wrapped(HOST_UNKNOWN)
    return "\n".join(text)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def _line(one: Answer, notes: list[str]) -> tuple[str, ...]:
    """One device; what stands behind its speed becomes a numbered note, told once."""
    found = one.widest()
    bound = "≤" if found and found[0] == money.AT_MOST else ""
    joules = (found[1].value or found[1].high) if found else None
    kwh = None if joules is None else joules * ranking.STEPS / money.J_PER_KWH
    usd = one.cost_usd(joules)
    price = "?" if one.price.usd is None else f"{one.price.usd:,.0f}"
    price += "c" if one.price.usd is not None and one.price.of == money.COMPUTER else ""
    price += "!" if one.budget == "no" else ""
    gib = f"{(one.need_bytes or 0) / 2**30:.3g}/{(one.capacity_bytes or 0) / 2**30:.3g}"
    said = one.step.said
    if found and found[0] != money.AT_MOST:
        said += f"; energy: {found[1].evidence}, {found[1].said}"
    if said not in notes:
        notes.append(said)
    return (
        textwrap.shorten(f"{'*' if one.candidate.here else ''}{one.candidate.id}", 22),
        one.backend,
        gib,
        SHORT.get(one.scenario, one.scenario),
        _spread(one.step.per(one.batch_size)),
        _spread(one.step.times(ranking.STEPS / 3600)),
        "-" if kwh is None else f"{bound}{two_digits(kwh)}",
        "-" if usd is None else f"{bound}{two_digits(usd)}",
        price,
        f"{one.step.evidence or 'unknown'} [{notes.index(said) + 1}]",
    )


def _spread(one: Estimate) -> str:
    """`1.5`, or `0.17-0.72` of a range."""
    if one.value is not None:
        return two_digits(one.value)
    if one.low is None or one.high is None:
        return "-"
    return f"{two_digits(one.low)}-{two_digits(one.high)}"


# -- the command ---------------------------------------------------------------------------------


def _number(option: str, text: str | None, whole: bool) -> float | int | None:
    """An option's number.

    Raises:
        UserError: it is none.
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


def asked(arguments: argparse.Namespace) -> advice_question.Question:
    """The question of a command line.

    Raises:
        UserError: all that is wrong with it, one line each.
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


def check_devices(ids: Sequence[str], results: Results) -> None:
    """Whether there are such devices.

    Raises:
        UserError: there are not.
    """
    known = [name for c in results.candidates for name in dict.fromkeys((c.id, *c.own_ids))]
    unknown = [name for name in ids if name not in known]
    if unknown:
        raise UserError(
            "\n".join(
                f"--device: is '{name}', which is neither in {REGISTRY} nor of this host"
                f"{nearest(name, known)}"
                for name in unknown
            )
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the advice."""
    parser = argparse.ArgumentParser(
        prog="siliconprof advise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="such as gpt2-large, whisper-medium; or --parameters")
    parser.add_argument("--parameters", help="such as 1.5e9 or 774M: a decoder of GPT-2's kind")
    parser.add_argument("--batch", required=True, help="samples per training step")
    parser.add_argument("--precision", default="fp32", help="default fp32")
    parser.add_argument("--seq-len", help="tokens of a sequence or transcript, default 128")
    parser.add_argument("--lora", metavar="RANK", help="rank of LoRA adapters, default none")
    parser.add_argument("--trainer", default="plain", help="plain (default) or hf")
    parser.add_argument("--budget", metavar="USD", help="what may be spent on the device")
    parser.add_argument("--device", nargs="+", default=[], metavar="ID", help="these devices only")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--configfile", default="config/config.yaml", help="for prices")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args(argv)
    question = asked(arguments)
    settings = plan.load_experiment(arguments.configfile)["report"]
    devices = registry.load(REGISTRY)
    results = read_results(arguments.results, devices)
    check_devices(arguments.device, results)
    tariff = settings["price_per_kwh"]
    found = ranking.answer(question, results, settings["prices"], tariff, arguments.device)
    if arguments.json:
        told = found.as_dict() | {"price_per_kwh": tariff}
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        print(as_text(found, tariff, results.host is not None))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
