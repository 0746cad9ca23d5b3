"""A cluster of real Slurm daemons: where cells run, what keeps them apart, and what faults cost.

One start of the daemons and one copy of the project for all tests: what the nodes are is found
once, in the first run. Here the plug-in looks for ended jobs 1, 12 and 33 s after they were sent, so
a run takes at least 12 s, whatever its cells do; that, and not work, is the time of these tests.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import psutil
import pytest
import slurm_daemons
import yaml
from conftest import QUICK, ROOT, Checkout, copy_project

until = partial(conftest.until, seconds=300)  # daemons and jobs take their time
pytestmark = pytest.mark.campaign

CELLS = "measured"
NODE_OF = {"gpu-hall": "node-a", "annex": "node-b", "closet": "node-c"}
CLUSTER = {
    "gpu-hall": {
        "device": "cpu",
        "resources": {"slurm_partition": "gpu", "constraint": "h200", "gres": "gpu:h200:1"},
    },
    "annex": {"device": "cpu", "resources": {"slurm_partition": "gpu", "constraint": "a100"}},
    "closet": {"device": "cpu", "resources": {"slurm_partition": "cpu"}},
}

WAITING = '''\
"""A workload that takes as long as it is told, and says when and on what it ran."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from siliconprof.parameters import Number
from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """waiting"""

    class Parameters(KernelWorkload.Parameters):
        seconds: Annotated[Number, "how long it waits"] = 1
        folder: Annotated[str, "holds a file for each node"] = ""

    def measure(self, session):
        """Wait for the time, and as long as the folder holds a file named after this node."""
        began = time.time()
        hold = Path(self.parameters["folder"], socket.gethostname())
        while time.time() < began + self.parameters["seconds"] or hold.is_file():
            with suppress(FileNotFoundError), open(hold, "r+") as stream:  # which makes none
                stream.write(f"{os.getpid()}")
            session.progress("waiting", 1)
            time.sleep(0.05)
        params = {"began": began, "ended": time.time(), "processors": len(os.sched_getaffinity(0))}
        point = {"params": params, "times": {"step_s": [0.5, 0.5]}, "flops": None, "bytes": None}
        session.add_point(point | {"memory": session.memory(), "loss": []})
'''


# -- fixtures and tools ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm_daemons.Cluster]:
    """Running daemons on all cores, with which what a job is given is compared; none is left."""
    if reason := slurm_daemons.missing():
        pytest.skip(reason)
    before, core = sorted(os.listdir("/etc/slurm")), os.sched_getaffinity(0)
    os.sched_setaffinity(0, conftest.CORES)
    with slurm_daemons.running() as cluster:
        yield cluster
    os.sched_setaffinity(0, core)
    assert cluster.processes() == [] and not cluster.folder.exists()
    assert sorted(os.listdir("/etc/slurm")) == before


@pytest.fixture(scope="module")
def first(cluster: slurm_daemons.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """After the first run: on three nodes a cell of the default matrix and one that waits."""
    copy = copy_project(tmp_path_factory.mktemp("slurm") / "project")
    (copy.path / "workflow/siliconprof/workloads/waiting.py").write_text(WAITING)
    copy.environment |= cluster.environment
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    nano = default["workloads"]["gpt2-nano-plain"] | {"backends": ["mlx"], "precisions": ["fp32"]}
    datasets = {nano["dataset"]: default["datasets"][nano["dataset"]]}
    configure(copy, {"gpt2-nano-plain": nano, "waiting": {}}, datasets=datasets)
    output(copy).write_text(snakemake(copy, "report", *GROUPED).stderr)
    return copy


def configure(
    project: Checkout,
    workloads: dict[str, dict[str, Any]],
    cluster: dict[str, dict[str, Any]] = CLUSTER,
    **more: Any,
) -> None:
    """An experiment on the cluster; entries without a module wait."""
    waiting = {"module": "waiting", "backends": ["mlx"], "device_kinds": ["cpu"]}
    timing = QUICK | {"energy_window_s": 0} | more.pop("timing", {})
    entries = {
        name: entry if "module" in entry else waiting | entry for name, entry in workloads.items()
    }
    project.configure(
        cluster=cluster, precisions=["fp32"], timing=timing, workloads=entries, **more
    )


COMMAND = ("snakemake", "--workflow-profile", "profiles/slurm", "--latency-wait", "10")
COMMAND += ("--slurm-init-seconds-before-status-checks", "1")
# Cells of one label share a job.
GROUPED = ("--groups", "measure=cells-{host}", "--group-components", "cells-{host}=2")


def snakemake(project: Checkout, *arguments: str, check: bool = True) -> Any:
    """`snakemake --workflow-profile profiles/slurm …`"""
    return project.run(sys.executable, "-m", *COMMAND, *arguments, check=check)


@contextmanager
def begun(project: Checkout, *arguments: str) -> Iterator[subprocess.Popen]:
    """The same in the background, once the held cells are being measured.

    What it says goes to `output.txt`.
    """
    with open(output(project), "w") as stream:
        streams = {"stdout": stream, "stderr": subprocess.STDOUT, "start_new_session": True}
        pipeline = project.begin(*COMMAND, *arguments, **streams)
    try:
        folder = project.path.parent / "hold"
        held = folder.iterdir
        until(lambda: pipeline.poll() is not None or all(path.read_text() for path in held()))
        assert pipeline.returncode is None, output(project).read_text()
        yield pipeline
    finally:
        pipeline.kill()
        pipeline.wait()


def output(project: Checkout) -> Path:
    return project.path.parent / "output.txt"


def records(project: Checkout, workload: str) -> dict[str, dict[str, Any]]:
    """Label -> record of a workload's one cell there."""
    return {
        record["cell"]["host"]: record
        for record in project.records().values()
        if record["cell"]["workload"] == workload
    }


def span(record: dict[str, Any]) -> tuple[float, float]:
    """When a waiting cell's timed region began and ended."""
    params = record["points"][0]["params"]
    return params["began"], params["ended"]


def hold(project: Checkout, *nodes: str) -> Path:
    """A folder that keeps the waiting cells of these nodes from ending."""
    folder = project.path.parent / "hold"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for node in nodes:
        (folder / node).touch()
    return folder


def measuring(cluster: slurm_daemons.Cluster, node: str | None = None) -> list[psutil.Process]:
    """Processes that measure a cell, on a node or anywhere in the cluster."""
    processes = cluster.processes(node)
    return [p for p in processes if p.is_running() and "siliconprof.measure" in p.cmdline()]


# -- what goes right ---------------------------------------------------------------------------


def test_each_cell_ran_once_on_a_node_that_has_its_device_in_a_job_of_both(first: Checkout):
    made = list(first.records().values())
    assert len(made) == 6
    jobs = output(first).read_text().count(" has been submitted with SLURM jobid ")
    assert jobs == 2 * len(NODE_OF)  # on each node one that looks at it, one of both cells
    for record in made:
        assert record["status"] == "ok", record["reason"]
    nodes = {(r["cell"]["host"], r["environment"]["node"]) for r in made}
    assert len(nodes) == len({node for _, node in nodes}) == len(NODE_OF)  # one each, by its id
    hosts = first.path / "results" / "hosts"
    assert {path.stem for path in hosts.glob("*.json")} >= set(NODE_OF)
    # Every processor of the node, though snakemake asks for one: see profiles/slurm.
    waiting = records(first, "waiting")
    processors = {record["points"][0]["params"]["processors"] for record in waiting.values()}
    assert processors == {os.cpu_count()}
    assert (first.path / "results" / "report.html").is_file()
    before = first.stamps()
    assert "Nothing to be done" in snakemake(first, "report").stderr
    assert first.stamps() == before


def test_without_exclusive_the_lock_keeps_cells_of_a_node_apart(
    first: Checkout, cluster: slurm_daemons.Cluster
):
    """And waiting for it is in no cell's limit: we hold it for longer than either may take."""
    names, limit_s = ("one", "two"), 40
    cells, timing = dict.fromkeys(names, {"seconds": 2}), {"time_limit_s": limit_s}
    configure(first, cells, devices=["closet"], timing=timing)
    shared = ("--default-resources", "cpus_per_task=1", "mem_mb=0", "runtime=15")
    hold(first)
    with open(cluster.lock_file("node-c"), "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with begun(first, CELLS, *shared) as pipeline:
            logs = first.path / "results/logs/measure/closet"
            until(lambda: sum("waiting for" in log.read_text() for log in logs.rglob("*.log")) == 2)
            time.sleep(limit_s + 1)
            fcntl.flock(held, fcntl.LOCK_UN)
            assert pipeline.wait(300) == 0, output(first).read_text()
    one, two = (records(first, name)["closet"] for name in names)
    assert (one["status"], two["status"]) == ("ok", "ok"), (one["reason"], two["reason"])
    assert one["environment"]["node"] == two["environment"]["node"]
    earlier, later = sorted([span(one), span(two)])
    assert earlier[1] <= later[0]
    assert all(r["accounting"]["waited_for_lock_s"] >= limit_s for r in (one, two))


# -- what goes wrong ---------------------------------------------------------------------------


def test_every_fault_has_its_words_and_a_rerun_completes(
    first: Checkout, cluster: slurm_daemons.Cluster
):
    """A node dies, Slurm's time runs out, a cell's process is killed, no node has a constraint;
    Ctrl-C.
    """
    resources = {"slurm_partition": "gpu", "constraint": "b200"}
    wrong = {"nowhere": {"device": "cpu", "resources": resources}}
    nodes = NODE_OF.values()
    cells = {"held": {"seconds": 0, "folder": str(hold(first, *nodes))}}
    configure(first, cells, CLUSTER | wrong)
    with begun(first, CELLS) as pipeline:
        limits = cluster.run("squeue", "--noheader", "--states=R", "--format=%l").split()
        assert limits == ["9:00"] * len(NODE_OF), output(first).read_text()
        for process in measuring(cluster, "node-a"):
            with suppress(psutil.NoSuchProcess):  # one of them ends with the other
                process.kill()
        cluster.kill_node("node-b")
        (job,) = cluster.jobs("node-c")
        cluster.run("scontrol", "update", f"jobid={job}", "timelimit=0")
        assert pipeline.wait(300) == 1
    said = output(first).read_text()
    assert "Invalid feature specification" in said, said
    for status in ("NODE_FAIL", "TIMEOUT"):
        assert f"SLURM status is: '{status}'" in said, said
    assert not records(first, "held")
    until(lambda: not cluster.jobs() and not measuring(cluster))

    # Ctrl-C ends the jobs too.
    cluster.start_node("node-b")
    # The cells outlast the plug-in's next look, which may be minutes away.
    configure(first, cells, timing={"time_limit_s": 600})
    hold(first, *nodes)
    with begun(first, CELLS) as pipeline:
        os.killpg(pipeline.pid, signal.SIGINT)
        assert pipeline.wait(500) != 0
    until(lambda: not cluster.jobs() and not measuring(cluster))
    assert not records(first, "held")

    hold(first)
    snakemake(first, CELLS)
    held = records(first, "held")
    assert held.keys() == CLUSTER.keys()
    assert {record["status"] for record in held.values()} == {"ok"}
