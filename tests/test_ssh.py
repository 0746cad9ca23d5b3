"""A run through profiles/ssh: two hosts in network namespaces that share the checkout's folder."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import pytest
import ssh_hosts
from conftest import PRODUCT, QUICK, Checkout, copy_project
from project_copy import script

until = partial(conftest.until, seconds=300)
NAMES = {"studio": "studio-7", "server": "server-9"}  # label -> host; the profile has these labels
COMMAND = ("--workflow-profile", "profiles/ssh", "report")
HOLD = Path("/home/hold")  # each host's own


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(hosts by label, ssh configuration)."""
    if reason := ssh_hosts.missing():
        pytest.skip(reason)
    with ssh_hosts.running(tmp_path_factory.mktemp("network") / "n", [*NAMES.values()]) as made:
        yield {label: made[0][name] for label, name in NAMES.items()}, made[1]


@pytest.fixture(scope="module")
def project(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with two cells for each host, in a folder that all of them see."""
    copy = copy_project(tmp_path_factory.mktemp("shared") / "project")
    (copy.path / "workflow/siliconprof/workloads/sleeper.py").write_text(
        ssh_hosts.SLEEPER, encoding="utf-8"
    )
    common = {"device_kinds": ["cpu"], "backends": ["mlx"], "precisions": ["fp32"]}
    copy.configure(
        timing=QUICK | {"time_limit_s": 600},
        workloads={
            "wait": common | {"module": "sleeper", "file": str(HOLD)},
            "product": common | PRODUCT,
        },
        cluster={
            label: {"device": "cpu", "resources": {"ssh_host": name, label: 1}}
            for label, name in NAMES.items()
        },
    )
    command = f'exec {shutil.which("ssh")} -F {network[1]} "$@"'
    ssh = script(copy.path.parent / "bin" / "ssh", command)
    copy.environment["PATH"] = f"{ssh.parent}:{copy.variables({})['PATH']}"
    return copy


@contextmanager
def begun(project: Checkout) -> Iterator[subprocess.Popen]:
    """The page's run in the background, as from a terminal."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    process = project.begin("snakemake", *COMMAND, text=True, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asleep(process: subprocess.Popen, host: ssh_hosts.SshHost) -> None:
    """Return once the held cell is being measured there."""
    seen = host.home / f"{HOLD.name}.seen"
    until(lambda: seen.exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    seen.unlink()


@pytest.mark.campaign
def test_hosts_work_side_by_side_and_what_a_fault_left_is_completed(project, network):
    """One host's cell is held all along: the other's go on, in the order of the config."""
    studio = network[0]["studio"]
    hold = studio.home / HOLD.name
    hold.touch()

    # The host goes down beneath its first cell; the second finds nobody.
    with begun(project) as process:
        asleep(process, studio)
        until(lambda: len(project.records()) == 2 or process.poll() is not None)
        assert {key.split("/")[0] for key in project.records()} == {"server"}
        studio.stop()
        said = process.communicate(timeout=300)[0]
    assert process.returncode == 1
    assert re.search(rf"^Connection to {studio.address} closed by remote host", said, re.M), said
    assert re.search(r"^(ssh: connect to host|Connection timed out).+", said, re.M), said
    assert said.count("Error in rule measure:") == 2 and "Traceback" not in said
    assert len(project.records()) == 2 and not (project.path / "results/report.html").exists()

    # It is back; Ctrl-C ends what runs there too.
    studio.start()
    before = project.stamps()
    with begun(project) as process:
        asleep(process, studio)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    until(lambda: not studio.processes("siliconprof") and not studio.processes("snakemake"))

    hold.unlink()
    with begun(project) as process:
        said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    records = project.records()
    assert {record["status"] for record in records.values()} == {"ok"} and len(records) == 4
    assert project.stamps().items() >= before.items()  # the other host's were not measured again
    nodes = {(r["cell"]["host"], r["environment"]["node"]) for r in records.values()}
    assert len(nodes) == len({node for _, node in nodes}) == 2  # one each, by its id
    assert (project.path / "results/report.html").is_file()
