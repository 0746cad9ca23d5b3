"""Which edits measure a cell again, and that a forced or deleted record is measured, whatever else there is."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest
from conftest import TABLE, TINY, Checkout, csv_rows
from fuzz_inputs import put
from siliconprof.store import record

pytestmark = pytest.mark.slow


def file_of(checkout: Checkout, workload: str) -> Path:
    """The record of a workload."""
    (path,) = (checkout.path / "results/records").rglob(f"{workload}/auto/fp32.json")
    return path


def run(checkout: Checkout, *options: str) -> set[str]:
    """Run up to the tables; workloads whose record is another one then."""
    before = checkout.stamps()
    checkout.snakemake("measured", TABLE, *options)
    after = checkout.stamps()
    return {key.split("/")[3] for key in after if after[key] != before.get(key)}


def test_without_snakemakes_notes_records_stand(clone: Checkout) -> None:
    """Records outside the experiment are named and used in nothing.

    Without notes Snakemake does not know that the config was another one, so the experiment is forced.
    """
    shutil.rmtree(clone.path / ".snakemake")
    assert run(clone) == set()
    assert "Nothing to be done" in clone.snakemake("-n", TABLE).stdout
    changed = put(TINY, ("workloads", "product", "shapes"), [[1, 4, 4, 4]])
    del changed["workloads"]["launch"]
    clone.configure(**changed)
    assert run(clone, "--forcerun", "experiment") == set()
    assert "launch" in (clone.path / "results/tables/outside.csv").read_text()
    for table in ("cells", "points", "steps", "samples"):
        workloads = {
            row["workload"] for row in csv_rows(clone.path / f"results/tables/{table}.csv")
        }
        assert workloads == set(TINY["workloads"]) - {"launch"}, table
    file_of(clone, "product").unlink()
    assert run(clone) == {"product"}


def test_what_answers_no_more_is_measured_again_and_an_edit_undone_as_well(clone: Checkout) -> None:
    """All that was measured stays in the history, from which nothing is given back."""
    changed = put(TINY, ("workloads", "product", "shapes"), [[1, 4, 4, 4]])
    clone.configure(**put(changed, ("workloads", "more"), TINY["workloads"]["product"]))
    module = clone.path / "workflow/siliconprof/workloads/kernel_launch.py"
    text = module.read_text()
    module.write_text(text + "\nANOTHER = 1\n")
    path = clone.path / "results/hosts/desk.json"
    host = json.loads(path.read_text())
    host["packages"]["mlx-lm"] = "0.0.1"
    path.write_text(json.dumps(host))
    old = {name: file_of(clone, name).read_bytes() for name in ("product", "launch", "nano-2")}
    listed = clone.snakemake("-n", TABLE, "--quiet", "progress").stdout
    assert listed.count("output: results/records/desk/") == 4
    assert {name: file_of(clone, name).read_bytes() for name in old} == old
    plan = json.loads(clone.stage("pipeline.cli", "plan", "--json").stdout)
    why = {row["cell"]["workload"]: row["why"] for row in plan["cells"] if row["due"]}
    assert why == dict.fromkeys(old, "params changed") | {"more": "never measured"}
    assert run(clone) == {"product", "launch", "nano-2", "more"}
    for entry in map(json.loads, old.values()):
        folder = clone.path / "results/history" / record.cell_path(entry)
        (kept,) = record.earlier(folder, clone.stamps()[record.cell_path(entry)][0])
        assert record.read(kept) == entry

    module.write_text(text)
    assert run(clone) == {"launch"}
    assert file_of(clone, "launch").read_bytes() != old["launch"]
    clone.configure(**TINY)
    forced = file_of(clone, "product").relative_to(clone.path).as_posix()
    assert run(clone, "--forcerun", forced) == {"product"}
    assert file_of(clone, "product").read_bytes() != old["product"]
    file_of(clone, "product").unlink()
    assert run(clone) == {"product"}


def test_snakemake_s_own_cache_gives_records_back(clone: Checkout, tmp_path: Path) -> None:
    """To whoever asks by --cache: of the same cell, code, versions and data, forced ones too."""
    clone.environment["SNAKEMAKE_OUTPUT_CACHE"] = str(tmp_path)
    path = file_of(clone, "product")
    path.unlink()
    cache = ("--cache", "measure")
    assert run(clone, *cache) == {"product"}
    made = path.read_bytes()
    shapes = ("workloads", "product", "shapes")
    clone.configure(**put(TINY, shapes, [[1, 4, 4, 4]]))
    assert run(clone, *cache) == {"product"}
    assert path.read_bytes() != made
    clone.configure(**TINY)
    assert run(clone, *cache) == {"product"}
    assert path.read_bytes() == made
    run(clone, *cache, "--forcerun", path.relative_to(clone.path).as_posix())
    assert path.read_bytes() == made
    assert run(clone, "--forcerun", path.relative_to(clone.path).as_posix()) == {"product"}


def test_comments_supervision_and_limits_measure_nothing(clone: Checkout) -> None:
    """What is no part of what is measured: by the front door, with Snakemake's notes in place."""
    package = clone.path / "workflow/siliconprof"
    for name in ("session/timing.py", "workloads/matmul.py", "backends/mlx.py"):
        path = package / name
        path.write_text(ast.unparse(ast.parse(path.read_text())) + "\n# no comment is left\n")
    validation = package / "store/validation.py"
    validation.write_text(validation.read_text() + "\nANOTHER = 1\n")
    clone.configure(**put(TINY, ("timing", "time_limit_s"), 301))
    assert run(clone) == set()
