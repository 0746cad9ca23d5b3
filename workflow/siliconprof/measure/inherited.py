"""Which of the shell's variables reach the measuring process, and which of those change numbers.

What asks a library to debug, to wait, to allocate otherwise or to join a distributed run is taken
out unless the cell asks for it: nobody means it for a measurement, and the record would not show
it. What is a person's choice of arithmetic or threads stays, and the record says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Pattern of names -> why they are taken out.
TAKEN_OUT = {
    # CPython, "Environment variables"
    "PYTHONOPTIMIZE": "takes the docstrings that transformers reads",
    "PYTHONDEVMODE": "slows Python down",
    "PYTHONDEBUG": "slows Python down",
    "PYTHONMALLOC": "slows Python down",
    "PYTHONMALLOCSTATS": "slows Python down",
    "PYTHONTRACEMALLOC": "slows Python down",
    "PYTHONASYNCIODEBUG": "slows Python down",
    "PYTHONPROFILEIMPORTTIME": "slows Python down",
    "PYTHONVERBOSE": "slows Python down",
    "PYTHONPERFSUPPORT": "slows Python down",
    "PYTHONINSPECT": "waits for a terminal at the end",
    "PYTHONWARNINGS": "can turn a library's warning into an error",
    # torchrun (torch/distributed/run.py), accelerate's `get_int_from_env`, DeepSpeed, MPI, Slurm's
    # steps: a process that finds these waits for others that nobody starts.
    "RANK": "joins a distributed run",
    "LOCAL_RANK": "joins a distributed run",
    "NODE_RANK": "joins a distributed run",
    "GROUP_RANK": "joins a distributed run",
    "GROUP_WORLD_SIZE": "joins a distributed run",
    "ROLE_*": "joins a distributed run",
    "WORLD_SIZE": "joins a distributed run",
    "LOCAL_WORLD_SIZE": "joins a distributed run",
    "CROSS_RANK": "joins a distributed run",
    "CROSS_SIZE": "joins a distributed run",
    "MASTER_ADDR": "joins a distributed run",
    "MASTER_PORT": "joins a distributed run",
    "TORCHELASTIC_*": "joins a distributed run",
    "OMPI_COMM_WORLD_*": "joins a distributed run",
    "MV2_COMM_WORLD_*": "joins a distributed run",
    "MPI_LOCAL*": "joins a distributed run",
    "PMI_*": "joins a distributed run",
    "PMIX_*": "joins a distributed run",
    "SLURM_PROCID": "joins a distributed run",
    "SLURM_LOCALID": "joins a distributed run",
    "SLURM_NTASKS": "joins a distributed run",
    "SLURM_NPROCS": "joins a distributed run",
    "SMDATAPARALLEL_*": "joins a distributed run",
    "SM_FRAMEWORK_PARAMS": "joins a distributed run",
    "ACCELERATE_*": "sets how the Trainer trains",
    "FSDP_*": "sets how the Trainer trains",
    "PARALLELISM_CONFIG_*": "sets how the Trainer trains",
    "DS_ACCELERATOR": "sets how the Trainer trains",
    # torch, "CUDA Environment Variables" and "MPS Environment Variables"
    "CUDA_LAUNCH_BLOCKING": "waits after every kernel",
    "HIP_LAUNCH_BLOCKING": "waits after every kernel",
    "AMD_SERIALIZE_*": "waits after every kernel",
    "PYTORCH_NO_*_MEMORY_CACHING": "allocates at every step",
    "PYTORCH_ALLOC_CONF": "changes the allocator",
    "PYTORCH_CUDA_ALLOC_CONF": "changes the allocator",
    "PYTORCH_HIP_ALLOC_CONF": "changes the allocator",
    "PYTORCH_ENABLE_MPS_FALLBACK": "runs operators on the CPU",
    "PYTORCH_MPS_*": "changes memory limits or kernels",
    "PYTORCH_DEBUG_MPS_ALLOCATOR": "slows the allocator down",
    "PYTORCH_JIT": "changes what runs",
    "TORCHDYNAMO_*": "changes what runs",
    "TORCH_COMPILE_*": "changes what runs",
    "TORCH_SHOW_CPP_STACKTRACES": "slows torch down",
    # Metal's validation, and all that MLX reads (mlx/utils.h); a backend sets what a cell needs
    "MTL_*": "checks or traces every kernel",
    "METAL_DEVICE_WRAPPER_TYPE": "checks every kernel",
    "MLX_*": "changes how MLX runs",
}
# A person's choice, which changes times or rounding.
LEFT = (
    "OMP_*",
    "KMP_*",
    "GOMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "BLIS_*",
    "VECLIB_*",
    "DNNL_*",
    "ONEDNN_*",
    "ATEN_*",
    "MALLOC_*",
    "GLIBC_TUNABLES",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_*",
    "CUBLASLT_*",
    "CUDNN_*",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_CACHE_*",
    "CUDA_*_PTX_JIT",
    "CUDA_SCALE_LAUNCH_QUEUES",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_*",
    "TORCH_CUBLASLT_*",
    "TORCH_CUDNN_*",
    "TORCH_LINEAR_*",
    "TORCH_SDPA_*",
    "PYTORCH_*",
    "PYTHONHASHSEED",
)
PLAIN = re.compile(r"[A-Za-z0-9 _.,:;=+*{}()-]{0,100}")  # no path, no address
FLAG = "environment_variables"


def _any(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits a pattern, which has one `*` at most: a regular expression of each would
    take longer to compile than all names take.
    """
    for pattern in patterns:
        head, star, tail = pattern.partition("*")
        if name == pattern:
            return True
        if star and name.startswith(head) and name[len(head) :].endswith(tail):
            return True
    return False


def without(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables, less those that are taken out."""
    return {name: value for name, value in inherited.items() if not _any(name, TAKEN_OUT)}


def account(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, Any]:
    """What the record says: names `taken_out`, and `left`, name -> value, that change numbers.

    A value that may hold a path or an address is null.

    Args:
        own: variables that the cell sets itself, whatever the shell says.
    """
    left = {n: v for n, v in inherited.items() if n not in own and _any(n, LEFT)}
    return {
        "taken_out": sorted(n for n in inherited if n not in own and _any(n, TAKEN_OUT)),
        "left": {
            name: value if PLAIN.fullmatch(value) else None
            for name, value in sorted(left.items())
            if not _any(name, TAKEN_OUT)
        },
    }
