"""The disk under `results/` for the fault campaign: one that is full, and what writes to it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from fault_checkout import PAGE, TABLES, Scratch, require, until
from fault_kinds import ELSEWHERE, SUPERVISOR, Log


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    """Something mounted at a folder; needs root."""
    subprocess.run(["mount", *arguments, str(at)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True, capture_output=True)


def on_small_disk(base: Scratch, folder: Path, spare_bytes: int) -> tuple[Scratch, Callable]:
    """A copy whose `results/` will lie on a disk of its own, and what mounts it."""
    scratch = base.copy(folder, products=3)
    results, aside = scratch.path / "results", folder / "results"
    os.replace(results, aside)
    results.mkdir()
    used = sum(-(-path.stat().st_size // 4096) * 4096 + 4096 for path in aside.rglob("*"))
    size = f"size={used + spare_bytes}"

    @contextmanager
    def disk() -> Iterator[None]:
        with mounted("-t", "tmpfs", "-o", size, "results", at=results):
            subprocess.run(["cp", "-a", f"{aside}/.", str(results)], check=True)
            yield

    return scratch, disk


def fill(folder: Path, leave_bytes: int) -> Path:
    """Take all room on a disk but so much; the file that has it."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as stream:  # a buffer would be written again at the end
        try:
            while True:
                stream.write(bytes(2**16))
        except OSError:
            pass
    size = filler.stat().st_size
    os.truncate(filler, max(0, size - leave_bytes))
    return filler


def disk_full(
    base: Scratch, folder: Path, rng: Random, log: Log, count: int, each_command: bool = True
) -> None:
    """`results/` has no room left from some moment of a run on, and for other commands."""
    scratch, disk = on_small_disk(base, folder, 6 * 2**20)
    results = scratch.path / "results"
    with disk():
        for seed in range(1, count + 1):
            scratch.configure(seed=seed)
            process, since = scratch.begin_snakemake(), scratch.said_so_far()
            time.sleep(rng.uniform(0.0, 6.0))
            before = scratch.finished()
            log.inject("disk full during a run")
            filler = fill(results, rng.choice((0, 0, 4096, 16384, 65536)))
            until(lambda p=process: p.poll() is not None, 60, "the end of a pipeline")
            said = scratch.said(since)
            done = process.returncode == 0
            require(done or "No space left on device" in said, f"not told:\n{said[-3000:]}")
            require("Traceback" not in said, f"a traceback:\n{said[-3000:]}")
            scratch.no_orphans()
            scratch.intact(before)
            filler.unlink()
            scratch.complete()
            log.settle()
        if not each_command:
            return
        bundle = scratch.path / "all.zip"
        status, said = scratch.run("siliconprof.remote.bundle", "pack", "--output", str(bundle))
        require(status == 0, said)
        (scratch.path / ELSEWHERE).mkdir()
        for name, command in commands(scratch, bundle).items():
            log.inject(f"disk full: {name}")
            filler = fill(results, 0)  # again: the one before may have made room
            status, said = scratch.run(*command)
            refused(name, status, said, "No space left on device")
            log.settle()
        filler.unlink()
        scratch.complete()


def commands(scratch: Scratch, bundle: Path) -> dict[str, tuple[str, ...]]:
    """Name -> every command that writes into `results/`."""
    cell = json.loads(scratch.record_files()[0].read_text(encoding="utf-8"))["cell"]
    words = '{"name": "other", "source": "builtin", "vocab_size": 300, "max_bytes": 20000}'
    tables = ("--matrix", "results/matrix.json", "--output-dir", "results/tables")
    config = ("--registry", "config/devices.yaml", "--claims", "config/claims.yaml")
    analysis = (*tables, "--tables", "results/tables", *config, "--published", "config/published")
    return {
        "snakemake": ("snakemake", "--cores", "1", TABLES),
        "prepare": (
            "siliconprof.datasets.prepare",
            "--dataset",
            words,
            "--output-dir",
            "results/data/new",
        ),
        "measure": (
            SUPERVISOR,
            "--cell",
            json.dumps(cell),
            "--output",
            "results/records/new.json",
            "--keep",
            "results/kept",
            "--history",
            "results/history",
        ),
        "aggregate": ("siliconprof.analyse.aggregate", *tables),
        "analyse": ("siliconprof.pipeline.analyse", *analysis),
        "draw": (
            "siliconprof.render.draw",
            "--matrix",
            "results/matrix.json",
            "--tables",
            "results/tables",
            "--registry",
            "config/devices.yaml",
            "--published",
            "config/published",
            "--drawn",
            "results/drawn",
            "--figures",
            "results/figures",
            "--page",
            PAGE,
            "--jobs",
            "1",
        ),
        "render": (
            "siliconprof.render.page",
            "--drawn",
            "results/drawn",
            "--template",
            "report",
            "--figures",
            "results/figures",
            "--output",
            PAGE,
        ),
        "pack": ("siliconprof.remote.bundle", "pack", "--output", "results/new.zip"),
        "import": ("siliconprof.remote.bundle", "import", str(bundle), "--results", ELSEWHERE),
        "hosts": ("snakemake", "--cores", "1", TABLES, "--config", "host=another"),
    }


def refused(name: str, status: int, said: str, why: str) -> None:
    """See that a command said in one clear line what it could not do.

    Raises:
        Broken: it did not.
    """
    require(status != 0, f"{name} went well:\n{said[-2000:]}")
    require("Traceback" not in said, f"{name}: a traceback:\n{said[-3000:]}")
    told = [line for line in said.splitlines() if why in line]
    require(told and "cannot" in told[0], f"{name}: not told:\n{said[-3000:]}")
