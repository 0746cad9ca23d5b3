"""A checkout that was moved with its environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import QUICK, ROOT, Checkout, copy_project

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with what pip leaves in an environment of its own, moved; packages are ours."""
    folder = tmp_path_factory.mktemp("moved")
    first = copy_project(folder / "first").path
    shutil.copy2(ROOT / "Makefile", first)
    (first / "tests").mkdir()
    (first / "tests/test_one.py").write_text("def test_one():\n    import siliconprof\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", first / ".venv"], check=True)
    scripts, (packages,) = first / ".venv/bin", (first / ".venv/lib").glob("*/site-packages")
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "__editable__.siliconprof-0.1.0.pth").write_text(f"{first}/workflow\n")
    own = "import sys\nfrom siliconprof.pipeline.cli import main\nsys.exit(main())\n"
    theirs = "import sys\nfrom snakemake.cli import main\nsys.exit(main())\n"
    for name, start, text in (
        ("siliconprof", f"#!{scripts}/python\n", own),
        # what pip writes where the path is long
        ("snakemake", f"#!/bin/sh\n'''exec' \"{scripts}/python\" \"$0\" \"$@\"\n' '''\n", theirs),
    ):
        (scripts / name).write_text(start + text)
        (scripts / name).chmod(0o755)
    for stamp in (".installed-cpu", ".installed-dev"):
        (first / ".venv" / stamp).touch()
    second = Checkout(first.rename(folder / "second"))
    second.environment["SILICONPROF_LOCK_FILE"] = str(folder / "lock")
    second.configure(
        host="desk",
        backends=["mlx"],
        timing=QUICK,
        workloads={"one": {"module": "matmul", "shapes": [[1, 8, 8, 8]]}},
    )
    return second


def test_a_moved_checkout_works_after_make(moved):
    """Without network, and without installing anything; HOME is not there either."""
    made = moved.run("make", "ENV=cpu", "report", "ARGS=-n", env={"HOME": "/dev/null"})
    assert "cannot be written to; caches go below results/history/cache" in made.stderr
    assert "This was a dry-run" in made.stdout + made.stderr
    assert "1 passed" in moved.run("make", "ENV=cpu", "WORKERS=0", "test-fast").stdout
    third = Checkout(moved.path.parent / "a third")  # and from now on without `make`
    moved.path.rename(third.path)
    try:
        for name in ("siliconprof", "snakemake"):
            assert "--help" in third.run(f"{third.path}/.venv/bin/{name}", "--help").stdout
        where = "import siliconprof; print(siliconprof.__file__)"
        said = third.run(f"{third.path}/.venv/bin/python", "-c", where).stdout
        assert Path(said.strip()).is_relative_to(third.path)
    finally:
        third.path.rename(moved.path)
