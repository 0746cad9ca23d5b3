"""CUDA's driver, which every host with an NVIDIA GPU has: an empty kernel, and which GPU is seen.

No toolkit is needed: the driver compiles PTX. Functions and constants are those of the CUDA driver
API, docs.nvidia.com/cuda/cuda-driver-api.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

DRIVER_LIBRARY = "libcuda.so.1"  # its soname, part of the driver
KERNEL_NAME = b"siliconprof_empty"
# Every later GPU runs PTX of an earlier target (PTX ISA, section 11.1, `.target`).
PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry siliconprof_empty()
{
    ret;
}
"""


def only(index: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a process sees one GPU, in whichever form the shell names those it has.

    These are numbers, UUIDs or the beginnings of such, and slices (`MIG-…`), see the CUDA programming
    guide, CUDA_VISIBLE_DEVICES.

    Args:
        index: of the GPU among those that a process of the shell sees.
    """
    own = str(index)
    if (visible := inherited.get("CUDA_VISIBLE_DEVICES")) is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        own = names[index] if index < len(names) else ""
    return {"CUDA_VISIBLE_DEVICES": own}


class CudaError(Exception):
    """A call of the driver failed; the message is one line."""


def _require(cuda: ctypes.CDLL, call: str, code: int) -> None:
    if code:
        texts = []
        for explain in (cuda.cuGetErrorName, cuda.cuGetErrorString):
            text = ctypes.c_char_p()
            explain(code, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode())
        raise CudaError(f"{call}: {texts[0]} ({code}): {texts[1]}")


def initialises() -> bool:
    """Whether this process can use the driver; one forked from a process that does cannot."""
    try:
        return not ctypes.CDLL(DRIVER_LIBRARY).cuInit(0)
    except OSError:  # no driver: whatever needs it says so
        return True


def empty_kernel(stream: int) -> Callable[[], None]:
    """A launcher of a loaded kernel that does nothing, on a stream; both may raise `CudaError`."""
    cuda = ctypes.CDLL(DRIVER_LIBRARY)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _require(cuda, "cuCtxGetCurrent", cuda.cuCtxGetCurrent(ctypes.byref(context)))
    if not context:
        raise CudaError("no CUDA context is current in this thread")
    _require(cuda, "cuModuleLoadData", cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    found = cuda.cuModuleGetFunction(ctypes.byref(function), module, KERNEL_NAME)
    _require(cuda, "cuModuleGetFunction", found)
    enqueue, one, none = cuda.cuLaunchKernel, ctypes.c_uint(1), ctypes.c_void_p()
    # Grid, block, bytes of shared memory, stream, parameters, extra: made once, not in each launch.
    arguments = (function, *6 * (one,), ctypes.c_uint(0), ctypes.c_void_p(stream), none, none)

    def launch() -> None:
        if code := enqueue(*arguments):
            _require(cuda, "cuLaunchKernel", code)

    return launch
