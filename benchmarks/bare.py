"""A cell's step against the same training without us: `python benchmarks/bare.py [--model FOLDER --steps 5 --only torch]`

The default experiment's GPT-2 nano in fp32 on this host's CPU: a `plain` cell against a bare loop
of torch, an `hf` cell against transformers' Trainer alone, an MLX cell against a loop of mlx-lm's
model as its own tuner writes it; and cells forked from a process that has imported, as a run forks
them on Linux, against cells in an interpreter of their own. Both sides of a round are processes of
their own, one after the other, in an order that is drawn; model, weights, batches, optimizer, threads
and environment are the same. For each pair: the ratio of the median step, the cell's over the other's,
the median over the rounds with its 95 % interval. The data sets must have been prepared (`make report`, of a `--model` with the same
MODEL). What the probes add is asked of `probes.py`, within one process.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

from shared import ROOT, arguments, as_ratio, python, ratio
from siliconprof.datasets import training_data
from siliconprof.hosts import blas
from siliconprof.measure import fork_server
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.stats.statistics import median
from siliconprof.store.cell import Cell

WARM_UP_SHARE = 0.2  # of the steps that are timed


# -- the other side, in a process of its own -------------------------------------------------------


def torch_steps_s(workload: Any, batches: Iterator[Any], cell: Cell, steps: int) -> list[float]:
    """Seconds of each step of a bare loop."""
    import torch

    torch.set_num_threads(cell.threads)
    model = workload.torch.model(cell.seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), **workload.optimizer_settings("fp32"))
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)  # a cell's step fetches its batch, too
        loss = model(**{name: torch.from_numpy(array).long() for name, array in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - began)
    return times


def trainer_steps_s(workload: Any, batches: Iterator[Any], cell: Cell, steps: int) -> list[float]:
    """Seconds of each step of transformers' Trainer, by a callback at each step's end."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    torch.set_num_threads(cell.threads)
    size = workload.batch_size
    rows: list[Any] = []
    for batch in islice(batches, steps + 1):
        tensors = {name: torch.from_numpy(array).long() for name, array in batch.items()}
        rows += [{name: tensor[i] for name, tensor in tensors.items()} for i in range(size)]
    ends: list[float] = []

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    settings = workload.optimizer_settings("fp32")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=size,
            max_steps=steps + 1,
            optim="adamw_torch",  # the default is the fused one, which the plain loop does not ask for
            learning_rate=settings["lr"],
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=workload.torch.model(cell.seed), args=arguments, train_dataset=rows)
        trainer.add_callback(Ends())
        trainer.train()
    return [after - before for before, after in zip(ends, ends[1:], strict=False)]


def mlx_steps_s(workload: Any, batches: Iterator[Any], cell: Cell, steps: int) -> list[float]:
    """Seconds of each step of a loop like mlx-lm's tuner."""
    blas.load_for_mlx()
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.optimizers import AdamW

    mx.set_default_device(mx.cpu)
    model = workload.mlx.model(cell.seed)
    settings = workload.optimizer_settings("fp32")
    optimizer = AdamW(learning_rate=settings["lr"], weight_decay=0.0, bias_correction=True)

    def loss_of(model: Any, tokens: Any) -> Any:
        return nn.losses.cross_entropy(model(tokens)[:, :-1], tokens[:, 1:], reduction="mean")

    value_and_grad = nn.value_and_grad(model, loss_of)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)
        loss, gradients = value_and_grad(model, mx.array(batch["input_ids"]))
        optimizer.update(model, gradients)
        del gradients
        mx.eval(loss, model.parameters(), optimizer.state)
        loss.item()
        times.append(time.perf_counter() - began)
    return times


LOOPS: dict[tuple[str, str], Callable[[Any, Iterator[Any], Cell, int], list[float]]] = {
    ("torch-cpu", "plain"): torch_steps_s,
    ("torch-cpu", "hf"): trainer_steps_s,
    ("mlx", "plain"): mlx_steps_s,
}


def loop(text: str, steps: int) -> None:
    """Print the median of so many steps of a cell's training without us, after a fifth as many."""
    cell = Cell.from_json(text)
    workload = ResolvedCell(cell).workload
    data = training_data.load(Path(cell.dataset or ""))
    trained = LOOPS[cell.backend, cell.trainer or ""]
    warm_up = int(WARM_UP_SHARE * steps)
    times = trained(workload, workload.batches(data, cell.seed), cell, warm_up + steps)
    print(median(times[warm_up:]))


# -- both sides in turn ----------------------------------------------------------------------------


def step_of_cell(text: str, folder: Path, steps: int, forked: bool = False) -> float:
    """Return the median whole step of a cell, measured by its command within its budgets."""
    with tempfile.TemporaryDirectory() as scratch:
        output, own = Path(scratch, "record.json"), forks() if forked else {}
        words = ("-m", "siliconprof.measure", "--cell", text, "--output", str(output))
        python(*words, folder=folder, **own)
        record = json.loads(output.read_text(encoding="utf-8"))
    if record["status"] != "ok":
        raise SystemExit(f"{record['cell']['workload']}: {record['status']}: {record['reason']}")
    return median(record["points"][0]["times"]["whole_step_s"])


@cache
def forks() -> dict[str, str]:
    """Return the environment variable by which a cell is forked."""
    address = f"siliconprof-bare-{os.getpid()}"
    fork_server.start(address, os.getpid())
    return {fork_server.SERVER_VARIABLE: address}


def step_of_loop(text: str, folder: Path, steps: int) -> float:
    """Return the median step of the same training in a bare loop, in the cell's environment."""
    command = [sys.executable, __file__, "--loop", text, "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as scratch:
        resolved = ResolvedCell(Cell.from_json(text))
        environment = fork_server.child_environment(resolved, Path(scratch))
        said = subprocess.check_output(command, cwd=folder, env=environment, text=True)
    return float(said.splitlines()[-1])


step_of_forked = partial(step_of_cell, forked=True)
TORCH, TRAINER, MLX = ("torch-cpu", "plain"), ("torch-cpu", "hf"), ("mlx", "plain")
# what -> (backend and trainer, the one side, the other)
PAIRS = {
    "plain cell / bare loop of torch": (TORCH, step_of_cell, step_of_loop),
    "hf cell / Trainer alone": (TRAINER, step_of_cell, step_of_loop),
    "MLX cell / loop of mlx-lm's model": (MLX, step_of_cell, step_of_loop),
    "torch cell forked / fresh": (TORCH, step_of_forked, step_of_cell),
    "MLX cell forked / fresh": (MLX, step_of_forked, step_of_cell),
}


def ratios(
    folder: Path, rounds: int, steps: int = 100, only: str = "", model: str = ""
) -> dict[str, tuple[float, float, float]]:
    """Return the median ratio of each pair with its 95 % interval, in a checkout with prepared data.

    Args:
        steps: of the side without us.
        only: an expression that a pair's name matches.
        model: in the place of GPT-2 nano.
    """
    pairs = [pair for pair in PAIRS.items() if re.search(only, pair[0])]
    config = ["--config", f"model={model}"] if model else []
    asked = ("-m", "siliconprof.pipeline.cli", "plan", "--json", *config)
    cells = {}
    for cell in (entry["cell"] for entry in json.loads(python(*asked, folder=folder))["cells"]):
        cell["timing"]["energy_window_s"] = 0
        names = ("gpt2-nano-plain", "gpt2-nano-hf")
        ours = cell["module"] == "causal_lm" or cell["workload"] in names
        if ours and cell["device_kind"] == "cpu" and cell["precision"] == "fp32":
            cells[cell["backend"], cell["trainer"]] = json.dumps(cell)
    found: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what, _ in pairs}
    for number in range(rounds):
        random.Random(number).shuffle(pairs)
        for what, (name, *ways) in pairs:
            sides = list(zip(found[what], ways, strict=True))
            random.Random(f"{number} {what}").shuffle(sides)
            for medians, step_of_side in sides:
                medians.append(step_of_side(cells[name], folder, steps))
    return {what: ratio(*both) for what, both in found.items()}


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__, model="", rounds=10, steps=100, only="", loop="")
    if asked.loop:
        loop(asked.loop, asked.steps)
        return
    found = ratios(ROOT, asked.rounds, asked.steps, asked.only, asked.model)
    for what, found_ratio in found.items():
        print(f"{what:36} {as_ratio(found_ratio)}")


if __name__ == "__main__":
    main()
