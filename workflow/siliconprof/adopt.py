"""Make `results/` that were copied without `.snakemake/` count, as far as they are verified.

    siliconprof adopt [--configfile F ...]

Without its metadata Snakemake has only modification times to go by, and a copy's are random: it
measures everything again, or takes records for valid that belong to other code. So every record
of today's matrix is compared with what would be measured today: the cell, the code, the versions
that it uses, the data. `snakemake --touch` gives back the metadata of those that agree; the
others are marked as old and will be measured again, a copy of each stays in `results/history`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from siliconprof import closure, config, hosts, matrix, record, records, registry, token_data
from siliconprof.bundle import keep_in_history
from siliconprof.cell import canonical_json
from siliconprof.errors import UserError, stage
from siliconprof.pipeline import REGISTRY, RESULTS
from siliconprof.validation import load_yaml

DEFAULT_CONFIG = "config/config.yaml"
DATA_FILES = ("dataset.json", "tokens.npy", "tokenizer.json")
# Of dataset.json, what the config asks for; the built-in text heeds only the first three.
DATA_KEYS = ("name", "source", "vocab_size", "max_bytes")
SOURCE_KEYS = ("path", "subset", "split", "text_column")
FILES_PER_CALL = 1000  # of Snakemake: the system limits the length of a command line
LONG_AGO_S = 1  # 1970; not 0, which Snakemake takes for no time at all
ADOPTED, NOT_ADOPTED = 0, 1
SHOWN = 3  # differences that a reason names


@dataclass(frozen=True)
class Adoption:
    """What was found and done."""

    adopted: Sequence[str]  # records
    refused: Mapping[str, str]  # record or data set's folder -> reason
    data: Sequence[str]  # folders of adopted data sets
    missing: int  # cells of today's matrix without a record

    def lines(self) -> list[str]:
        """For a person."""
        refused = [path for path in self.refused if path.startswith(f"{RESULTS}/records/")]
        found = [
            f"adopted {len(self.adopted)} of {len(self.adopted) + len(refused)} records"
            + (f" and {len(self.data)} data sets" if self.data else "")
        ]
        found += [f"not adopted: {path}: {reason}" for path, reason in self.refused.items()]
        if self.missing:
            found.append(f"cells without a record, measured at the next run: {self.missing}")
        return found


def differences(here: Any, today: Any, where: str = "") -> Iterator[str]:
    """Where two JSON values differ: `timing.budget_s is 0.5, today 2.0`."""
    if isinstance(here, dict) and isinstance(today, dict):
        for key in sorted(here.keys() | today.keys()):
            yield from differences(here.get(key), today.get(key), f"{where}.{key}" if where else key)
    elif here != today:
        yield f"{where} is {json.dumps(here)}, today {json.dumps(today)}"


def _shown(found: Sequence[str]) -> str:
    more = len(found) - SHOWN
    return "; ".join(found[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


@cache
def _code_sha256(path: str) -> str:
    return closure.sha256(path)


def record_problem(data: Mapping[str, Any], planned: matrix.PlannedCell) -> str | None:
    """Why a record is not what would be measured today, its data left aside; None when it is."""
    cell = json.loads(planned.cell.to_json())
    if found := list(differences(data["cell"], cell, "cell")):
        return _shown(found)
    code = {path: _code_sha256(path) for path in planned.code}
    if data["code"] != code:
        changed = sorted(
            path for path in data["code"].keys() | code.keys()
            if data["code"].get(path) != code.get(path)
        )  # fmt: skip
        return f"measured with other code: {_shown(changed)}"
    declared = json.loads(canonical_json(planned.environment))
    if found := list(differences(data["environment"].get("declared"), declared, "environment")):
        return _shown(found)
    return None


def read_dataset(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The `dataset.json` of a prepared data set that is whole and is the one of the config.

    Args:
        entry: the data set in the resolved config, and its `name`.

    Raises:
        UserError: why it is not; one line.
    """
    prepared = token_data.load(folder)  # tokens.npy is that of dataset.json
    facts = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    keys = DATA_KEYS if entry["source"] == "builtin" else DATA_KEYS + SOURCE_KEYS
    found = list(
        differences({key: facts.get(key) for key in keys}, {key: entry.get(key) for key in keys})
    )
    if found:
        raise UserError(_shown(found))
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer.json: {error.strerror}") from None
    if hashlib.sha256(tokenizer).hexdigest() != facts.get("tokenizer_sha256"):
        raise UserError("tokenizer.json is damaged: its SHA-256 is not that of dataset.json")
    return {"tokens_sha256": prepared.tokens_sha256, "vocab_size": prepared.vocab_size}
