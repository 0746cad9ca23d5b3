"""Which of the shell's variables reach the measuring process, and which of those change numbers.

Variables that make a library debug, wait, allocate otherwise or join a distributed run are removed
unless the cell sets them: nobody means them for a measurement, and the record would not show them. A
person's choice of arithmetic or threads stays, and is in the record.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any


def _named(*patterns: str) -> re.Pattern[str]:
    """A pattern of names that match one of the space-separated wildcards."""
    return re.compile("|".join(map(fnmatch.translate, " ".join(patterns).split())))


# Why they are taken out -> patterns of their names.
TAKEN_OUT = {
    # CPython, "Environment variables"
    "takes the docstrings that transformers reads": "PYTHONOPTIMIZE",
    "slows Python down": "PYTHONDEVMODE PYTHONDEBUG PYTHONMALLOC PYTHONMALLOCSTATS PYTHONVERBOSE "
    "PYTHONTRACEMALLOC PYTHONASYNCIODEBUG PYTHONPROFILEIMPORTTIME PYTHONPERFSUPPORT",
    "waits for a terminal at the end": "PYTHONINSPECT",
    "can turn a library's warning into an error": "PYTHONWARNINGS",
    # torchrun (torch/distributed/run.py), accelerate's `get_int_from_env`, DeepSpeed, MPI, Slurm's
    # steps: a process that finds these waits for others that nobody starts.
    "joins a distributed run": "RANK LOCAL_RANK NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_* "
    "WORLD_SIZE LOCAL_WORLD_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_* "
    "OMPI_COMM_WORLD_* MV2_COMM_WORLD_* MPI_LOCAL* PMI_* PMIX_* SLURM_PROCID SLURM_LOCALID "
    "SLURM_NTASKS SLURM_NPROCS SMDATAPARALLEL_* SM_FRAMEWORK_PARAMS",
    "sets how the Trainer trains": "ACCELERATE_* FSDP_* PARALLELISM_CONFIG_* DS_ACCELERATOR",
    # torch, "CUDA Environment Variables" and "MPS Environment Variables"
    "waits after every kernel": "CUDA_LAUNCH_BLOCKING HIP_LAUNCH_BLOCKING AMD_SERIALIZE_*",
    "allocates at every step": "PYTORCH_NO_*_MEMORY_CACHING",
    "changes the allocator": "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF",
    "runs operators on the CPU": "PYTORCH_ENABLE_MPS_FALLBACK",
    "changes memory limits or kernels": "PYTORCH_MPS_*",
    "slows the allocator down": "PYTORCH_DEBUG_MPS_ALLOCATOR",
    "changes what runs": "PYTORCH_JIT TORCHDYNAMO_* TORCH_COMPILE_*",
    "slows torch down": "TORCH_SHOW_CPP_STACKTRACES",
    # Metal's validation, and all that MLX reads (mlx/utils.h); a backend sets what a cell needs
    "checks or traces every kernel": "MTL_* METAL_DEVICE_WRAPPER_TYPE",
    "changes how MLX runs": "MLX_*",
}
NOT_INHERITED = _named(*TAKEN_OUT.values())
# A person's choice, which changes times or rounding.
REMOVED_VARIABLES = _named(
    "OMP_* KMP_* GOMP_* MKL_* OPENBLAS_* BLIS_* VECLIB_* DNNL_* ONEDNN_* ATEN_* MALLOC_* "
    "GLIBC_TUNABLES NVIDIA_TF32_OVERRIDE CUBLAS_* CUBLASLT_* CUDNN_* CUDA_MODULE_LOADING "
    "CUDA_DEVICE_MAX_CONNECTIONS CUDA_CACHE_* CUDA_*_PTX_JIT CUDA_SCALE_LAUNCH_QUEUES "
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_* TORCH_CUBLASLT_* TORCH_CUDNN_* TORCH_LINEAR_* "
    "TORCH_SDPA_* PYTORCH_* PYTHONHASHSEED AGX_RELAX_CDM_CTXSTORE_TIMEOUT LD_PRELOAD "
    "DYLD_INSERT_LIBRARIES"
)
PRELOADED = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES")  # an allocator, a BLAS: the files' names say it
PLAIN_VALUE = re.compile(r"[A-Za-z0-9 _.,:;=+*{}()-]{0,100}")  # no path, no address
VARIABLES_FLAG = "environment_variables"


def without(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables, less those that are taken out."""
    return {name: value for name, value in inherited.items() if not NOT_INHERITED.match(name)}


def account(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, Any]:
    """What the record says: names `taken_out`, and `left`, name -> value, that change numbers.

    A value that may hold a path or an address is null; of libraries it is the files' names.

    Args:
        own: variables that the cell sets itself, whatever the shell says.
    """
    others = {name: value for name, value in sorted(inherited.items()) if name not in own}
    taken_out = [name for name in others if NOT_INHERITED.match(name)]
    left = {n: v for n, v in others.items() if n not in taken_out and REMOVED_VARIABLES.match(n)}
    left |= {n: re.sub(r"[^\s:]*/", "", left[n]) for n in PRELOADED if n in left}
    shown = {name: value if PLAIN_VALUE.fullmatch(value) else None for name, value in left.items()}
    return {"taken_out": taken_out, "left": shown}
