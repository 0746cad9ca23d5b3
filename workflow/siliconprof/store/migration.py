"""Records of older schemas, read as today's: one step per version, in memory only.

The file is not changed; `record.read` has checked its content's hash before a step runs. A step
renames keys and fills in what the code of its version decided and did not record. Values that code
did not measure stay missing, and a flag of the record lists them. The method version stays:
numbers of an older method do not become comparable.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

FLAG = "older_schema"
NOT_RECORDED = "not recorded in schema {}"  # a reason


def _from_1(data: dict[str, Any]) -> str:
    """Schema 1 (up to commit e9fc347) to 2; returns what schema 1 did not record.

    That code had neither offloading nor LoRA: a cell that needed the one was `unsupported`, and
    every training trained all parameters (its memory_model.py, workloads/gpt2.py).
    """
    scenario, cell = data["scenario"], data["cell"]
    requested = scenario["requested"]
    trains = cell["trainer"] is not None
    scenario |= {
        "applied": (scenario["derived"] or "fits") if requested == "auto" else requested,
        "batch_size": cell["parameters"].get("batch_size") if trains else None,
        "batch_size_found": False,
        "capacity_bytes": None,
        "capacity_source": NOT_RECORDED.format(1),
    }
    if data["dataset"] is not None:  # the hash of tokens, the only data of schema 1
        data["dataset"]["data_sha256"] = data["dataset"].pop("tokens_sha256")
    for point in data["points"]:
        params = point["params"]
        if trains and "n_parameters" in params:
            params.setdefault("n_trainable_parameters", params["n_parameters"])
    return "capacity, energy, page faults by step, what ended the repeats, checks"


def _from_2(data: dict[str, Any]) -> str:
    """Schema 2 (up to commit f576c25) to 3: the code has a fingerprint, which 2 did not record.

    The cost of the first touch of a page became a quantity like any other.
    """
    data["code"] = {"fingerprint": None, "modules": data["code"]}
    for point in data["points"]:
        if "fault_s_per_page" in point:
            point["quantities"] = {"fault_s_per_page": point.pop("fault_s_per_page")}
    return "the fingerprint of the code"


def _from_3(data: dict[str, Any]) -> str:
    """Schema 3 to 4: no network name any more.

    A hash of the name still tells machines of one label apart; a file of ours holds it nowhere.
    """
    environment = data["environment"]
    job = environment.get("scheduler_job") or {}
    hostname, node = environment.pop("hostname"), job.pop("node", None)
    data["environment"]["node"] = hashlib.sha256((node or hostname).encode()).hexdigest()[:12]
    return ""


# To the version after.
STEPS: Mapping[int, Callable[[dict[str, Any]], str]] = {1: _from_1, 2: _from_2, 3: _from_3}


def can_migrate(version: Any, current: int) -> bool:
    """Whether a record of a schema version can be read where `current` is today's."""
    if type(version) is not int or version > current:
        return False
    return all(step in STEPS for step in range(version, current))


def migrate(record: Mapping[str, Any], current: int) -> dict[str, Any]:
    """A record as one of today's schema, flagged; its `sha256` stays that of the file.

    Args:
        current: today's schema version; `can_migrate` must hold.

    Raises:
        ValueError: the record does not fit its own schema version.
    """
    data = copy.deepcopy(dict(record))
    try:
        first = data["schema_version"]
        for version in range(first, current):
            lacking = STEPS[version](data)
            if lacking:
                detail = f"written in schema {version}; {NOT_RECORDED.format(version)}: {lacking}"
                data["flags"].append({"code": FLAG, "detail": detail})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of schema version {version}: {error!r}") from None
    data["schema_version"] = current
    return data
