"""Does a broken package cost its own cells alone? `python benchmarks/broken_packages.py [--packages mlx …]`.

In a copy of this environment, made of hard links, each package that a cell or a data set needs, and
neither Snakemake nor the page does, is broken in two ways: it is absent, or it is found and raises
"OSError: libbroken.so.1: cannot open shared object file" when it is imported. A small experiment then
runs, in which each needs other packages. What must hold: the page is made; a cell that does not need
what is broken is measured; one that does has failed, or its backend is not there, with the package and
the remedy in the reason; the answer begins with that; `siliconprof doctor` says it.

Several packages joined by a plus are broken together. `--short` measures one cell in place of all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Set
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import numpy as np
import shared
import soundfile
from siliconprof import packages

ABSENT, RAISES = "absent", "raises at import"
WAYS = (ABSENT, RAISES)
RAISING = (
    'raise OSError("libbroken.so.1: cannot open shared object file: No such file or directory")\n'
)
ALL = (
    *("soundfile", "soxr", "datasets", "peft", "deepspeed", "accelerate", "mlx", "mlx-lm"),
    *("mlx-audio", "transformers", "tokenizers", "safetensors", "torch"),
)
FRAMEWORKS = {"torch": "torch-cpu", "mlx": "mlx"}  # whose cells are not there without it
MODELS = {"transformers", "tokenizers", "safetensors"}
TEXT, SPEECH = {"tokenizers"}, {*MODELS, "datasets", "soundfile", "soxr"}
# Workload -> backend -> what its cell and its data need.
NEEDS: dict[str, dict[str, Set[str]]] = {
    "product": {"torch-cpu": {"torch"}, "mlx": {"mlx"}},
    "plain": {"torch-cpu": {"torch", *MODELS, *TEXT}, "mlx": {"mlx", "mlx-lm", *MODELS, *TEXT}},
    "hf": {"torch-cpu": {"torch", "accelerate", *MODELS, *TEXT}},
    "lora": {"torch-cpu": {"torch", "peft", "accelerate", *MODELS, *TEXT}},
    "offload": {"torch-cpu": {"torch", "deepspeed", *MODELS, *TEXT}},
    "speech": {"torch-cpu": {"torch", *MODELS, *SPEECH}, "mlx": {"mlx", "mlx-audio", *SPEECH}},
}


def experiment(workloads: Iterable[str]) -> dict[str, Any]:
    """A config of one cheap cell for each entry of `NEEDS`."""
    nano = {"module": "gpt2", "size": "nano", "batch_size": 2, "seq_len": 16, "dataset": "words"}
    all_ = {
        "product": {"module": "matmul", "shapes": [[1, 16, 16, 16]]},
        "plain": nano | {"trainer": "plain"},
        "hf": nano | {"trainer": "hf"},
        "lora": nano | {"trainer": "plain", "lora_rank": 2},
        "offload": nano | {"trainer": "plain", "scenarios": ["offload"]},
        "speech": {"module": "whisper", "trainer": "plain", "size": "nano", "batch_size": 2}
        | {"dataset": "clips"},
    }
    own = {name: all_[name] | {"backends": [*NEEDS[name]]} for name in workloads}
    clips = {"source": "folder", "path": "clips", "kind": "speech", "clip_seconds": 1}
    return {
        "host": "desk",
        "backends": ["torch-cpu", "mlx"],
        "precisions": ["fp32"],
        "timing": shared.TIMING,
        "remeasure_contended_s": 0,
        "datasets": {
            "words": {"source": "builtin", "vocab_size": 300, "max_bytes": 20000},
            "clips": clips | {"vocab_size": 300, "max_clips": 4},
        },
        "workloads": own,
    }


def clips(folder: Path) -> None:
    """Four clips in the hub's layout."""
    folder.mkdir()
    rows = ["file_name,text"]
    for number in range(4):
        tone = 0.3 * np.sin(np.arange(8000) * (number + 1) / 20)
        soundfile.write(folder / f"{number}.wav", tone, 16000)
        rows.append(f"{number}.wav,number {number} is here")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


class Broken:
    """Copies of this environment in which packages are broken, each with a checkout."""

    def __init__(self, folder: Path) -> None:
        assert sys.prefix != sys.base_prefix, "run it in an environment: .venv/bin/python"
        self.environment, self.project = folder / "environment", folder / "project"

    def break_(self, name: str, way: str) -> None:
        """Break a package of the copy, whose files are those of this environment, too."""
        (site,) = self.environment.glob("lib/python3*/site-packages")
        module = site / packages.module_of(name).partition(".")[0]
        single = module.with_suffix(".py")
        if way == RAISES:
            file = module / "__init__.py" if module.is_dir() else single
            file.unlink(missing_ok=True)
            file.write_text(RAISING, encoding="utf-8")
            return
        info = metadata.distribution(name)._path  # type: ignore[attr-defined]
        for folder in (module, site / Path(info).name):
            shutil.rmtree(folder, ignore_errors=True)
        single.unlink(missing_ok=True)

    def run(self, *words: str) -> str:
        """What a Python command of that environment prints; it must end well."""
        return shared.done(
            [str(self.environment / "bin/python"), "-P", "-m", *words],
            self.project,
            PATH=f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            PYTHONDONTWRITEBYTECODE="1",
            SILICONPROF_LOCK_FILE=str(self.project.parent / "host.lock"),
        ).output

    def try_(self, names: Set[str], way: str, short: bool) -> str:
        """Break some packages, and see what must hold; how many cells were measured and failed."""
        chosen = [min(NEEDS, key=lambda one: _others(one, names))] if short else [*NEEDS]
        try:
            shutil.copytree(sys.prefix, self.environment, copy_function=os.link, symlinks=True)
            shared.copied(self.project)
            clips(self.project / "clips")
            shared.configure(self.project, json.dumps(experiment(chosen)))
            for name in names:
                self.break_(name, way)
            self.run(*shared.SNAKEMAKE, "measured" if short else "report")
            advice = json.loads(self.run("siliconprof.pipeline.cli", "doctor", "--json"))["advice"]
            told = [f"{one['about']} {one['why']} {one['fix']}" for one in advice]
            for name in names:
                assert any(name in line and "install" in line for line in told), (name, told)
            found = {
                (one["cell"]["workload"], one["cell"]["backend"]): one
                for one in shared.records(self.project).values()
            }
            cost = _cells_that_it_cost(found, chosen, names)
            if not short:
                assert (self.project / "results/report.html").stat().st_size > 10**5
                summary = (self.project / "results/summary.txt").read_text(encoding="utf-8")
                # mlx-lm's models do not need what its top imports.
                for name in names if cost else ():
                    assert name in summary.partition("training  ")[0], (name, summary)
        finally:
            shutil.rmtree(self.environment, ignore_errors=True)
            shutil.rmtree(self.project, ignore_errors=True)
        ok = sum(record["status"] == "ok" for record in found.values())
        return f"{ok} measured, {len(found) - ok} failed{'' if short else ', page made'}"


def _others(workload: str, names: Set[str]) -> tuple[bool, int]:
    """First the workload that needs it, and fewest others."""
    needs = set().union(*NEEDS[workload].values())
    return not names & needs, len(needs)


def _cells_that_it_cost(
    found: Mapping[tuple[str, str], Mapping[str, Any]], chosen: Iterable[str], names: Set[str]
) -> list[str]:
    cost = []
    for workload, backend in ((one, backend) for one in chosen for backend in NEEDS[one]):
        record = found.get((workload, backend))
        cell = f"{workload} on {backend} without {', '.join(names)}"
        if record is None:
            assert {name for name, of in FRAMEWORKS.items() if of == backend} & names, cell
        elif record["status"] == "ok":
            continue
        else:
            status, reason = record["status"], record["reason"]
            assert NEEDS[workload][backend] & names, f"{cell}: {status}: {reason}"
            assert status in ("failed", "skipped"), f"{cell}: {status}"
            assert "pip install" in reason and any(n in reason for n in names), f"{cell}: {reason}"
        cost.append(cell)
    return cost


def main() -> None:
    """Run and print."""
    asked = shared.arguments(__doc__, packages=[*ALL], short=False)
    here = Path(sys.prefix).parent  # hard links stay on one disk
    with tempfile.TemporaryDirectory(prefix=".broken-", dir=here) as folder:
        broken = Broken(Path(folder))
        for together, way in product(asked.packages, WAYS):
            began_s = time.monotonic()
            told = broken.try_({*together.split("+")}, way, asked.short)
            print(f"{together}, {way}: {told} ({time.monotonic() - began_s:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
