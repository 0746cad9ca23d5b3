"""What benchmarks share: copies of this checkout, commands in them, cheap cells, ratios."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

BESIDE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BESIDE / "workflow"))
sys.path.append(str(BESIDE / "tests"))

from measuring import Training
from project_copy import ROOT, copy_parts
from siliconprof import plugins
from siliconprof.stats.statistics import median, median_interval

TIMING = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 3, "max_iterations": 3,
          "budget_s": 0, "energy_window_s": 0}  # fmt: skip
SNAKEMAKE = ("snakemake", "--cores", "1")  # of `python -m`


def arguments(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's options, whose defaults tell their types."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    for name, default in defaults.items():
        how: dict[str, Any] = {"action": "store_true"}
        if isinstance(default, list):
            how = {"nargs": "+", "type": type(default[0]), "default": default}
        elif default is not False:
            how = {"type": type(default), "default": default}
        parser.add_argument(f"--{name}", **how)
    return parser.parse_args()


def experiment(n_workloads: int, **more: Any) -> str:
    """Return a config of tiny matrix products, for looking at what surrounds a measurement.

    Args:
        more: keys of the config.
    """
    product = {"module": "matmul", "search_budget_s": 0, "device_kinds": ["cpu"]}
    workloads = {
        f"mm{index}": product | {"shapes": [[1, 8, 8, index + 1]]} for index in range(n_workloads)
    }
    axes = {
        "backends": ["mlx"],
        "precisions": ["fp32"],
        "timing": TIMING,
        "remeasure_contended_s": 0,
    }
    return json.dumps(axes | {"workloads": workloads} | more)  # YAML, with no anchors


def copied(folder: Path, *ignored: str) -> Path:
    """A copy of this checkout with an empty folder of results."""
    (copy_parts(folder, "*.zip", *ignored) / "results").mkdir()
    return folder


def configure(folder: Path, config: str) -> None:
    """Write the config of a checkout."""
    (folder / "config" / "config.yaml").write_text(config, encoding="utf-8")


def records(folder: Path) -> dict[Path, dict[str, Any]]:
    """Every record of a checkout, by its file."""
    paths = sorted((folder / "results/records").rglob("*.json"))
    return {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a command in a checkout, without variables of other runs."""
    # Images for containers set the last: every process would compile this package anew.
    others = ("SILICONPROF_", "PYTHONDONTWRITEBYTECODE")
    own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return own | {"PATH": path, "PYTHONPATH": str(folder / "workflow")} | more


class Done(NamedTuple):
    """What a command printed, and the resources that it and its children used."""

    output: str
    wall_s: float
    processor_s: float
    peak_rss_bytes: int


def done(
    command: Sequence[str],
    folder: Path,
    executable: str | None = None,
    check: bool = True,
    **more: str,
) -> Done:
    """Run a command in a checkout; return what it printed and used.

    Args:
        executable: what is run in the place of the command's first word.
        check: False: it may fail.
        more: environment variables.

    Raises:
        SystemExit: it fails; the message has the end of what it wrote.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        streams: Any = {"stdout": output, "stderr": errors, "executable": executable}
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment(folder, **more), **streams)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = status
        printed, wrote = (stream.seek(0) or stream.read() for stream in (output, errors))
    if check and status:
        raise SystemExit(f"{' '.join(command)}: failed\n{printed[-2000:]}{wrote[-4000:]}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return Done(printed, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def python(*words: str, folder: Path = ROOT, check: bool = True, **more: str) -> str:
    """What `python …` prints in a checkout, see `done`."""
    return done([sys.executable, *words], folder, check=check, **more).output


def workload_of(module: str, **parameters: Any) -> Any:
    """A workload, with defaults filled in as a config would."""
    plugin = plugins.load("workloads", module)
    return plugin(plugin.defaults() | parameters)


def trained(workload: Any, backend: str, precision: str, threads: int) -> Training:
    """Return a training on this host's CPU, with a blank batch, that takes a step on request."""
    parameters = workload.parameters | {"dataset_vocab_size": workload.vocab_size}
    return Training(workload, parameters, backend, precision, threads)


def whole_step_s(training: Training) -> float:
    """Seconds of one more whole step."""
    training.clock.start(split=False)
    loss = training.step()
    seconds, _ = training.clock.stop()
    loss()
    return seconds


def ratio(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Return the median ratio of two sides over rounds, and the ends of its 95 % interval.

    The interval is by order statistics: now and then a process is slow for all of its life.
    """
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return (median(ratios), *median_interval(ratios))


def as_ratio(found: Sequence[float]) -> str:
    """A ratio with its 95 % interval."""
    middle, low, high = found
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
