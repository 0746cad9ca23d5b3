"""Whether a record still answers for its cell: the same question, code, versions and data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from siliconprof import fingerprint
from siliconprof.cells.matrix import PlannedCell, results_folder
from siliconprof.datasets import dataset_file, dataset_spec, source_files, weights
from siliconprof.errors import UserError
from siliconprof.store.cell import canonical_json, identity
from siliconprof.store.contents import Record

MOST_NAMED = 4  # modules, in a line of a terminal


def differences(planned: PlannedCell, record: Record, tokens: Mapping[str, str]) -> list[str]:
    """What has changed since a record was made, one line each; empty when nothing has.

    Paths are relative to the checkout, which must be the current folder.

    Args:
        tokens: folder of a verified data set -> SHA-256 of its tokens, from `verified_data`.
    """
    found = []
    asked = json.loads(planned.identity_json)
    then = identity(vars(record.cell))
    for key in sorted(asked):
        found += _changes(key, then.get(key), asked[key])
    if record.code.fingerprint != planned.code.sha256:
        modules = fingerprint.changed(record.code.modules, planned.code.modules)
        more = len(modules) - MOST_NAMED
        others = f" and {more} more" if more > 0 else ""
        found.append(f"code changed: {', '.join(modules[:MOST_NAMED])}{others}")
    found += _environment_changes(planned, record.environment.declared)
    return found + _data_changes(planned, record, tokens) + _weight_changes(planned, record)


def _environment_changes(planned: PlannedCell, declared: Mapping[str, Any]) -> list[str]:
    """What of the host and its packages is another, called as a person calls it."""
    now = planned.environment
    named = {"blas": f"the BLAS of {planned.trial.backend.framework}", "cpu_adam": "compiled Adam"}
    found = _changes("", declared.get("packages") or {}, now["packages"])
    for name in sorted({*now, *declared} - {"packages"}):
        found += _changes(named.get(name, name), declared.get(name), now.get(name))
    return found


def _weight_changes(planned: PlannedCell, record: Record) -> list[str]:
    """Whether the record began with the weights that lie in the folder now; the hub's may differ."""
    used = record.method.weights
    if not used or not used.weights_sha256 or used.weights_revision:
        return []
    folder = planned.cell.parameters["weights_path"]  # which no record names
    files = [Path(file) for file in planned.weights if not file.endswith(weights.INDEX)]
    if not files:
        return [f"its weights are not in {folder}"]
    now = {path.name: _sha256(path, path.stat().st_mtime_ns) for path in files}
    return [f"its weights in {folder} changed"] if now != used.weights_sha256 else []


@cache
def _sha256(path: Path, mtime_ns: int) -> str:
    """Of a file of weights, which may be large and which many cells begin with."""
    return fingerprint.of_file(path)


def _data_changes(planned: PlannedCell, record: Record, tokens: Mapping[str, str]) -> list[str]:
    """Whether the record read what the cell would read now."""
    folder, used = planned.cell.dataset, record.dataset.data_sha256
    if folder is None or record.status in ("unsupported", "skipped"):
        return []
    if folder not in tokens:
        return [f"its data in {folder} are not prepared here"]
    if used is None:
        return ["it does not say which data it read"] if record.status == "ok" else []
    return [f"it read other data than {folder} holds"] if used != tokens[folder] else []


def verified_data(experiment: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """(folder -> SHA-256 of its tokens, folder -> why it cannot be used) of what is prepared.

    Args:
        experiment: the resolved config.
    """
    tokens: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name, entry in experiment["datasets"].items():
        folder = Path(results_folder(experiment)) / "data" / name
        if (folder / "dataset.json").exists():
            try:
                tokens[folder.as_posix()] = verify_data(folder, name, entry)
            except UserError as error:
                refused[folder.as_posix()] = str(error)
    return tokens, refused


def verify_data(folder: Path, name: str, entry: Mapping[str, Any]) -> str:
    """SHA-256 of a prepared data set that is the one of the config; a cell sees that it is whole.

    Args:
        entry: the data set in the resolved config.

    Raises:
        UserError: why it is not; one line.
    """
    facts = dataset_file.read(folder)
    spec = dataset_spec.parse(canonical_json({"name": name} | dict(entry)))
    for key, today in dataset_spec.requested_facts(spec).items():
        if facts.get(key) != today:
            raise UserError(f"{key} changed from {facts.get(key)} to {today}")
    if spec.source == "folder":
        try:
            changed = source_files.changed(folder)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{source_files.FILE} is missing or damaged") from None
        if changed:
            others = f" and {len(changed) - 1} others" if len(changed) > 1 else ""
            raise UserError(f"it was prepared before {changed[0]}{others} changed")
    return str(facts.get("sha256"))


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """What differs between two values, key by key where both have keys."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [
            line
            for key in keys
            for line in _changes(f"{name}.{key}".strip("."), before.get(key), now.get(key))
        ]
    return [] if before == now else [f"{name} changed from {_short(before)} to {_short(now)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."
