"""Which BLAS MLX multiplies with: loaded where it is, recorded as it was, named on the page."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import cpu_cell
from measuring import by_hand as measured
from measuring import own_environment
from siliconprof import plugins
from siliconprof.hosts import blas, detect, mlx_blas
from siliconprof.store.cell import Cell
from synthetic_results import load, make, training

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has Accelerate")


def product(shape: list[int]) -> Cell:
    """A product in MLX on this machine's CPU, everything else as it is by default."""
    timing = {"iterations": 10, "max_iterations": 10}
    own = {"shapes": [shape], "burst": 0}
    return cpu_cell("mlx", "matmul", own, workload="product", timing=timing)


# A system without OpenBLAS, as Python's loader sees it.
WITHOUT_OPENBLAS = f"""
import ctypes
class CDLL(ctypes.CDLL):
    def __init__(self, name, *more, **options):
        if name == {blas.SONAME!r}:
            raise OSError(name)
        super().__init__(name, *more, **options)
ctypes.CDLL = CDLL
"""


@pytest.mark.campaign
@LINUX
def test_a_cell_records_the_blas_that_it_was_measured_with(tmp_path: Path) -> None:
    """OpenBLAS with the cell's threads, the system's or SciPy's, and faster than what MLX brings."""
    try:
        ctypes.CDLL(blas.SONAME)
    except OSError:
        pytest.skip(f"no {blas.SONAME} here: apt install libopenblas0-pthread")
    wanted = product([1, 320, 320, 320])
    fast = measured(wanted, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_OPENBLAS, encoding="utf-8")
    of_scipy = measured(wanted, tmp_path, search=[tmp_path])
    own = measured(wanted, tmp_path, SILICONPROF_MLX_BLAS="own")
    for made in (fast, of_scipy, own):
        assert made["status"] == "ok", made["reason"]
        assert made["precision"]["effective"] == "fp32"
        assert made["points"][0]["result_error"] < 1e-5
    for made, library in ((fast, "libopenblas"), (of_scipy, "libscipy_openblas-")):
        backend = made["environment"]["backend"]
        assert backend["blas"].startswith("OpenBLAS ") and f"({library}" in backend["blas"]
        assert backend["blas_threads"] == wanted.threads
    assert own["environment"]["backend"]["blas"].startswith("reference BLAS ")
    assert own["environment"]["backend"]["blas_threads"] is None
    times = [min(made["points"][0]["times"]["step_s"]) for made in (fast, of_scipy, own)]
    assert max(times[:2]) * 3 < times[2]


@LINUX
def test_a_set_up_that_cannot_build_says_why() -> None:
    done = subprocess.run(
        [sys.executable, *mlx_blas.BUILD.split()[1:]],
        env=own_environment(CXX="no-such-compiler"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("mlx-blas: ") and "install g++" in line


def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(blas.BLAS_VARIABLE, "mine")
    works, why = plugins.load("backends", "mlx")().available()
    assert not works and "SILICONPROF_MLX_BLAS is 'mine'; expected 'own'" in why
    error = detect.probe("mlx")["error"]
    assert why in error and "unset it" in detect.fix_of(error, "mlx")
    made = measured(product([1, 8, 8, 8]), tmp_path, SILICONPROF_MLX_BLAS="mine")
    assert (made["status"], made["reason"]) == ("unsupported", why)


def test_a_reference_blas_is_named_in_every_row(tmp_path: Path) -> None:
    """What the process itself found, not what its host was said to have."""
    mine, theirs = training(0.010), training(0.030, backend="mlx")
    theirs["environment"]["declared"] = {"blas": "OpenBLAS 0.3.21 (libopenblasp-r0.3.21.so)"}
    theirs["environment"]["backend"]["blas"] = "reference BLAS 3.10.0 (libblas.so.3.10.0)"
    frames = load(make(tmp_path, [mine, theirs]))
    for rows in (frames.cells, frames.points):
        assert set(rows["backend_label"]) == {"torch-cpu", "mlx (reference BLAS)"}
