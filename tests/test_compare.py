"""Comparing: a planted difference is found, the same thing is not told apart, doubt is said.

The records are made here, but for those of one test that measures; the command is the real one.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Checkout, copy_project
from siliconprof.compare import comparison, noise_floor, replicate
from siliconprof.compare.result_sets import Measured, ResultSet
from siliconprof.remote import bundle_import, bundle_pack
from siliconprof.stats import inference
from siliconprof.store import contents, record, temporary
from siliconprof.store.cell import AXES
from siliconprof.store.contents import Record
from synthetic_results import command, kernel_launch, make, matmul, training

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOISE, DRIFT = 0.015, 0.2  # between processes; from the first to the last
STEPS = 10  # processes a side


def compared(*arguments: Any) -> tuple[int, dict[str, Any]]:
    """(exit status, document) of a comparison."""
    done = command("compare", *arguments, "--json")
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def process(made: dict[str, Any], factor: float, at_s: float, **changes: Any) -> dict[str, Any]:
    """A record whose times are multiplied, as measured so many seconds after `BEGIN`.

    Args:
        changes: of the environment, but for `status` and `reason`.
    """
    made = json.loads(json.dumps(made))
    for point in made["points"]:
        for values in point["times"].values():
            values[:] = [factor * value for value in values]
    for key in ("status", "reason"):
        made[key] = changes.pop(key, made[key])
    made["environment"] |= {"packages": {"torch": "2.13.0+cpu"}} | changes
    made["started_at"] = (BEGIN + timedelta(seconds=at_s)).isoformat()
    made["sha256"] = record.content_sha256(made)
    return made


def put(results: Path, data: dict[str, Any]) -> None:
    """Write a record to its place, the newest of its cell, and to the history."""
    text = json.dumps(data)
    record.keep_in_history(results / "history" / record.cell_path(data), data["sha256"], text)
    path = results.joinpath("records", *(data["cell"][axis] for axis in AXES))
    temporary.write(path.with_suffix(".json"), text)


def in_turn(
    folder: Path, cells: Sequence[tuple[dict[str, Any], float]], count: int = STEPS, seed: int = 1
) -> None:
    """Both sides of `siliconprof replicate`: A B, B A, …, each process with noise, all with drift.

    Args:
        cells: (record, how many times as long B takes).
    """
    noise = random.Random(seed)
    slot = 0
    for turn in range(count):
        for made, ratio in cells:
            for side in "ab" if turn % 2 == 0 else "ba":
                slot += 1
                drift = 1 + DRIFT * slot / (2 * count * len(cells))
                factor = drift * math.exp(noise.gauss(0, NOISE)) * (ratio if side == "b" else 1)
                put(folder / side, process(made, factor, 10 * slot))


def verdicts(document: dict[str, Any]) -> dict[str, set[str]]:
    """Workload -> the verdicts of its points."""
    found: dict[str, set[str]] = {}
    for point in document["points"]:
        found.setdefault(point["cell_a"].split("/")[3], set()).add(point["verdict"])
    return found


# -- what is found -----------------------------------------------------------------------------


def test_what_was_planted_is_found_and_nothing_else(tmp_path):
    in_turn(tmp_path, [(matmul(), 1.1), (training(0.1), 0.9), (kernel_launch(), 1.0)])
    status, document = compared(tmp_path)  # both sides of one folder
    assert status == document["exit_status"] == 1
    found = verdicts(document)
    assert found["matmul-small"] == {"slower"}
    assert found["gpt2-nano-plain"] == {"faster"}
    assert found["kernel-launch"] <= {"same", "ambiguous"}
    for point in document["points"]:
        if point["cell_a"].split("/")[3] == "matmul-small":
            assert point["metric"] == "step_s" and len(point["figures_b"]) == STEPS
            assert point["low"] < 1.1 < point["high"]
            assert point["reason"] == "10 pairs of processes measured in turn"
    metrics = {p["metric"] for p in document["points"] if "gpt2" in p["cell_a"]}
    assert metrics == {"unsplit_step_s"}  # whole steps, not those whose phases were told apart
    done = command("compare", tmp_path / "a", tmp_path / "b", "--cells", "*/matmul-small/*")
    assert done.returncode == 1
    assert "slower" in done.stdout and "gpt2" not in done.stdout
    assert done.stdout.count("10 pairs of processes measured in turn") == 1
    assert done.stdout.splitlines()[-1].startswith("2 points: 2 slower; 0 without")


def test_no_difference_is_said_to_be_none(tmp_path):
    in_turn(tmp_path, [(matmul(), 1.0), (training(0.1), 1.005)])
    status, document = compared(tmp_path)
    assert status == 0
    assert verdicts(document) == {"matmul-small": {"same"}, "gpt2-nano-plain": {"same"}}
    for point in document["points"]:
        assert 1 / 1.03 < point["low"] < point["high"] < 1.03
    status, document = compared(tmp_path, "--threshold", "0.2%")
    assert status == 3  # no such thing can be said of so few processes
    assert "more processes narrow it" in document["points"][0]["reason"]


def draw(noise: random.Random, processes: int, odd: float) -> list[float]:
    """Logarithms of process medians: 2 % of noise, and of some a neighbour's work on top."""
    return [
        noise.gauss(0, 0.02) + (noise.uniform(0.1, 0.6) if noise.random() < odd else 0.0)
        for _ in range(processes)
    ]


@pytest.mark.parametrize(("processes", "odd"), [(5, 0.0), (10, 0.0), (10, 0.08)])
def test_fifty_pairs_of_the_same_and_fifty_of_ten_per_cent(processes, odd):
    """At most 3 of 50 are called different, at least 45 of 50 are found; odd processes or not."""
    noise = random.Random(20260301)
    made = matmul()
    made["points"] = made["points"][:1]
    for ratio, word, least, most in ((1.0, "different", 0, 3), (1.1, "slower", 45, 50)):
        count = 0
        for _ in range(50):
            sides = []
            for side in range(2):
                slots = [2 * k + (side if k % 2 == 0 else 1 - side) for k in range(processes)]
                records = [
                    contents.made(
                        Record, process(made, math.exp(log) * (ratio if side else 1), 10 * slot)
                    )
                    for slot, log in zip(slots, draw(noise, processes, odd), strict=True)
                ]
                cell = Measured(records[-1], records)
                sides.append(ResultSet(Path("ab"[side]), {}, [cell]))
            (row,) = comparison.compare(sides[0], sides[1], 0.03, ({}, {})).rows
            found = row.verdict in ("slower", "faster") if word == "different" else row.verdict
            count += found is True or found == word
        assert least <= count <= most, (word, count)


# -- where the error is from -------------------------------------------------------------------


def one_each(
    folder: Path, ratio: float, workload: str = "matmul-small", flags: Any = (), **more: Any
) -> tuple[int, dict[str, Any]]:
    """One process a side, B so many times as long and flagged; their comparison."""
    options = more.pop("options", ())
    for side, factor, own in (("old", 1.0, ()), ("new", ratio, flags)):
        shutil.rmtree(folder / side, ignore_errors=True)
        made = matmul() | {"flags": list(own)}
        made["cell"]["workload"] = workload
        put(folder / side, process(made, factor, 60 * factor, **more))
    return compared(folder / "old", folder / "new", *options)


def test_single_processes_decide_nothing_and_say_what_is_probable(tmp_path):
    status, document = one_each(tmp_path, 1.5)
    assert status == 3
    for point in document["points"]:
        assert point["verdict"] == "probably slower" and point["low"] is None
        assert point["ratio"] == pytest.approx(1.5)
        assert "1 and 1 processes" in point["reason"]
        assert "siliconprof replicate" in point["reason"]
    done = command("compare", tmp_path / "old", tmp_path / "new")
    assert done.stdout.count("probably slower, 1.5 ×, single runs") == 2
    assert done.stdout.count("1 and 1 processes") == 1  # a reason stands once
    status, document = one_each(tmp_path, 1.2)  # as far as processes are assumed to differ
    assert (status, verdicts(document)) == (3, {"matmul-small": {"ambiguous"}})
    disturbed = {"code": "contended", "detail": "another process"}
    status, document = one_each(tmp_path, 2.0, flags=[disturbed])
    assert (status, verdicts(document)) == (3, {"matmul-small": {"ambiguous"}})
    assert "other processes disturbed it" in document["points"][0]["reason"]


def test_a_noise_floor_lets_single_processes_decide(tmp_path):
    in_turn(tmp_path / "again", [(matmul(), 1.0)], count=6)
    results = tmp_path / "old"
    assert one_each(tmp_path, 1.5)[0] == 3
    done = command("noise-floor", "--from", tmp_path / "again" / "a", "--results", results)
    assert done.returncode == 0, done.stderr
    assert (results / "noise-floor" / "desk.json").is_file()
    status, document = compared(results, tmp_path / "new")
    assert status == 1
    for point in document["points"]:
        assert point["verdict"] == "slower"
        assert "A/A processes of this point differ by" in point["reason"]
    more = matmul()  # the points of a version that records one parameter more
    for point in more["points"]:
        point["params"]["cache"] = "cold"
    put(tmp_path / "more", process(more, 1.5, 60))
    in_turn(tmp_path / "more-again", [(more, 1.0)], count=6)
    results_b = tmp_path / "more"
    done = command("noise-floor", "--from", tmp_path / "more-again" / "a", "--results", results_b)
    assert done.returncode == 0, done.stderr
    _, document = compared(tmp_path / "new", results_b)
    for point in document["points"]:
        assert "A/A processes of this point differ by" in point["reason"]
    put(tmp_path / "namesake", process(matmul(), 1.5, 60, node="another"))
    status, document = compared(results, tmp_path / "namesake")  # whose noise is not known
    assert status == 3 and "B needs at least 5" in document["points"][0]["reason"]
    again = command("noise-floor", "--from", tmp_path / "again" / "a", "--results", results)
    assert (again.returncode, len(again.stderr.splitlines())) == (2, 1)
    # what the floor's drift alone could be is not called a difference
    floor = results / "noise-floor" / "desk.json"
    judge = partial(one_each, tmp_path / "other", options=("--noise-floor", floor))
    assert judge(1.04)[0] == 3
    # a point that it does not know is judged by the noisiest that it knows
    status, document = judge(2.0, "other")
    assert status == 1 and "the noisiest of 2 points" in document["points"][0]["reason"]
    floor.write_text(floor.read_text()[:-9])
    done = command("compare", results, tmp_path / "new")
    assert (done.returncode, done.stdout) == (2, "")
    assert "damaged noise floor" in done.stderr and len(done.stderr.splitlines()) == 1


def test_without_arguments_a_noise_floor_is_of_the_last_run_s_main_cells(tmp_path, monkeypatch):
    """Of each backend a training and an operation, those of this host alone."""
    trainings = [training(0.1), training(0.1, workload="gpt2-nano-hf", trainer="hf")]
    made = [*trainings, training(0.2, backend="mlx"), matmul(), kernel_launch()]
    results = make(tmp_path, made)
    monkeypatch.setattr(noise_floor, "node_id", lambda: made[0]["environment"].get("node"))
    cells = noise_floor.main_cells(noise_floor.last_run(results))
    assert [(entry["cell"]["backend"], entry["cell"]["workload"]) for entry in cells] == [
        ("mlx", "gpt2-nano-plain"),
        ("torch-cpu", "gpt2-nano-plain"),
        ("torch-cpu", "matmul-small"),
    ]
    monkeypatch.setattr(noise_floor, "node_id", lambda: "elsewhere")
    assert noise_floor.last_run(results) == []


def test_as_many_cells_are_measured_as_there_is_time_for(tmp_path, monkeypatch):
    clock, calls = [0.0], []

    def once(side: Any, entry: Any, into: Path, scratch: Path) -> tuple[str, None]:
        clock[0] += entry["takes_s"]
        calls.append(entry["takes_s"])
        return "ok", None

    monkeypatch.setattr(replicate, "_measure_once", once)
    monkeypatch.setattr(replicate.time, "monotonic", lambda: clock[0])
    entries = [{"cell": matmul()["cell"], "takes_s": seconds} for seconds in (5, 4, 9)]
    assert replicate.measure([(replicate.Side.here(), entries)], 12, tmp_path, 60.0) == []
    assert (clock[0], calls.count(9)) == (54.0, 1) and calls.count(5) == calls.count(4) == 5


def test_one_side_after_the_other_is_ambiguous(tmp_path):
    for index in range(8):
        put(tmp_path / "a", process(matmul(), 1.0 + 0.001 * index, index))
        put(tmp_path / "b", process(matmul(), 1.2 + 0.001 * index, 100 + index))
    status, document = compared(tmp_path / "a", tmp_path / "b")
    assert status == 3
    assert "drift" in document["points"][0]["reason"]


def test_two_hosts_of_one_folder(tmp_path):
    """Five processes on each are enough: there is no drift that they could share."""
    noise = random.Random(3)
    other = {"device": "cpu-y", "threads": 8, "device_memory_bytes": 2**35}
    axes = {"desktop": {}, "desktop-far": other}
    for host, slower in (("desktop", 1.0), ("desktop-far", 0.5)):
        for index in range(5):
            factor = slower * math.exp(noise.gauss(0, NOISE))
            made = matmul(host=host, **axes[host])
            put(tmp_path, process(made, factor, index, node=host))
    put(tmp_path, process(training(0.1, host="desktop-far", **other), 1.0, 9))
    status, document = compared(f"{tmp_path}@desktop", f"{tmp_path}@desktop-far")
    assert status == 0
    assert verdicts(document) == {"matmul-small": {"faster"}}
    point = document["points"][0]
    assert point["reason"] == "5 processes of A; 5 processes of B"
    assert "threads: 2 against 8" in point["notes"]
    (alone,) = document["unmatched"]
    assert alone["side"] == "B" and "gpt2" in alone["path"] and not alone["broken"]
    by_host = ("--where-a", "host=desktop", "--where-b", "host=desktop-far")
    assert compared(tmp_path, *by_host) == (status, document)


def test_across_devices_each_workload_is_compared_whatever_runs_it(tmp_path):
    """A pair for each two devices, in one folder once; what one device alone has is listed."""
    gpu = {"device": "gpu-x", "device_kind": "gpu", "backend": "torch-mps"}
    put(tmp_path, process(matmul(), 1.0, 0))
    put(tmp_path, process(matmul(backend="mlx"), 0.9, 10))
    put(tmp_path, process(matmul(**gpu), 0.1, 20))
    put(tmp_path, process(training(0.1), 1.0, 30))
    status, document = compared(tmp_path, "--across-devices")
    assert status == 3
    pairs = {(p["cell_a"].split("/")[2], p["cell_b"].split("/")[2]) for p in document["points"]}
    assert pairs == {("torch-cpu", "torch-mps"), ("mlx", "torch-mps")}
    assert verdicts(document) == {"matmul-small": {"probably faster"}}
    (alone,) = document["unmatched"]
    assert "gpt2-nano-plain" in alone["path"] and alone["reason"] == "no other device has it"


def test_versions_and_commits_of_one_history(tmp_path):
    """The history keeps what was measured before an upgrade; the newest of each is compared."""
    for index in range(12):
        new = index % 4 in (1, 2)
        version, commit = ("2.13.0+cpu", "b" * 40) if new else ("2.12.0+cpu", "a" * 40)
        factor = (1.2 if new else 1.0) * (1 + 0.002 * (index % 3))
        changes = {"packages": {"torch": version}, "git_commit": commit}
        put(tmp_path, process(matmul(), factor, index, **changes))
    by_version = ("--where-a", "torch=2.12.0", "--where-b", "torch=2.13.0")
    status, document = compared(tmp_path, tmp_path, *by_version)
    assert (status, verdicts(document)) == (1, {"matmul-small": {"slower"}})
    assert document["a"]["versions"] == ["torch 2.12.0+cpu"]
    by_commit = ("--where-a", f"commit={'a' * 9}", "--where-b", f"commit={'b' * 9}")
    assert compared(tmp_path, *by_commit)[1]["points"] == document["points"]


def test_a_bundle_is_a_side(tmp_path):
    put(tmp_path / "far", process(matmul(), 1.0, 0))
    bundle_pack.pack(tmp_path / "far", ["desk"], tmp_path / "far.zip")
    put(tmp_path / "results", process(matmul(), 1.1, 9))
    unpacked = tmp_path / "unpacked"
    bundle_import.unpack_reference(tmp_path / "far.zip", unpacked)
    documents = [
        compared(source, tmp_path / "results")[1] for source in (tmp_path / "far.zip", unpacked)
    ]
    assert documents[0]["points"] == documents[1]["points"]
    assert documents[0]["points"][0]["ratio"] == pytest.approx(1.1)


# -- what is not comparable --------------------------------------------------------------------


def test_a_cell_that_no_longer_works_fails_the_comparison(tmp_path):
    in_turn(tmp_path, [(matmul(), 1.0), (training(0.1), 1.0)])
    shutil.rmtree(tmp_path / "b" / "history" / "desk/cpu-x/torch-cpu/gpt2-nano-plain")
    broken = training(0.1) | {"points": []}
    put(tmp_path / "b", process(broken, 1.0, 999, status="oom", reason="out of memory"))
    done = command("compare", tmp_path)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAILED IN B")]
    assert "gpt2-nano-plain" in line and "B is oom: out of memory" in line


def test_what_has_no_counterpart_is_listed(tmp_path):
    fewer, more = matmul(), matmul()
    fewer["points"] = fewer["points"][:1]
    first = more["points"][0]  # and the same with a parameter that B does not know
    more["points"].append(first | {"params": first["params"] | {"cache": "cold"}})
    put(tmp_path / "a", process(more, 1.0, 0))
    put(tmp_path / "b", process(fewer, 1.0, 1))
    for side, size in (("a", 4), ("b", 8)):
        made = training(0.1)
        made["cell"]["parameters"] |= {"batch_size": size}
        put(tmp_path / side, process(made, 1.0, 1))
    _, document = compared(tmp_path / "a", tmp_path / "b")
    reasons = {entry["reason"] for entry in document["unmatched"]}
    assert "B is another cell: batch_size 4 against 8" in reasons
    assert "B has no step_s at batch=1 k=512 m=512 n=512" in reasons
    assert len(document["points"]) == 1


def test_a_record_is_not_compared_with_itself(tmp_path):
    put(tmp_path / "a", process(matmul(), 1.0, 0))
    status, document = compared(tmp_path / "a", tmp_path / "a")
    assert status == 3
    assert document["points"][0]["reason"] == "the same record is on both sides"


def test_memory_is_compared_when_asked_for(tmp_path):
    made = training(0.1)
    made["points"][0]["memory"]["device_peak_bytes"] = 2**20
    in_turn(tmp_path, [(made, 1.0)])
    _, document = compared(tmp_path, "--memory")
    (peak,) = [p for p in document["points"] if p["metric"] == "device_peak_bytes"]
    assert (peak["verdict"], peak["ratio"], peak["low"]) == ("same", 1.0, 1.0)


# -- bad input ---------------------------------------------------------------------------------


def bad(tmp_path: Path, *arguments: Any) -> str:
    """The one line that bad input gives."""
    done = command("compare", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


def test_bad_input_is_one_line_and_status_2(tmp_path):
    put(tmp_path / "a", process(matmul(), 1.0, 0))
    put(tmp_path / "b", process(training(0.1), 1.0, 0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.zip").write_text("nothing")
    (tmp_path / "two" / "a" / "records").mkdir(parents=True)
    (tmp_path / "two" / "b" / "records").mkdir(parents=True)
    assert bad(tmp_path, "a", "nowhere") == "nowhere: no such file or folder"
    assert "no records in it" in bad(tmp_path, "empty", "a")
    assert "neither a folder nor a bundle" in bad(tmp_path, "no.zip", "a")
    assert "has two sides; name one" in bad(tmp_path, "two", "a")
    assert "B is missing; name B" in bad(tmp_path, "a")
    assert "no record has host=moon; there are: desk" in bad(tmp_path, "a@moon", "a")
    assert "did you mean 'torch'?" in bad(tmp_path, "a", "--where-b", "torsh=2")
    assert "torch=1; there are: 2.13.0+cpu" in bad(tmp_path, "a", "--where-b", "torch=1")
    assert "expected KEY=VALUE" in bad(tmp_path, "a", "--where-b", "torch")
    assert "host is given twice" in bad(tmp_path, "a@desk", "b", "--where-a", "host=desk")
    assert "no cell matches x" in bad(tmp_path, "a", "a", "--cells", "x")
    assert "nope.json: No such file" in bad(tmp_path, "a", "b", "--noise-floor", "nope.json")
    done = command("compare", "a", "b", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "a and b have no point in common"
    done = command("compare", "a", "b", "--threshold", "much", cwd=tmp_path)
    assert done.returncode == 2 and "much: expected a percentage" in done.stderr
    (path,) = (tmp_path / "a" / "records").rglob("*.json")
    path.write_text(path.read_text().replace("Linux-6.1", "Linux-6.2"))
    assert "does not match its own `sha256`" in bad(tmp_path, "a", "b")


def test_records_of_another_schema_are_left_out_and_named(tmp_path):
    in_turn(tmp_path, [(matmul(), 1.0)], count=5)
    old = process(matmul(), 3.0, 5) | {"schema_version": 3}
    old["sha256"] = record.content_sha256(old)
    folder = tmp_path / "a" / "history" / record.cell_path(old)
    record.keep_in_history(folder, old["sha256"], json.dumps(old))
    for name in ("code.json", ".checks/0.json"):  # what else a history holds is no record
        (tmp_path / "a" / "history" / ".checks").mkdir(exist_ok=True)
        (tmp_path / "a" / "history" / name).write_text("{}")
    _, document = compared(tmp_path)
    (line,) = document["left_out"]
    assert "record of schema version 3; this version reads" in line
    assert all(len(point["figures_a"]) == 5 for point in document["points"])


# -- the statistics ----------------------------------------------------------------------------


def test_students_t_is_that_of_the_tables():
    """Fisher and Yates, table III: two-sided 5 % and 1 %."""
    table = {1: (12.706, 63.657), 4: (2.776, 4.604), 9: (2.262, 3.250), 30: (2.042, 2.750)}
    for df, (five, one) in table.items():
        assert inference.student_quantile(0.975, df) == pytest.approx(five, abs=6e-4)
        assert inference.student_quantile(0.995, df) == pytest.approx(one, abs=6e-4)
        assert inference.student_cdf(-five, df) == pytest.approx(0.025, abs=2e-5)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 2000 ratios of normal figures; three standard errors are 1.5 %."""
    noise = random.Random(7)
    for count in (5, 7, 10):
        held = far = 0
        for _ in range(2000):
            found = inference.location([noise.gauss(0, 0.1) for _ in range(count)])
            low, high = found.interval()
            held += low <= 1 <= high
            far += found.p_value() <= 0.002  # as ten points ask for: 4 of 2000
        assert 0.935 <= held / 2000 <= 0.965 and far <= 10


def test_many_points_need_more():
    """What would be a finding alone is none among forty."""
    assert inference.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    found = inference.location([0.1, 0.06, 0.12, 0.08, 0.09])
    p_value = found.p_value()
    assert 0.0005 < p_value < 0.02
    assert inference.verdict(found, p_value, 1, 0.03)[0] == "slower"
    word, why = inference.verdict(found, 40 * p_value, 40, 0.03)
    assert word == "ambiguous" and "among 40 points" in why


# -- measuring both sides in turn --------------------------------------------------------------


@pytest.mark.slow
def test_two_checkouts_are_measured_in_turn(checkout: Checkout, tmp_path: Path):
    """Fresh processes of a real cell, two a side, each with the code of its own checkout."""
    other = copy_project(tmp_path / "other")
    changed = other.path / "workflow" / "siliconprof" / "workloads" / "matmul.py"
    changed.write_text(changed.read_text() + "\nANOTHER = 1\n")
    workload = {"module": "matmul", "shapes": [[1, 16, 16, 16]], "burst": 0}
    workload |= {"backends": ["mlx"], "precisions": ["fp32"]}
    checkout.configure(
        experiment="twice", host="here", timing=QUICK, datasets={}, workloads={"tiny": workload}
    )
    arguments = ["--cells", "*/tiny/*", "-n", "2", "--against", str(other.path), "--name", "pair"]
    done = checkout.stage("compare.replicate", *arguments)
    assert "next: siliconprof compare results/replicates/pair" in done.stdout
    assert checkout.records() == {}  # the pipeline's own are not touched
    made, ended = {}, []
    for side in "ab":
        history = checkout.path / "results" / "replicates" / "pair" / side / "history"
        paths = sorted(history.glob("[!.]*/**/*.json"))
        ended += [(path.stat().st_mtime_ns, side) for path in paths]
        made[side] = [record.read(path) for path in paths]
        assert [data["status"] for data in made[side]] == ["ok", "ok"]
        stops = {point["stopped_by"] for data in made[side] for point in data["points"]}
        assert stops == {"max_iterations"}
    hashes = {
        side: {data["code"]["modules"]["workloads.matmul"] for data in made[side]} for side in "ab"
    }
    assert len(hashes["a"]) == len(hashes["b"]) == 1 and hashes["a"] != hashes["b"]
    assert [side for _, side in sorted(ended)] == list("abba")
    done = checkout.stage("compare.compare", "results/replicates/pair", check=False)
    assert done.returncode == 3
    assert "2 and 2 processes, and a verdict needs 5 a side" in done.stdout
    done = checkout.stage("compare.replicate", *arguments, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "results/replicates/pair: exists" in done.stderr
    done = checkout.stage("compare.replicate", "--cells", "*/none/*", check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "matches no cell of config/config.yaml" in done.stderr
    arguments[-1] = "../pair"
    done = checkout.stage("compare.replicate", *arguments, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--name ../pair: is not a valid name of a folder" in done.stderr
