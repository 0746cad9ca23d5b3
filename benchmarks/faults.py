"""Is anything lost under faults? `python benchmarks/faults.py [--kills 60] [--seed N] [--json F]`.

A scratch checkout with very short cells is measured; then copies of it are hurt at random moments:
kill -9 of Snakemake, of supervisors and of measuring processes, of every later stage and of
`pack` and `import`; SIGINT and SIGTERM; a full and a read-only disk (Linux, as root); a
wall clock that jumps (Linux, with a C compiler); cells that leave daemons; files cut off, ending
in zeros or dated ahead; two pipelines at once. After each: the rerun
completes, records that were finished are as they were (by hash), nothing goes on running, no two
cells were measured at once, and the tables are those that the records give elsewhere.

Prints its seed and how many faults of each kind were survived; 1 when one was not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fault_damage as damage  # noqa: E402
import fault_disk  # noqa: E402
import fault_kinds as kinds  # noqa: E402
from fault_checkout import PAGE, Scratch, hear_ctrl_c, require  # noqa: E402

LANES = 2  # checkouts at a time, each with a host lock of its own
CELLS = 6
LINUX = sys.platform == "linux"
MOUNTS = LINUX and os.geteuid() == 0

Work = tuple[Callable[..., None], dict[str, Any]]


def whole(n_kills: int) -> list[Work]:
    """The whole campaign; what takes long comes first.

    Args:
        n_kills: kills and signals while cells are measured.
    """
    per_lane = -(-n_kills // LANES)
    work: list[Work] = [(kinds.kills, {"count": per_lane}) for _ in range(LANES)]
    work += [
        (kinds.stage_kills, {}),
        (kinds.carrying_kills, {"count": 4}),
        (damage.cut_off_files, {}),
        (damage.dated_ahead, {"count": 4}),
        (kinds.two_in_one_checkout, {"count": 8}),
        (kinds.two_checkouts, {"count": 4}),
        (damage.record_lengths, {"step": 1}),
        (damage.journal_lengths, {"count": 200}),
    ]
    return work + where_possible(n_clock=4, n_full=8)


def where_possible(n_clock: int, n_full: int, each_command: bool = True) -> list[Work]:
    """What needs a loader that preloads, or the right to mount something."""
    full = {"count": n_full, "each_command": each_command}
    clock: list[Work] = [(damage.clock_jumps, {"count": n_clock})]
    disk: list[Work] = [(fault_disk.disk_full, full), (damage.read_only, {})]
    return (clock if LINUX else []) + (disk if MOUNTS else [])


def base_checkout(folder: Path) -> Scratch:
    """The checkout that all others are copies of: everything measured, the page written."""
    base = Scratch.new(folder / "base", CELLS, training=True)
    status, said = base.snakemake(PAGE)
    require(status == 0, f"a run without any fault failed:\n{said[-3000:]}")
    return base


def campaign(folder: Path, seed: int, work: Sequence[Work]) -> kinds.Log:
    """Do all of that, some at a time; what came of it.

    Raises:
        Broken: a run fails without any fault.
    """
    hear_ctrl_c()
    base = base_checkout(folder)

    def one(number: int) -> kinds.Log:
        kind, more = work[number]
        own = folder / f"{number}-{kind.__name__}"
        own.mkdir()
        log = kinds.attempt(kind, base, own, Random(f"{seed} {number}"), **more)
        counts = [sum(part.values()) for part in (log.injected, log.survived)]
        line = f"{kind.__name__}: {counts[0]} injected, {counts[1]} survived"
        print("\n".join([line, *log.problems]), file=sys.stderr, flush=True)
        return log

    total = kinds.Log()
    with ThreadPoolExecutor(LANES) as lanes:
        for log in lanes.map(one, range(len(work))):
            total.add(log)
    return total


def summary(log: kinds.Log) -> str:
    """A table for a person."""
    lines = [f"{'fault':<55} {'injected':>8} {'survived':>8} {'seconds':>8}"]
    for kind in sorted(log.injected):
        survived, seconds = log.survived.get(kind, 0), log.seconds.get(kind, 0.0)
        lines.append(f"{kind:<55} {log.injected[kind]:>8} {survived:>8} {seconds:>8.1f}")
    totals = [sum(part.values()) for part in (log.injected, log.survived, log.seconds)]
    lines.append(f"{'all':<55} {totals[0]:>8} {totals[1]:>8} {totals[2]:>8.1f}")
    return "\n".join([*lines, *log.problems])


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="while cells are measured")
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures as data")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 10**9
    print(f"seed {seed}", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        log = campaign(folder, seed, whole(arguments.kills))
    print(summary(log))
    print(f"{time.monotonic() - began_s:.0f} s in all, {LANES} checkouts at a time")
    if not LINUX:
        print("not injected: a clock that jumps (needs Linux)")
    if not MOUNTS:
        print("not injected: a full disk, a read-only disk (they need root on Linux)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seed": seed} | asdict(log), indent=1))
    return 0 if log.survived == log.injected and not log.problems else 1


if __name__ == "__main__":
    sys.exit(main())
