"""The environment a measuring process is started with."""

from __future__ import annotations

from siliconprof import plugins


def test_a_cuda_cell_sees_its_own_gpu_only():
    cuda = plugins.load("backends", "torch-cuda")
    assert cuda.environment(1, "fp32", {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    given = {"CUDA_VISIBLE_DEVICES": "4, GPU-8932f937"}  # as a scheduler hands GPUs out
    assert cuda.environment(1, "fp32", given) == {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}


def test_mlx_is_told_before_its_import_what_fp32_means():
    mlx = plugins.load("backends", "mlx")
    assert mlx.environment(0, "fp32", {}) == {"MLX_ENABLE_TF32": "0"}
    assert mlx.environment(0, "tf32", {}) == {"MLX_ENABLE_TF32": "1"}
