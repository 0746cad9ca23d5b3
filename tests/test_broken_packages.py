"""The campaign of benchmarks/broken_packages.py: each package in one way, where that takes both."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, compile_package

sys.path.insert(0, str(ROOT / "benchmarks"))

from broken_packages import ABSENT, ALL, RAISES, Broken  # noqa: E402

# Several at a time, each in one of the two ways: a run to the page takes over a minute.
TO_THE_PAGE = [({"soundfile", "peft"}, RAISES), ({"datasets", "mlx"}, ABSENT)]
OTHERS = [
    ({"soxr", "safetensors", "accelerate"}, ABSENT),
    ({"deepspeed", "mlx-lm", "mlx-audio"}, RAISES),
    ({"transformers", "tokenizers"}, RAISES),
    ({"torch"}, ABSENT),
]


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
@pytest.mark.parametrize(("names", "way"), TO_THE_PAGE)
def test_the_page_is_made_and_other_cells_are_measured(broken, names, way):
    broken.try_(names, way, short=False)


@pytest.mark.campaign
@pytest.mark.parametrize(("names", "way"), OTHERS)
def test_a_cell_and_doctor_name_the_package(broken, names, way):
    broken.try_(names, way, short=True)


@pytest.mark.campaign
def test_each_package_is_in_the_campaign():
    assert {name for names, _ in (*TO_THE_PAGE, *OTHERS) for name in names} == {*ALL}
