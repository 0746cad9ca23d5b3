"""What was written from documentation, held against the card: one line a finding, `ok` or `LOOK`.

    PYTHONPATH=workflow python benchmarks/accelerator/checks.py [--backend torch-cuda] [--seconds 60]

Run on an otherwise idle GPU. Every part stands alone: one that fails prints its error and the next
begins. With `--backend torch-cpu` the parts that need no GPU run, to test this file.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from siliconprof import plugins
from siliconprof.backends.base import ERROR_BANDS
from siliconprof.hosts.sensors import sources
from siliconprof.session.timing import Plan, repeat, row_s

SMALL = False  # sizes for a test of this file
BEGAN = time.perf_counter()


def say(ok: bool | None, name: str, text: str) -> None:
    mark = "    " if ok is None else "ok  " if ok else "LOOK"
    print(f"{mark} {name}: {text}", flush=True)


def opened(name: str, precision: str) -> Any:
    backend = plugins.load("backends", name)()
    kind = "gpu" if name != "torch-cpu" else "cpu"
    backend.open(kind, 0, 8, precision)
    return backend


def training(backend: Any, batch_size: int, seq_len: int) -> tuple[Any, Any]:
    """(stepper, batch) of GPT-2 small."""
    plugin, shape = plugins.load("workloads", "gpt2"), (batch_size, 32 if SMALL else seq_len)
    own = {"size": "nano" if SMALL else "small", "batch_size": shape[0], "seq_len": shape[1]}
    work = plugin({**plugin.defaults(), "dataset_vocab_size": 1024, **own})
    tokens = np.random.default_rng(0).integers(0, work.vocab_size, shape).astype(np.int32)
    return backend.stepper(work, 0), {"input_ids": tokens, "labels": tokens.copy()}


class Edges:
    """A clock without split, or one that marks its edges."""

    def __init__(self, backend: Any, split: bool = False) -> None:
        self.backend, self.split, self.waits = backend, split, True
        self.marks: list[tuple[str, Any]] = []

    def edge(self, phase: str) -> None:
        if self.split:
            self.marks.append((phase, self.backend.clock.mark()))

    n_edges = property(lambda self: len(self.marks))

    def phase_at(self, edges: int) -> str:
        return self.marks[edges][0] if edges < len(self.marks) else "other_s"


def queue(name: str, torch: Any) -> None:
    """How deep the queue is: `queue_depth` says 1000."""
    if name != "torch-cuda":
        return
    backend = opened(name, "fp32")
    kernel, note = backend.kernels.empty()
    say(kernel is not None, "empty kernel", note)
    one, times = backend.arrays.normal((1,), 0), []
    backend.kernels.add_one(one)  # the first loads its code, and waits for that
    backend.clock.synchronize()
    torch.cuda._sleep(200_000_000)
    for _ in range(3000):
        began = time.perf_counter()
        backend.kernels.add_one(one)
        times.append(time.perf_counter() - began)
    backend.clock.synchronize()
    first = next((i for i, t in enumerate(times) if t > 1e-3), None)
    text = f"the first launch that waits behind a sleep is number {first}"
    say(first is None or first >= 1000, "queue depth", text)


def operators(name: str, torch: Any) -> None:
    """The operators' times against the profiler's kernels, and what a watched step costs."""
    backend = opened(name, "amp-bf16")
    stepper, data = training(backend, 16, 512)
    for _ in range(4):
        stepper.step(data, Edges(backend))()
    walls, handed = [], []
    for _ in range(5):
        backend.clock.synchronize()
        began = time.perf_counter()
        read = stepper.step(data, Edges(backend))
        handed.append(time.perf_counter() - began)
        backend.clock.synchronize()
        walls.append(time.perf_counter() - began)
        read()
    step_s = statistics.median(walls)
    handed_s = statistics.median(handed)
    say(None, "step", f"{step_s * 1e3:.2f} ms, handed over after {handed_s * 1e3:.2f} ms")
    clock = Edges(backend, split=True)
    with backend.profiler.describe_step(clock) as found:
        stepper.step(data, clock)()
        clock.edge("other_s")
        backend.clock.synchronize()
    flops, roles = sum(o.flops or 0 for o in found), {o.role for o in found}
    text = f"{len(found)} operators, {flops:.3g} FLOP, {len(roles)} roles"
    say(None, "kernels", f"{backend.profiler.implementations(found)}; {text}")
    outside = sum(o.role == "outside the model" and o.phase == "backward_s" for o in found)
    text = f"{outside} operators of the backward pass without a module"
    say(outside < 0.2 * len(found), "roles", text)
    sums, watched = [], []
    for _ in range(3):
        backend.clock.synchronize()
        began = time.perf_counter()
        with backend.profiler.time_step() as timed:
            stepper.step(data, Edges(backend))()
        backend.clock.synchronize()
        watched.append(time.perf_counter() - began)
        sums.append(sum(s for _, s in timed))
    alike = [k for k, _ in timed] == [o.kind for o in found]
    say(alike, "same operators", f"in the described and the timed step: {len(found)}, {len(timed)}")
    together = ", ".join(f"{seconds * 1e3:.2f}" for seconds in sums)
    lasts = ", ".join(f"{seconds / step_s:.1f}" for seconds in watched)
    text = f"{together} ms of the step's {step_s * 1e3:.2f}; a watched step lasts {lasts} steps"
    say(abs(sums[-1] / step_s - 1) < 0.15, "sum of operators", text)
    if name != "torch-cuda":
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        stepper.step(data, Edges(backend))()
        backend.clock.synchronize()
    on_device = [e for e in profiler.events() if e.device_type.name == "CUDA"]
    kernels = [e.time_range.elapsed_us() for e in on_device if not e.is_user_annotation]
    launches = backend.profiler.count_launches(lambda: stepper.step(data, Edges(backend)))
    text = f"{launches} operators on the device, {len(kernels)} kernels, copies and fills"
    say(launches is not None and len(kernels) < 2 * launches, "launches of a step", text)
    kernels_s = sum(kernels) / 1e6
    text = f"operators {sums[-1] * 1e3:.2f} ms, its kernels {kernels_s * 1e3:.2f} ms"
    say(abs(sums[-1] / kernels_s - 1) < 0.05, "against the profiler", text)


def in_turn(
    pairs: int, gpu: Any, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float, str]:
    """(our median of some pairs, theirs, a text); which side is the first of a pair alternates.

    The text has each pair's difference, and each side's SM clock at its end and mean power.
    """
    times: dict[Any, list[float]] = {ours: [], theirs: []}
    clocks, watts = ({side: [] for side in times} for _ in range(2))
    meter = gpu.energy()
    for turn in range(pairs):
        for side in (theirs, ours) if turn % 2 else (ours, theirs):
            before, began = meter and meter.read().get("nvml-counter"), time.perf_counter()
            times[side].append(side())
            if before is not None:
                clocks[side].append(gpu.clocks()["gpu_sm_clock_mhz"] or 0)
                joules = meter.read()["nvml-counter"] - before
                watts[side].append(joules / (time.perf_counter() - began))
    each = zip(times[ours], times[theirs], strict=True)
    text = ", ".join(f"{one / other - 1:+.1%}" for one, other in each)
    for side, who in ((ours, "ours"), (theirs, "theirs")):
        if watts[side]:
            shown = zip(clocks[side], watts[side], strict=True)
            text += f"; {who} at {', '.join(f'{mhz} MHz {w:.0f} W' for mhz, w in shown)}"
    return statistics.median(times[ours]), statistics.median(times[theirs]), text


def independent(name: str, torch: Any) -> None:
    """Our times against torch.utils.benchmark, and our step against a bare loop, in turn."""
    from torch.utils.benchmark import Timer

    def ours_s(operation: Any) -> float:
        plan = Plan(warmup_budget_s=0.3, budget_s=0.5, max_iterations=200)
        return statistics.median(repeat(operation, backend.clock, plan, lambda *_: None).times_s)

    def timer_s(operation: Any) -> float:
        timer = Timer("operation()", globals={"operation": operation})
        return float(timer.blocked_autorange(min_run_time=0.5).median)

    def against(what: str, operation: Any, work: float, unit: str) -> None:
        sides = partial(ours_s, operation), partial(timer_s, operation)
        ours, theirs, each = in_turn(3, gpu, *sides)
        text = f"{ours * 1e3:.4f} ms, torch.utils.benchmark {theirs * 1e3:.4f} ms, "
        text += f"{work / theirs / 1e12:.3g} {unit}: {ours / theirs - 1:+.2%} ({each})"
        say(abs(ours / theirs - 1) < 0.02, what, text)

    backend = opened(name, "bf16")
    gpu = sources.gpu(backend.gpu_address)
    side, count = (256, 2**20) if SMALL else (8192, 2**31)
    a, b = backend.arrays.normal((side, side), 0), backend.arrays.normal((side, side), 1)
    product = partial(backend.arrays.matmul, a, b)
    against(f"product of side {side}", product, 2 * side**3, "TFLOP/s")
    time.sleep(2)
    for _ in range(3):
        product()
    seconds = row_s(product, backend.clock, 10)
    text = f"{2 * side**3 / seconds / 1e12:.0f} TFLOP/s, mean of ten after two idle seconds"
    say(None, f"product of side {side}, cool", text)
    del a, b, product
    source = torch.ones(count, dtype=torch.bfloat16, device=backend.device)
    into = torch.empty_like(source)
    copy = partial(into.copy_, source)
    against("copy on the device", copy, 4 * count, "TB/s")
    del source, into, copy
    backend.memory.empty_cache()

    backend = opened(name, "amp-bf16")
    stepper, data = training(backend, 16, 512)
    model = stepper.workload.torch.model(0).to(backend.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    tokens = torch.from_numpy(data["input_ids"]).long().to(backend.device)

    def bare() -> None:
        with torch.autocast(backend.device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def ours() -> None:
        stepper.step(data, Edges(backend))()

    mine, theirs, each = in_turn(5, gpu, partial(ours_s, ours), partial(ours_s, bare))
    text = f"{mine * 1e3:.3f} ms, a bare loop {theirs * 1e3:.3f} ms: {mine / theirs - 1:+.2%}"
    say(abs(mine / theirs - 1) < 0.02, "step of GPT-2", f"{text} ({each})")


def scaler(name: str, torch: Any) -> None:
    """amp-fp16: skipped updates at the start, and where the host waits."""
    if name != "torch-cuda":
        return
    backend = opened(name, "amp-fp16")
    stepper, data = training(backend, 8, 256)
    scales = []
    for _ in range(8):
        stepper.step(data, Edges(backend))()
        scales.append(stepper.scaler.get_scale())
    updates = max(int(s["step"]) for s in stepper.optimizer.state.values())
    text = f"{updates} of 8 updates; scales {', '.join(f'{s:g}' for s in scales)}"
    say(updates == 8, "amp-fp16", text)


def sensors(name: str, torch: Any) -> None:
    """NVML: what it answers, what a query costs, how often the counters move."""
    backend = opened(name, "fp32")
    gpu = sources.gpu(backend.gpu_address)
    if gpu.reason:
        say(name == "torch-cpu", "sensors", gpu.reason)
        return
    import os

    for what in ("clocks", "state", "power_limit_w", "processes"):
        function = getattr(gpu, what)
        function()
        began = time.perf_counter()
        answer = function()
        cost = time.perf_counter() - began
        say(cost < 5e-3, what, f"{answer} in {cost * 1e3:.2f} ms")
    listed = gpu.processes() or []
    say(os.getpid() in {pid for pid, _ in listed}, "own process", f"{os.getpid()} among {listed}")
    unanswered = getattr(gpu, "unanswered", {})
    say(not unanswered, "unanswered", str(unanswered))
    meter: Any = gpu.energy()
    side = 256 if SMALL else 4096
    a = backend.arrays.normal((side, side), 0)
    smi = "nvidia-smi --query-gpu=power.draw.instant --format=csv,noheader,nounits -lms 50"
    for state in ("idle", "busy"):
        backend.clock.synchronize()
        time.sleep(1.0)
        seen: dict[str, list[tuple[float, float]]] = {}
        watching = subprocess.Popen(smi.split(), stdout=subprocess.PIPE, text=True)
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < 4.0:
            for source, value in meter.read().items():
                values = seen.setdefault(source, [])
                if not values or values[-1][1] != value:
                    values.append((now, value))
            if state == "busy":
                for _ in range(5):
                    backend.arrays.matmul(a, a)
                backend.clock.synchronize()
            else:
                time.sleep(0.002)
        backend.clock.synchronize()
        watching.terminate()
        shown = [float(line) for line in watching.communicate()[0].split()]
        theirs = statistics.fmean(shown[2:]) if len(shown) > 4 else 0.0
        for source, values in seen.items():
            text = f"{len(values) - 1} changes in 4 s"
            if source == "nvml-counter":
                late = [v for v in values if v[0] > 1] or values[:1]  # nvidia-smi has begun by then
                watts = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0] or 1)
                both = f"{watts:.1f} W, nvidia-smi {theirs:.1f} W, mean of {len(shown)} readings"
                say(abs(watts - theirs) < 0.05 * theirs, f"power by the counter, {state}", both)
            else:
                text += f", {statistics.median(v for _, v in values):.0f} W"
            say(len(values) > 5, f"{source}, {state}", text)
    for source in meter.sources:
        say(source.reason is None, source.name, source.reason or source.means[:60])


def versions(name: str, torch: Any) -> None:
    backend = opened(name, "fp32")
    say(None, "device", str(backend.describe()))
    cache = backend.memory.last_level_cache()
    say(bool(cache[0]), "last-level cache", str(cache))
    if name == "torch-cuda":
        free, total = torch.cuda.mem_get_info()
        own = torch.cuda.get_device_properties(0).total_memory
        say(own == total, "memory", f"total {total}, properties {own}, free {free}")


def precision(name: str, torch: Any) -> None:
    """The error of a product in every precision, and how far it is from its band's ends."""
    wanted = {"fp32": "fp32", "tf32": "tf32-or-fp16", "fp16": "tf32-or-fp16", "bf16": "bf16"}
    for asked in ("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16"):
        if name == "torch-cpu" and asked == "tf32":
            continue
        backend = opened(name, asked)
        proofs = [backend.prove_precision(seed) for seed in (0, 2, 4)]
        errors = [proof["product_error"] for proof in proofs]
        band = wanted[asked.removeprefix("amp-")]
        low, high = next((low, high) for n, low, high in ERROR_BANDS if n == band)
        ok = all(low <= error < high for error in errors)
        sized = []
        for side in (64,) if SMALL else (64, 1024, 4096):
            a, b = backend.arrays.normal((side, side), 1), backend.arrays.normal((side, side), 2)
            rows = backend.arrays.matmul(a, b)[:64]
            sized.append(backend.arrays.relative_error(rows, lambda x, y: x @ y, a[:64], b))
        room = high / max(errors)
        first, others = (", ".join(f"{e:.2e}" for e in some) for some in (errors, sized))
        text = f"errors {first}, {room:.2f} below the band's end; other sizes: {others}"
        say(ok and room > 1.15, f"precision {asked}", text)
    opened(name, "fp32")
    if name == "torch-cuda":  # a convolution is not in the proof
        x, w = torch.randn(8, 64, 400), torch.randn(64, 64, 3)
        out = torch.nn.functional.conv1d(x.cuda(), w.cuda()).cpu().double()
        ref = torch.nn.functional.conv1d(x.double(), w.double())
        error = float((out - ref).norm() / ref.norm())
        say(error < 1e-5, "convolution in fp32", f"error {error:.1e}: cuDNN's tf32 is off")


def clocks(name: str, torch: Any) -> None:
    """Marks against the host's clock, and the cost of a mark."""
    backend = opened(name, "fp32")
    side = 256 if SMALL else 2048
    a = backend.arrays.normal((side, side), 0)
    for _ in range(5):
        backend.arrays.matmul(a, a)
    backend.clock.synchronize()
    start, began = backend.clock.mark(), time.perf_counter()
    for _ in range(50):
        backend.arrays.matmul(a, a)
    end = backend.clock.mark()
    handed = time.perf_counter() - began
    backend.clock.synchronize()
    wall = time.perf_counter() - began
    ratio = backend.clock.seconds_between(start, end) / wall
    text = f"{ratio:.3f} of the wall's {wall * 1e3:.2f} ms; handed over after {handed * 1e3:.2f} ms"
    say(abs(ratio - 1) < 0.1, "marks", text)
    began = time.perf_counter()
    for _ in range(1000):
        backend.clock.mark()
    cost = (time.perf_counter() - began) / 1000
    say(cost < 2e-5, "cost of a mark", f"{cost * 1e6:.2f} us")


def sleeping(name: str, torch: Any) -> None:
    """Whether a sleep of `torch.cuda._sleep`, which hides launches, lasts as long as is asked for."""
    if name != "torch-cuda":
        return
    from siliconprof.backends._cuda_operators import CYCLES_PER_S

    backend, rates = opened(name, "fp32"), []
    for _ in range(4):
        backend.clock.synchronize()
        start = backend.clock.mark()
        torch.cuda._sleep(10_000_000)
        end = backend.clock.mark()
        backend.clock.synchronize()
        rates.append(10_000_000 / backend.clock.seconds_between(start, end))
    text = f"{', '.join(f'{r / 1e6:.0f}' for r in rates)} MHz, at most {CYCLES_PER_S / 1e6:.0f}"
    say(max(rates) <= CYCLES_PER_S, "cycles of a sleep", text)


def transfers(name: str, torch: Any) -> None:
    """Whether a batch's copy waits for all that came before: then no step runs freely."""
    if name != "torch-cuda":
        return
    for pinned in (False, True):
        source = torch.zeros(8192, dtype=torch.int64, pin_memory=pinned)
        source.cuda()
        torch.cuda.synchronize()
        torch.cuda._sleep(50_000_000)
        began = time.perf_counter()
        source.to("cuda", non_blocking=pinned)
        waited = time.perf_counter() - began
        torch.cuda.synchronize()
        all_s = time.perf_counter() - began
        how = "pinned, non_blocking, as the steps do" if pinned else "pageable"
        text = f"returns after {waited * 1e3:.2f} of {all_s * 1e3:.2f} ms of earlier work"
        say(waited < 0.2 * all_s or not pinned, f"copy of a batch, {how}", text)


# In their order: what an H200 has not answered yet comes first.
PARTS = (
    *(queue, operators, independent, scaler, sensors, versions),
    *(precision, clocks, sleeping, transfers),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="torch-cuda")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--small", action="store_true", help="sizes for a test of this file")
    arguments = parser.parse_args()
    global SMALL
    SMALL = arguments.small
    import torch

    for function in PARTS:
        if arguments.only and function.__name__ not in arguments.only:
            continue
        if time.perf_counter() - BEGAN > arguments.seconds:
            say(None, function.__name__, "not run: the time is spent")
            continue
        began = time.perf_counter()
        try:
            function(arguments.backend, torch)
        except Exception as error:
            say(False, function.__name__, repr(error).splitlines()[0])
            traceback.print_exc(limit=-3, file=sys.stdout)
        print(f"     ({function.__name__}: {time.perf_counter() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
