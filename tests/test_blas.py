"""Which BLAS MLX multiplies with: loaded where it is, recorded as it was, named on the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, ROOT, cpu_cell, defaults
from measuring import by_hand as measured
from measuring import own_environment, python
from siliconprof import plugins
from siliconprof.hosts import blas, detect, host_file, mlx_blas, registry
from siliconprof.store.cell import Cell
from synthetic_results import (
    load,
    make,
    matmul,
    probed,
    training,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a Mac has Accelerate")
REFERENCE = "reference BLAS 3.10.0 (libblas.so.3.10.0)"
OPENBLAS = "OpenBLAS 0.3.21 (libopenblasp-r0.3.21.so)"


def product(shape: list[int]) -> Cell:
    """A product in MLX on this machine's CPU, everything else as it is by default."""
    usual = {"backend": "mlx", "workload": "product", "module": "matmul", "threads": 1}
    timing = QUICK | {"iterations": 10, "max_iterations": 10}
    return cpu_cell(**usual, parameters=defaults("matmul", shapes=[shape], burst=0), timing=timing)


@pytest.fixture(scope="module")
def openblas() -> None:
    """Skip where there is none; it is looked for as MLX's processes look for it."""
    program = f"import ctypes; ctypes.CDLL({blas.SONAME!r})"
    if subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode:
        pytest.skip(f"no {blas.SONAME} here: apt install libopenblas0-pthread")


# -- loaded and recorded -------------------------------------------------------------------------


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


@pytest.mark.slow
@LINUX
def test_a_cell_records_the_blas_that_it_was_measured_with(openblas: None, tmp_path: Path) -> None:
    """OpenBLAS with the cell's threads, the system's or SciPy's, and faster than what MLX brings."""
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


@LINUX
def test_once_mlx_is_there_nothing_is_loaded_and_the_truth_is_told(openblas: None) -> None:
    """Its calls are bound by then: a library loaded later would be named and not be used."""
    program = (
        "import mlx.core as mx; mx.eval(mx.ones((9, 9)) @ mx.ones((9, 9)));"
        "from siliconprof import plugins; from siliconprof.hosts import blas; plugins.load('backends', 'mlx')().available();"
        "print(blas.of_mlx()['blas']); print('libopenblas' in open('/proc/self/maps').read())"
    )
    blas_of_mlx, loaded = python(program).splitlines()
    assert blas_of_mlx.startswith("reference BLAS ") and loaded == "False"


@pytest.mark.slow
@LINUX
def test_the_switch_is_part_of_what_a_cell_depends_on(
    openblas: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So switching it, like installing the library, measures MLX's CPU cells again, not torch's."""
    devices = registry.load(ROOT / "config" / "devices.yaml")
    slices = []
    for value in (None, "own"):
        if value:
            monkeypatch.setenv(blas.VARIABLE, value)
        else:
            monkeypatch.delenv(blas.VARIABLE, raising=False)
        # the second time the file is there and is looked into again, since a quick fact changed
        host = host_file.resolve(tmp_path, "here", devices)
        of_cpu = host["devices"][-1]["id"]
        slices.append(
            [host_file.environment_slice(host, of_cpu, name, []) for name in ("mlx", "torch-cpu")]
        )
    (fast, torch), (own, torch_again) = slices
    assert fast["blas"].startswith("OpenBLAS ") and own["blas"].startswith("reference BLAS ")
    assert torch == torch_again and "OpenBLAS" not in torch["blas"]


def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(blas.VARIABLE, "mine")
    works, why = plugins.load("backends", "mlx")().available()
    assert not works and why == "SILICONPROF_MLX_BLAS is 'mine'; expected 'own', or leave it unset"
    error = detect.probe("mlx")["error"]
    assert why in error and "unset it" in detect.mend_of(error, "mlx")
    made = measured(product([1, 8, 8, 8]), tmp_path, SILICONPROF_MLX_BLAS="mine")
    assert (made["status"], made["reason"]) == ("unsupported", why)


# -- named on the page ----------------------------------------------------------------------------


def of_mlx(made: dict[str, Any], name: str | None, declared: str | None = None) -> dict[str, Any]:
    """A record of MLX's, measured with a BLAS on a host that was said to have another."""
    made["environment"]["declared"] = {"blas": declared}
    made["environment"]["backend"]["blas"] = name
    return made


def results_of(folder: Path, name: str | None, declared: str | None = None, **axes: Any) -> Path:
    """MLX beside torch."""
    mlx = {"backend": "mlx"} | axes
    cost = {"memory": {"rss_at_start_bytes": 10**8}}
    theirs = (probed(training(0.030, **mlx), **cost), matmul(**mlx))
    own = [probed(training(0.010), **cost), matmul()]
    return make(folder, own + [of_mlx(made, name, declared) for made in theirs])


@pytest.mark.parametrize(
    ("found", "declared", "axes", "called"),
    [
        (OPENBLAS, REFERENCE, {}, "mlx"),
        (REFERENCE, OPENBLAS, {}, "mlx (reference BLAS)"),  # what the process itself found
        (None, REFERENCE, {}, "mlx (reference BLAS)"),  # a record that does not tell
        (None, None, {"device": "h200", "device_kind": "gpu"}, "mlx"),
    ],
)
def test_what_the_backend_is_called(
    tmp_path: Path, found: str | None, declared: str | None, axes: dict[str, str], called: str
) -> None:
    """In every row that names one: cells, points and probes."""
    frames = load(results_of(tmp_path, found, declared, **axes))
    for rows in (frames.cells, frames.points, frames.table("probes")):
        assert set(rows["backend_label"]) == {"torch-cpu", called}
