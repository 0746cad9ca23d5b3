"""The environment a measuring process is started with, and what a record says of it."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Checkout
from siliconprof import __version__, fingerprint, plugins
from siliconprof.cells.method import ALWAYS
from siliconprof.hosts import environment
from siliconprof.measure import fork_server, scratch
from siliconprof.store import record
from siliconprof.store.cell import Cell

# What a module is installed as, where that is another name.
DISTRIBUTIONS = {"PIL": "pillow", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
# These read, check, fetch or describe files, pandas reads curves afterwards; no number comes from them.
NOT_IN_NUMBERS = set("fsspec huggingface-hub pandas pydantic pyyaml threadpoolctl".split())
NOT_IN_NUMBERS |= {"typing-extensions"}


def test_the_version_is_one_everywhere():
    """pyproject.toml reads the package's; CITATION.cff has the fields that CFF 1.2.0 requires."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["title"]
    assert cited["authors"] == [{"name": "The siliconprof authors"}]
    released = (cited["version"], cited["date-released"])
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"(?m)^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changes)
    assert newest and newest.groups() == released and released[0] == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "siliconprof.__version__"


def test_mlx_is_told_before_its_import_what_fp32_means():
    mlx = plugins.load("backends", "mlx")
    assert mlx.features.environment(0, "fp32", {})["MLX_ENABLE_TF32"] == "0"
    assert mlx.features.environment(0, "tf32", {})["MLX_ENABLE_TF32"] == "1"


def imported(path: Path) -> set[str]:
    """The top-level modules that a file imports, also by `import_module` of a constant name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return {name.split(".")[0] for name in found}


def test_everything_imported_is_pinned():
    """What another package brings along today it may leave out tomorrow."""
    files = (ROOT / "workflow").rglob("*.py")
    foreign = set().union(*map(imported, files)) - {*sys.stdlib_module_names, "siliconprof"}
    assert {"torch", "scipy", "pynvml", "markupsafe"} <= foreign
    needed = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in foreign}
    pinned = set()
    for name in ("apple", "base", "cpu", "cuda", "slurm"):
        text = (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8")
        pinned |= {pin.replace("_", "-").lower() for pin in re.findall(r"(?m)^([\w-]+).*==", text)}
    assert needed - pinned == set()


def test_a_record_has_the_version_of_all_that_its_numbers_depend_on():
    """Of every library that a measuring process can import, and that a plug-in names."""
    every = [
        plugins.module_name(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)
    ]
    method = fingerprint.fingerprint_of([*ALWAYS, "siliconprof.session.inventory", *every]).modules
    package = fingerprint.Package()
    files = [package.file(f"siliconprof.{name}") for name in method]
    modules = set().union(*(imported(path) for path in files if path))
    assert {"torch", "mlx_audio", "pynvml", "zeus_apple_silicon", "safetensors"} <= modules
    foreign = modules - set(sys.stdlib_module_names) - {"siliconprof"}
    needed = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in foreign}
    for name in plugins.names("trainers"):
        trainer = plugins.load("trainers", name)
        needed |= {*trainer.LIBRARIES.get("torch", ()), *trainer.OFFLOAD_LIBRARIES}
    told = environment.capture(ROOT)["packages"]
    assert needed - NOT_IN_NUMBERS <= told.keys()


# -- code that is made at run time -----------------------------------------------------------------

MOUNTS = sys.platform == "linux" and os.geteuid() == 0
# The run's folder on a disk of which nothing may be executed
NOEXEC = """cp -a results copied && mount -t tmpfs -o noexec tmpfs results && cp -a copied/. results
python -m siliconprof.measure --cell "$1" --output results/record.json && cat results/record.json
python -m siliconprof.pipeline.cli doctor"""


def compiling_cell(project: Checkout) -> Cell:
    """One for which MLX compiles kernels."""
    (path,) = (project.path / "results" / "records").glob("*/*/mlx/nano-2/auto/fp32.json")
    return Cell(**record.read(path)["cell"])


@pytest.mark.slow
def test_compiled_code_is_the_runs_and_no_broken_one_stays(clone: Checkout, tmp_path: Path) -> None:
    """What others have left in the system's folder disturbs nobody, nor does a file cut short."""
    cell, code, foreign = compiling_cell(clone), tmp_path / "code", tmp_path / "tmp"
    foreign.mkdir()
    (foreign / "mlx").write_text("another user's, in which nobody can make anything")
    clone.environment |= {"TMPDIR": str(foreign), scratch.CODE_VARIABLE: str(code)}
    assert clone.measure(cell)["status"] == "ok"
    assert [path.name for path in foreign.iterdir()] == ["mlx"]
    kernels = list(code.rglob("*.so"))
    assert kernels
    for kernel in kernels:
        os.truncate(kernel, 5000)  # as where its compiler was killed
    assert clone.measure(cell)["status"] == "failed"
    assert clone.measure(cell)["status"] == "ok"
    assert min(kernel.stat().st_size for kernel in kernels) > 5000
    assert not [*clone.path.glob(".cell-*")]


@pytest.mark.campaign
@pytest.mark.skipif(not MOUNTS, reason="needs Linux and root, to mount a disk")
def test_a_folder_of_which_nothing_may_be_executed_is_said(clone: Checkout) -> None:
    """In the record of a cell that compiles, and by the doctor; each says what to do."""
    clone.environment.pop(fork_server.SERVER_VARIABLE)  # which lives beside that disk
    command = ["unshare", "--mount", "sh", "-c", NOEXEC, "-", compiling_cell(clone).to_json()]
    said = clone.run(*command, env={"PYTHONPATH": "workflow"}).stdout
    measured, _, doctor = said.partition("Host ")
    assert '"status": "failed"' in measured
    for text in (measured, doctor):
        assert "mounted noexec" in text and "work in a folder on a disk" in text
