"""Runs that are submitted, as far as no cluster is needed: tests/test_slurm.py has one.

Snakemake's dry run resolves the profile and the checkpoint as a run does, and submits nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import PRODUCT, QUICK, ROOT, Checkout, copy_project, own_project, with_own_lock
from project_copy import script
from siliconprof.cells import cluster, config, matrix
from siliconprof.errors import UserError
from siliconprof.hosts import host_file, machine, node_check, registry
from siliconprof.pipeline.experiment import Experiment
from siliconprof.store.cell import canonical_json
from snakemake.exceptions import WorkflowError
from synthetic_results import table

SUBMIT = ("--workflow-profile", "profiles/slurm")
LISTED = ("-n", "--quiet", "progress", *SUBMIT)
HALL_FILE = "results/hosts/hall.json"
HALL = {"slurm_partition": "main", "constraint": "[h200|a100]&ib", "gres": "gpu:h200:1"}
SMALL: dict[str, Any] = {
    "host": "desk",
    "backends": ["mlx"],
    "timing": QUICK,
    "workloads": {"mm": PRODUCT},
    "cluster": {"hall": {"device": "cpu", "resources": HALL}, "far.hall": {"device": "h200"}},
}


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout of two labels that knows the nodes of `hall`, which are like this machine."""
    copy = copy_project(tmp_path_factory.mktemp("hall") / "project")
    copy.configure(**SMALL)
    arguments = ("--registry", "config/devices.yaml", "--output", HALL_FILE)
    copy.stage("hosts.host_file", "--label", "hall", *arguments)
    copy.snakemake(HALL_FILE, "--touch", "--force", *SUBMIT)
    return copy


@pytest.fixture
def lab(hall: Checkout, tmp_path: Path) -> Checkout:
    """A copy of it that a test may change."""
    shutil.copytree(hall.path, tmp_path / "project", symlinks=True)
    return with_own_lock(Checkout(tmp_path / "project"))


def measure(lab: Checkout, entry: dict[str, Any], expected: dict[str, Any], **more: Any) -> Any:
    """Measure a planned cell where this device is expected."""
    return lab.stage(
        "measure",
        *("--cell", canonical_json(entry["cell"]), "--expect", canonical_json(expected)),
        *("--output", entry["record"], "--results", "results"),
        *("--environment", canonical_json(entry["environment"])),
        **more,
    )


def planned(copy: Checkout) -> list[dict[str, Any]]:
    """The cells that a run through a profile would measure on `hall`."""
    nodes = json.loads(copy.stage("pipeline.cli", "plan", "--json").stdout)["cluster"]
    assert [entry["label"] for entry in nodes] == ["hall", "far.hall"]
    assert nodes[1]["cells"] is None
    return nodes[0]["cells"]


# -- the config --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["constraint", "slurm_partition", "slurm_extra"])
def test_what_reaches_a_shell_is_restricted(key: str) -> None:
    hall: dict[str, Any] = {"device": "cpu", "resources": {key: "--exclusive; touch pwned"}}
    (line,) = config.check(SMALL | {"cluster": {"hall": hall}})
    assert line.startswith(f"cluster.hall.resources.{key}: ") and "letters, digits" in line
    hall["resources"] = HALL | {"slurm_extra": "--exclusive --nodelist=n1,n2", "runtime": 90}
    assert config.check(SMALL | {"cluster": {"hall": hall}}) == []


def test_unknown_devices_and_labels_are_refused() -> None:
    known = registry.load("config/devices.yaml")
    entries = {"hall": {"device": "nvidia-h200"}, "desk": {"device": "rtx-4900"}}
    experiment = config.resolve(SMALL | {"cluster": entries})
    with pytest.raises(UserError) as refused:
        cluster.check(experiment, known, "desk")
    one, two, three = str(refused.value).splitlines()
    assert "cluster.hall.device: 'nvidia-h200' is not in" in one and "mean 'h200'?" in one
    assert two == "config: cluster.desk: is the label of this host; choose another for the nodes"
    assert "mean 'rtx-4090'?" in three
    (line,) = config.check(SMALL | {"cluster": {"auto": {"device": "cpu"}}})
    assert line.startswith("cluster.auto: ") and "another label" in line
    with pytest.raises(UserError, match=r"devices\.0: 'hal' is neither .* mean 'hall'\?"):
        cluster.missing(config.resolve(SMALL | {"devices": ["hal"]}), known)
    entries = {"one": {"device": "cpu", "resources": {"mem_mb": 1}}, "two": {"device": "cpu"}}
    with pytest.raises(UserError, match=r"^config: cluster\.two\.resources: lacks mem_mb"):
        cluster.missing(config.resolve(SMALL | {"cluster": entries}), known)
    with pytest.raises(UserError, match=r"no label .* any of them \(hall: cpu, far.hall: h200\)"):
        cluster.missing(config.resolve(SMALL | {"devices": ["m2-ultra-76"]}), known)


def test_a_label_is_no_name_of_the_submitting_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's own name it may be: jobs there read the config, and list no records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host_file.socket, "gethostname", lambda: "hall.example")
    experiment = Experiment(SMALL | {"host": "auto"}, checkpoints=None, workflow=None)
    assert experiment.labels == ["hall", "far.hall"]
    with pytest.raises(WorkflowError, match=r"cluster\.hall: is the label of this host"):
        experiment.records[0](None)


# -- where jobs go -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_submitted_run_looks_at_its_nodes_first(lab: Checkout) -> None:
    """Cells follow once a node is known, with what leads to it; nothing is measured here."""
    done = lab.snakemake("measured", *LISTED, "--set-resources", "measure:runtime=7")
    (job,) = re.findall(r"^ *rule measure:\n(?: .*\n)+", done.stdout, re.M)
    assert "host=hall" in job and "gres=gpu:h200:1" in job and "runtime=7" in job
    assert looked_at(done) == {"far.hall"}  # which holds up no other label

    # Other resources lead to other nodes, so somebody looks again. A later file is laid over.
    others = {"one": {"constraint": "a100", "gres": "gpu:2"}, "two": {"constraint": "ib"}}
    for name, own in others.items():
        other = {"cluster": {"hall": {"resources": own}}}
        (lab.path / f"{name}.yaml").write_text(yaml.safe_dump(other))
    done = lab.snakemake("measured", *LISTED, "--configfile", "one.yaml", "two.yaml")
    assert looked_at(done) == {"hall", "far.hall"} and "rule measure:" not in done.stdout
    assert "constraint=ib, gres=gpu:2, slurm_partition=main" in done.stdout

    # Patterns know no node yet and are wider than the matrix.
    path = "results/records/hall/cpu-other/mlx/mm/auto/fp32.json"
    done = lab.snakemake(path, "-n", *SUBMIT, check=False)
    assert done.returncode and "no cell of this experiment" in done.stdout + done.stderr

    shutil.rmtree(lab.path / "results" / "hosts")
    done = lab.snakemake("report", *LISTED)
    assert looked_at(done) == {"hall", "far.hall"}
    assert not re.search(r"^(local)?rule measure", done.stdout, re.M)
    assert "constraint=[h200|a100]&ib" in done.stdout and "runtime=15" in done.stdout
    assert not (lab.path / "results" / "hosts").exists()  # the submitting host is not asked


# Runs the job's script, its last word, as a scheduler does on a node, and prints a name for it.
QSUB = """
echo "$@" >>qsub.log
for script; do :; done
setsid sh "$script" >>qsub.out 2>&1 &
echo $!
"""


@pytest.mark.slow
def test_the_profile_that_the_docs_print_for_pbs_submits_cells(tmp_path: Path) -> None:
    """It gives Snakemake no cores, which the submitting host needs none of for a job elsewhere."""
    project = own_project(tmp_path, shared=False)
    queue = {"hall": {"device": "cpu", "resources": {"queue": "gpu"}}}
    project.configure(**SMALL | {"cluster": queue})
    text = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```yaml\n(# profiles/pbs/config.yaml;.*?)```", text, re.S)
    profile = project.path / "profiles/pbs/config.yaml"
    profile.parent.mkdir()
    profile.write_text(printed, encoding="utf-8")
    qsub = script(tmp_path / "bin" / "qsub", QSUB)
    path = os.pathsep.join((str(qsub.parent), os.environ["PATH"]))
    words = ("snakemake", "measured", "--workflow-profile", "profiles/pbs")
    words += ("--seconds-between-status-checks", "1")
    project.run(*words, env={"PATH": path})
    (record,) = project.records().values()
    assert record["status"] == "ok" and record["cell"]["host"] == "hall"
    asked = (project.path / "qsub.log").read_text(encoding="utf-8").splitlines()
    assert len(asked) == 2  # what the node is, and its cell
    assert all("-q gpu -l walltime=" in line and "place=excl" in line for line in asked)


@pytest.mark.slow
@pytest.mark.campaign
def test_no_other_machine_measures_under_a_host_s_label(tmp_path: Path) -> None:
    """Without a `cluster`, a profile sends the cells of this host to one that is another machine."""
    project = own_project(tmp_path, shared=False)
    project.configure(**{k: v for k, v in SMALL.items() if k != "cluster"} | {"host": "desk"})
    (project.path / "machine-id").write_text("0" * 31 + "7\n", encoding="utf-8")
    there = 'unshare --mount sh -c "mount --bind machine-id /etc/machine-id && exec sh $script"'
    qsub = script(project.path / "qsub", QSUB.replace('sh "$script"', there))
    profile = project.path / "workflow/profiles/there/config.yaml"
    profile.parent.mkdir()
    submit = {"executor": "cluster-generic", "cluster-generic-submit-cmd": str(qsub), "jobs": 1}
    profile.write_text(yaml.safe_dump(submit), encoding="utf-8")
    words = ("--workflow-profile", str(profile.parent), "--seconds-between-status-checks", "1")
    done = project.run("snakemake", "measured", *words, check=False)
    assert done.returncode and project.records() == {}
    said = (project.path / "qsub.out").read_text(encoding="utf-8")
    assert "results/machines/desk.json was made on another machine (host 'desk')" in said


@pytest.mark.slow
def test_a_label_is_not_measured_where_snakemake_was_started(lab: Checkout) -> None:
    """As a run without the profile would: a known node's cell, and another node's facts."""
    done = lab.snakemake("measured", check=False)
    assert done.returncode and lab.records() == {}
    assert "hall, far.hall: labels of `cluster`, but jobs would run here" in done.stderr
    assert "--workflow-profile profiles/slurm" in done.stderr


def looked_at(done: Any) -> set[str]:
    """Labels whose nodes a dry run would look at."""
    job = r"^checkpoint host:\n(?: .*\n)+?    wildcards: host=(\S+)"
    return {*re.findall(job, done.stdout, re.M)}


# -- on the node -------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_device_is_not_measured(lab: Checkout) -> None:
    (entry,) = planned(lab)
    refused = measure(lab, entry, {"name": "Another CPU", "memory_bytes": None}, check=False)
    line = refused.stderr.splitlines()[-1]
    assert refused.returncode
    assert line.startswith(f"{node_check.WRONG_NODE}: expected Another CPU, found ")
    assert machine.cpu()["model"] in line and "narrow cluster.hall.resources" in line
    assert lab.records() == {}  # the next run tries another node
    measure(lab, entry, this_cpu())
    assert [record["status"] for record in lab.records().values()] == ["ok"]


def this_cpu() -> dict[str, Any]:
    """What a job of a cell on this machine's processor is told to expect."""
    processor = {"kind": "cpu", "memory_bytes": 1, "name": machine.cpu()["model"]}
    return node_check.expectation(processor)


def test_a_gpu_is_known_by_name_and_memory() -> None:
    """What counts a GPU's memory differs by what is reserved; a slice of one differs more."""
    cell: Any = SimpleNamespace(host="hall")
    gpu = {"kind": "gpu", "name": "NVIDIA H200", "memory_bytes": 150_754_820_096}
    wanted = node_check.expectation(gpu)
    node_check.require(cell, wanted, {"name": "NVIDIA H200", "memory_bytes": 150_109_880_320})
    for found, said in (
        ({"name": "NVIDIA H200", "memory_bytes": 75_000_000_000}, "H200 with 69.8 GiB on "),
        ({"name": "NVIDIA A100", "memory_bytes": 150_754_820_096}, "found NVIDIA A100 with"),
        ({"reason": "torch finds no CUDA device"}, "found none (torch finds no CUDA device)"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            node_check.require(cell, wanted, found)


@pytest.mark.slow
def test_a_node_without_the_device_has_no_cells(hall: Checkout) -> None:
    host = host_file.load(hall.path / HALL_FILE) | {"label": "far.hall"}
    found = matrix.Expansion(config.resolve(SMALL), {}, host)
    assert found.cells == []
    (line,) = found.not_measured
    assert line["device"] == "h200"
    assert "narrow cluster.far.hall.res" in line["reason"]

    for device in host["devices"]:
        device["backends"] = []
    broken = {"available": False, "reason": "no module named 'torch'", "fix": None}
    host |= {"label": "hall", "backends": {"torch-cpu": broken}}
    found = matrix.Expansion(config.resolve(SMALL), {}, host)
    assert found.cells == []
    (line,) = found.not_measured
    assert "no backend can use it on the node" in line["reason"]
    assert broken["reason"] in line["reason"]


# -- the page's host ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_is_about_one_host(lab: Checkout) -> None:
    """In a run here the cluster's records are another host's, unless the page is about it."""
    (entry,) = planned(lab)
    measure(lab, entry, this_cpu())
    here = SMALL | {"cluster": {}}
    for about, own, other in ((None, "desk", "hall"), ("hall", "hall", "desk")):
        lab.configure(**here | {"report": {"host": about}})
        lab.snakemake("results/tables/cells.csv")
        sources = {(row["source"], row["host"]) for row in table(lab.path / "results", "cells")}
        assert sources == {("this host", own), ("another host", other)}

    lab.configure(**here | {"report": {"host": "hal"}})
    done = lab.snakemake("-n", check=False)
    line = "config: report.host: nothing is known of 'hal'; known: desk, hall; did you mean 'hall'?"
    assert done.returncode and line in done.stdout + done.stderr
