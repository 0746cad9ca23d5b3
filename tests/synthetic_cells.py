"""Cells of every kind but plain trainings, with numbers that can be worked out: SYNTHETIC, all of them.

Operations, grids of small transformers, whole trainings, sweeps and the networks of Daniel 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product as combinations
from typing import Any

from siliconprof.workloads import transformer_lm
from synthetic_results import (
    SHA,
    around,
    base_record,
    flagged,
    kernel_launch,
    matmul,
    metered,
    point,
    probed,
    training,
)

CACHE_BYTES = 2**25
PEAK = 1e11  # FLOP/s of the fastest product, which is what is expected of a grid
STEPS = 100  # of a whole training
PARAMETERS = {"mlp": 435_402, "cnn": 93_322, "lstm": 81_674}


# -- operations ---------------------------------------------------------------------------------


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
    """Parameters of a point, as the model gives them."""
    shape = {"n_layer": n_layer, "n_embd": n_embd, "n_head": 4, "seq_len": 64, "vocab_size": 512}
    return transformer_lm.Plugin(shape | {"batch_size": batch_size}).sizes() | more


def grid_point(n_layer: int, n_embd: int, batch_size: int, tool: bool, **more: Any) -> dict:
    """A point: the first sample takes three times what is expected, every other 1.5 times."""
    sizes = params(n_layer, n_embd, batch_size)
    each = 6.0 * sizes["n_parameters"] * 64
    seconds = each / PEAK * (1.5 + 1.5 * batch_size)
    autorange: dict[str, Any] = {"reason": "torch.utils.benchmark times torch alone"}
    if tool:
        autorange = {"reason": None, "times_s": [1.1 * seconds] * 3}
        autorange |= {"min_run_time_s": 0.01, "number_per_run": 2}
        autorange |= {"shorter_than_one_iteration": seconds > 0.01}
    memory = {"device_peak_bytes": 2**20, "predicted_bytes": 2**20}
    own = {"status": "ok", "reason": None, "memory": memory, "blocked_autorange": autorange}
    return point(sizes, seconds, flops=each * batch_size, burst_mean_s=None) | own | more


def grid(points: Sequence[dict[str, Any]], **axes: Any) -> dict[str, Any]:
    """A cell of such points."""
    workload = axes.pop("workload", "grid-small")
    made = base_record("transformer_grid", workload, **axes)
    made["cell"]["parameters"] = {"gradient_checkpointing": False, "max_gradient_norm": 1.0}
    return made | {"points": list(points)}


def small_grid(tool: bool = True) -> list[dict[str, Any]]:
    """Eight points that were measured and two that were not."""
    found = [grid_point(*shape, tool) for shape in combinations((2, 4), (64, 128), (1, 8))]
    missing = {"times": {}, "blocked_autorange": {"reason": "not measured"}, "memory": {}}
    lost = {"oom": "cannot allocate <3 GiB>", "skipped": "predicted 61 GiB"}
    for status, reason in lost.items():
        found.append(grid_point(4, 256, 64, True, status=status, reason=reason, **missing))
    return found


def curve(losses: Sequence[float | None]) -> dict[str, Any]:
    """What a point records of every step of its training."""
    rates = {"gradient_norm": [1.0] * len(losses), "learning_rate": [0.001] * len(losses)}
    return {"loss": list(losses), "curve": {"loss": list(losses)} | rates}


def whole_training(aspect: str, step_s: float, **axes: Any) -> dict[str, Any]:
    """A whole training of the wide or the deep model."""
    wide = aspect == "wide"
    run = {"trainer": "training_run", "module": "transformer_lm", "workload": f"lm-{aspect}"}
    made = training(step_s, **run | axes)
    sizes = params(4, 128) if wide else params(16, 64)
    shape = {name: sizes[name] for name in ("n_layer", "n_embd", "n_head", "seq_len", "vocab_size")}
    made["cell"]["parameters"] = shape | {"max_gradient_norm": 1.0}
    final = 3.0 if wide else 2.5
    evaluations = [
        {"step": step, "loss": loss, "perplexity": math.exp(loss), "seconds": 0.1}
        for step, loss in ((0, 6.0), (50, final + 0.1), (100, final + 0.25))
    ]
    (point,) = made["points"]
    point |= curve([6.0 - 0.03 * i for i in range(STEPS)])
    point["loss"] += [final] * (9 if wide else 4)  # of unsynchronised steps, as many as time allows
    point |= {
        "params": sizes,
        "flops": 6.0 * sizes["n_parameters"] * 256,
        "memory": {"device_peak_bytes": 2**22, "predicted_bytes": 2**22},
        "evaluations": evaluations,
        "outcome": {"diverged": False, "reason": None, "final_loss": final},
        "checkpoints": {
            name: {"path": f"{name}.safetensors", "step": step, "bytes": 2**21, "sha256": SHA}
            for name, step in (("latest", 100), ("best", 50))
        },
    }
    return made


def sweep(**axes: Any) -> dict[str, Any]:
    """Three learning rates, with and without clipping; the largest diverges unless clipped."""
    made = base_record("optimizer_sweep", "optimizer", **axes)
    made["cell"]["parameters"] = {"learning_rate": 0.001, "betas": [0.9, 0.95]}
    for rate, clip in combinations((0.0001, 0.01, 1.0), (1.0, None)):
        diverged = rate == 1.0 and clip is None
        losses: list[float | None] = [6.0 - 0.05 * i for i in range(20)]
        if diverged:
            losses = [6.0, 9.0, None]
        sizes = params(2, 64, learning_rate=rate, max_gradient_norm=clip, warmup_steps=5)
        outcome = {"diverged": diverged, "reason": "loss not finite" if diverged else None}
        outcome |= {"final_loss": None if diverged else 4.0 + rate}
        times = {"step_s": [], "whole_step_s": around(0.01)[: len(losses)]}
        own = {"times": times, "status": "ok", "reason": None, "outcome": outcome}
        made["points"].append(
            point(sizes, 0.01, flops=1e9, burst_mean_s=None) | own | curve(losses)
        )
    return made


# -- networks -----------------------------------------------------------------------------------


def network(name: str, steps_s: Mapping[int, float], **axes: Any) -> dict[str, Any]:
    """A cell of one network, a point for each batch size; its steps scatter by 1 %."""
    made = base_record(name, axes.pop("workload", name), trainer="epochs", **axes)
    made["dataset"] = {"name": "garments", "data_sha256": SHA, "vocab_size": None}
    made["cell"]["parameters"] = {"batch_sizes": list(steps_s), "learning_rate": 0.001}
    for batch, seconds in steps_s.items():
        steps = 32_000 // batch
        train = steps * seconds
        epoch = {"means": "measured", "steps": steps, "validation_steps": 10}
        epoch |= {"measured_steps": steps, "measured_validation_steps": 10}
        epoch |= {"train_s": [train], "validation_s": [train / 4], "epoch_s": [1.25 * train]}
        (measured,) = training(seconds)["points"]
        made["points"].append(
            measured
            | {
                "params": {"batch_size": batch, "samples_per_step": batch, "network": name}
                | {"n_parameters": PARAMETERS[name]},
                "flops": 1e6 * batch,
                "epoch": epoch,
                "test": {"accuracy": 0.75, "loss": 0.7, "samples": 400, "trained_steps": 63},
            }
        )
    return made


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
