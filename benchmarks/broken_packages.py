"""Does a broken package cost its own cells alone? `python benchmarks/broken_packages.py [PACKAGE ...]`.

In a copy of this environment, made of hard links, each package that a cell or a data set needs, and
neither Snakemake nor the page does, is broken in two ways: it is absent, or it is found and raises
"OSError: libbroken.so.1: cannot open shared object file" when it is imported. A small experiment then
runs, in which each needs other packages. What must hold: the page is made; a cell that does not need
what is broken is measured; one that does has failed, or its backend is not there, with the package and
the remedy in the reason; the answer begins with that; `siliconprof doctor` says it.

Several packages joined by a plus are broken together. `--short` measures one cell in place of all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import wave
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
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
LIMIT_S = 900


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
        tone = (int(9000 * math.sin(t * (number + 1) / 20)) for t in range(8000))
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(array("h", tone).tobytes())
        rows.append(f"{number}.wav,number {number} is here")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


class Broken:
    """A copy of this environment in which packages can be broken, and a checkout."""

    def __init__(self, folder: Path) -> None:
        assert sys.prefix != sys.base_prefix, "run it in an environment: .venv/bin/python"
        self.environment, self.folder = folder / "environment", folder
        shutil.copytree(sys.prefix, self.environment, copy_function=os.link, symlinks=True)
        (self.site,) = self.environment.glob("lib/python3*/site-packages")
        self.kept = folder / "kept"
        self.kept.mkdir()

    def break_(self, name: str, way: str) -> None:
        """Break a package; `mend` puts it back."""
        module = self.site / packages.module_of(name).partition(".")[0]
        single = module.with_suffix(".py")
        if way == RAISES:
            file = module / "__init__.py" if module.is_dir() else single
            if file.exists():
                self._keep(file)
            file.write_text(RAISING, encoding="utf-8")
            return
        info = metadata.distribution(name)._path  # type: ignore[attr-defined]
        for path in (module, single, self.site / Path(info).name):
            if path.exists():
                self._keep(path)

    def _keep(self, path: Path) -> None:
        place = self.kept / path.relative_to(self.site)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)

    def mend(self) -> None:
        """Put back what was broken."""
        for name in ALL:  # what was written in the place of nothing
            file = self.site / packages.module_of(name).partition(".")[0] / "__init__.py"
            if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == RAISING:
                file.unlink()
        for path in [p for p in self.kept.rglob("*") if p.is_file()]:
            place = self.site / path.relative_to(self.kept)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        shutil.rmtree(self.kept)
        self.kept.mkdir()

    def run(self, project: Path, *words: str) -> str:
        """What a Python command of that environment prints; it must end well."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SILICONPROF_")}
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment |= {"PATH": path, "PYTHONPATH": "workflow", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["SILICONPROF_LOCK_FILE"] = str(self.folder / "host.lock")
        done = subprocess.run(
            [str(self.environment / "bin/python"), "-P", *words],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert not done.returncode, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def try_(self, names: Set[str], way: str, short: bool) -> str:
        """Break some packages, and see what must hold; how many cells were measured and failed."""
        project = shared.copied(self.folder / "project")
        clips(project / "clips")
        chosen = [min(NEEDS, key=lambda one: self._telling(one, names))] if short else [*NEEDS]
        text = json.dumps(experiment(chosen))
        (project / "config/config.yaml").write_text(text, encoding="utf-8")
        try:
            for name in names:
                self.break_(name, way)
            target = "measured" if short else "report"
            self.run(project, "-m", "snakemake", "--cores", "1", target)
            advice = json.loads(
                self.run(project, "-m", "siliconprof.pipeline.cli", "doctor", "--json")
            )
            self._see_all(project, chosen, names, advice, short)
            records = project.glob("results/records/**/*.json")
            statuses = [json.loads(path.read_text(encoding="utf-8"))["status"] for path in records]
        finally:
            self.mend()
            shutil.rmtree(project)
        ok = statuses.count("ok")
        return f"{ok} measured, {len(statuses) - ok} failed{'' if short else ', page made'}"

    @staticmethod
    def _see_all(
        project: Path, chosen: Sequence[str], names: Set[str], advice: Any, short: bool
    ) -> None:
        found = {
            (r["cell"]["workload"], r["cell"]["backend"]): r
            for path in project.glob("results/records/**/*.json")
            for r in [json.loads(path.read_text(encoding="utf-8"))]
        }
        told = [f"{one['about']} {one['why']} {one['fix']}" for one in advice["advice"]]
        for name in names:
            assert any(name in line and "install" in line for line in told), (name, told)
        _see(found, chosen, names)
        if not short:
            assert (project / "results/report.html").stat().st_size > 10**5
            summary = (project / "results/summary.txt").read_text(encoding="utf-8")
            # mlx-lm's models do not need what its top imports.
            cost = [one for one in NEEDS if not all(_is_ok(found, one, b) for b in NEEDS[one])]
            for name in names if cost else ():
                assert name in summary.partition("training  ")[0], (name, summary)

    @staticmethod
    def _telling(workload: str, names: Set[str]) -> tuple[bool, int]:
        """First the workload that needs it, and fewest others."""
        needs = set().union(*NEEDS[workload].values())
        return not names & needs, len(needs)


def _is_ok(found: Mapping[tuple[str, str], Mapping[str, Any]], workload: str, backend: str) -> bool:
    record = found.get((workload, backend))
    return record is not None and record["status"] == "ok"


def _see(
    found: Mapping[tuple[str, str], Mapping[str, Any]], chosen: Iterable[str], names: Set[str]
) -> None:
    for workload in chosen:
        for backend, needs in NEEDS[workload].items():
            record = found.get((workload, backend))
            cell = f"{workload} on {backend} without {', '.join(names)}"
            if record is None:
                gone = {name for name, of in FRAMEWORKS.items() if of == backend}
                assert gone & names, f"{cell}: no record"
            elif not needs & names:
                assert record["status"] == "ok", f"{cell}: {record['status']}: {record['reason']}"
            elif record["status"] != "ok":
                reason = record["reason"]
                assert record["status"] in ("failed", "skipped"), f"{cell}: {record['status']}"
                assert "pip install" in reason and any(n in reason for n in names), (
                    f"{cell}: {reason}"
                )


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("package", nargs="*", default=ALL, help="such as soundfile or mlx+datasets")
    parser.add_argument("--way", choices=WAYS, action="append", help="default: both")
    parser.add_argument(
        "--short", action="store_true", help="one cell in place of all and the page"
    )
    arguments = parser.parse_args()
    here = Path(sys.prefix).parent  # hard links stay on one disk
    with tempfile.TemporaryDirectory(prefix=".broken-", dir=here) as folder:
        broken = Broken(Path(folder))
        for together in arguments.package:
            for way in arguments.way or WAYS:
                began_s = time.monotonic()
                told = broken.try_({*together.split("+")}, way, arguments.short)
                print(f"{together}, {way}: {told} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
