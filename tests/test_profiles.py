"""Profiles for schedulers that are not here: Snakemake knows their keys, their jobs are harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    # One timed cell in all on one host; on a cluster that limit would hold for the whole run.
    assert ("accelerator=1" in profile.get("resources", [])) == (executor == "none")
    assert text.startswith("# Untested: ") == (name in ("kubernetes", "lsf"))


def test_what_kubernetes_is_given_is_one_document(tmp_path: Path) -> None:
    """With a kubectl that answers as it does (`create --output json`) and keeps what it is given."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        '#!/bin/sh\ntee given.json >/dev/null\necho \'{"metadata":{"name":"j-1"}}\'\n'
    )
    kubectl.chmod(0o755)
    hostile = "x; touch pwned"
    done = subprocess.run(
        [
            sys.executable,
            PROFILES / "kubernetes" / "job.py",
            "submit",
            "--image",
            "i",
            "--claim",
            "work:/work",
            "--node",
            f"kind={hostile}",
            "--gpus",
            "1",
            "--minutes",
            "7",
            "job 1.sh",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.stdout == "j-1\n"
    pod = json.loads((tmp_path / "given.json").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"] == {"kind": hostile}
    assert container["command"] == ["/bin/sh", str(tmp_path / "job 1.sh")]
    assert container["workingDir"] == str(tmp_path)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["activeDeadlineSeconds"] == 7 * 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.json", "kubectl"]
