"""A Slurm cluster of real daemons on one machine: munged, slurmctld and a slurmd per node.

Needs root, the Debian packages `slurm-wlm` and `munge`, and the right to unshare namespaces. Each
node is a host of its own: slurmd runs in a UTS and a mount namespace, so that jobs see the node's
host name, its CPU's name in /proc/cpuinfo, and the cluster's settings in /etc/slurm, where the
executor plug-in's inner `srun` looks for them. The real /etc/slurm is never written to: what is
mounted goes with the processes. The host lock is the node's own through TaskProlog.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "unshare")
START_LIMIT_S = 300.0
# Every process of the cluster and of its jobs carries it: that is how leftovers are found.
MARK = "SILICONPROF_TEST_CLUSTER"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"


@dataclass(frozen=True)
class Node:
    """One simulated host.

    Args:
        features: what a job's constraint may ask for.
        gres: generic resources, as slurm.conf takes them.
        partition: the one partition that it is in.
        cpu_model: what /proc/cpuinfo says there; None for the machine's own.
    """

    name: str
    features: str
    gres: str = ""
    partition: str = "main"
    cpu_model: str | None = None


NODES = (
    Node("node-a", "h200,cuda", "gpu:h200:1", "gpu"),
    Node("node-b", "a100,cuda", "gpu:a100:1", "gpu", "Simulated CPU B"),
    Node("node-c", "cpu", "", "cpu", "Simulated CPU C"),
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
    namespaces: dict[str, str] = field(default_factory=dict)  # node -> its UTS namespace

    @property
    def environment(self) -> dict[str, str]:
        """What a command on the submitting host needs to reach this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf"), MARK: str(self.folder)}

    def lock_file(self, node: str) -> Path:
        """The host lock of a node."""
        return self.folder / f"{node}.lock"

    # -- commands --------------------------------------------------------------------------

    def run(self, *command: str, check: bool = True) -> str:
        """A Slurm command's standard output."""
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """The jobs that are not over: id, state, node, comment."""
        states = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED"
        text = self.run("squeue", "--noheader", f"--states={states}", "--format=%i|%T|%N|%k")
        names = ("id", "state", "node", "comment")
        return [dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines()]

    def node_state(self, name: str) -> str:
        """A node's state as sinfo says it, such as `idle` or `down*`."""
        return self.run("sinfo", "--noheader", "--Node", f"--nodes={name}", "--format=%T").split()[
            0
        ]

    # -- faults ----------------------------------------------------------------------------

    def kill_node(self, name: str) -> None:
        """A node dies: its slurmd and all that ran there, from one moment to the next."""
        daemon = self.daemons.pop(name)
        processes = self.processes(name)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody sees another die and tells of it
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        daemon.wait(60)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=died")

    def start_node(self, name: str) -> None:
        """A node comes up, for the first time or again."""
        node = next(node for node in self.nodes if node.name == name)
        again = name in self.run("sinfo", "--noheader", "--Node", "--states=down", "--format=%N")
        self._start(name, self._node_command(node), {})
        if again:
            self.run("scontrol", "update", f"nodename={name}", "state=resume")
        _until(lambda: self.node_state(name) in ("idle", "mixed", "allocated"), f"{name} up")
        self._look()

    def processes(self, node: str | None = None) -> list[psutil.Process]:
        """What runs for this cluster, on one node or anywhere, its daemons on nodes included.

        slurmstepd has an environment of its own: it is known by the node's namespace.
        """
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(MARK) == str(self.folder)
                namespace = os.readlink(f"/proc/{process.pid}/ns/uts")
            except (psutil.Error, OSError):
                continue  # has ended
            on_node = namespace in self.namespaces.values()
            wanted = marked or on_node if node is None else namespace == self.namespaces[node]
            if wanted and process.pid != os.getpid():
                found.append(process)
        return found

    # -- start and stop --------------------------------------------------------------------

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
        for node in self.nodes:
            (self.folder / f"spool-{node.name}").mkdir()
        # fmt: off
        self._start("munged", [
            "munged", "--foreground", "--force", "--key-file", f"{self.folder}/munge.key",
            "--socket", f"{self.folder}/munge.socket", "--pid-file", f"{self.folder}/munged.pid",
            "--seed-file", f"{self.folder}/munged.seed", "--log-file", f"{self.folder}/munged.log",
            "--num-threads", "1",
        ], {})
        # fmt: on
        _until((self.folder / "munge.socket").exists, "munged up")
        self._start("slurmctld", ["slurmctld", "-D", "-i"], {})
        for node in self.nodes:
            self._start(node.name, self._node_command(node), {})
        names = {node.name for node in self.nodes}
        _until(lambda: self._idle() == names, "all nodes idle")
        self._look()

    def _look(self) -> None:
        for node in self.nodes:  # `unshare` has become slurmd by now
            if node.name in self.daemons:
                pid = self.daemons[node.name].pid
                self.namespaces[node.name] = os.readlink(f"/proc/{pid}/ns/uts")

    def _idle(self) -> set[str]:
        text = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return {line.split()[0] for line in text.splitlines() if line.split()[1:] == ["idle"]}

    def stop(self) -> None:
        """End the jobs, the daemons, and whatever either of them left."""
        for number in (signal.SIGTERM, *[signal.SIGKILL] * 9):  # one may be forking meanwhile
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            psutil.wait_procs(self.processes(), timeout=5)
        for daemon in self.daemons.values():
            daemon.wait(60)

    def _start(self, name: str, command: Sequence[str], more: dict[str, str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SILICONPROF_")}
        environment |= self.environment | more
        environment["PATH"] += os.pathsep + "/usr/sbin:/sbin"
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                list(command),
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal is for the test alone
            )

    def _node_command(self, node: Node) -> list[str]:
        lines = [f"hostname {node.name}", f"mount --bind {self.folder}/etc /etc/slurm"]
        if Path("/etc/machine-id").is_file():
            number = self.folder / f"machine-id-{node.name}"
            number.write_text(node.name.encode().hex().rjust(32, "0") + "\n")
            lines.append(f"mount --bind {number} /etc/machine-id")
        if node.cpu_model:
            info = self.folder / f"cpuinfo-{node.name}"
            own = Path("/proc/cpuinfo").read_text()
            info.write_text(
                "\n".join(
                    f"model name\t: {node.cpu_model}" if line.startswith("model name") else line
                    for line in own.split("\n")
                )
            )
            lines.append(f"mount --bind {info} /proc/cpuinfo")
        lines.append(f"exec slurmd -D -N {node.name}")
        inner = " && ".join(lines)
        return ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", inner]

    def _settings(self) -> str:
        folder = self.folder
        ports = _free_ports(1 + len(self.nodes))
        short = socket.gethostname().split(".")[0]
        lines = [
            "ClusterName=simulated",
            f"SlurmctldHost={short}(127.0.0.1)",
            f"SlurmctldPort={ports.pop()}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/%n.log",
            f"TaskProlog={folder}/task_prolog.sh",
            # None of what a container may lack: cgroups, systemd, a database of accounts. But a
            # job gets the processors that it asked for and no others, as on a real cluster.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/affinity",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "GresTypes=gpu",
            "SlurmdParameters=config_overrides",
            "ReturnToService=1",
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
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


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
            raise RuntimeError(f"{error}\n{_last_words(folder)}") from None
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _last_words(folder: Path) -> str:
    texts = []
    for path in sorted([*folder.glob("*.out"), *folder.glob("*.log")]):
        tail = path.read_text(errors="replace").splitlines()[-5:]
        texts += [f"{path.name}: {line}" for line in tail]
    return "\n".join(texts)
