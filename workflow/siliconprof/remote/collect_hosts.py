"""The hosts of config/hosts.yaml, checked, and the ssh and rsync commands that reach them.

The values of that file end up on a command line here and, through ssh, in a shell on the host. So
the model allows no character that a shell interprets, and every remote command is quoted as well.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from siliconprof.errors import UserError
from siliconprof.store import model, names, validation
from siliconprof.store.model import Part, Text, matches

THERE = Path(__file__).with_name("collect_there.sh")
OWN = ".siliconprof-collect"  # its presence makes a folder there one of collect's
CONNECT_TIMEOUT_S = 10
# What is sent, where it exists: enough to measure and to set up an environment.
PARTS = (
    *("Snakefile", "Makefile", "pyproject.toml", "README.md", "LICENSE"),
    *("config", "envs", "profiles", "report", "workflow"),
)
# Neither sent nor deleted on the host: other hosts' bundles and addresses, and what `make env` and
# Python write.
LEFT_OUT = ("/config/measured", "/config/hosts.yaml", "__pycache__", "*.egg-info", ".DS_Store")


FOLDER = r"(?!.*/-)(~/)?[A-Za-z0-9_./][A-Za-z0-9_./@+-]*"


class Entry(Part):
    """One entry of config/hosts.yaml as it is written.

    Texts that reach a command line hold no character that a shell interprets, and none begins with '-'.
    """

    ssh: Annotated[
        str,
        matches(
            r"([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[1-9][0-9]{0,4})?",
            "user@name, name or name:port, or the alias of an entry in the ssh configuration (there is "
            "the place for addresses of version 6, jump hosts and all else)",
        ),
    ]
    folder: Annotated[
        str,
        matches(
            FOLDER,
            "a folder on that host, made when absent, of letters, digits and . _ - @ + without spaces; "
            "relative to the home folder, or absolute; empty, or one that an earlier collect made",
        ),
    ]
    environment: Annotated[
        str,
        matches(
            FOLDER,
            "the folder of a Python environment on that host, with the pins of envs/ in it (of the same "
            "characters); or `make`, which has `make env` set one up there (needs python3.11 and a "
            "network)",
        ),
    ]
    # File of the private key, on this host; without it as ssh finds it.
    identity: Annotated[str, matches(r"[^-'\"\s][^'\"\x00-\x1f]*")] | None = None
    configfile: Text | None = None  # experiment for this host instead of --configfile, on this host


@dataclass(frozen=True)
class Host:
    """One entry of config/hosts.yaml, ready for its commands."""

    label: str
    target: str  # what ssh takes: user@name or an alias
    port: int | None
    folder: str  # on that host; absolute, or from its home folder
    environment: str  # folder on that host, or `make`, which is set up by `make env`
    identity: str | None = None
    configfile: str | None = None
    ssh_config: str | None = None  # a file instead of ~/.ssh/config

    def ssh(self, patience_s: float) -> list[str]:
        """The ssh command up to the target; it fails rather than prompt.

        Host keys are checked as the configuration of ssh says.

        Args:
            patience_s: seconds of silence after which the connection counts as lost.
        """
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_TIMEOUT_S,
            "ServerAliveInterval": max(int(patience_s / 4), 1),
            "ServerAliveCountMax": 3,
            # an alias may set these, and they would be in the way of a command
            **{"ClearAllForwardings": "yes", "ControlMaster": "no", "RemoteCommand": "none"},
            **{"ForwardAgent": "no", "ForwardX11": "no"},
        }
        command = ["ssh", "-T"]
        command += ["-F", self.ssh_config] if self.ssh_config else []
        for name, value in options.items():
            command += ["-o", f"{name}={value}"]
        command += ["-p", str(self.port)] if self.port else []
        if self.identity:
            command += ["-o", "IdentitiesOnly=yes", "-i", os.path.expanduser(self.identity)]
        return command

    def prepare(self, patience_s: float) -> list[str]:
        """The command that guards the folder there; `THERE` is its standard input."""
        words = ["sh", "-s", "prepare", self.folder, self.environment]
        return [*self.ssh(patience_s), "--", self.target, shlex.join(words)]

    def measure(self, patience_s: float) -> list[str]:
        """The command that measures there and prints a bundle of what is new."""
        script = f"{self.folder}/workflow/siliconprof/remote/{THERE.name}"
        words = ["sh", script, "measure", self.folder, self.environment, self.label]
        return [*self.ssh(patience_s), "--", self.target, shlex.join(words)]

    def rsync(self, patience_s: float, parts: Sequence[str]) -> list[str]:
        """The command that makes the parts on the host equal to those here, and nothing else.

        Only options that a Mac's rsync has too (2.6.9, or openrsync), so not `-s`: the model keeps
        the folder's name harmless to the remote shell.
        """
        command = ["rsync", "-rlpt", "--copy-unsafe-links", "--delete"]
        command += [f"--timeout={max(int(patience_s), 1)}"]
        command += [f"--exclude={pattern}" for pattern in LEFT_OUT]
        # a host's banner is not a message of rsync's
        command += ["-e", shlex.join([*self.ssh(patience_s), "-o", "LogLevel=ERROR"])]
        return [*command, "--", *parts, f"{self.target}:{self.folder}/"]


def load(path: Path, ssh_config: str | None = None) -> dict[str, Host]:
    """Label -> host.

    Raises:
        UserError: every mistake, one line each.
    """
    content = validation.load_yaml(path)
    content = {} if content is None else content  # all of it is comments
    problems = model.problems(dict[str, Entry], content, f"{path}: ")
    for label in content if isinstance(content, dict) else ():
        if not re.fullmatch(names.LABEL, str(label)):
            problems.append(f"{path}: {label!r}: is not a valid label; use {names.RULE}")
    if problems:
        raise UserError("\n".join(problems))
    hosts: dict[str, Host] = {}
    places: dict[tuple[str, int | None, str], str] = {}
    for label, entry in content.items():
        target, _, port = entry["ssh"].partition(":")
        folder, environment = (
            os.path.normpath(entry[key].removeprefix("~/")) for key in ("folder", "environment")
        )
        number = int(port) if port else None
        optional = {key: entry.get(key) for key in ("identity", "configfile")}
        host = Host(label, target, number, folder, environment, **optional, ssh_config=ssh_config)
        where = f"{path}: {label}"
        if label.casefold() == "auto":
            problems.append(f"{where}.ssh: the label 'auto' is reserved; choose another")
        if folder in (".", "/", "//") or ".." in folder.split("/"):
            problems.append(
                f"{where}.folder: is {entry['folder']!r}; name a folder of its own below the home "
                "folder, or an absolute one"
            )
        for key, name in optional.items():
            if name is not None and not os.path.isfile(os.path.expanduser(name)):
                problems.append(
                    f"{where}.{key}: {validation.one_line(name)}: no such file on this host"
                )
        first = places.setdefault((target, host.port, folder), label)
        if first != label:
            problems.append(f"{where}.folder: '{first}' has it too; give each its own")
        hosts[label] = host
    if problems:
        raise UserError("\n".join(problems))
    return hosts
