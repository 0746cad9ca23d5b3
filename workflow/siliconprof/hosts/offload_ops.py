"""DeepSpeed's C++ Adam for offloaded optimizers: built at set-up, only loaded in a cell.

    python -m siliconprof.hosts.offload_ops

DeepSpeed compiles an extension when it is first used, which would fall inside a cell's time. So it
is built here, into a folder of its own below TORCH_EXTENSIONS_DIR (torch's default where that is
not set), and a cell loads it from there. The folder's name has the versions of DeepSpeed, torch and
Python and a hash of the processor: the build uses this processor's instructions, and hosts may share
a home folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from siliconprof import fingerprint, options, packages
from siliconprof.errors import UserError
from siliconprof.hosts import machine

EXTENSION = "cpu_adam"
BUILD = "python -m siliconprof.hosts.offload_ops"


def root() -> Path:
    """Where torch builds extensions: `cpp_extension.get_default_build_root`, torch unimported."""
    if own := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(own)
    caches = "~/Library/Caches" if machine.is_mac() else os.getenv("XDG_CACHE_HOME", "~/.cache")
    return Path(os.path.realpath(os.path.expanduser(f"{caches}/torch_extensions")))


def folder() -> Path:
    """Where this host's extension is built; raises where DeepSpeed or torch is not installed."""
    cpu = machine.cpu()
    processor = hashlib.sha256(f"{cpu['model']} {cpu['features']}".encode()).hexdigest()[:8]
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    versions = [f"{name}{metadata.version(name)}" for name in ("deepspeed", "torch")]
    return root() / "-".join(["siliconprof", *versions, python, processor])


def library() -> Path:
    """The path of the extension's file, which need not exist."""
    return folder() / EXTENSION / f"{EXTENSION}.so"


def built() -> str | None:
    """SHA-256 of the extension that a cell loads, None when there is none; imports nothing.

    With it an offloaded cell has another optimizer; pure bf16 needs it.
    """
    try:
        return fingerprint.hash_of_file(library())
    except (metadata.PackageNotFoundError, OSError):
        return None


def load() -> bool:
    """Hand DeepSpeed the extension that was built; False when there is none. Never compiles.

    Raises:
        UserError: it is there and cannot be loaded.
    """
    path = library()
    if not path.is_file():
        return False
    from deepspeed.ops.op_builder.builder import OpBuilder

    try:
        spec = importlib.util.spec_from_file_location(EXTENSION, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise UserError(f"{path}: cannot be loaded ({error}); build it again: {BUILD}") from None
    OpBuilder._loaded_ops[EXTENSION] = module  # looked up before anything is compiled
    return True


def build() -> Path:
    """Compile the extension; takes a minute.

    Raises:
        UserError: a tool is missing, or the compiler failed; one line.
    """
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        raise UserError(
            f"offload-ops: no C++ compiler ('{compiler}'); install g++ (Debian: apt-get install "
            "g++) or set CXX to one program, which is how torch reads it. Offloading works without "
            "it, with torch.optim.AdamW"
        )
    try:
        path = library()
        os.environ["TORCH_EXTENSIONS_DIR"] = str(path.parent.parent)
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # the host's extension, whatever the device
        from deepspeed.ops.op_builder.cpu import CPUAdamBuilder
        from torch.utils.cpp_extension import verify_ninja_availability

        verify_ninja_availability()
        CPUAdamBuilder().load(verbose=False)
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise UserError(
            f"offload-ops: {error}; install this host's pins: pip install -r envs/cpu.txt "
            "(envs/cuda.txt with an NVIDIA GPU)"
        ) from None
    except Exception as error:  # DeepSpeed's own, such as MissingCUDAException, too
        lines = str(error).strip().splitlines() or [type(error).__name__]
        errors = [line for line in lines if "error:" in line] or lines
        if packages.NO_NVCC in errors[0]:
            errors = [f"{errors[0]}: {packages.fix('deepspeed', errors[0])}"]
        raise UserError(f"offload-ops: {EXTENSION} was not built: {errors[0]}") from error
    return path


def main() -> None:
    """Build the extension, unless it exists, and print its path."""
    print(build())


if __name__ == "__main__":
    options.run(main)
