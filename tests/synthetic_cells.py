"""Cells of every kind but plain trainings, with numbers that can be worked out: SYNTHETIC, all of them.

Operations, grids of small transformers, whole trainings, sweeps and the networks of Daniel 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product as combinations
from typing import Any

from synthetic_results import (
    PHASES,
    SHA,
    around,
    base_record,
    flagged,
    kernel_launch,
    matmul,
    metered,
    probed,
    sampled,
    training,
    without_result,
)

CACHE_BYTES = 2**25
PEAK = 1e11  # FLOP/s of the fastest product, which is what is expected of a grid
SLOW = 3.0  # times as long as expected every point takes at batch 1
STEPS = 100  # of a whole training
PARAMETERS = {"mlp": 435_402, "cnn": 93_322, "lstm": 81_674}
# Seconds of a step by network and batch size. An epoch is 1000 steps at batch 32 and 250 at 128;
# validation takes a quarter of the training.
CPU_STEPS = {"mlp": {32: 0.002, 128: 0.004}, "lstm": {32: 0.010, 128: 0.020}}
GPU_STEPS = {"mlp": {32: 0.004, 128: 0.002}, "lstm": {32: 0.001, 128: 0.001}}


# -- operations ---------------------------------------------------------------------------------


def point(params: Mapping[str, Any], seconds: float, **more: Any) -> dict[str, Any]:
    """A measured point whose single calls lie within 1 % of `seconds`."""
    return {
        "params": dict(params),
        "flops": None,
        "bytes": None,
        "memory": {},
        "result_error": 2e-7,
        "times": {"step_s": around(seconds)},
        "stopped_by": "interval",
        "burst_mean_s": 0.98 * seconds,
    } | more


def product(shape: Sequence[int], flop_per_s: float, **params: Any) -> dict[str, Any]:
    """A product at a throughput."""
    batch, m, k, n = shape
    flops = 2.0 * batch * m * k * n
    named = dict(zip(("batch", "m", "k", "n"), shape, strict=True))
    return point(
        named | params, flops / flop_per_s, flops=flops, bytes=4 * batch * (m * k + k * n + m * n)
    )


def products(points: Sequence[dict[str, Any]], **axes: Any) -> dict[str, Any]:
    """A cell of products."""
    workload = axes.pop("workload", "matmul-small")
    return base_record("matmul", workload, **axes) | {"points": list(points)}


def fastest(flop_per_s: float, **axes: Any) -> dict[str, Any]:
    """A cell of one product with that throughput."""
    return products([product((1, 512, 512, 512), flop_per_s)], **axes)


def bandwidth(memory: float, cached: float, **axes: Any) -> dict[str, Any]:
    """A curve: so many bytes per second from memory, and from the caches."""
    made = base_record("bandwidth", "bandwidth", **axes)
    for kernel in ("copy", "triad", "reduction"):
        for size in (2**15, 2**19, 2**23, 4 * CACHE_BYTES):
            for cache in ("warm", "cold"):
                warm = cache == "warm" and size < CACHE_BYTES
                if cache == "cold" and size > CACHE_BYTES:
                    continue
                rate = (cached if warm else memory) * (1.1 if kernel == "triad" else 1.0)
                params = {"kernel": kernel, "working_set_bytes": size, "cache": cache}
                bound = warm and memory > 1e12  # 8 MiB from a GPU's cache take less than a launch
                made["points"].append(point(params, size / rate, bytes=size, launch_bound=bound))
    cache = {"last_level_cache_bytes": CACHE_BYTES, "last_level_cache_source": "the kernel"}
    made["method"] = {"bandwidth": cache}
    return made


def matvec(rates: Mapping[tuple[int, int, str], float], **axes: Any) -> dict[str, Any]:
    """(m, k, cache) -> bytes per second."""
    made = base_record("matvec", "matvec", **axes)
    for (m, k, cache), rate in rates.items():
        params = {"batch": 1, "m": m, "k": k, "n": 1, "cache": cache}
        size = 4 * (m * k + m + k)
        made["points"].append(point(params, size / rate, bytes=size, flops=2.0 * m * k))
    return made


def vjp(rates: Mapping[tuple[int, str], float], **axes: Any) -> dict[str, Any]:
    """(side, with or without the forward pass) -> FLOP/s."""
    made = base_record("vjp", axes.pop("workload", "vjp"), **axes)
    for (n, forward), rate in rates.items():
        flops = (6.0 if forward == "with" else 4.0) * n**3
        params = {"batch": 1, "m": n, "k": n, "n": n, "forward": forward}
        made["points"].append(point(params, flops / rate, flops=flops, bytes=20 * n * n))
    return made


def transfers(bytes_per_s: float, **axes: Any) -> dict[str, Any]:
    """Both directions, pinned and not."""
    made = base_record("copy", "copy", **axes)
    for direction in ("host-to-device", "device-to-host"):
        for pinned in (True, False):
            rate = bytes_per_s * (1.0 if pinned else 0.4)
            params = {"direction": direction, "pinned": pinned, "transfer_bytes": 2**28}
            made["points"].append(point(params, 2**28 / rate, bytes=2**28))
    return made


def first_touch(**axes: Any) -> dict[str, Any]:
    """A page in 250 ns."""
    made = base_record("first_touch", "first-touch", **axes)
    params = {"pages": 4096, "page_size_bytes": 4096}
    own = {"quantities": {"fault_s_per_page": 250e-9}, "result_error": None}
    made["points"] = [point(params, 4096 * 270e-9, bytes=4096 * 4096, **own)]
    return made


# -- small transformers -------------------------------------------------------------------------


def params(n_layer: int, n_embd: int, batch_size: int = 4, **more: Any) -> dict[str, Any]:
    """Parameters of a point, as the model gives them; sizes need not be exact here."""
    return {
        "n_layer": n_layer,
        "n_embd": n_embd,
        "n_head": 4,
        "head_dim": n_embd // 4,
        "d_ff": 8 * n_embd // 3,
        "seq_len": 64,
        "batch_size": batch_size,
        "vocab_size": 512,
        "n_parameters": 12 * n_layer * n_embd**2,
        "n_trainable_parameters": 12 * n_layer * n_embd**2,
        "samples_per_step": batch_size,
        "tokens_per_step": 64 * batch_size,
    } | more


def grid_point(n_layer: int, n_embd: int, batch_size: int, tool: bool, **more: Any) -> dict:
    """A point: the first sample takes SLOW times what is expected, every other 1.5 times."""
    told = params(n_layer, n_embd, batch_size)
    each = 6.0 * told["n_parameters"] * 64
    seconds = each / PEAK * (SLOW + 1.5 * (batch_size - 1))
    autorange: dict[str, Any] = {"reason": "torch.utils.benchmark times torch alone"}
    if tool:
        autorange = {
            "reason": None,
            "min_run_time_s": 0.01,
            "number_per_run": 2,
            "times_s": [(1.1 if n_layer == 2 else 1.2) * seconds] * 3,
            "shorter_than_one_iteration": seconds > 0.01,
        }
    return {
        "params": told,
        "status": "ok",
        "reason": None,
        "bytes": None,
        "flops": each * batch_size,
        "times": {"step_s": [seconds * (1 + 0.01 * (i - 2)) for i in range(5)]},
        "memory": {"device_peak_bytes": 2**20, "predicted_bytes": 2**20},
        "blocked_autorange": autorange,
    } | more


def lost(status: str, reason: str) -> dict[str, Any]:
    """A point that was not measured."""
    missing = {"times": {}, "blocked_autorange": {"reason": "not measured"}, "memory": {}}
    return grid_point(4, 256, 64, True, status=status, reason=reason, **missing)


def grid(points: Sequence[dict[str, Any]], **axes: Any) -> dict[str, Any]:
    """A cell of such points."""
    workload = axes.pop("workload", "grid-small")
    made = base_record("transformer_grid", workload, **axes)
    made["cell"]["parameters"] = {"gradient_checkpointing": False, "max_gradient_norm": 1.0}
    return made | {"points": list(points)}


def small_grid(tool: bool = True) -> list[dict[str, Any]]:
    """Eight points that were measured and two that were not."""
    found = [grid_point(*shape, tool) for shape in combinations((2, 4), (64, 128), (1, 8))]
    return [*found, lost("oom", "cannot allocate <3 GiB>"), lost("skipped", "predicted 61 GiB")]


def course(losses: Sequence[float | None], step_s: float) -> dict[str, Any]:
    """What a whole training records of its steps, which scatter by less than 1 %."""
    n_steps = len(losses)
    return {
        "times": {"step_s": [], "whole_step_s": (around(step_s) * 4)[:n_steps]},
        "loss": list(losses),
        "bytes": None,
        "curve": {
            "loss": list(losses),
            "gradient_norm": [1.0] * n_steps,
            "learning_rate": [0.001] * n_steps,
        },
    }


def whole_training(aspect: str, step_s: float, **axes: Any) -> dict[str, Any]:
    """A whole training of the wide or the deep model."""
    wide = aspect == "wide"
    trained = {"trainer": "training_run", "workload": f"lm-{aspect}", **axes}
    made = base_record("transformer_lm", trained.pop("workload"), **trained)
    told = params(4, 128) if wide else params(16, 64)
    shape = {name: told[name] for name in ("n_layer", "n_embd", "n_head", "seq_len", "vocab_size")}
    made["cell"]["parameters"] = shape | {"max_gradient_norm": 1.0}
    made["dataset"] = {"name": "text", "data_sha256": SHA, "vocab_size": 512}
    made["samples"] = sampled(9, faults=0)
    final = 3.0 if wide else 2.5
    evaluations = [
        {"step": step, "loss": loss, "perplexity": math.exp(loss), "seconds": 0.1}
        for step, loss in ((0, 6.0), (50, final + 0.1), (100, final + 0.25))
    ]
    point = {
        "params": told,
        "flops": 6.0 * told["n_parameters"] * 256,
        "memory": {"device_peak_bytes": 2**22, "predicted_bytes": 2**22},
        "steps": {
            "kind": ["whole"] * STEPS,
            "started_s": [0.01 * i for i in range(STEPS)],
            "minor_faults": [0] * STEPS,
            "major_faults": [0] * STEPS,
        },
        "evaluations": evaluations,
        "outcome": {"diverged": False, "reason": None, "final_loss": final},
        "checkpoints": {
            name: {"path": f"{name}.safetensors", "step": step, "bytes": 2**21, "sha256": SHA}
            for name, step in (("latest", 100), ("best", 50))
        },
    }
    point |= course([6.0 - 0.03 * i for i in range(STEPS)], step_s)
    point["loss"] += [final] * (9 if wide else 4)  # of unsynchronised steps, as many as time allows
    return made | {"points": [point]}


def sweep(**axes: Any) -> dict[str, Any]:
    """Three learning rates, with and without clipping; the largest diverges unless clipped."""
    made = base_record("optimizer_sweep", "optimizer", **axes)
    made["cell"]["parameters"] = {"learning_rate": 0.001, "betas": [0.9, 0.95]}
    for rate, clip in combinations((0.0001, 0.01, 1.0), (1.0, None)):
        diverged = rate == 1.0 and clip is None
        losses: list[float | None] = [6.0 - 0.05 * i for i in range(20)]
        if diverged:
            losses = [6.0, 9.0, None]
        told = params(2, 64, learning_rate=rate, max_gradient_norm=clip, warmup_steps=5)
        outcome = {"diverged": diverged, "reason": "loss not finite" if diverged else None}
        outcome |= {"final_loss": None if diverged else 4.0 + rate}
        own = {"params": told, "flops": 1e9, "memory": {}, "status": "ok", "reason": None}
        curve = course(losses, 0.01)
        made["points"].append(own | {"outcome": outcome} | curve)
    return made


def whole_study(**axes: Any) -> list[dict[str, Any]]:
    """What one host measures of the study, with a product to expect something by."""
    mlx = {"backend": "mlx"} | axes
    return [
        fastest(PEAK, **axes),
        training(0.01, **axes),
        grid(small_grid(), **axes),
        grid(small_grid(tool=False), **mlx),
        whole_training("wide", 0.010, **axes),
        whole_training("deep", 0.020, **axes),
        whole_training("wide", 0.030, **mlx),
        without_result(whole_training("deep", 0.1, **mlx), "timeout", "ran past 60 s at step 70"),
        sweep(**axes),
    ]


# -- networks -----------------------------------------------------------------------------------


def network(name: str, steps_s: Mapping[int, float], **axes: Any) -> dict[str, Any]:
    """A cell of one network, a point for each batch size; its steps scatter by 1 %."""
    made = base_record(name, axes.pop("workload", name), trainer="epochs", **axes)
    made["dataset"] = {"name": "garments", "data_sha256": SHA, "vocab_size": None}
    made["cell"]["parameters"] = {"batch_sizes": list(steps_s), "learning_rate": 0.001}
    for batch, seconds in steps_s.items():
        steps = 32_000 // batch
        train = steps * seconds
        phases = {phase: around(share * 1.02 * seconds) for phase, share in PHASES.items()}
        epoch = {"means": "measured", "steps": steps, "validation_steps": 10}
        epoch |= {"measured_steps": steps, "measured_validation_steps": 10}
        epoch |= {"train_s": [train], "validation_s": [train / 4], "epoch_s": [1.25 * train]}
        size = {"batch_size": batch, "samples_per_step": batch}
        times = {"step_s": around(seconds * 1.02), "whole_step_s": around(seconds)}
        made["points"].append(
            {
                "params": size | {"network": name, "n_parameters": PARAMETERS[name]},
                "times": times | {"warmup_step_s": [3 * seconds]} | phases,
                "flops": 1e6 * batch,
                "bytes": None,
                "loss": [2.3, 2.0, 1.8],
                "memory": {},
                "epoch": epoch,
                "test": {"accuracy": 0.75, "loss": 0.7, "samples": 400, "trained_steps": 63},
            }
        )
    return made


def cells(steps_s: Mapping[str, Mapping[int, float]], **axes: Any) -> list[dict[str, Any]]:
    """A cell for each network."""
    return [network(name, found, **axes) for name, found in steps_s.items()]


# -- everything ---------------------------------------------------------------------------------


def named(made: dict[str, Any], workload: str) -> dict[str, Any]:
    """The same as another cell."""
    return made | {"cell": made["cell"] | {"workload": workload}}


def everything() -> list[dict[str, Any]]:
    """A record of each kind that has all that its kind can have."""
    trained = probed(
        training(0.01, workload="gpt2-whole"),
        memory={"rss_at_start_bytes": 10**8, "rss_peak_sampled_bytes": 2 * 10**8},
        page_faults={"minor_faults": 900, "major_faults": 0, "page_size_bytes": 4096},
        clocks={"cpu_governor": "performance", "cpu_mhz_median": 3000.0},
        interference={"foreign_load_cores": 0.1},
    )
    metered(trained, {"rapl-package": 4.0})
    return [
        flagged(trained, noisy="step_s has an IQR of 15% of its median"),
        named(matmul(), "products"),
        named(kernel_launch(), "launch"),
        bandwidth(1e10, 5e10),
        grid(small_grid(), workload="grid"),
        whole_training("wide", 0.01, workload="lm-wide"),
        sweep(),
        network("mlp", {32: 0.002, 128: 0.004}),
    ]
