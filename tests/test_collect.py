"""`siliconprof collect` with real ssh, rsync and Snakemake on two hosts in network namespaces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import conftest
import pytest
import ssh_hosts
import yaml
from conftest import PRODUCT, QUICK, Checkout, own_project
from project_copy import script
from siliconprof.errors import UserError
from siliconprof.remote import collect as collecting

until = partial(conftest.until, seconds=300)
WAIT = {"module": "sleeper", "file": "/home/turn"}
HOSTS = {
    "studio-7": {"ssh": "studio-7"},
    "server-9": {"ssh": "server-9", "folder": "/home/my-study"},
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(hosts by name, ssh configuration)."""
    if reason := ssh_hosts.missing():
        pytest.skip(reason)
    with ssh_hosts.running(tmp_path_factory.mktemp("network") / "n", list(HOSTS)) as made:
        yield made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The collecting side."""
    copy = own_project(tmp_path_factory.mktemp("collect"), shared=False)
    sleeper = copy.path / "workflow" / "siliconprof" / "workloads" / "sleeper.py"
    sleeper.write_text(ssh_hosts.SLEEPER, encoding="utf-8")
    sleeper.with_name("obsolete.py").write_text(ssh_hosts.SLEEPER, encoding="utf-8")
    configure(copy, product=PRODUCT)
    return copy


def configure(project: Checkout, about: str | None = None, **workloads: dict[str, Any]) -> None:
    """An experiment of these cells, one each on a host's CPU; `about` is the page's host."""
    common = {"device_kinds": ["cpu"]}
    entries = {name: common | entry for name, entry in workloads.items()}
    project.configure(
        backends=["mlx"],
        precisions=["fp32"],
        timing=QUICK | {"time_limit_s": 600},  # the faults below take a while to be noticed
        workloads=entries,
        report={"host": about},
    )


def write_hosts(project: Checkout, **entries: dict[str, Any]) -> None:
    """config/hosts.yaml: the two hosts unless others are named."""
    common = {"folder": "study", "environment": sys.prefix}  # they see it at the same place
    document = {label: common | entry for label, entry in (entries or HOSTS).items()}
    (project.path / "config" / "hosts.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def collect(project: Checkout, network: Any, *words: str) -> tuple[int, dict[str, str]]:
    """Collect; (exit status, what the last lines say by label)."""
    done = project.stage(
        "pipeline.cli", "collect", "--ssh-config", str(network[1]), *words, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    lines = (line.split(": ", 1) for line in done.stdout.splitlines())
    return done.returncode, dict(lines) or {"": done.stderr}


def begin(project: Checkout, network: Any, *words: str) -> subprocess.Popen:
    """Collect in the background."""
    command = ("siliconprof.pipeline.cli", "collect", "--ssh-config", str(network[1]), *words)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    return project.begin(*command, text=True, **streams)


@pytest.fixture(scope="module")
def collected(project: Checkout, network: Any) -> tuple[list[str], str]:
    """The first collect, from both hosts, one that is not there and one whose folder is a person's:
    its last lines, its progress.

    A cell on each host waits until both have begun, so it only ends if they run side by side. The
    page is about one of them, of which the other knows nothing.
    """
    (network[0]["studio-7"].home / "precious").mkdir()
    (network[0]["studio-7"].home / "precious" / "thesis.tex").touch()
    taken = {"ssh": "studio-7", "folder": "precious"}
    write_hosts(project, **HOSTS, ghost={"ssh": "nobody"}, taken=taken)
    turns = [host.home / "turn" for host in network[0].values()]
    for turn in turns:
        turn.touch()
    configure(project, "studio-7", product=PRODUCT, wait=WAIT)
    process = begin(project, network)
    seen = [Path(f"{turn}.seen") for turn in turns]
    until(lambda: process.poll() is not None or all(path.exists() for path in seen))
    for turn in turns:
        turn.unlink()
    said, progress = process.communicate(timeout=300)
    assert process.returncode == 1, progress
    write_hosts(project)
    return said.splitlines(), progress


@pytest.mark.campaign
def test_two_hosts_side_by_side_and_only_what_is_new_later(project, network, collected):
    hosts = network[0]
    said, progress = collected
    nobody = f"{hosts['studio-7'].address.rpartition('.')[0]}.3"
    assert said == [
        "studio-7: 2 new, 0 already here, 0 replaced",
        "server-9: 2 new, 0 already here, 0 replaced",
        f"ghost: failed: ssh: connect to host {nobody} port 22: No route to host; "
        "log: results/logs/collect/ghost.log",
        "taken: failed: /home/precious: is not empty and was not made by collect; name a new or "
        "empty folder; log: results/logs/collect/taken.log",
    ]
    (mine,) = (hosts["studio-7"].home / "precious").iterdir()
    assert mine.name == "thesis.tex"
    assert re.search(r"^server-9: measuring$", progress, re.M)
    records = project.records()
    assert {key.split("/")[0] for key in records} == {"studio-7", "server-9"} and len(records) == 4
    for key, record in records.items():
        assert record["status"] == "ok", record["reason"]
        assert record["cell"]["host"] == key.split("/")[0]
    nodes = {(r["cell"]["host"], r["environment"]["node"]) for r in records.values()}
    assert len(nodes) == len({node for _, node in nodes}) == 2  # one each, by its id

    # Nothing new: nothing is measured, nothing comes. A module that vanished here vanishes there.
    far = hosts["server-9"].home / "my-study"
    stamps, far_stamps = project.stamps(), Checkout(far).stamps()
    assert far_stamps.keys() <= stamps.keys()  # the host's home folder is a placeholder here
    gone = "workflow/siliconprof/workloads/obsolete.py"
    assert (far / gone).exists()
    (project.path / gone).unlink()
    nothing_new = dict.fromkeys(HOSTS, "0 new, 2 already here, 0 replaced")
    assert collect(project, network) == (0, nothing_new)
    assert not (far / gone).exists()
    assert not (far / "config" / "hosts.yaml").exists()
    assert project.stamps() == stamps and Checkout(far).stamps() == far_stamps

    # Another cell, and one that changed: those two are measured, and those alone travel.
    configure(project, more=PRODUCT, product=PRODUCT | {"shapes": [[1, 8, 8, 8]]}, wait=WAIT)
    two_came = {"server-9": "1 new, 1 already here, 1 replaced"}
    assert collect(project, network, "server-9") == (0, two_came)
    after = project.stamps()
    changed = {key.split("/")[3] for key, stamp in after.items() if stamps.get(key) != stamp}
    assert changed == {"more", "product"}
    (kept,) = (project.path / "results/history/server-9").rglob("*.json")
    assert json.loads(kept.read_text())["cell"]["workload"] == "product"


@pytest.mark.campaign
def test_a_connection_that_breaks_ends_the_run_there_and_the_next_goes_on(
    project, network, collected
):
    host = network[0]["studio-7"]
    write_hosts(project)
    configure(project, product=PRODUCT, later={"module": "sleeper", "file": "/home/hold"})
    hold, seen = host.home / "hold", host.home / "hold.seen"
    hold.touch()
    faults = {
        "killed": lambda process: process.kill(),
        "interrupted": lambda process: process.send_signal(signal.SIGINT),
        "unplugged": lambda process: host.link(up=False),
    }
    for name, fault in faults.items():
        seen.unlink(missing_ok=True)
        process = begin(project, network, "studio-7")
        until(lambda process=process: seen.exists() or process.poll() is not None)
        assert process.poll() is None and host.processes("siliconprof.measure"), name
        fault(process)
        said = process.communicate(timeout=300)[0]
        if name == "unplugged":
            break  # the host cannot know
        until(lambda: not host.processes("siliconprof") and not host.processes("snakemake"))
        if name == "interrupted":
            assert process.returncode == 1 and "studio-7: interrupted; log: " in said
    assert process.returncode == 1 and re.search("^studio-7: failed: .+; log: ", said, re.M)
    host.link(up=True)
    assert not [key for key in project.records() if "/later/" in key]
    process = begin(project, network, "studio-7")
    assert process.stderr
    # Whether that host has noticed by now depends on what it wanted to send meanwhile.
    either = re.compile("studio-7: (waiting: another run is active|measuring)")
    assert any(either.match(line) for line in process.stderr)
    hold.unlink()
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and said.startswith("studio-7: 1 new, "), said


@pytest.mark.parametrize(
    ("folder", "environment", "said"),
    [
        ("precious", sys.prefix, "/precious: is not empty and was not made by collect; name a new"),
        (".", sys.prefix, ": contains the home folder; name a folder for collect alone"),
        ("new", "none", "no Python on the host: "),
        ("new", "old", "is Python 3.9.6; expected 3.11 or later"),
    ],
)
def test_a_folder_or_a_python_that_will_not_do_is_refused_there(
    folder: str, environment: str, said: str, tmp_path: Path
) -> None:
    old = f'exec {sys.executable} -c "import sys; sys.version_info = (3, 9, 6); $2"'
    script(tmp_path / "old/bin/python", old)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    before = list(tmp_path.rglob("*"))
    done = subprocess.run(
        ["sh", collecting.THERE, "prepare", folder, environment],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode and said in done.stderr.splitlines()[-1]
    assert list(tmp_path.rglob("*")) == before


EVIL = "x; touch pwned"


def test_every_mistake_in_the_hosts_file_is_one_line(tmp_path, monkeypatch):
    good = {"ssh": "a@b", "folder": "x", "environment": "make"}
    wrong = {
        EVIL: (good, f"is '{EVIL}'; expected at most 64 letters"),
        "option": (good | {"ssh": "-oProxyCommand=touch pwned"}, "ssh: is "),
        "folder": (good | {"folder": f"$({EVIL})"}, "folder: is "),
        "environment": (good | {"environment": EVIL}, "environment: is "),
        "root": (good | {"folder": "/"}, "folder: is "),
        "up": (good | {"folder": "x/../.."}, "folder: is "),
        "key": (good | {"foldr": 1}, "foldr: unknown key"),
        "empty": ({}, "folder: is missing"),
    }
    monkeypatch.chdir(tmp_path)
    path = tmp_path / collecting.HOSTS_FILE
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({label: entry for label, (entry, _) in wrong.items()}))
    with pytest.raises(UserError) as error:
        collecting.chosen([])
    lines = str(error.value).splitlines()
    for label, (_, problem) in wrong.items():
        start = f"{collecting.HOSTS_FILE}: {label}{': ' if label == EVIL else '.'}{problem}"
        assert [line for line in lines if line.startswith(start)], (start, lines)
    assert "did you mean 'folder'?" in str(error.value)
    shipped = (conftest.ROOT / collecting.HOSTS_FILE).read_text()
    path.write_text(shipped)
    with pytest.raises(UserError, match="names no host; its comments show"):
        collecting.chosen([])
    path.write_text("\n".join(re.findall("^# (  .*|studio:.*|server:.*)$", shipped, re.M)))
    assert collecting.chosen([]).keys() == {"studio", "server"}
    with pytest.raises(UserError, match=f"^'{EVIL}': no such host in config/hosts.yaml"):
        collecting.chosen([EVIL])
