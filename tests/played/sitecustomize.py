"""Python runs this at its start where this folder is on PYTHONPATH: torch then finds played GPUs.

`SILICONPROF_PLAYED` says which, as JSON: `gpus` (names of `device.CARDS` with `uuid`), `library`
(cuda.cpp compiled), and what goes wrong with them: `lost_after` that many kernels.
"""

import ctypes
import importlib.abc
import importlib.util
import json
import os
import sys


class AfterTorch(importlib.abc.MetaPathFinder):
    """Plays the devices as soon as torch is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)  # it may only be asked whether torch is there
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def and_play(module):
            played = json.loads(os.environ["SILICONPROF_PLAYED"])
            ctypes.CDLL(played["library"])  # torch asks for its hooks while it is imported
            execute(module)
            import played_cuda

            played_cuda.install(played)

        spec.loader.exec_module = and_play
        return spec


if os.environ.get("SILICONPROF_PLAYED"):
    sys.meta_path.insert(0, AfterTorch())

if os.environ.get("COVERAGE_PROCESS_START"):  # see benchmarks/coverage.py
    import coverage

    coverage.process_startup()
