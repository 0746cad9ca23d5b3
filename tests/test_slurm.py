"""A cluster of real Slurm daemons: where cells run, what keeps them apart, and what faults cost.

One start of the daemons and one copy of the project for all tests: what the nodes are is found
once, in the first run. Here the plug-in looks for ended jobs 1, 12 and 33 s after they were sent, so
a run takes at least 12 s, whatever its cells do; that, and not work, is the time of these tests.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations
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

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """waiting"""

    frameworks = ("torch", "mlx")
    REQUIRED = ()
    PARAMETERS = {
        "seconds": {"type": "number", "default": 1, "description": "how long it waits"},
        "folder": {"type": "string", "default": "", "description": "holds a file for each node"},
        "company": {"type": "integer", "default": 1, "description": "nodes that it waits for"},
    }

    def measure(self, session):
        """Wait for the time, and as long as the folder holds a file named after this node."""
        began = time.time()
        folder = Path(self.parameters["folder"])
        hold = folder / socket.gethostname()
        if self.parameters["company"] > 1:
            hold.with_suffix(".there").touch()
        while (
            time.time() < began + self.parameters["seconds"]
            or hold.is_file()
            or 1 < self.parameters["company"] > len(list(folder.glob("*.there")))
        ):
            with suppress(FileNotFoundError), open(hold, "r+") as stream:  # which makes none
                stream.write(f"{os.getpid()}")
            session.progress("waiting", 1)
            time.sleep(0.05)
        session.add_point(
            {
                "params": {
                    "began": began,
                    "ended": time.time(),
                    "processors": len(os.sched_getaffinity(0)),
                },
                "times": {"step_s": [0.5, 0.5]},
                "flops": None,
                "bytes": None,
                "memory": session.memory(),
                "loss": [],
            }
        )
'''


# -- fixtures and tools ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(every_core: None) -> Iterator[slurm_daemons.Cluster]:
    """Running daemons on all cores, with which what a job is given is compared; none is left."""
    reason = slurm_daemons.missing()
    if reason and os.environ.get("SILICONPROF_FORBID_SKIPS"):
        pytest.fail(f"no Slurm cluster can be started here: {reason}")
    if reason:
        pytest.skip(reason)
    before = sorted(os.listdir("/etc/slurm"))
    with slurm_daemons.running() as cluster:
        yield cluster
    assert cluster.processes() == [] and not cluster.folder.exists()
    assert sorted(os.listdir("/etc/slurm")) == before


@pytest.fixture(scope="module")
def project(cluster: slurm_daemons.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy with the waiting workload, from which everything is submitted."""
    copy = copy_project(tmp_path_factory.mktemp("slurm") / "project")
    (copy.path / "workflow/siliconprof/workloads/waiting.py").write_text(WAITING)
    copy.environment |= cluster.environment
    return copy


@pytest.fixture(scope="module")
def first(project: Checkout) -> Checkout:
    """After the first run: on three nodes a cell of the default matrix and two that wait."""
    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    folder = str(hold(project))
    nano = default["workloads"]["gpt2-nano-plain"] | {"backends": ["mlx"], "precisions": ["fp32"]}
    configure(
        project,
        {
            "brief": {"seconds": 1},
            "gpt2-nano-plain": nano,
            "waiting": {"seconds": 2, "folder": folder, "company": 2},
        },
        datasets={nano["dataset"]: default["datasets"][nano["dataset"]]},
    )
    snakemake(project, "report")
    return project


def configure(
    project: Checkout,
    workloads: dict[str, dict[str, Any]],
    cluster: dict[str, dict[str, Any]] | None = None,
    **more: Any,
) -> None:
    """An experiment on the cluster; entries without a module wait."""
    waiting = {"module": "waiting", "backends": ["mlx"], "device_kinds": ["cpu"]}
    timing = QUICK | {"energy_window_s": 0} | more.pop("timing", {})
    entries = {
        name: entry if "module" in entry else waiting | entry for name, entry in workloads.items()
    }
    project.configure(
        cluster=cluster or CLUSTER, precisions=["fp32"], timing=timing, workloads=entries, **more
    )


COMMAND = ("snakemake", "--workflow-profile", "profiles/slurm", "--latency-wait", "10")
COMMAND += ("--slurm-init-seconds-before-status-checks", "1")


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
        until(
            lambda: (
                pipeline.poll() is not None or all(path.read_text() for path in folder.iterdir())
            )
        )
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


def logs_of(project: Checkout, workloads: Sequence[str]) -> list[Path]:
    """The logs of the cells of these workloads, on all nodes."""
    logs = (project.path / "results" / "logs" / "measure").glob("*/*/*/*/*/*.log")
    return [log for log in logs if log.parts[-3] in workloads]


def span(record: dict[str, Any]) -> tuple[float, float]:
    """When a waiting cell's timed region began and ended."""
    params = record["points"][0]["params"]
    return params["began"], params["ended"]


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def hold(project: Checkout, *nodes: str) -> Path:
    """A folder that keeps the waiting cells of these nodes from ending."""
    folder = project.path.parent / "hold"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for node in nodes:
        (folder / node).touch()
    return folder


def measuring(cluster: slurm_daemons.Cluster, module: str = "") -> list[Any]:
    """Processes of cells, anywhere in the cluster: all of them, or those of one module."""
    found = []
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            wanted = f"siliconprof.{module}"
            words = process.cmdline()
            if wanted in words or not module and any(w.startswith(wanted) for w in words):
                found.append(process)
    return found


# -- what goes right ---------------------------------------------------------------------------


def test_each_cell_ran_once_on_a_node_that_has_its_device(first: Checkout):
    made = list(first.records().values())
    assert len(made) == 9
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
    # A cell waits for company on another node: alone it would run into its limit.
    spans = [span(record) for record in waiting.values()]
    assert any(overlap(one, other) for one, other in combinations(spans, 2)), spans
    assert (first.path / "results" / "report.html").is_file()
    before = first.stamps()
    assert "Nothing to be done" in snakemake(first, "report").stderr
    assert first.stamps() == before


def test_without_exclusive_the_lock_keeps_cells_of_a_node_apart(
    first: Checkout, cluster: slurm_daemons.Cluster
):
    """And waiting for it is in no cell's limit: we hold it for longer than either may take.

    Beside it, a label whose nodes turn out to lack the device that it says.
    """
    names, limit_s = ("one", "two"), 40
    mistaken = {"device": "h200", "resources": {"slurm_partition": "cpu"}}
    configure(
        first,
        dict.fromkeys(names, {"seconds": 2}),
        CLUSTER | {"mistaken": mistaken},
        devices=["closet", "mistaken"],
        timing={"time_limit_s": limit_s},
    )
    shared = ("--default-resources", "cpus_per_task=1", "mem_mb=0", "runtime=15")
    hold(first)
    with open(cluster.lock_file("node-c"), "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with begun(first, CELLS, *shared) as pipeline:
            until(
                lambda: sum("waiting for" in log.read_text() for log in logs_of(first, names)) == 2
            )
            time.sleep(limit_s + 1)
            fcntl.flock(held, fcntl.LOCK_UN)
            assert pipeline.wait(300) == 0, output(first).read_text()
    one, two = (records(first, name)["closet"] for name in names)
    assert (one["status"], two["status"]) == ("ok", "ok"), (one["reason"], two["reason"])
    assert one["environment"]["node"] == two["environment"]["node"]
    assert not overlap(span(one), span(two))
    assert all(r["accounting"]["waited_for_lock_s"] >= limit_s for r in (one, two))
    snakemake(first, "results/matrix.json")
    (missing,) = json.loads((first.path / "results" / "matrix.json").read_text())["not_measured"]
    assert missing["device"] == "h200"
    assert re.search(r"label 'mistaken'.*has no such device", missing["reason"])


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
        for process in set(measuring(cluster, "measure")) & set(cluster.processes("node-a")):
            with suppress(psutil.NoSuchProcess):  # one of them ends with the other
                process.kill()
        cluster.kill_node("node-b")
        (job,) = (job["id"] for job in cluster.jobs() if job["node"] == "node-c")
        cluster.run("scontrol", "update", f"jobid={job}", "timelimit=0")
        assert pipeline.wait(300) == 1
    said = output(first).read_text()
    for words in (
        "Invalid feature specification",
        "SLURM status is: 'NODE_FAIL'",
        "SLURM status is: 'TIMEOUT'",
    ):
        assert words in said, said
    assert not records(first, "held")
    until(lambda: not cluster.jobs() and not measuring(cluster))

    # Ctrl-C ends the jobs too.
    cluster.start_node("node-b")
    configure(first, cells)
    hold(first, *nodes)
    with begun(first, CELLS) as pipeline:
        os.killpg(pipeline.pid, signal.SIGINT)
        assert pipeline.wait(300) != 0  # the plug-in's next look may be a minute away
    until(lambda: not cluster.jobs() and not measuring(cluster))
    assert not records(first, "held")

    hold(first)
    snakemake(first, CELLS)
    held = records(first, "held")
    assert held.keys() == CLUSTER.keys()
    assert {record["status"] for record in held.values()} == {"ok"}
