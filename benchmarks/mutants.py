"""Do the tests of devices notice what is taken away? `python benchmarks/mutants.py`.

In a copy of the checkout, one at a time, every wait, unit conversion, `no_grad` and the like of the
backends and sensors is removed, and quick tests run against what is left: those of a played GPU or
Mac (`tests/played/host.py`), or those of the sensors. Prints each mutant with the test that fails,
those that survived again at the end: first what is equivalent (`EQUIVALENT` says why), then what a
test should have noticed. `--only TEXT` takes the lines that contain it, `--list` runs nothing.
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

from host import (  # noqa: E402
    build,
    build_mac,
    contract,
    contract_mac,
    paths,
    played,
    played_mac,
)

PACKAGE = "workflow/siliconprof"
CARD, MPS, MLX, SENSORS = "a played card", "torch-mps", "mlx", "sensors"
# By file: whose tests must notice
FILES = {
    "backends/torch_cuda.py": CARD,
    "backends/_torch.py": CARD,
    "backends/_torch_stepper.py": CARD,
    "backends/_streams.py": CARD,
    "backends/torch_mps.py": MPS,
    "backends/mlx.py": MLX,
    "backends/_mlx_stepper.py": MLX,
    "hosts/sensors/apple.py": SENSORS,
    "hosts/sensors/linux.py": SENSORS,
    "hosts/sensors/nvml.py": SENSORS,
    "hosts/sensors/rapl.py": SENSORS,
}
OF_SENSORS = "rapl or cpu or gpu or nvml or mac or ultra or thermal or energy or throttling"
PARTS = ("workflow", "tests", "config", "profiles", "report", "Snakefile", "pyproject.toml")
LIMIT_S = 600
# What is looked for in a line, and what stands in its place; None = the statement becomes `pass`.
REMOVED: Sequence[tuple[str, str | None]] = (
    (r"\.synchronize\(", None),
    (r"\.record\(\)", None),
    (r" / 1e[36]", ""),
    (r"mx\.(async_)?eval\(", None),
    (r"return lambda: self\.backend\.mx\.eval\((.*)\)$", r"return lambda: \1"),
    (r"\.clear_cache\(", None),
    (r"\.reset_peak_memory\(", None),
    (r"\.set_memory_limit\(", None),
    (r"\.set_wired_limit\(", None),
    (r"\.set_default_device\(", None),
    (r"\.update\((self\.)?parameters\)", None),
    (r"self\._last = (?!None)", "_ = "),
    (r" or 1\.0", ""),
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
# By file and code: why its removal changes nothing that a test could see
EQUIVALENT = {
    ("backends/torch_cuda.py", "torch.cuda.set_device(self.device)"): (
        "it sets GPU 0, which is every thread's current one until another is set"
    ),
}
# A test that fails, in pytest's summary or in the traceback of tests/played/contract_mac.py
FAILS = re.compile(r"^FAILED [^:]+::(\S+)|, in ((?:test|wait|what)\w+)$", re.MULTILINE)


class Mutant(NamedTuple):
    """A file with something taken away."""

    file: str
    line: int
    was: str
    text: str  # of the whole file


def mutants() -> Iterator[Mutant]:
    """Every mutant, in the order of files and lines; each still compiles."""
    for name in FILES:
        text = (ROOT / PACKAGE / name).read_text(encoding="utf-8")
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
                code = re.sub(r'"[^"]*"', '""', line.rstrip("\n"))
                if number in strings or not re.search(pattern, code):
                    continue
                indent = line[: len(line) - len(line.lstrip())]
                new = f"{indent}pass\n" if instead is None else re.sub(pattern, instead, line)
                changed = "".join([*lines[: number - 1], new, *lines[number:]])
                try:
                    ast.parse(changed)
                except SyntaxError:  # a part of a longer statement
                    continue
                yield Mutant(name, number, line.strip(), changed)


def command(copy: Path, system: Path, whose: str) -> tuple[list[str], dict[str, str]]:
    """(arguments of Python, environment) of the quick tests of a device."""
    tests, folder = copy / "tests", copy / "t"
    if whose == CARD:
        return contract(tests, folder), played(system, "NVIDIA H200")
    if whose == SENSORS:
        words = ["-m", "pytest", "-q", "-x", "-k", OF_SENSORS, str(tests / "test_probes.py")]
        return words, {}
    return contract_mac(tests, whose, folder), played_mac(system)


def killer(copy: Path, system: Path, whose: str, mutant: Mutant | None) -> str | None:
    """The test that fails with that in place of the real file, or what ends them; None = all pass."""
    if mutant is not None:
        target = copy / PACKAGE / mutant.file
        target.write_text(mutant.text, encoding="utf-8")
    shutil.rmtree(copy / "t", ignore_errors=True)
    arguments, environment = command(copy, system, whose)
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=dict(os.environ) | environment | paths(copy / "tests"),
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        found = FAILS.search(done.stdout + done.stderr)
        if done.returncode == 0:
            return None
        return (found[1] or found[2]) if found else f"status {done.returncode}"
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT_S} s"
    finally:
        if mutant is not None:
            shutil.copy2(ROOT / PACKAGE / mutant.file, target)


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
        copy, system = Path(folder, "checkout"), Path(folder, "system")
        copy.mkdir()
        system.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part)
            else:
                shutil.copy2(ROOT / part, copy / part)
        build(system)
        build_mac(system)
        for whose in dict.fromkeys(FILES[mutant.file] for mutant in chosen):
            began = time.monotonic()
            test = killer(copy, system, whose, None)
            if test is not None:
                print(f"the tests of {whose} fail without any mutant: {test}")
                return 1
            print(f"passed   the tests of {whose}  ({time.monotonic() - began:.0f} s)", flush=True)
        for mutant in chosen:
            began = time.monotonic()
            test = killer(copy, system, FILES[mutant.file], mutant)
            if test is None:
                survivors.append(mutant)
            verdict = "SURVIVED" if test is None else "killed  "
            took = f"{test or 'all pass'}, {time.monotonic() - began:.0f} s"
            print(f"{verdict} {mutant.file}:{mutant.line}: {mutant.was}  ({took})", flush=True)
    reasons = {mutant: EQUIVALENT.get((mutant.file, mutant.was)) for mutant in survivors}
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed; equivalent:")
    for mutant in (one for one, why in reasons.items() if why):
        print(f"  {mutant.file}:{mutant.line}: {mutant.was}  ({reasons[mutant]})")
    print("survivors:")
    for mutant in (one for one, why in reasons.items() if not why):
        print(f"  {mutant.file}:{mutant.line}: {mutant.was}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
