"""A change reruns exactly what it touches: shown on a tiny experiment, through Snakemake."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Checkout, copy_project

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "host": "desk",
    "backends": ["mlx", "torch-cpu"],
    "precisions": ["fp32"],
    "timing": QUICK,
    "datasets": {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}},
    "workloads": {
        "product": {"module": "matmul", "backends": ["mlx"], "shapes": [[1, 16, 16, 16]]},
        "product-torch": {
            "module": "matmul",
            "backends": ["torch-cpu"],
            "shapes": [[1, 16, 16, 16]],
        },
        "launch": {"module": "kernel_launch", "backends": ["mlx"], "repeats": 10},
        "nano-2": {
            "module": "gpt2",
            "trainer": "plain",
            "backends": ["mlx"],
            "size": "nano",
            "batch_size": 2,
            "seq_len": 16,
            "dataset": "words",
        },
    },
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny experiment, measured once; tests work on copies."""
    copy = copy_project(tmp_path_factory.mktemp("tiny") / "project")
    copy.environment["SILICONPROF_LOCK_FILE"] = str(copy.path.parent / "lock")
    copy.configure(**TINY)
    copy.snakemake("report")
    assert {key.split("/")[3] for key in copy.records()} == set(TINY["workloads"])
    assert {record["status"] for record in copy.records().values()} == {"ok"}
    return copy


@pytest.fixture
def project(measured: Checkout, tmp_path: Path) -> Checkout:
    """A copy in another folder, with its results and Snakemake's metadata."""
    target = tmp_path / "clone"
    shutil.copytree(measured.path, target, ignore=shutil.ignore_patterns("log", "locks"))
    return Checkout(target, dict(measured.environment))


def rerun(project: Checkout, target: str = "results/tables/cells.csv") -> set[str]:
    """Run again; `backend/workload/precision` of the cells that were measured anew."""
    before = project.stamps()
    project.snakemake(target)
    after = project.stamps()
    changed = {key for key, stamp in after.items() if before.get(key) != stamp}
    return {"/".join(part for i, part in enumerate(key.split("/")) if i in (2, 3, 5))
            for key in changed}  # fmt: skip


def reconfigure(project: Checkout, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the experiment."""
    config = json.loads(json.dumps(TINY))
    change(config)
    project.configure(**config)


def test_a_second_run_does_nothing_here_or_in_a_clone(measured, project):
    for checkout in (measured, project):
        before = checkout.stamps()
        done = checkout.snakemake("report")
        assert "Nothing to be done" in done.stdout + done.stderr
        assert checkout.stamps() == before


def test_new_axes_run_exactly_the_new_cells(project):
    def grow(config):
        config["workloads"]["product"]["precisions"] = ["fp32", "bf16"]
        config["workloads"]["nano-3"] = config["workloads"]["nano-2"] | {"batch_size": 3}
        config["workloads"]["nano-2-hf"] = config["workloads"]["nano-2"] | {
            "trainer": "hf",
            "backends": ["torch-cpu"],
        }

    reconfigure(project, grow)
    assert rerun(project) == {
        "mlx/product/bf16",
        "mlx/nano-3/fp32",
        "torch-cpu/nano-2-hf/fp32",
    }


def test_a_shape_added_to_a_sweep_reruns_that_cell_alone(project):
    def grow(config):
        config["workloads"]["product"]["shapes"].append([1, 8, 8, 8])

    reconfigure(project, grow)
    assert rerun(project) == {"mlx/product/fp32"}
    (record,) = [r for k, r in project.records().items() if "/mlx/product/" in k]
    assert [point["params"]["m"] for point in record["points"]] == [16, 8]


def test_an_edited_module_reruns_its_cells_and_the_record_shows_the_edit(project):
    module = project.path / "workflow/siliconprof/workloads/matmul.py"
    text = module.read_text()
    assert "2.0 * batch * m * k * n" in text
    module.write_text(text.replace("2.0 * batch * m * k * n", "7.0 * batch * m * k * n"))
    assert rerun(project) == {"mlx/product/fp32", "torch-cpu/product-torch/fp32"}
    flops = {p["flops"] for r in project.records().values() for p in r["points"]
             if r["cell"]["module"] == "matmul"}  # fmt: skip
    assert flops == {7.0 * 16**3}


def test_an_edited_backend_reruns_its_cells_alone(project):
    module = project.path / "workflow/siliconprof/backends/torch_cpu.py"
    module.write_text(module.read_text() + "\n# another line\n")
    assert rerun(project) == {"torch-cpu/product-torch/fp32"}


def test_what_the_child_loaded_was_declared(measured):
    for key, record in measured.records().items():
        loaded, declared = set(record["modules_loaded"]), set(record["code"])
        assert loaded and loaded <= declared, (key, loaded - declared)


def test_a_changed_version_reruns_what_uses_it(project):
    path = project.path / "results/hosts/desk.json"

    def edit(change):
        host = json.loads(path.read_text())
        change(host)
        path.write_text(json.dumps(host))

    edit(lambda host: host["packages"].update({"mlx-lm": "0.0.1"}))
    assert rerun(project) == {"mlx/nano-2/fp32"}
    edit(lambda host: host["packages"].update({"mlx": "0.0.1"}))
    assert rerun(project) == {"mlx/nano-2/fp32", "mlx/product/fp32", "mlx/launch/fp32"}
    edit(lambda host: host["blas"].update({"torch": "another"}))
    assert rerun(project) == {"torch-cpu/product-torch/fp32"}
    edit(lambda host: host["packages"].update({"peft": "0.0.1"}))
    assert rerun(project) == set()


def test_an_edited_template_measures_nothing(project):
    before = (project.path / "results/report.html").read_text()
    template = project.path / "report/page.html.j2"
    template.write_text(template.read_text().replace("</body>", "<!-- edited --></body>"))
    assert rerun(project, "report") == set()
    after = (project.path / "results/report.html").read_text()
    assert "<!-- edited -->" in after and "<!-- edited -->" not in before


def test_a_deleted_record_is_measured_again(project):
    (record,) = (project.path / "results/records").rglob("product-torch/auto/fp32.json")
    record.unlink()
    assert rerun(project, "report") == {"torch-cpu/product-torch/fp32"}


def test_records_outside_the_experiment_are_named_and_used_in_nothing(project):
    reconfigure(project, lambda config: config["workloads"].pop("launch"))
    assert rerun(project) == set()
    assert "launch" in (project.path / "results/tables/outside.csv").read_text()
    for table in ("cells", "points", "steps", "samples"):
        with open(project.path / f"results/tables/{table}.csv", newline="") as stream:
            workloads = {row["workload"] for row in csv.DictReader(stream)}
        assert workloads == set(TINY["workloads"]) - {"launch"}, table


def test_every_stage_refuses_the_code_of_another_checkout(project, measured):
    foreign = {"PYTHONPATH": str(measured.path / "workflow")}
    for module in ("measure", "aggregate", "prepare", "matrix", "render.page", "bundle"):
        done = project.stage(module, "--help", check=False, env=foreign)
        assert done.returncode == 2, module
        assert "this folder is a checkout, but the code that runs lies in" in done.stderr, module
        assert "Traceback" not in done.stderr
    # The rules set the path themselves, so a run is not led astray.
    (project.path / "results/tables/cells.csv").unlink()
    project.snakemake("results/tables/cells.csv", env=foreign)
