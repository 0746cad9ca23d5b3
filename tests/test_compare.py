"""Comparing: a planted difference is found, the same thing is not told apart, doubt is said.

The records are made here; the command is the real one.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import synthetic_results
from conftest import csv_rows
from siliconprof.remote import bundle_pack
from synthetic_results import command, kernel_launch, matmul, repeated, training

GPU = {"device": "gpu-x", "device_kind": "gpu", "backend": "torch-mps"}


def put(
    folder: Path,
    made: dict[str, Any],
    ratio: float = 1.0,
    processes: int = 5,
    noise: float = 0.01,
    seed: int = 1,
) -> Path:
    """Write a cell whose times are multiplied, as several processes measured it; its path.

    Args:
        noise: standard deviation of the logarithm of a process's median.
    """
    draw = random.Random(seed)
    made = repeated(made, *(ratio * math.exp(draw.gauss(0, noise)) for _ in range(processes)))
    for point in made["points"]:
        point["times"] = point["repeats"].pop(0)["times"]
    return synthetic_results.put(folder / "records", made)


def compared(*arguments: Any) -> tuple[int, str, list[dict[str, str]]]:
    """(exit status, text, rows of the CSV file) of a comparison."""
    table = Path(arguments[0]).parent / "compared.csv"
    done = command("compare", *arguments, "--csv", table)
    said = done.stderr.splitlines()
    assert all(line.startswith("reading the records of ") for line in said), said
    assert all(len(line) <= 110 for line in done.stdout.splitlines())
    return done.returncode, done.stdout, csv_rows(table)


def verdicts(rows: list[dict[str, str]]) -> dict[str, set[str]]:
    """Workload -> the verdicts of its points, with what doubt there is."""
    found: dict[str, set[str]] = {}
    for row in rows:
        workload = (row["cell_a"] or row["cell_b"]).split("/")[3]
        found.setdefault(workload, set()).add(
            ": ".join(filter(None, [row["verdict"], row["reason"]]))
        )
    return found


# -- verdicts ----------------------------------------------------------------------------------


def test_what_was_planted_is_found_and_nothing_else(tmp_path: Path) -> None:
    for made, ratio in ((matmul(), 1.1), (training(0.1), 0.9), (kernel_launch(), 1.0)):
        put(tmp_path / "a", made)
        put(tmp_path / "b", made, ratio, seed=2)
    status, text, rows = compared(tmp_path / "a", tmp_path / "b")
    assert status == 1
    found = verdicts(rows)
    assert found["matmul-small"] == {"slower"} and found["gpt2-nano-plain"] == {"faster"}
    assert found["kernel-launch"] == {"same"}
    for row in rows:
        planted = {"matmul-small": 1.1, "gpt2-nano-plain": 0.9}.get(row["cell_a"].split("/")[3], 1)
        assert float(row["low"]) < planted < float(row["high"])
        assert (row["processes_a"], row["processes_b"]) == ("5", "5")
    trained = {row["series"] for row in rows if "gpt2" in row["cell_a"]}
    assert trained == {"whole_step_s"}  # whole steps, not those whose phases were told apart
    assert text.splitlines()[1].startswith(("slower", "faster"))
    assert "4 same, 2 slower, 1 faster" in text
    assert "matmul-small batch=1" not in text and "matmul-small m=512" not in text


def test_many_points_make_no_false_difference_and_hide_none(tmp_path: Path) -> None:
    """Of 40 equal cells whose processes differ by 5 %, none; of 40 that are slower by 15 %, most."""
    for index in range(40):
        made = matmul()
        made["cell"]["workload"] = f"product-{index}"
        made["points"] = made["points"][:1]
        put(tmp_path / "a", made, noise=0.05, seed=index)
        put(tmp_path / "b", made, noise=0.05, seed=100 + index)
        put(tmp_path / "c", made, 1.15, noise=0.05, seed=200 + index)
    status, text, rows = compared(tmp_path / "a", tmp_path / "b")
    assert status in (0, 3) and {row["verdict"] for row in rows} <= {"same", "undecided"}
    assert "undecided: may be chance" in text and "... and 30 more" in text
    status, _, rows = compared(tmp_path / "a", tmp_path / "c")
    assert status == 1 and [row["verdict"] for row in rows].count("slower") >= 35


@pytest.mark.parametrize("processes", [1, 5])
def test_one_process_speaks_of_itself_and_says_how_to_get_more(
    tmp_path: Path, processes: int
) -> None:
    """Whichever side has one: by the intervals that the page prints."""
    put(tmp_path / "a", matmul(), processes=processes)
    put(tmp_path / "b", matmul(), 2.0, processes=1)
    status, text, rows = compared(tmp_path / "a", tmp_path / "b")
    assert status == 0
    assert verdicts(rows) == {"matmul-small": {"slower in these processes: 1 process"}}
    assert [float(row["ratio"]) for row in rows] == pytest.approx([2, 2], rel=0.1)
    assert all(1 < float(row["low"]) < 2 < float(row["high"]) for row in rows)
    assert "\n2 slower in these processes\n" in text
    assert text.splitlines()[-1].startswith("1 process: `repeats: 5`")
    status, _, rows = compared(tmp_path / "b", tmp_path / "b")
    assert (status, verdicts(rows)) == (3, {"matmul-small": {"undecided: 1 process"}})


# -- which cells and points --------------------------------------------------------------------


def test_two_conditions_of_one_folder(tmp_path: Path) -> None:
    """Backends, trainers, precisions, devices: what is named may differ, all else is equal."""
    results = tmp_path / "results"
    for ratio, axes in (
        (1.0, {}),
        (1.5, {"backend": "mlx"}),
        (0.5, GPU),
        (2.0, {"precision": "bf16"}),
    ):
        put(results, matmul(**axes), ratio, seed=int(10 * ratio))
    for trainer, ratio in (("plain", 1.0), ("hf", 1.2)):
        put(results, training(0.1, trainer=trainer), ratio)

    def of(a: str, b: str) -> tuple[int, dict[str, set[str]]]:
        status, _, rows = compared(results, "--where-a", *a.split(), "--where-b", *b.split())
        measured = [row for row in rows if row["ratio"]]
        return status, verdicts(measured)

    fp32 = " precision=fp32"
    slower, faster = {"matmul-small": {"slower"}}, {"matmul-small": {"faster"}}
    assert of("backend=torch-cpu", "backend=mlx") == (1, slower)
    assert of("backend=torch-cpu" + fp32, "backend=torch-mps") == (0, faster)
    assert of("precision=fp32 device=cpu-x", "precision=bf16 device=cpu-x") == (1, slower)
    assert of("trainer=plain", "trainer=hf") == (1, {"gpt2-nano-plain": {"slower"}})


def test_two_hosts_and_a_bundle(tmp_path: Path) -> None:
    """Another host has other devices; cells that both have are compared all the same."""
    put(tmp_path / "near", matmul())
    put(tmp_path / "far", matmul(host="far", device="cpu-y", threads=8), 2.0, seed=2)
    status, _, rows = compared(tmp_path / "near", tmp_path / "far")
    assert (status, verdicts(rows)) == (1, {"matmul-small": {"slower"}})
    put(tmp_path / "both", matmul())
    put(tmp_path / "both", matmul(host="far", device="cpu-y", threads=8), 2.0, seed=2)
    hosts = ("--where-a", "host=desk", "--where-b", "host=far")
    assert compared(tmp_path / "both", *hosts) == compared(tmp_path / "near", tmp_path / "far")
    bundle_pack.pack(tmp_path / "far", ["far"], tmp_path / "far.zip")
    assert compared(tmp_path / "near", tmp_path / "far.zip")[2] == rows


def test_what_has_no_counterpart_is_counted_and_what_fails_is_named(tmp_path: Path) -> None:
    fewer = matmul()
    fewer["points"] = fewer["points"][:1]
    lost = training(0.1, workload="lost")
    lost["points"][0]["disturbed"] = "others used a core"
    broken = training(0.1) | {"status": "oom", "reason": "out of memory", "points": []}
    for size, side, product, trained in (
        (4, "a", matmul(), training(0.1)),
        (8, "b", fewer, broken),
    ):
        put(tmp_path / side, product, seed=size)
        put(tmp_path / side, trained)
        put(tmp_path / side, lost)
        put(tmp_path / side, training(0.1, workload="other", parameters={"batch_size": size}))
    status, text, rows = compared(tmp_path / "a", tmp_path / "b")
    assert status == 1
    assert "failed in B: desk/cpu-x/torch-cpu/gpt2-nano-plain/auto/fp32: oom: out of memory" in text
    found = verdicts(rows)
    assert found["lost"] == {"undecided: disturbed in both"}
    assert found["other"] == {"only in A: no such cell", "only in B: no such cell"}
    assert found["matmul-small"] == {"same", "only in A: no such point"}


# -- bad input ---------------------------------------------------------------------------------


def remarks(stderr: str) -> list[str]:
    """Lines but for the one that says what lasts over a second."""
    return [line for line in stderr.splitlines() if not line.startswith("reading the records")]


def bad(tmp_path: Path, *arguments: Any) -> str:
    """The one line that bad input gives."""
    done = command("compare", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = remarks(done.stderr)
    return line


def test_bad_input_is_one_line_and_status_2(tmp_path: Path) -> None:
    """More of it is in test_front_door."""
    put(tmp_path / "a", matmul())
    put(tmp_path / "a", matmul(backend="mlx"))
    path = put(tmp_path / "b", training(0.1))
    assert "expected KEY=VALUE" in bad(tmp_path, "a", "b", "--where-b", "backend")
    said = bad(tmp_path, "a", "a", "--where-b", "backend=mlx")
    assert "choose one by --where-a backend=mlx" in said
    assert "a and b have no cell" in bad(tmp_path, "a", "b")
    path.write_text(path.read_text().replace("Linux-6.1", "Linux-6.2"))
    assert "does not match its own `sha256`" in bad(tmp_path, "a", "b")
    put(tmp_path / "b", matmul(), seed=2)
    done = command("compare", "a", "b", cwd=tmp_path)  # all others are compared
    assert (done.returncode, len(remarks(done.stderr))) == (0, 1) and "2 same" in done.stdout
