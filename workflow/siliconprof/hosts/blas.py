"""Which BLAS a process multiplies with, and a fast one for MLX where the host has it.

MLX's wheel for Linux brings a reference BLAS. A library in the process's global scope takes
precedence over the one that a framework was linked with, so OpenBLAS is loaded there before MLX is
first imported: the system's, or SciPy's through an adapter (`mlx_blas`). A process that measures
torch must not do that: torch would call OpenBLAS instead of its own MKL.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof.hosts import machine, mlx_blas

BLAS_VARIABLE = "SILICONPROF_MLX_BLAS"
OWN_KERNELS = "own"
SONAME = "libopenblas.so.0"  # whichever of its builds the system gives under that name
REFERENCE_BLAS = "reference BLAS"  # the name of an untuned BLAS begins with this


class _Symbol(ctypes.Structure):
    """What dladdr(3) writes of a function: `Dl_info`."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def owner(symbol: str, library: str | None = None) -> str | None:
    """The file that the loader takes `symbol` from, links resolved; None where no file has it.

    Args:
        library: searched with all that it is linked with (dlsym(3)); None = the global scope, which
            takes precedence (LD_PRELOAD, RTLD_GLOBAL): under LD_PRELOAD=libopenblas.so.0 torch
            no longer calls its own MKL.
    """
    found = _Symbol()
    try:
        function = getattr(ctypes.CDLL(library), symbol)
        ctypes.CDLL(None).dladdr(function, ctypes.byref(found))
    except (AttributeError, OSError, TypeError):
        return None
    return os.path.realpath(os.fsdecode(found.file)) if found.file else None


def _pool(path: str) -> dict[str, Any]:
    """Return threadpoolctl's entry for a loaded library; empty without threadpoolctl or an entry."""
    try:
        import threadpoolctl
    except ImportError:
        return {}
    pools = threadpoolctl.threadpool_info()
    real = os.path.realpath(path)  # an environment may be a link
    return next((pool for pool in pools if os.path.realpath(pool["filepath"]) == real), {})


def name_of(path: str) -> str:
    """The name of a loaded BLAS library, its version where it is known, and its file's name."""
    name, pool = Path(path).name, _pool(path)
    if pool.get("internal_api", "openblas" if "openblas" in path else None) == "openblas":
        return f"OpenBLAS {pool.get('version') or 'of unknown version'} ({name})"
    if "mkl" in name:
        return f"oneMKL ({name})"
    if re.match(r"lib(c?blas)\b", name):
        version = re.search(r"\.so\.(\d+\.\d+[\d.]*)$", name)
        return f"{REFERENCE_BLAS} {version[1] + ' ' if version else ''}({name})"
    return name


def system_blas() -> str | None:
    """Apple's BLAS, which comes with the system; None elsewhere."""
    system = machine.operating_system()["distribution"]
    return f"Accelerate ({system})" if machine.is_mac() else None


def keeps_own_blas() -> bool:
    """Whether the user wants MLX to keep the BLAS that it brings (`BLAS_VARIABLE`).

    Raises:
        ValueError: the variable has another value; one line.
    """
    value = os.environ.get(BLAS_VARIABLE, "")
    if value not in ("", OWN_KERNELS):
        raise ValueError(
            f"{BLAS_VARIABLE} is '{value}'; expected '{OWN_KERNELS}', or leave it unset"
        )
    return value == OWN_KERNELS


def load_for_mlx() -> None:
    """Load OpenBLAS, where it is installed, so that MLX calls it instead of its own BLAS.

    Does nothing on a Mac, which has Accelerate; where a BLAS was preloaded on purpose; and once
    MLX is imported, since its calls are bound by then. MLX uses no BLAS on a GPU.

    Raises:
        ValueError: see `keeps_own_blas`.
    """
    if keeps_own_blas() or machine.is_mac() or "mlx.core" in sys.modules or owner("cblas_sgemm"):
        return
    for candidates in ([SONAME], mlx_blas.built()):
        with suppress(OSError):  # not installed: the doctor says how to get it
            for library in candidates:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            if candidates:
                return


def blas_of_mlx() -> dict[str, Any]:
    """The BLAS that computes MLX's products on the CPU in this process, once MLX is imported.

    Returns:
        `blas`, its name with version and file, None where it cannot be determined; `blas_threads`,
        the number of threads that it uses, None where it does not report one.
    """
    path = owner("cblas_sgemm") or owner("cblas_sgemm", sys.modules["mlx.core"].__file__)
    if path and Path(path).name == mlx_blas.LIBRARY_FILE:
        path = str(mlx_blas.openblas_of_scipy())
    return {
        "blas": system_blas() or (name_of(path) if path else None),
        "blas_threads": _pool(path).get("num_threads") if path else None,
    }
