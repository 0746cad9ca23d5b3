"""`siliconprof history` and its part of the study: records that were measured again, in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import siliconprof
from synthetic_results import command, make, matmul, render, training
from test_compare import in_turn, process, put

NOISE = "no difference beyond noise"


def history(results: Path, *arguments: Any) -> list[dict[str, Any]]:
    """What the command says as JSON."""
    done = command("history", *arguments, "--results", results, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    lines: list[dict[str, Any]] = json.loads(done.stdout)
    return lines


def test_each_record_is_held_against_the_one_before(tmp_path: Path) -> None:
    for factor, at_s, commit in ((1.0, 0, "a"), (1.1, 60, "a"), (2.0, 120, "b")):
        put(tmp_path, process(training(0.1), factor, at_s, git_commit=commit * 40))
    odd = training(0.1) | {"flags": [{"code": "contended", "detail": "another process"}]}
    put(tmp_path, process(odd, 4.0, 180, git_commit="b" * 40))
    put(tmp_path, process(matmul(), 1.0, 0))  # once: it has no history
    lines = history(tmp_path)
    changes = ["first", NOISE, "probably slower, 1.82 ×", "disturbed by other processes"]
    assert [line["change"] for line in lines] == changes
    assert [line["git_commit"][0] for line in lines] == list("aabb")
    assert {line["workload"] for line in lines} == {"gpt2-nano-plain"}
    assert history(tmp_path, "*/gpt2-nano-plain/*") == lines
    done = command("history", "--results", tmp_path)
    for word in (*changes, "2026-03-01 12:02", "bbbbbbbbbbbb", "contended"):
        assert word in done.stdout


def test_with_a_noise_floor_a_change_is_certain(tmp_path: Path) -> None:
    in_turn(tmp_path / "again", [(matmul(), 1.0)], count=6)
    floor = command("noise-floor", "--from", tmp_path / "again" / "a", "--results", tmp_path)
    assert floor.returncode == 0, floor.stderr
    put(tmp_path, process(matmul(), 1.5, 0))
    put(tmp_path, process(matmul(), 1.0, 60))
    assert {line["change"] for line in history(tmp_path)} == {"first", "faster, 1.5 ×"}
    put(tmp_path, process(matmul(), 2.0, 120, node="another"))
    put(tmp_path, process(matmul(), 2.2, 180, node="another"))
    changes = {line["change"] for line in history(tmp_path)[4:]}  # the floor is of one machine
    assert changes == {"probably slower, 2 ×, perhaps on another machine", NOISE}


def test_what_is_no_history_is_one_line(tmp_path: Path) -> None:
    done = command("history", "--results", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    put(tmp_path, process(matmul(), 1.0, 0))
    done = command("history", "*/none/*", "--results", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "no cell matches '*/none/*'; its cells: desk/" in done.stderr
    done = command("history", "--results", tmp_path)
    assert done.stdout == "no cell was measured more than once\n"


def test_the_study_shows_what_was_measured_again_and_nothing_else(tmp_path: Path) -> None:
    once = render(make(tmp_path / "once", [training(0.1), matmul()]))
    assert "Measured more than once" not in once.of("quality")
    for factor, at_s in ((1.0, 0), (0.5, 60)):
        put(tmp_path / "twice" / "results", process(training(0.1), factor, at_s))
    results = make(tmp_path / "twice", [process(training(0.1), 0.5, 60), matmul()])
    lines = siliconprof.load(results).history
    assert len(lines) == 2 and lines["step_s"].iloc[0] == 2 * lines["step_s"].iloc[1]
    page = render(results, ())
    assert "probably faster, 2 ×" in page.of("quality")
    assert 'id="figure-history"' in page.html and len(page.tables["table-history"]) == 3
