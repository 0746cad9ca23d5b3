"""What `make` calls to set up an environment: envs/install.py, with a package index of one folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a package of one empty module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_pins_come_from_where_pip_is_told(tmp_path: Path, installer: str) -> None:
    """By uv, which reads no setting of pip's itself; by pip, where no index has uv."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    links = tmp_path / "links"
    links.mkdir()
    for version in ("1.0", "2.0"):
        wheel(links, "onlyhere", version)
    (tmp_path / "limits.txt").write_text("onlyhere<2\n", encoding="utf-8")
    (tmp_path / "pins.txt").write_text("onlyhere\n", encoding="utf-8")
    settings = {"PIP_CONSTRAINT": str(tmp_path / "limits.txt"), "PIP_NO_CACHE_DIR": "1"}
    command = [str(python), str(ROOT / "envs/install.py"), "-r", str(tmp_path / "pins.txt")]
    if installer == "pip":
        settings |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    else:
        uv = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        known = subprocess.run(uv, capture_output=True, text=True, check=False).stdout.strip()
        settings["PIP_FIND_LINKS"] = f"{known} {links}".strip()
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=300, check=True
    )
    assert ("pip takes over" in done.stderr) == (installer == "pip")
    listed = subprocess.run(
        [python, "-m", "pip", "list"], capture_output=True, text=True, check=True
    )
    assert "onlyhere 1.0" in " ".join(listed.stdout.split())
