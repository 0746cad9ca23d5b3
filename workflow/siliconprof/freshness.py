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
        if asked[key] != then.get(key):
            found.append(f"{key} changed from {_short(then.get(key))} to {_short(asked[key])}")
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
        before, now = declared.get(name), planned.environment.get(name)
        if before != now:
            found.append(f"{name} changed from {_short(before)} to {_short(now)}")
    return found


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."
