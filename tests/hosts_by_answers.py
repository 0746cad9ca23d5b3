"""Hosts that are not at hand: `siliconprof plan` on one, by what its commands and frameworks would say."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from conftest import Checkout
from siliconprof.hosts import detect, machine
from synthetic_results import command

GIB = 2**30


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
    with patch("siliconprof.errors.require_this_checkout"):
        done = command("plan", "--json", *words, cwd=project.path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
