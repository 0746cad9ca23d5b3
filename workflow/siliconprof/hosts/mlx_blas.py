"""A fast BLAS for MLX on Linux: built at set-up from SciPy's OpenBLAS, loaded by `blas`.

    python -m siliconprof.hosts.mlx_blas

SciPy's wheel brings an OpenBLAS with names of its own, `scipy_cblas_sgemm` and so on. A library of
the three functions that MLX calls hands their arguments on, so a host needs no package of its
distribution. It lies in this Python's environment, and nothing of it depends on SciPy's version.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from siliconprof import options
from siliconprof.errors import UserError
from siliconprof.store import temporary

LIBRARY_FILE = "libsiliconprof-blas.so"
BUILD = "python -m siliconprof.hosts.mlx_blas"
# cblas_?gemm by the CBLAS standard's prototypes; its enumerations are ints.
SOURCE = """\
#define GEMM(name, scalar, array)                                                                  \\
    void scipy_##name(int, int, int, int, int, int, scalar, array, int, array, int, scalar,        \\
                      void *, int);                                                                \\
    void name(int order, int transpose_a, int transpose_b, int m, int n, int k, scalar alpha,      \\
              array a, int lda, array b, int ldb, scalar beta, void *c, int ldc) {                 \\
        scipy_##name(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c,     \\
                     ldc);                                                                         \\
    }
extern "C" {
GEMM(cblas_sgemm, float, const float *)
GEMM(cblas_dgemm, double, const double *)
GEMM(cblas_cgemm, const void *, const void *)
}
"""


def adapter() -> Path:
    """The path of the library, which need not exist."""
    return Path(sys.prefix) / "lib" / LIBRARY_FILE


def openblas_of_scipy() -> Path | None:
    """SciPy's OpenBLAS; None where SciPy is not installed, or from other than its wheel."""
    spec = importlib.util.find_spec("scipy")
    if spec is None or spec.origin is None:
        return None
    libraries = Path(spec.origin).parent.parent / "scipy.libs"
    return next(iter(sorted(libraries.glob("libscipy_openblas-*.so"))), None)


def built() -> list[Path]:
    """What a process loads so that MLX calls SciPy's OpenBLAS, in this order; [] = not built."""
    library, own = openblas_of_scipy(), adapter()
    return [library, own] if library and own.is_file() else []


def build() -> Path:
    """Compile the library; takes a second.

    Raises:
        UserError: there is no compiler or no library of SciPy's, or the compiler failed; one line.
    """
    if openblas_of_scipy() is None:
        raise UserError("mlx-blas: no OpenBLAS of SciPy's wheel is installed: pip install scipy")
    compiler = os.environ.get("CXX", "c++").split()
    if not compiler or not shutil.which(compiler[0]):
        raise UserError(
            f"mlx-blas: no C++ compiler ('{' '.join(compiler)}'); install g++ (Debian: apt-get "
            "install g++) or set CXX"
        )
    target = adapter()
    made = temporary.temporary_path(target)
    command = [*compiler, "-x", "c++", "-O2", "-shared", "-fPIC", "-", "-o", str(made)]
    done = subprocess.run(command, input=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        errors = [line for line in lines if "error" in line] or lines
        raise UserError(f"mlx-blas: was not built: {errors[0]}")
    made.replace(target)
    return target


def main() -> None:
    """Build the library and print its path; nothing is due where MLX needs none."""
    if sys.platform == "linux":
        print(build())


if __name__ == "__main__":
    options.run(main)
