"""Hosts that are not at hand: `siliconprof plan` on one, by what its commands and frameworks would say."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from conftest import ROOT, Checkout
from siliconprof.cells import plan
from siliconprof.hosts import detect, machine
from synthetic_results import command

GIB = 2**30
DOCUMENTED = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")


def plan_of(
    project: Checkout,
    monkeypatch: pytest.MonkeyPatch,
    *words: str,
    system: tuple[str, str],
    commands: Mapping[str, str],
    probed: Mapping[str, Mapping[str, Any]],
    packages: Mapping[str, str | None] = {},
) -> Any:
    """`siliconprof plan --json`, of a host whose files say nothing.

    Args:
        system: its name and its processor's architecture.
        commands: what the system's commands print.
        probed: what the frameworks say.
        packages: versions that are others than here.
    """
    versions = detect.package_versions() | packages
    monkeypatch.setattr(platform, "system", lambda: system[0])
    monkeypatch.setattr(platform, "machine", lambda: system[1])
    monkeypatch.setattr(machine, "run", lambda asked, **_: commands.get(" ".join(asked), ""))
    monkeypatch.setattr(machine, "read_text", lambda path: "")
    monkeypatch.setattr(detect, "probe", lambda name: dict(probed[name]))
    monkeypatch.setattr(detect, "package_versions", lambda: versions)
    monkeypatch.setattr(plan, "due_files", lambda words: {})  # Snakemake would look at this host
    with patch("siliconprof.errors.require_this_checkout"):
        done = command("plan", "--json", *words, cwd=project.path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documented(label: str, made: Any) -> str:
    """The line of docs/developing.md on a plan: cells, how many in which state, minutes, a batch."""
    states = Counter(entry["state"] for entry in made["cells"])
    counts = [states[name] for name in ("to measure", "skipped", "unsupported")]
    assert sum(counts) == len(made["cells"])
    (batch,) = {
        entry["batch_size"]
        for entry in made["cells"]
        if entry["cell"]["workload"].startswith("gpt2-small") and entry["state"] != "unsupported"
    }
    minutes = round(made["totals"]["expected_s"] / 60)
    return f"| {' | '.join(map(str, [label, len(made['cells']), *counts, minutes, batch]))} |\n"
