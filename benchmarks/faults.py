"""Is anything lost under faults? `python benchmarks/faults.py [--kills 60] [--seed N] [--json F]`.

A scratch checkout with very short cells is measured; then copies of it are hurt at random moments:
kill -9 of Snakemake, of supervisors and of measuring processes, of every later stage and of
`pack` and `import`; SIGINT; a full and a read-only disk (Linux, as root); cells that
leave daemons; two pipelines at once. After each: the rerun completes, records that were finished
are as they were (by hash), nothing goes on running, no two cells were measured at once, and the
tables are those that the records give elsewhere.

Prints its seed and how many faults of each kind were survived; 1 when one was not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import fault_kinds as kinds
from fault_checkout import PAGE, Broken, Scratch

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
    work: list[Work] = [(kinds.kills, {"count": -(-n_kills // LANES)})] * LANES
    return [
        *work,
        (kinds.stage_kills, {}),
        (kinds.carrying_kills, {"count": 4}),
        (kinds.two_pipelines, {"count": 4}),
        (kinds.disk_full, {"count": 8}),
        (kinds.refusals, {}),
    ]


def possible(kind: Callable[..., None]) -> bool:
    """Whether there is the right to mount something, as it needs."""
    return MOUNTS or kind not in (kinds.disk_full, kinds.refusals)


def campaign(folder: Path, seed: int, work: Sequence[Work]) -> kinds.Log:
    """Do all of that which is possible here, some at a time; what came of it.

    Raises:
        Broken: a run fails without any fault.
    """
    # A shell has what it runs in the background ignore Ctrl-C, and all that starts from there.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    base = Scratch.new(folder / "base", CELLS)  # all others are copies of it
    base.snakemake(PAGE)

    def one(number: int) -> kinds.Log:
        kind, more = work[number]
        own = folder / f"{number}-{kind.__name__}"
        own.mkdir()
        log = kinds.Log()
        try:
            kind(base, own, Random(f"{seed} {number}"), log, **more)
        except Broken as broken:
            log.problems.append(f"{kind.__name__}: {broken}")
        except Exception:  # the campaign goes on, and does not end well
            log.problems.append(f"{kind.__name__}: {traceback.format_exc()}")
        line = f"{kind.__name__}: {log.injected.total()} injected, {log.survived.total()} survived"
        print("\n".join([line, *log.problems]), file=sys.stderr, flush=True)
        return log

    total = kinds.Log()
    with ThreadPoolExecutor(LANES) as lanes:
        for log in lanes.map(one, (n for n, (kind, _) in enumerate(work) if possible(kind))):
            total.add(log)
    return total


def summary(log: kinds.Log) -> str:
    """A table for a person."""
    rows = [(kind, n, log.survived[kind], log.seconds.get(kind, 0.0))
            for kind, n in sorted(log.injected.items())]  # fmt: skip
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    lines = [f"{kind:<55} {n:>8} {survived:>8} {s:>8.1f}" for kind, n, survived, s in rows]
    header = f"{'fault':<55} {'injected':>8} {'survived':>8} {'seconds':>8}"
    return "\n".join([header, *lines, *log.problems])


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
    if not MOUNTS:
        print("not injected: a full disk, a read-only disk (they need root on Linux)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"seed": seed} | asdict(log), indent=1))
    return 0 if log.survived == log.injected and not log.problems else 1


if __name__ == "__main__":
    sys.exit(main())
