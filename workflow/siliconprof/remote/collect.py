"""Measure on other hosts over ssh and bring their records here; `config/hosts.yaml` names them.

    siliconprof collect [LABEL ...] [--configfile F]     all hosts, or those named

All hosts are collected from at the same time. The project is sent with rsync, Snakemake on the
host measures what is new, and its records come back as a bundle, which is checked as any other. A
host that fails does not hold up the others; collect again to go on.

The values of `config/hosts.yaml` end up on a command line here and, through ssh, in a shell on the
host. So the model allows no character that a shell interprets, and every remote command is quoted
as well.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Annotated, Any

from siliconprof.cells import config
from siliconprof.errors import UserError, nearest
from siliconprof.hosts import environment
from siliconprof.remote import bundle_import
from siliconprof.store import model, validation
from siliconprof.store.model import Label, Part, matches

RESULTS_FOLDER = Path("results")
HOSTS_FILE = Path("config/hosts.yaml")
THERE = Path(__file__).with_name("collect_there.sh")
FOLDER_THERE = ".siliconprof-collect"  # its presence makes a folder there one of collect's
# What is sent, where it exists: enough to measure and to set up an environment.
SENT_FILES = (
    *("Snakefile", "Makefile", "pyproject.toml", "README.md", "LICENSE"),
    *("config", "envs", "profiles", "report", "workflow"),
)
# Neither sent nor deleted on the host: other hosts' bundles and addresses, and what `make env` and
# Python write.
NOT_SENT = ("/config/measured", "/config/hosts.yaml", "__pycache__", "*.egg-info", ".DS_Store")
SSH_FAILED, REFUSED = 255, 3  # exit statuses of ssh, and of `collect_there.sh`
SHOWN_PREFIX = "collect: "  # begins a line of `collect_there.sh` for the person who collects
SNAKEMAKE_PROGRESS = re.compile(r"(\d+) of (\d+) steps")  # Snakemake's own words
SSH_OPTIONS = (  # it fails rather than prompt; a connection that is silent for a minute is lost
    *("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=20"),
    # an alias may set these, and they would be in the way of a command
    *("ClearAllForwardings=yes", "ControlMaster=no", "RemoteCommand=none"),
    *("ForwardAgent=no", "ForwardX11=no"),
)

# -- config/hosts.yaml -------------------------------------------------------------------------

# Below the home folder or absolute, and neither of these two itself.
FOLDER_PATTERN = r"(?=.*[A-Za-z0-9_])(?!.*/-)(?!(.*/)?\.\.(/|$))[A-Za-z0-9_./][A-Za-z0-9_./@+-]*"


class Host(Part):
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
            FOLDER_PATTERN,
            "a folder of its own on that host, made when absent, of letters, digits and . _ - @ + without "
            "spaces; relative to the home folder, or absolute; empty, or one that an earlier collect made",
        ),
    ]
    environment: Annotated[
        str,
        matches(
            FOLDER_PATTERN,
            "the folder of a Python environment on that host, with the pins of envs/ in it (of the same "
            "characters); or `make`, which has `make env` set one up there (needs python3.11 and a "
            "network)",
        ),
    ]


def chosen(labels_asked: Sequence[str]) -> dict[str, Host]:
    """Label -> host: those asked for, or all of config/hosts.yaml.

    Raises:
        UserError: every mistake, one line each.
    """
    document = validation.load_yaml(HOSTS_FILE)
    hosts = model.checked(dict[Label, Host], document or {}, f"{HOSTS_FILE}: ")
    if not hosts:
        raise UserError(f"{HOSTS_FILE}: names no host; its comments show how to add one")
    labels, own = dict.fromkeys(labels_asked or hosts), bundle_import.own_labels(RESULTS_FOLDER)
    problems = [
        f"{label!r}: no such host in {HOSTS_FILE}; expected one of: {', '.join(hosts)}"
        f"{nearest(label, hosts)}"
        for label in labels
        if label not in hosts
    ] + [
        f"{HOSTS_FILE}: {label}: is a label that this checkout measures; give the other host "
        "another one"
        for label in labels
        if label.casefold() in own
    ]
    if problems:
        raise UserError("\n".join(problems))
    return {label: hosts[label] for label in labels}


def experiment_of(configfile: str, label: str) -> dict[str, Any]:
    """The experiment as a host gets it, checked before anything is sent."""
    raw = config.read(str(Path(configfile).expanduser())) | {"host": label}
    config.resolve(raw, configfile)
    # The host makes no page, and may not know the label of the host that the page is about.
    report = {key: value for key, value in raw.get("report", {}).items() if key != "host"}
    return raw | {"report": report}


# -- one host ----------------------------------------------------------------------------------


def report_status(label: str, event: str) -> None:
    """Print one line about a host on standard error."""
    sys.stderr.write(f"{label}: {event}\n")  # in one piece, since hosts' threads write at once
    sys.stderr.flush()


class Collection:
    """One call of `collect`: what all hosts share."""

    def __init__(self, ssh_config: str | None) -> None:
        self.ssh = ["ssh", "-T", *(["-F", ssh_config] if ssh_config else [])]
        self.ssh += [word for option in SSH_OPTIONS for word in ("-o", option)]
        self.commit = environment.git_commit(Path.cwd())[0] or ""
        self.importing = threading.Lock()
        self.stopped = threading.Event()
        self.running: dict[str, subprocess.Popen] = {}  # by host label

    def collect(self, label: str, host: Host, experiment: dict[str, Any]) -> str:
        """Collect from one host; a line on what came.

        Raises:
            UserError: it failed, wholly or in part; one line.
        """
        path = RESULTS_FOLDER / "logs" / "collect" / f"{label}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            open(path, "w", encoding="utf-8", buffering=1) as log,
            tempfile.TemporaryDirectory() as folder,
        ):
            try:
                return self._collect(label, host, experiment, log, Path(folder))
            except (UserError, OSError) as error:
                log.write(f"{error}\n")
                first = validation.one_line(str(error).partition("\n")[0])
                summary = "interrupted" if self.stopped.is_set() else f"failed: {first}"
                raise UserError(f"{summary}; log: {path}") from None

    def _collect(
        self, label: str, host: Host, experiment: dict[str, Any], log: IO[str], folder: Path
    ) -> str:
        report_status(label, f"connecting to {host.ssh}")
        there = [*self.ssh, "--", host.ssh]
        words = shlex.join(["sh", "-s", "prepare", host.folder, host.environment])
        with open(THERE, "rb") as script:
            status, lines = self._run(label, log, [*there, words], script)
        if status:
            raise UserError(lines[-1] if lines else f"ssh: exit status {status}")

        report_status(label, "sending the project")
        own = folder / FOLDER_THERE
        own.mkdir()
        (own / "commit").write_text(self.commit, encoding="utf-8")
        # JSON is YAML; the label in it is text, whatever it is
        (own / "experiment.json").write_text(json.dumps(experiment), encoding="utf-8")
        # Only options that a Mac's rsync has too (2.6.9, or openrsync), so not `-s`: the model keeps
        # the folder's name harmless to the remote shell. A host's banner is no message of rsync's.
        command = ["rsync", "-rlpt", "--copy-unsafe-links", "--delete", "--timeout=60"]
        command += [f"--exclude={pattern}" for pattern in NOT_SENT]
        command += ["-e", shlex.join([*self.ssh, "-o", "LogLevel=ERROR"]), "--"]
        parts = [part for part in SENT_FILES if Path(part).exists()]
        target = f"{host.ssh}:{host.folder}/"
        status, lines = self._run(label, log, [*command, *parts, str(own), target])
        if status:  # the first line is the cause, the last a summary
            raise UserError(f"rsync: {lines[0] if lines else f'exit status {status}'}")

        bundle = folder / f"{label}.zip"
        copy = f"{host.folder}/workflow/siliconprof/remote/{THERE.name}"
        words = shlex.join(["sh", copy, "measure", host.folder, host.environment, label])
        with open(bundle, "wb") as output:
            # Nothing is written to standard input: its end tells the host that this side is gone.
            status, lines = self._run(label, log, [*there, words], subprocess.PIPE, output)
        last = lines[-1] if lines else "ended without a message"
        if status in (SSH_FAILED, REFUSED):
            raise UserError(last)
        line = "the experiment has no cell for this host"
        if bundle.stat().st_size:
            with self.importing:
                line = bundle_import.import_bundle(bundle, RESULTS_FOLDER, replace=True, only=label)
        if status:
            raise UserError(f"{line}; the run on the host ended with status {status}: {last}")
        return line

    def _run(
        self,
        label: str,
        log: IO[str],
        command: list[str],
        standard_input: IO[bytes] | int = subprocess.DEVNULL,
        output: IO[bytes] | int = subprocess.DEVNULL,
    ) -> tuple[int, list[str]]:
        """Run one command to its end: its status, and the lines of its standard error."""
        lines: list[str] = []
        process = self.running[label] = subprocess.Popen(
            command,
            stdin=standard_input,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        with process:
            if self.stopped.is_set():  # `stop` may have run before the process was listed
                process.terminate()
            for raw in process.stderr or ():
                line = validation.one_line(raw.decode("utf-8", "replace").strip())
                log.write(line + "\n")
                steps = SNAKEMAKE_PROGRESS.search(line)
                if line.startswith(SHOWN_PREFIX):
                    report_status(label, line.removeprefix(SHOWN_PREFIX))
                elif steps and sys.stderr.isatty():
                    report_status(label, f"measuring, {steps[1]} of {steps[2]} steps done")
                lines += [line] if line else []
        if self.stopped.is_set():
            raise UserError("interrupted")
        return process.returncode, lines

    def stop(self) -> None:
        """End every connection, and with it what runs on the hosts."""
        self.stopped.set()
        for process in list(self.running.values()):
            process.terminate()


def main(
    labels: Annotated[
        Sequence[str], "default: every host", {"nargs": "*", "metavar": "LABEL"}
    ] = (),
    *,
    configfile: Annotated[
        str, f"the experiment; default: {config.DEFAULT}", {"metavar": "FILE"}
    ] = config.DEFAULT,
    ssh_config: Annotated[str | None, "instead of ~/.ssh/config", {"metavar": "FILE"}] = None,
) -> int:
    """Collect from hosts side by side and print each one's outcome; 1 when one failed."""
    if not Path("Snakefile").is_file():
        raise UserError("no Snakefile in the current folder: run this in a checkout")
    hosts = chosen(labels)
    experiments = {label: experiment_of(configfile, label) for label in hosts}
    for tool in ("ssh", "rsync"):
        if not shutil.which(tool):
            raise UserError(f"{tool}: not installed on this host; install it and collect again")
    collection = Collection(ssh_config)
    with ThreadPoolExecutor(len(hosts)) as pool:
        futures = {
            label: pool.submit(collection.collect, label, host, experiments[label])
            for label, host in hosts.items()
        }
        try:
            while wait(futures.values(), timeout=0.5).not_done:
                pass
        except KeyboardInterrupt:
            report_status("interrupted", "ending the runs on all hosts")
            collection.stop()
    status = 0
    for label, future in futures.items():
        try:
            print(f"{label}: {future.result()}")
        except UserError as error:
            print(f"{label}: {error}")
            status = 1
    return status
