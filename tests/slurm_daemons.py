"""A Slurm cluster of real daemons on one machine: munged, slurmctld and a slurmd per node.

Needs root, the Debian packages `slurm-wlm` and `munge`, and the right to unshare namespaces. Each
node is a host of its own: slurmd is the first process of namespaces in which jobs see the node's
host name and machine id, and the cluster's settings in /etc/slurm, where the executor plug-in's
inner `srun` looks for them. The real /etc/slurm is never written to: what is mounted, and all that
runs on the node, goes with slurmd. The host lock is the node's own through TaskProlog.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from started_processes import started_with

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "unshare")
START_LIMIT_S = 300.0
# Every job of the cluster and every daemon carries it: that is how processes are found.
MARK = "SILICONPROF_TEST_CLUSTER"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
OWN_HOST = "unshare --uts --mount --propagation private --pid --fork --kill-child --mount-proc"


@dataclass(frozen=True)
class Node:
    """One simulated host.

    Args:
        features: what a job's constraint may ask for.
        gres: generic resources, as slurm.conf takes them.
        partition: the one partition that it is in.
    """

    name: str
    features: str
    gres: str = ""
    partition: str = "main"


NODES = (
    Node("node-a", "h200,cuda", "gpu:h200:1", "gpu"),
    Node("node-b", "a100,cuda", "gpu:a100:1", "gpu"),
    Node("node-c", "cpu", "", "cpu"),
)


def missing() -> str | None:
    """Why no cluster can be started here; None when one can."""
    if sys.platform != "linux":
        return "Slurm's daemons run on Linux"
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs as other users, and nodes are namespaces"
    search = os.environ["PATH"] + os.pathsep + "/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=search)]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: apt-get install slurm-wlm munge)"
    return None


@dataclass
class Cluster:
    """The running daemons; everything of theirs lies in one temporary folder."""

    folder: Path
    nodes: tuple[Node, ...] = NODES
    daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a command on the submitting host needs to reach this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf"), MARK: str(self.folder)}

    def lock_file(self, node: str) -> Path:
        """The host lock of a node."""
        return self.folder / f"{node}.lock"

    def run(self, *command: str) -> str:
        """A Slurm command's standard output."""
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self, node: str | None = None) -> list[str]:
        """The ids of the jobs that are not over, those on a node or all."""
        states = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED"
        on_node = [f"--nodelist={node}"] if node else []
        return self.run("squeue", "-h", f"--states={states}", *on_node, "--format=%i").split()

    def processes(self, node: str | None = None) -> list[psutil.Process]:
        """What runs for this cluster: the processes of jobs on a node, or all and the daemons."""
        found = started_with(MARK, str(self.folder))
        if node:
            on_node = {process.pid for process in started_with("SLURMD_NODENAME", node)}
            found = [process for process in found if process.pid in on_node]
        return [process for process in found if process.pid != os.getpid()]

    # -- start and stop --------------------------------------------------------------------

    def kill_node(self, name: str) -> None:
        """A node dies: its slurmd and all that ran there, from one moment to the next."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait(60)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=died")

    def start_node(self, name: str) -> None:
        """A node that died comes up again."""
        self._start_node(next(node for node in self.nodes if node.name == name))
        self.run("scontrol", "update", f"nodename={name}", "state=resume")
        _until(self._all_idle, f"{name} up")

    def start(self) -> None:
        """Start everything and wait until every node is idle."""
        etc = self.folder / "etc"
        etc.mkdir()
        (self.folder / "state").mkdir()
        self.folder.chmod(0o755)  # munge insists that all may reach its socket
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        prolog = self.folder / "task_prolog.sh"
        prolog.write_text(
            f'#!/bin/sh\necho "export {LOCK_FILE_VARIABLE}={self.folder}/$SLURMD_NODENAME.lock"\n'
        )
        prolog.chmod(0o755)
        (etc / "gres.conf").write_text(
            "".join(
                f"NodeName={node.name} Name={name} Type={kind} Count={count} File=/dev/null\n"
                for node in self.nodes
                if node.gres
                for name, kind, count in [node.gres.split(":")]
            )
        )
        (etc / "slurm.conf").write_text(self._settings())
        of_munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        files = [f"--{option}={self.folder}/munge.{end}" for option, end in of_munge.items()]
        self._start("munged", ["munged", "--foreground", "--force", "--num-threads=1", *files])
        _until((self.folder / "munge.socket").exists, "munged up")
        self._start("slurmctld", ["slurmctld", "-D", "-i"])
        for node in self.nodes:
            self._start_node(node)
        _until(self._all_idle, "all nodes idle")

    def _all_idle(self) -> bool:
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        except RuntimeError:  # the controller does not answer yet
            return False
        return states == ["idle"] * len(self.nodes)

    def stop(self) -> None:
        """End the daemons, and with each node its jobs."""
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait(60)
        left = self.processes()  # children of the daemons that are on no node
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=60)

    def _start(self, name: str, command: Sequence[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SILICONPROF_")}
        environment |= self.environment
        environment["PATH"] += os.pathsep + "/usr/sbin:/sbin"
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal is for the test alone
            )

    def _start_node(self, node: Node) -> None:
        (self.folder / f"spool-{node.name}").mkdir(exist_ok=True)
        number = self.folder / f"machine-id-{node.name}"
        number.write_text(node.name.encode().hex().rjust(32, "0") + "\n")
        boot = (
            f"hostname {node.name}; mount --bind {self.folder}/etc /etc/slurm; "
            f"mount --bind {number} /etc/machine-id; exec slurmd -D -N {node.name}"
        )
        self._start(node.name, [*OWN_HOST.split(), "sh", "-ec", boot])

    def _settings(self) -> str:
        folder, ports = self.folder, _free_ports(1 + len(self.nodes))
        lines = [
            "ClusterName=simulated",
            f"SlurmctldHost={socket.gethostname().split('.')[0]}(127.0.0.1)",
            f"SlurmctldPort={ports.pop()}",
            "SlurmUser=root",
            f"AuthInfo=socket={folder}/munge.socket",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid",
            f"TaskProlog={folder}/task_prolog.sh",
            # None of what a container may lack: cgroups, systemd, a database of accounts. But a
            # job gets the processors that it asked for and no others, as on a real cluster.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/affinity",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "GresTypes=gpu",
            "SlurmdParameters=config_overrides",
            # Answers in seconds where a real cluster takes half a minute.
            "KillWait=2",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
            *(
                f"NodeName={node.name} NodeHostname={node.name} NodeAddr=127.0.0.1 "
                f"Port={ports.pop()} CPUs={os.cpu_count()} RealMemory=4000 Feature={node.features}"
                + (f" Gres={node.gres}" if node.gres else "")
                for node in self.nodes
            ),
        ]
        for partition in dict.fromkeys(node.partition for node in self.nodes):
            names = ",".join(node.name for node in self.nodes if node.partition == partition)
            lines.append(f"PartitionName={partition} Nodes={names} MaxTime=INFINITE State=UP")
        return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        local = ("127.0.0.1", 0)
        held = [stack.enter_context(socket.create_server(local)) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Slurm: not within {START_LIMIT_S:g} s: {what}")
        time.sleep(0.05)


@contextmanager
def running(nodes: tuple[Node, ...] = NODES) -> Iterator[Cluster]:
    """A cluster, for as long as the block lasts.

    Raises:
        RuntimeError: it did not come up; the message holds the daemons' last words.
    """
    # A short path: a socket's may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="siliconprof-slurm-", dir="/tmp"))
    cluster = Cluster(folder, nodes)
    try:
        try:
            cluster.start()
        except (TimeoutError, RuntimeError) as error:
            outputs = (path.read_text(errors="replace") for path in sorted(folder.glob("*.out")))
            last = [line for text in outputs for line in text.splitlines()[-5:]]
            raise RuntimeError("\n".join([str(error), *last])) from None
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
