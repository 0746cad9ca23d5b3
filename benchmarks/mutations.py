"""The page of records that are valid and odd: `python benchmarks/mutations.py --sets 100`.

Takes some cells of a real run (`--results`, by default those here), changes each at random within
what the reading of records accepts, and runs every stage from the records to the page, a set in a
process of its own. Prints how many sets were rendered whole, rendered with boxes in the place of
what could not be drawn, and refused with a line that names the record; and how many crashed, which
none should. `--seed` with the number of a set makes the same set again, `--keep` keeps its files.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import shared
from fuzz_inputs import VALUES, at, put
from siliconprof.errors import UserError
from siliconprof.store import record
from siliconprof.store.validation import load_schema

Made = dict[str, Any]
OUTCOMES = ("rendered whole", "rendered with boxes", "refused with a line", "crashed")
STATUSES = load_schema("record")["properties"]["status"]["enum"]
FEWEST, MOST = 5, 9  # cells of a set
CHANGES = 30  # at most, of a record
LIMIT_S = 600  # of a set
FINITE = [v for v in VALUES if type(v) in (int, float) and -(2**999) < v < 2**999]
NUMBERS = (*FINITE, 1e-9, 1e9, 1e99, -1e99, 2**53)  # those next to what the reader refuses
TEXTS = [v for v in VALUES if isinstance(v, str)]
FIXED = ("schema_version", "method_version", "sha256")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a record; of a long list some."""
    keys: Sequence[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value)) if len(value) < 4 else (0, 1, len(value) // 2, len(value) - 1)
    for name in keys:
        if path or name not in FIXED:
            yield (*path, name)
            yield from places(value[name], (*path, name))


def odd(value: Any, chance: random.Random) -> Any:
    """Another value in the place of one."""
    if isinstance(value, bool):
        return chance.choice((not value, None))
    if isinstance(value, int | float):
        other = chance.choice((*NUMBERS, None, value * 1000, -value))
        whole = isinstance(value, int) and other is not None and abs(other) < 2**63
        return int(other) if whole else other
    if isinstance(value, str):
        return chance.choice((*TEXTS, *STATUSES, None))
    if isinstance(value, list):
        several = [[], value[:1], value[: len(value) // 2], value + value]
        if value and all(isinstance(entry, int | float | None) for entry in value):
            extreme = chance.choice(NUMBERS)
            at = chance.randrange(len(value))
            several += [
                [extreme] * len(value),
                [None] * len(value),
                [*value[:at], *[None] * (len(value) - at)],
                [*value[:at], extreme, *value[at + 1 :]],
            ]
        return chance.choice(several)
    if isinstance(value, dict):
        return {}
    return chance.choice((0, 1.0, "", [], {}))


def mutated(made: Made, chance: random.Random, valid: Callable[[Made], bool]) -> Made:
    """A record changed in some places, after each of which it is still valid."""
    for _ in range(chance.randint(0, CHANGES)):
        other = made
        # Every kind of place is as likely as any other, however many there are of it.
        by_kind: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for path in places(other):
            kind = tuple("*" if isinstance(step, int) else step for step in path)
            by_kind.setdefault(kind, []).append(path)
        alike = by_kind[chance.choice(list(by_kind))]
        drops = chance.random() < 0.25
        for path in alike if chance.random() < 0.5 else [chance.choice(alike)]:
            drop = drops and isinstance(at(other, path[:-1]), dict)
            other = put(other, path, odd(at(other, path), chance), "drop" if drop else "replace")
        if valid(other):
            made = other
    return made


def is_valid(made: Made) -> bool:
    """Whether the reading of records accepts one."""
    try:
        text = json.dumps(made | {"sha256": record.content_sha256(made)}, allow_nan=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "record.json")
            path.write_text(text, encoding="utf-8")
            record.read(path)
    except (UserError, ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def make(results: Path, folder: Path, chance: random.Random) -> None:
    """Write a set's records and matrix below a folder, some as if of other hosts."""
    matrix = json.loads((results / "matrix.json").read_text(encoding="utf-8"))
    paths = (results / Path(one["record"]).relative_to("results") for one in matrix["cells"])
    planned = [path for path in paths if path.is_file()]
    matrix["cells"] = []
    for one in chance.sample(planned, min(chance.randint(FEWEST, MOST), len(planned))):
        made = record.read(one)
        hosts = [made["cell"]["host"]]
        if chance.random() < 0.2:
            hosts.append(chance.choice(("other", "desk-2", "x" * 40)))
        for host in hosts:
            changed = mutated(made | {"cell": made["cell"] | {"host": host}}, chance, is_valid)
            changed["sha256"] = record.content_sha256(changed)
            path = folder / "results" / "records" / f"{record.cell_path(changed)}.json"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(changed), encoding="utf-8")
            if changed["cell"]["host"] == matrix["host"]["label"]:
                own = {"cell": changed["cell"], "record": path.relative_to(folder).as_posix()}
                matrix["cells"].append(own)
    (folder / "results" / "matrix.json").write_text(json.dumps(matrix), encoding="utf-8")


def sketch(name: str, draw: Callable[[bool], Any], *_: Any) -> tuple[str, str]:
    """What `figures.publish` does, without the files, which take most of the time."""
    from siliconprof.render import figures, svg

    desk = svg.inline(figures._svg(draw(False)))
    return desk, svg.inline(figures._svg(draw(True)), first_id=svg.ids(desk))


def run(folder: Path, with_files: bool = False) -> None:
    """Every stage from the records to the page, in this process.

    Raises:
        UserError: one refuses.
    """
    if not with_files:
        importlib.import_module("siliconprof.render.figures").publish = sketch
    with contextlib.chdir(folder):
        for name, options in shared.stages().items():
            importlib.import_module(f"siliconprof.{name}").main(options)


def outcome(folder: Path, with_files: bool = False) -> tuple[str, str]:
    """(one of OUTCOMES, the lines or the traceback) of a set that lies in a folder."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            run(folder, with_files)
    except UserError as error:
        named = re.search(r"results/records/\S+\.json", str(error))
        return OUTCOMES[2 if named else 3], str(error)
    except Exception:
        return OUTCOMES[3], traceback.format_exc()
    boxes = folder / "results" / "left-out.json"
    lines = json.loads(boxes.read_text(encoding="utf-8")) if boxes.exists() else []
    return OUTCOMES[1 if lines else 0], "\n".join(str(line) for line in lines)


def main() -> int:
    """Run the campaign; 1 when a set crashed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=shared.ROOT / "results", help="of a run")
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first set")
    parser.add_argument("--keep", type=Path, help="a folder for the sets that were not whole")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    results = arguments.results.resolve()
    if arguments.one:
        seed, folder = arguments.one
        make(results, Path(folder), random.Random(seed))
        print(json.dumps(outcome(Path(folder))))
        return 0
    if not list(results.glob("records/*/*/*/*/*/*.json")):
        parser.error(f"--results {results}: no record of a run is there; name its results")
    counts: Counter[str] = Counter()
    for number in range(arguments.first, arguments.first + arguments.sets):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            folder = (arguments.keep / str(number)).resolve() if arguments.keep else scratch
            own = ("--results", results, "--one", f"{arguments.seed}-{number}", folder)
            command = [sys.executable, __file__, *map(str, own)]
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
                ended = json.loads(done.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                ended = (OUTCOMES[3], "still running")
            except (IndexError, ValueError):
                ended = (OUTCOMES[3], f"the process died: exit {done.returncode}")
        counts[ended[0]] += 1
        print(f"set {number}: {ended[0]} in {time.monotonic() - began:.0f} s", flush=True)
        if ended[1]:
            print("    " + "\n    ".join(ended[1].rstrip().splitlines()[-6:]), flush=True)
    print(f"{arguments.sets} sets: {', '.join(f'{counts[name]} {name}' for name in OUTCOMES)}")
    return 1 if counts[OUTCOMES[3]] else 0


if __name__ == "__main__":
    sys.exit(main())
