"""Do the tests of a played GPU notice what is taken away? `python benchmarks/mutants.py`.

In a copy of the checkout, one at a time, every wait, unit conversion, `no_grad` and the like of the
torch backends is removed, and the quick tests of a played GPU run against what is left
(`tests/played/host.py`, `contract`). Prints each mutant as killed or survived, survivors again at
the end. `--only TEXT` takes the lines that contain it, `--list` runs nothing.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "played")]

from host import build, contract, paths, played  # noqa: E402

BACKENDS = "workflow/siliconprof/backends"
FILES = ("torch_cuda.py", "_torch.py", "_torch_stepper.py", "_streams.py")
PARTS = ("workflow", "tests", "config", "profiles", "report", "Snakefile", "pyproject.toml")
LIMIT_S = 600
# What is looked for in a line, and what stands in its place; None = the statement becomes `pass`.
REMOVED: Sequence[tuple[str, str | None]] = (
    (r"\.synchronize\(", None),
    (r"\.record\(\)", None),
    (r" / 1e3", ""),
    (r"[\w.]*torch\.no_grad\(\), ", ""),
    (r"[\w.]*torch\.no_grad\(\):", "__import__('contextlib').nullcontext():"),
    (r", self\.backend\.autocast\(\)", ""),
    (r"with self\.backend\.autocast\(\):", "if True:"),
    (r"\.detach\(\)", ""),
    (r"\.eval\(\)$", None),
    (r"\.train\(\)$", None),
    (r"\.zero_grad\(", None),
    (r"\.unscale_\(", None),
    (r"scaler\.update\(", None),
    (r"scaler\.scale\((\w+)\)", r"\1"),
    (r"manual_seed\(seed\)$", None),
    (r"\bclock\.edge\(", None),
    (r"\.empty_cache\(", None),
    (r"\.reset_peak_memory_stats\(", None),
    (r"\.set_per_process_memory_fraction\(", None),
    (r"set_float32_matmul_precision\(", None),
    (r"allow_tf32 = ", None),
    (r"\.set_num_threads\(", None),
    (r"\.set_device\(", None),
    (r"total - free", "free"),
    (r"non_blocking=pinned,?", ""),
    (r"\.clone\(\)", ""),
    (r"\.double\(\)", ""),
    (r"\.float\(\)\.cpu", ".cpu"),
    (r"^\s+refuse\(", None),
)


class Mutant(NamedTuple):
    """A file with something taken away."""

    file: str
    line: int
    was: str
    text: str  # of the whole file


def mutants() -> Iterator[Mutant]:
    """Every mutant, in the order of files and lines; each still compiles."""
    for name in FILES:
        text = (ROOT / BACKENDS / name).read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        strings = {
            number
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if (node.end_lineno or 0) > node.lineno  # docstrings and other long texts
        }
        for number, line in enumerate(lines, 1):
            for pattern, instead in REMOVED:
                if number in strings or not re.search(pattern, line.rstrip("\n")):
                    continue
                indent = line[: len(line) - len(line.lstrip())]
                new = f"{indent}pass\n" if instead is None else re.sub(pattern, instead, line)
                changed = "".join([*lines[: number - 1], new, *lines[number:]])
                try:
                    ast.parse(changed)
                except SyntaxError:  # a part of a longer statement
                    continue
                yield Mutant(name, number, line.strip(), changed)


def killed(copy: Path, driver: Path, mutant: Mutant | None) -> bool:
    """Whether the tests fail, or never end, with that in the copy's place of the real file."""
    if mutant is not None:
        target = copy / BACKENDS / mutant.file
        target.write_text(mutant.text, encoding="utf-8")
    tests = copy / "tests"
    try:
        done = subprocess.run(
            [sys.executable, *contract(tests, copy / "t")],
            env=dict(os.environ) | played(driver, "NVIDIA H200") | paths(tests),
            cwd=copy,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        if mutant is not None:
            shutil.copy2(ROOT / BACKENDS / mutant.file, target)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every mutant; 1 where the tests fail without one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="lines that contain this")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    arguments = parser.parse_args(argv)
    chosen = [mutant for mutant in mutants() if arguments.only in f"{mutant.file}: {mutant.was}"]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.file}:{mutant.line}: {mutant.was}")
        return 0
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy, driver = Path(folder, "checkout"), Path(folder, "driver")
        copy.mkdir()
        driver.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part)
            else:
                shutil.copy2(ROOT / part, copy / part)
        build(driver)
        if killed(copy, driver, None):
            print("the tests fail without any mutant")
            return 1
        for mutant in chosen:
            began = time.monotonic()
            dead = killed(copy, driver, mutant)
            if not dead:
                survivors.append(mutant)
            verdict = "killed  " if dead else "SURVIVED"
            took = f"{time.monotonic() - began:.0f} s"
            print(f"{verdict} {mutant.file}:{mutant.line}: {mutant.was}  ({took})", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed; survivors:")
    for mutant in survivors:
        print(f"  {mutant.file}:{mutant.line}: {mutant.was}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
