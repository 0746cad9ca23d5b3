"""The hosts of config/hosts.yaml, checked, and the ssh and rsync commands that reach them.

The values of that file end up on a command line here and, through ssh, in a shell on the host. So
the model allows no character that a shell interprets, and every remote command is quoted as well.
"""

from __future__ import annotations

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
SKIPPED = ("/config/measured", "/config/hosts.yaml", "__pycache__", "*.egg-info", ".DS_Store")


# Below the home folder or absolute, and neither of these two itself.
FOLDER = r"(?=.*[A-Za-z0-9_])(?!.*/-)(?!(.*/)?\.\.(/|$))(~/)?[A-Za-z0-9_./][A-Za-z0-9_./@+-]*"


class Entry(Part):
    """An entry of config/hosts.yaml; no text that reaches a command line has a shell's characters."""

    ssh: Annotated[
        str,
        matches(
            r"([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*",
            "user@name, name, or the alias of an entry in the ssh configuration, which is the place for "
            "ports, keys, addresses of version 6 and jump hosts",
        ),
    ]
    folder: Annotated[
        str,
        matches(
            FOLDER,
            "a folder of its own on that host, made when absent, of letters, digits and . _ - @ + without "
            "spaces; relative to the home folder, or absolute; empty, or one that an earlier collect made",
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
    configfile: Text | None = None  # experiment for this host instead of --configfile, on this host


@dataclass(frozen=True)
class Host:
    """One entry of config/hosts.yaml, ready for its commands."""

    label: str
    target: str  # what ssh takes: user@name or an alias
    folder: str  # on that host; absolute, or from its home folder
    environment: str  # folder on that host, or `make`, which is set up by `make env`
    configfile: str | None
    ssh_config: str | None  # a file instead of ~/.ssh/config

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
        command += [f"--exclude={pattern}" for pattern in SKIPPED]
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
        if not re.fullmatch(names.LABEL, str(label)) or str(label).casefold() == "auto":
            problems.append(f"{path}: {label!r}: is not a valid label; use {names.RULE}")
    hosts: dict[str, Host] = {}
    places: dict[tuple[str, str], str] = {}
    for label, entry in content.items() if not problems else ():
        target, folder = entry["ssh"], entry["folder"].removeprefix("~/")
        first = places.setdefault((target, folder), label)
        if first != label:
            problems.append(f"{path}: {label}.folder: '{first}' has it too; give each its own")
        environment = entry["environment"].removeprefix("~/")
        hosts[label] = Host(label, target, folder, environment, entry.get("configfile"), ssh_config)
    if problems:
        raise UserError("\n".join(problems))
    return hosts
