"""Profiles hold keys that Snakemake and its plug-ins know."""

from __future__ import annotations

import pytest
import yaml
from conftest import ROOT

PROFILES = ROOT / "profiles"


@pytest.mark.parametrize("name", sorted(path.name for path in PROFILES.iterdir()))
def test_keys_are_snakemake_s_or_the_plug_in_s(name: str) -> None:
    from snakemake.cli import get_argument_parser

    text = (PROFILES / name / "config.yaml").read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    options = {word for action in get_argument_parser()._actions for word in action.option_strings}
    executor = profile.get("executor", "none")
    unknown = [
        key for key in profile if f"--{key}" not in options and not key.startswith(f"{executor}-")
    ]
    assert unknown == []
