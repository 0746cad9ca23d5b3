"""Hosts to log in to, on this machine: each has its own network, name, processes and home folder.

A host is a network namespace at the end of a veth pair, and in it, in namespaces of its own for
names, mounts and processes, an sshd. Its processes end with the first of them, so a host that is
stopped leaves none behind. It shares the rest of the file system, where Python lies, read as here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from started_processes import started_with

TOOLS = ("ip", "unshare", "setpriv", "ssh", "ssh-keygen", "rsync", "mount")
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
# 198.18.0.0/15 is kept for tests of network devices (RFC 2544), so it is nobody's.
NETWORK = "198.18"
# Leaves a trace that it runs, and sleeps as long as the file is there.
SLEEPER = '''\
"""A workload that waits."""

import time
from pathlib import Path
from typing import Annotated

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """sleeper"""

    class Parameters(KernelWorkload.Parameters):
        file: Annotated[str, "what it waits for to vanish"]

    def measure(self, session):
        Path(self.parameters["file"] + ".seen").touch()
        while Path(self.parameters["file"]).exists():
            session.progress("asleep", 1)
            time.sleep(0.05)
        point = {"params": {}, "times": {"step_s": [0.5, 0.5]}, "flops": None, "bytes": None}
        session.add_point(point | {"memory": session.memory(), "loss": []})
'''


def missing() -> str | None:
    """Why no host can be made here; None when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    lacking = [tool for tool in TOOLS if not shutil.which(tool)] + ([] if SSHD else ["sshd"])
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"no network namespace: {tried.stderr.strip()}" if tried.returncode else None


def do(*command: str) -> str:
    """Run a command that must succeed; what it prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr or done.stdout}"
    return done.stdout


@dataclass
class SshHost:
    """One running host."""

    name: str  # its hostname, and its alias in the ssh configuration
    folder: Path  # what it keeps on this machine's disk: home/, sshd's files
    address: str
    outside: str  # the end of the veth pair that is on this side; also names its network
    process: subprocess.Popen | None = None

    @property
    def home(self) -> Path:
        """Its home folder, seen from here."""
        return self.folder / "home"

    def processes(self, word: str = "") -> list[psutil.Process]:
        """What was started there over ssh, by its host lock, and has the word in its command line."""
        found = []
        for process in started_with("SILICONPROF_LOCK_FILE", f"{self.folder}/host.lock"):
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def link(self, up: bool) -> None:
        """Plug its cable in or out."""
        do("ip", "link", "set", self.outside, "up" if up else "down")

    def start(self) -> None:
        """Begin; it answers when this returns."""
        inside, network = f"{self.outside}i", f"-netns {self.outside}"
        net, _, last = self.address.rpartition(".")
        for words in (
            f"netns add {self.outside}",
            f"link add {self.outside} type veth peer {inside} netns {self.outside}",
            f"address add {net}.{int(last) - 1}/29 dev {self.outside}",
            f"link set {self.outside} up",
            f"{network} address add {self.address}/29 dev {inside}",
            f"{network} link set {inside} up",
            f"{network} link set lo up",
        ):
            do("ip", *words.split())
        # It ends with the test's process, even if that is killed.
        own = f"setpriv --pdeathsig KILL ip netns exec {self.outside} unshare --uts --mount --pid"
        own += " --fork --kill-child --mount-proc sh -euc"
        with open(self.folder / "sshd.log", "w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(
                [*own.split(), self._boot()], start_new_session=True, **streams
            )
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), 1):
                return
            said = (self.folder / "sshd.log").read_text()
            assert self.process.poll() is None and time.monotonic() < end, said
            time.sleep(0.02)

    def _boot(self) -> str:
        """What makes the namespaces this host: its name, home folder, machine id and user."""
        quoted = shlex.quote(str(self.folder))
        return (
            f"hostname {self.name}; mount --make-rprivate /; "
            f"mount --bind {quoted}/home /home; "
            f"mount --bind {quoted}/machine-id /etc/machine-id; "
            f"mount --bind {quoted}/passwd /etc/passwd; "
            "mount -t tmpfs tmpfs /run; mkdir -m 755 /run/sshd; "
            f"exec {SSHD} -D -e -f {quoted}/sshd_config"
        )

    def stop(self) -> None:
        """End it and all its processes; nothing is left but its folder."""
        if self.process:
            for first in psutil.Process(self.process.pid).children():
                first.kill()  # the kernel ends the others
            self.process.wait(60)
            self.process = None
        subprocess.run(["ip", "link", "delete", self.outside], capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.outside], capture_output=True)


def _prepare(folder: Path, name: str, client_key: Path) -> None:
    """Write what a host is made of."""
    (folder / "home").mkdir(parents=True)
    do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key"))
    shutil.copy(client_key.with_suffix(".pub"), folder / "authorized_keys")
    (folder / "machine-id").write_text(f"{name:0>32}\n".replace("-", "0"))
    (folder / "passwd").write_text(
        "root:x:0:0:root:/home:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (folder / "sshd_config").write_text(
        f"ListenAddress 0.0.0.0\nPort 22\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        f"SetEnv SILICONPROF_LOCK_FILE={folder}/host.lock TMPDIR={folder}\n"
    )


@contextlib.contextmanager
def running(folder: Path, names: Sequence[str]) -> Iterator[tuple[dict[str, SshHost], Path]]:
    """Hosts by name, and an ssh configuration in which the names are aliases.

    Only the hosts' own keys are known in it. `nobody` is an address on the first host's cable at
    which no host is.
    """
    folder.mkdir(parents=True)
    key, known, config = folder / "key", folder / "known_hosts", folder / "ssh_config"
    do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    hosts: dict[str, SshHost] = {}
    entries, keys = [], []
    number = os.getpid() % 250 + 1
    with contextlib.ExitStack() as stack:
        for place, name in enumerate(names):
            _prepare(folder / name, name, key)
            address = f"{NETWORK}.{number}.{8 * place + 2}"
            host = SshHost(name, folder / name, address, f"sp{os.getpid()}-{place}")
            stack.callback(host.stop)
            host.start()
            hosts[name] = host
            public = (folder / name / "host_key.pub").read_text().split()
            keys.append(f"{address} {public[0]} {public[1]}\n")
            entries.append(f"Host {name}\n  HostName {address}\n")
        entries.append(f"Host nobody\n  HostName {NETWORK}.{number}.3\n")
        known.write_text("".join(keys))
        config.write_text(
            "".join(entries) + f"Host *\n  User root\n  IdentityFile {key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
            "  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n"
        )
        yield hosts, config
