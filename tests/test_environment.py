"""The environment a measuring process is started with, and what a record says of it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from conftest import ROOT
from siliconprof import closure, plugins
from siliconprof.hosts import environment

# What a module is installed as, where that is another name.
DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
# These read, check or fetch files; no number comes from them.
NOT_IN_NUMBERS = {"huggingface-hub", "jsonschema", "yaml"}


def test_a_cuda_cell_sees_its_own_gpu_only():
    cuda = plugins.load("backends", "torch-cuda")
    assert cuda.environment(1, "fp32", {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    given = {"CUDA_VISIBLE_DEVICES": "4, GPU-8932f937"}  # as a scheduler hands GPUs out
    assert cuda.environment(1, "fp32", given) == {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}


def test_mlx_is_told_before_its_import_what_fp32_means():
    mlx = plugins.load("backends", "mlx")
    assert mlx.environment(0, "fp32", {}) == {"MLX_ENABLE_TF32": "0"}
    assert mlx.environment(0, "tf32", {}) == {"MLX_ENABLE_TF32": "1"}


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


def test_a_record_has_the_version_of_all_that_its_numbers_depend_on():
    """Of every library that a measuring process can import, and that a plug-in names."""
    every = [
        plugins.module_name(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)
    ]
    files = closure.files(["siliconprof.measure.supervise", "siliconprof.measure.worker", *every])
    modules = set().union(*(imported(ROOT / file) for file in files))
    assert {"torch", "mlx_audio", "pynvml", "zeus_apple_silicon", "safetensors"} <= modules
    foreign = modules - set(sys.stdlib_module_names) - {"siliconprof"}
    needed = {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in foreign}
    for name in plugins.names("trainers"):
        trainer = plugins.load("trainers", name)
        needed |= {*trainer.packages("torch"), *trainer.OFFLOAD_LIBRARIES}
    told = environment.capture(ROOT)["packages"]
    assert needed - NOT_IN_NUMBERS <= told.keys()
