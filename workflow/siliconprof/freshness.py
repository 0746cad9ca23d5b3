"""Whether a record still answers for its cell: the same question, code, versions and data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from siliconprof import closure
from siliconprof.matrix import PlannedCell


def differences(planned: PlannedCell, record: Mapping[str, Any]) -> list[str]:
    """What has changed since a record was made, one line each; empty when nothing has.

    Paths are relative to the checkout, which must be the current folder.
    """
    found = []
    asked, then = json.loads(planned.cell.to_json()), record["cell"]
    for key in sorted(asked):
        found += _changes(key, then.get(key), asked[key])
    code = {path: closure.sha256(path) for path in planned.code}
    touched = [
        path.removeprefix("workflow/siliconprof/")
        for path in sorted({*code, *record["code"]})
        if code.get(path) != record["code"].get(path)
    ]
    if touched:
        found.append(f"code changed: {', '.join(touched)}")
    declared = record["environment"]["declared"]
    for name in sorted({*planned.environment, *declared}):
        found += _changes(name, declared.get(name), planned.environment.get(name))
    return found


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """What differs between two values, key by key where both have keys."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted({*before, *now})
        return [
            line
            for key in keys
            for line in _changes(f"{name}.{key}", before.get(key), now.get(key))
        ]
    return [] if before == now else [f"{name} changed from {_short(before)} to {_short(now)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."
