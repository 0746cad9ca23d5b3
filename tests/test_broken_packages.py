"""The campaign of benchmarks/broken_packages.py, as much of it as CI has time for."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, compile_package

sys.path.insert(0, str(ROOT / "benchmarks"))

import broken_packages  # noqa: E402
from broken_packages import ABSENT, ALL, RAISES, Broken  # noqa: E402

TO_THE_PAGE = ({"soundfile", "peft"}, {"datasets", "mlx"})  # two at a time: half as many runs
OTHERS = [name for name in ALL if not any(name in pair for pair in TO_THE_PAGE)]


@pytest.fixture(scope="module")
def broken() -> Iterator[Broken]:
    """Beside this environment, since hard links stay on one disk."""
    compile_package()
    folder = Path(tempfile.mkdtemp(prefix=".broken-", dir=Path(sys.prefix).parent))
    try:
        yield Broken(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.campaign
@pytest.mark.parametrize("way", broken_packages.WAYS)
@pytest.mark.parametrize("names", TO_THE_PAGE, ids="+".join)
def test_the_page_is_made_and_other_cells_are_measured(broken, names, way):
    broken.try_(names, way, short=False)


@pytest.mark.campaign
@pytest.mark.parametrize("name", OTHERS)
def test_a_cell_and_doctor_name_the_package(broken, name):
    """Each in one of the two ways, in turns."""
    broken.try_({name}, (ABSENT, RAISES)[OTHERS.index(name) % 2], short=True)
