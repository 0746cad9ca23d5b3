"""The hosts of config/hosts.yaml, checked, and the ssh and rsync command lines that lead there.

Whatever a person writes into that file ends up on a command line here and, through ssh, in a shell
there. So the schema allows no character that a shell reads, and every remote command is quoted all
the same.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from siliconprof.errors import UserError
from siliconprof.hosts import host_file
from siliconprof.store import validation

MAKE = "make"  # the `environment` that is set up by `make env`
MAKE_PYTHON = "python3.11"  # as the Makefile wants it
CONNECT_TIMEOUT_S = 10
LABEL_LIMIT = 100  # characters; it becomes part of file names
# What is sent, where it exists: enough to measure and to set up an environment.
PARTS = (
    "Snakefile",
    "Makefile",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "config",
    "envs",
    "profiles",
    "report",
    "workflow",
)
# Left out, and left alone there: bundles of other hosts, the way to other hosts, what `make env`
# and Python make.
LEFT_OUT = ("/config/measured", "/config/hosts.yaml", "__pycache__", "*.egg-info", ".DS_Store")
# A shell that is not a login shell often lacks the folders where a Mac's python3.11 lies.
SEARCH = 'PATH="$PATH:/usr/local/bin:/opt/homebrew/bin:/opt/local/bin"; export PATH; exec "$@"'
# The first `size` bytes of standard input are the program: nothing has to lie there before.
BOOTSTRAP = (
    "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'collect_there.py', 'exec'))"
)


@dataclass(frozen=True)
class Host:
    """One entry of config/hosts.yaml."""

    label: str
    target: str  # what ssh takes: user@name or an alias
    port: int | None
    folder: str  # on that host; absolute, or from its home folder
    environment: str  # folder on that host, or MAKE
    identity: str | None = None
    configfile: str | None = None
    ssh_config: str | None = None  # a file instead of ~/.ssh/config

    def ssh(self, patience_s: float) -> list[str]:
        """The ssh command up to the target; whatever could ask a person fails instead.

        Host keys are checked as the configuration of ssh says.

        Args:
            patience_s: after that long without an answer the connection counts as lost.
        """
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_TIMEOUT_S,
            "ServerAliveInterval": max(int(patience_s / 4), 1),
            "ServerAliveCountMax": 3,
            # what an alias may ask for and would be in the way of a command
            "ClearAllForwardings": "yes",
            "ControlMaster": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "RemoteCommand": "none",
        }
        words = ["ssh", "-T"]
        words += ["-F", self.ssh_config] if self.ssh_config else []
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        words += ["-p", str(self.port)] if self.port else []
        if self.identity:
            words += ["-o", "IdentitiesOnly=yes", "-i", os.path.expanduser(self.identity)]
        return words

    @property
    def python(self) -> str:
        """The interpreter that runs our side there; from the home folder where not absolute."""
        return MAKE_PYTHON if self.environment == MAKE else f"{self.environment}/bin/python"

    def remote(self, patience_s: float, program_bytes: int) -> list[str]:
        """The command that starts a program there, of which standard input brings the text."""
        there = ["sh", "-c", SEARCH, "sh", self.python, "-c", BOOTSTRAP, str(program_bytes)]
        return [*self.ssh(patience_s), "--", self.target, shlex.join(there)]

    def rsync(self, patience_s: float, parts: Sequence[str]) -> list[str]:
        """The command that makes the parts there what they are here, and touches nothing else.

        Only what a Mac's rsync knows too (2.6.9, or openrsync), so not `-s`: it is the schema that
        keeps the folder harmless to the shell there.
        """
        words = ["rsync", "-rlpt", "--copy-unsafe-links", "--delete"]
        words += [f"--timeout={max(int(patience_s), 1)}"]
        words += [f"--exclude={pattern}" for pattern in LEFT_OUT]
        # a host's banner is none of what rsync says
        words += ["-e", shlex.join([*self.ssh(patience_s), "-o", "LogLevel=ERROR"])]
        return [*words, "--", *parts, f"{self.target}:{self.folder}/"]


def load(path: Path, ssh_config: str | None = None) -> dict[str, Host]:
    """Label -> host.

    Raises:
        UserError: every mistake, one line each.
    """
    content = validation.load_yaml(path)
    content = {} if content is None else content  # all of it is comments
    wrong = validation.problems(content, validation.load_schema("hosts"), f"{path}: ")
    for label in content if isinstance(content, dict) else ():
        if not (host_file.LABEL.fullmatch(str(label)) and len(str(label)) <= LABEL_LIMIT):
            wrong.append(
                f"{path}: {label!r}: is no label of a host; use at most {LABEL_LIMIT} letters, "
                "digits, '.', '_' and '-'"
            )
    if wrong:
        raise UserError("\n".join(wrong))
    found: dict[str, Host] = {}
    places: dict[tuple[str, int | None, str], str] = {}
    for label, entry in content.items():
        target, _, port = entry["ssh"].partition(":")
        folder = _folder(entry["folder"])
        host = Host(
            label=label,
            target=target,
            port=int(port) if port else None,
            folder=folder,
            environment=entry["environment"]
            if entry["environment"] == MAKE
            else _folder(entry["environment"]),
            identity=entry.get("identity"),
            configfile=entry.get("configfile"),
            ssh_config=ssh_config,
        )
        wrong += [f"{path}: {label}.{line}" for line in _beyond_schema(label, host, entry)]
        twin = next((other for other in found if other.casefold() == label.casefold()), None)
        if twin:
            wrong.append(f"{path}: {label}: the label is '{twin}' where case does not count")
        first = places.setdefault((host.target, host.port, folder), label)
        if first != label:
            wrong.append(f"{path}: {label}.folder: is that of '{first}'; give each its own")
        found[label] = host
    if wrong:
        raise UserError("\n".join(wrong))
    return found


def _folder(text: str) -> str:
    """A folder as ssh's remote side sees it from the home folder: no `~`, nothing to tidy up."""
    return os.path.normpath(text.removeprefix("~/"))


def _beyond_schema(label: str, host: Host, entry: dict[str, str]) -> list[str]:
    """What is wrong with an entry that a schema cannot say."""
    wrong = []
    if label.casefold() == "auto":
        wrong.append("ssh: its label is 'auto', which is no host's label")
    if host.port and host.port > 65535:
        wrong.append(f"ssh: {host.port} is no port")
    if host.folder in (".", "/", "//") or ".." in host.folder.split("/"):
        wrong.append(
            f"folder: is {entry['folder']!r}; name a folder of its own below the home folder, or "
            "an absolute one"
        )
    for key in ("identity", "configfile"):
        if key in entry and not Path(entry[key]).expanduser().is_file():
            wrong.append(f"{key}: {entry[key]}: no such file on this host")
    return wrong
