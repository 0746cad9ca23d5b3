"""Does `siliconprof compare` tell a difference from noise? `python benchmarks/compare.py`

Fresh processes of a small product (128 x 128 x 128, fp32) on this host, in rounds of three: the
same thing twice (A and A') and a slower one (B) that really computes 11 products where the others
compute 10. Even rounds go A' A B, odd ones B A A', so each pair is measured in turn. Fifty groups
of rounds are handed to the real command as two folders of records each: 50 times A against A',
of which at most 3 may be called different, and 50 times A against B, of which at least 45 must be
called slower. A miss is printed as missed.

With MLX, which starts in a tenth of a second, no process is in two groups. Torch needs seconds to
start: there groups are windows of consecutive rounds that overlap, so they are not independent.
Also printed: how much processes really differ, how wide their own intervals are, and what looking
at that interval costs while measuring.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from siliconprof.compare import compare, replicate  # noqa: E402
from siliconprof.measure import child, supervise  # noqa: E402
from siliconprof.session.timing import FIRST_LOOK, LOOK_GROWTH  # noqa: E402
from siliconprof.session.trial import Trial  # noqa: E402
from siliconprof.stats import statistics  # noqa: E402
from siliconprof.store import record  # noqa: E402
from siliconprof.store.cell import Cell  # noqa: E402

PROCESS = Path(__file__).with_name("one_process.py")
GROUPS = 50
MOST_CALLED_DIFFERENT, LEAST_FOUND = 3, 45
SIDE = 128
PRODUCTS = {"A": 10, "A'": 10, "B": 11}
ROUNDS = {"mlx": GROUPS * replicate.PROCESSES, "torch-cpu": 70}
FEW = 5  # processes a side, the least that a verdict may rest on


# -- one fresh process -------------------------------------------------------------------------


def process(backend: str, what: str, threads: int, seconds: float) -> dict[str, Any]:
    """When a fresh process was started, and its raw times."""
    cell = a_cell(backend, threads)
    started = datetime.now(UTC)
    done = subprocess.run(
        [
            sys.executable,
            str(PROCESS),
            "--backend",
            backend,
            "--threads",
            str(threads),
            "--side",
            str(SIDE),
            "--products",
            str(PRODUCTS[what]),
            "--seconds",
            str(seconds),
        ],
        env=child.child_environment(Trial(cell), Path(tempfile.gettempdir())),
        capture_output=True,
        text=True,
        check=True,
    )
    return {"started_at": started.isoformat(), "times_s": json.loads(done.stdout)}


# -- the command, on groups of processes -------------------------------------------------------


def a_cell(backend: str, threads: int) -> Cell:
    """The cell that the processes are taken to be of."""
    return Cell(
        host="bench",
        device="cpu",
        backend=backend,
        workload="product",
        scenario="auto",
        precision="fp32",
        module="matmul",
        trainer=None,
        device_kind="cpu",
        device_index=0,
        device_memory_bytes=None,
        threads=threads,
        seed=0,
        dataset=None,
        parameters={"shapes": [[1, SIDE, SIDE, SIDE]]},
        timing={},
    )


def write(template: dict[str, Any], made: dict[str, Any], folder: Path) -> None:
    """A process as a record in the history of a folder."""
    point = {
        "params": {"batch": 1, "m": SIDE, "k": SIDE, "n": SIDE},
        "times": {"step_s": made["times_s"]},
        "flops": None,
        "bytes": None,
        "memory": {},
    }
    data = template | {"started_at": made["started_at"], "points": [point]}
    data["sha256"] = record.content_sha256(data)
    record.keep_in_history(data, json.dumps(data), folder / "history")


def verdict(
    template: dict[str, Any], one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the command says of two sides: its only point."""
    with tempfile.TemporaryDirectory() as scratch:
        for side, processes in (("a", one), ("b", two)):
            for made in processes:
                write(template, made, Path(scratch) / side)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            compare.main([f"{scratch}/a", f"{scratch}/b", "--json"])
    (point,) = json.loads(said.getvalue())["points"]
    return point


def groups(rounds: int, size: int) -> list[list[int]]:
    """Fifty groups of consecutive rounds: disjoint where there are enough, else overlapping."""
    if rounds >= GROUPS * size:
        return [list(range(k * size, (k + 1) * size)) for k in range(GROUPS)]
    starts = [round(k * (rounds - size) / (GROUPS - 1)) for k in range(GROUPS)]
    return [list(range(start, start + size)) for start in starts]


def judge(template: dict[str, Any], pool: list[dict[str, Any]], size: int) -> dict[str, list[str]]:
    """Verdicts of A against A' and of A against B, group by group."""
    found: dict[str, list[str]] = {"A'": [], "B": []}
    for group in groups(len(pool), size):
        for other, verdicts in found.items():
            point = verdict(
                template, [pool[i]["A"] for i in group], [pool[i][other] for i in group]
            )
            verdicts.append(point["verdict"])
    return found


# -- what the processes are like ---------------------------------------------------------------


def describe(pool: list[dict[str, Any]]) -> None:
    """Print the spread between processes and the width of their own intervals."""
    medians = [statistics.median(made[name]["times_s"]) for made in pool for name in ("A", "A'")]
    widths = []
    for made in pool:
        low, high = statistics.block_median_interval(made["A"]["times_s"])
        widths.append((high - low) / statistics.median(made["A"]["times_s"]))
    share = statistics.iqr(medians) / statistics.median(medians)
    ratios = [
        statistics.median(made["B"]["times_s"]) / statistics.median(made["A"]["times_s"])
        for made in pool
    ]
    print(
        f"processes of the same thing     {len(medians):5d}   IQR {share:.1%} of their median, "
        f"highest over lowest {max(medians) / min(medians):.2f}"
    )
    print(f"their own 95 % intervals                median width {statistics.median(widths):.1%}")
    print(f"B over A, pair by pair                  median {statistics.median(ratios):.3f}")


def look_cost() -> None:
    """Print what all looks of the schedule cost, up to the default most of 1000 repeats."""
    source = random.Random(0)
    times = [1e-3 * source.gauss(1, 0.05) for _ in range(1000)]
    look, spent = FIRST_LOOK, 0.0
    while look <= len(times):
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            statistics.block_median_interval(times[:look])
            best = min(best, time.perf_counter() - start)
        spent += best
        look = math.ceil(LOOK_GROWTH * look)
    print(
        f"all looks at the interval up to 1000 repeats: {1e3 * spent:.2f} ms; under 1 % of the "
        f"measuring for repeats of {1e6 * spent / 1000 / 0.01:.0f} us and more"
    )


def line(what: str, count: int, bound: str, kept: bool) -> None:
    """Print one figure against its bound."""
    print(f"{what:52s} {count:3d} of {GROUPS}   {bound}: {'kept' if kept else 'missed'}")


def main() -> int:
    """Measure the pool, ask the command, print; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=sorted(ROUNDS), default="mlx")
    parser.add_argument("--rounds", type=int, help="of three processes each")
    parser.add_argument("--seconds", type=float, default=0.1, help="measuring in a process")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pool", type=Path, help="keep the processes here, or take them from here")
    arguments = parser.parse_args()
    backend, seconds, threads = arguments.backend, arguments.seconds, arguments.threads
    size = replicate.PROCESSES
    rounds = arguments.rounds or ROUNDS[backend]
    began = time.perf_counter()
    if arguments.pool and arguments.pool.exists():
        pool = json.loads(arguments.pool.read_text())
    else:
        pool = []
        for index in range(rounds):
            order = ("A'", "A", "B") if index % 2 == 0 else ("B", "A", "A'")
            pool.append({what: process(backend, what, threads, seconds) for what in order})
        if arguments.pool:
            arguments.pool.write_text(json.dumps(pool))
    cell = a_cell(backend, threads)
    template = supervise.compose(
        Trial(cell),
        {"status": "ok", "surroundings": supervise.surroundings(cell)},
        {},
        datetime.now(UTC),
    )
    overlap = "no process in two" if len(pool) >= GROUPS * size else "overlapping"
    print(
        f"{backend}, {threads} thread(s): {len(pool)} rounds of 3 fresh processes, "
        f"{time.perf_counter() - began:.0f} s; {GROUPS} groups of {size} rounds, {overlap}"
    )
    describe(pool)
    few = judge(template, pool, FEW)
    usual = judge(template, pool, size)
    different = sum(word in ("slower", "faster") for word in usual["A'"])
    found = usual["B"].count("slower")
    kept = different <= MOST_CALLED_DIFFERENT, found >= LEAST_FOUND
    line(
        f"{size} a side: the same thing called different",
        different,
        f"at most {MOST_CALLED_DIFFERENT}",
        kept[0],
    )
    line(f"{size} a side: 10 % more work found slower", found, f"at least {LEAST_FOUND}", kept[1])
    different = sum(word in ("slower", "faster") for word in few["A'"])
    found = few["B"].count("slower")
    line(
        f"{FEW} a side, the least: called different",
        different,
        f"at most {MOST_CALLED_DIFFERENT}",
        different <= MOST_CALLED_DIFFERENT,
    )
    line(
        f"{FEW} a side, the least: found slower",
        found,
        f"at least {LEAST_FOUND}",
        found >= LEAST_FOUND,
    )
    look_cost()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
