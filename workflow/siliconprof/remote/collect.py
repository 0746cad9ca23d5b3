"""Measure on other hosts over ssh and bring their records here; `config/hosts.yaml` names them.

    siliconprof collect [LABEL ...] [--configfile F]     all hosts, or those named

All hosts are collected from at the same time. The project is sent with rsync, Snakemake on the
host measures what is new, and its records come back as a bundle, which is checked as any other. A
host that fails does not hold up the others; collect again to go on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from siliconprof import options
from siliconprof.cells import config
from siliconprof.errors import UserError, nearest, printable, stage
from siliconprof.hosts import environment
from siliconprof.remote import bundle_import, collect_hosts
from siliconprof.store import record, validation

RESULTS = Path("results")
HOSTS_FILE = Path("config/hosts.yaml")
CONFIG = "config/config.yaml"
PATIENCE_S = 60.0
LINE_LIMIT_BYTES = 64 * 1024
SSH_FAILED, REFUSED = 255, 3  # exit statuses of ssh, and of `collect_there.sh`
SHOWN = "collect: "  # begins a line of `collect_there.sh` for the person who collects
STEPS = re.compile(r"(\d+) of (\d+) steps")  # Snakemake's own words
NOT_OK = ("failed", "oom", "timeout")  # `unsupported` and `skipped` are results
README = """\
This folder is filled by `siliconprof collect`: what is sent is made the same as on the host that
collects, so edits here are lost. results/ holds what was measured here and is left alone.
"""


class Outcome(NamedTuple):
    """The outcome of collecting from one host."""

    label: str
    line: str
    failed: bool


def report_status(label: str, event: str) -> None:
    """Print one line about a host on standard error."""
    sys.stderr.write(f"{label}: {event}\n")  # in one piece, since hosts' threads write at once
    sys.stderr.flush()


class Collection:
    """One call of `collect`: what all hosts share."""

    def __init__(self, experiments: Mapping[str, dict[str, Any]], patience_s: float) -> None:
        self.experiments = experiments  # by host label
        self.patience_s = patience_s
        self.commit = environment.git_commit(Path.cwd())
        self.importing = threading.Lock()
        self.stopped = threading.Event()
        self.running: dict[str, subprocess.Popen] = {}  # by host label

    def collect(self, host: collect_hosts.Host) -> Outcome:
        """Collect from one host; an error becomes part of the outcome."""
        log_file = RESULTS / "logs" / "collect" / f"{host.label}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with (
                open(log_file, "w", encoding="utf-8", buffering=1) as log,
                tempfile.TemporaryDirectory() as folder,
            ):
                try:
                    return self._collect(host, log, Path(folder))
                except UserError as error:
                    log.write(f"{error}\n")
                    raise
        except (UserError, OSError) as error:
            first, *others = str(error).splitlines() or [type(error).__name__]
            more = f" (and {len(others)} more)" if others else ""
            failure = f"failed: {validation.one_line(first)}{more}"
            summary = "interrupted" if self.stopped.is_set() else failure
            return Outcome(host.label, f"{summary}; log: {log_file}", True)

    def _collect(self, host: collect_hosts.Host, log: IO[str], folder: Path) -> Outcome:
        label = host.label
        report_status(label, f"connecting to {host.target}")
        with open(collect_hosts.THERE, "rb") as script:
            status, lines = self._run(label, log, host.prepare(self.patience_s), script)
        if status:
            raise UserError(lines[-1] if lines else f"ssh: exit status {status}")
        report_status(label, "sending the project")
        command = host.rsync(self.patience_s, self._parts(label, folder))
        status, lines = self._run(label, log, command)
        if status:  # the first line is the cause, the last a summary
            raise UserError(f"rsync: {lines[0] if lines else f'exit status {status}'}")
        # Nothing is written to standard input: its end tells the host that this side is gone.
        bundle = folder / f"{label}.zip"
        with open(bundle, "wb") as output:
            command = host.measure(self.patience_s)
            status, lines = self._run(label, log, command, subprocess.PIPE, output)
        last = lines[-1] if lines else ""
        if status in (SSH_FAILED, REFUSED):
            raise UserError(last or "ssh ended without a message")
        if not bundle.stat().st_size:
            line = "the experiment has no cell for this host"
            if status:
                line = f"the run on the host ended with status {status}: {last}; log: {log.name}"
            return Outcome(label, line, status != 0)
        with self.importing:
            found = bundle_import.import_bundle(bundle, RESULTS, replace=True, only=label)
        line = f"{found.added} new, {found.present} already here, {found.replaced} replaced"
        line += _not_ok(label)
        if status:
            line += f"; the run on the host ended with status {status}; log: {log.name}"
        return Outcome(label, line, status != 0)

    def _run(
        self,
        label: str,
        log: IO[str],
        command: list[str],
        standard_input: IO[bytes] | int = subprocess.DEVNULL,
        output: IO[bytes] | int = subprocess.DEVNULL,
    ) -> tuple[int, list[str]]:
        """Run one command to its end: its status, the first and last line of standard error."""
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
            assert process.stderr
            for raw in iter(partial(process.stderr.readline, LINE_LIMIT_BYTES), b""):
                line = printable(raw.decode("utf-8", "replace").strip())
                log.write(line + "\n")
                steps = STEPS.search(line)
                if line.startswith(SHOWN):
                    report_status(label, validation.one_line(line.removeprefix(SHOWN)))
                elif steps and sys.stderr.isatty():
                    report_status(label, f"measuring, {steps[1]} of {steps[2]} steps done")
                if line:
                    lines[1:] = [validation.one_line(line)]  # the first stays
        if self.stopped.is_set():
            raise UserError("interrupted")
        return process.returncode, lines

    def _parts(self, label: str, folder: Path) -> list[str]:
        """What is sent: the project, and a folder that says what to measure."""
        own = folder / collect_hosts.OWN
        own.mkdir()
        contents = {
            "README": README,
            "commit": self.commit or "",
            # JSON is YAML; the label in it is text, whatever it is
            "experiment.json": json.dumps(self.experiments[label]),
        }
        for name, content in contents.items():
            (own / name).write_text(content, encoding="utf-8")
        return [part for part in collect_hosts.PARTS if Path(part).exists()] + [str(own)]

    def stop(self) -> None:
        """End every connection, and with it what runs on the hosts."""
        self.stopped.set()
        for process in list(self.running.values()):
            process.terminate()


def _not_ok(label: str) -> str:
    """`; of its M cells N not ok (…)`, or nothing."""
    statuses: Counter[str] = Counter()
    for path in (RESULTS / "records" / label).rglob("*.json"):
        with suppress(UserError):  # damaged, or of an older version
            statuses[record.load(path).status] += 1
    not_ok = {status: statuses[status] for status in NOT_OK if statuses[status]}
    if not not_ok:
        return ""
    kinds = ", ".join(f"{number} {status}" for status, number in not_ok.items())
    return f"; of its {statuses.total()} cells {sum(not_ok.values())} not ok ({kinds})"


def chosen(
    configured: Mapping[str, collect_hosts.Host], labels_asked: Sequence[str], path: Path
) -> list[collect_hosts.Host]:
    """The hosts of some labels, or all."""
    if not configured:
        raise UserError(f"{path}: names no host; its comments show how to add one")
    labels = list(dict.fromkeys(labels_asked)) or list(configured)
    own = bundle_import.own_labels(RESULTS)
    problems = []
    for label in labels:
        if label not in configured:
            near = nearest(label, configured)
            listed = ", ".join(configured)
            problems.append(f"{label!r}: no such host in {path}; expected one of: {listed}{near}")
        elif label.casefold() in own:
            problem = "is a label that this checkout measures; give the other host another one"
            problems.append(f"{path}: {label}: {problem}")
    if problems:
        raise UserError("\n".join(problems))
    return [configured[label] for label in labels]


def experiments(
    chosen_hosts: Sequence[collect_hosts.Host], configfile: str
) -> dict[str, dict[str, Any]]:
    """Label -> the experiment for that host, checked before anything is sent."""
    by_label: dict[str, dict[str, Any]] = {}
    problems: dict[str, None] = {}  # in order, each once
    for host in chosen_hosts:
        name = host.configfile or configfile
        raw = validation.load_yaml(Path(name).expanduser())
        if not isinstance(raw, dict):
            raise UserError(f"{name}: is empty or not a mapping; see config/README.md")
        raw = raw | {"host": host.label}
        try:
            config.resolve(raw, name)
        except UserError as error:
            problems |= dict.fromkeys(str(error).splitlines())
            continue
        # The host makes no page, and may not know the label of the host that the page is about.
        report = {key: value for key, value in raw.get("report", {}).items() if key != "host"}
        by_label[host.label] = raw | {"report": report}
    if problems:
        raise UserError("\n".join(problems))
    return by_label


def collect(
    selected: Sequence[collect_hosts.Host],
    configfile: str = CONFIG,
    patience_s: float = PATIENCE_S,
) -> list[Outcome]:
    """Collect from hosts side by side; their outcomes in order.

    Args:
        patience_s: seconds of silence after which a connection counts as lost.

    Raises:
        UserError: the config has mistakes, or ssh or rsync is missing; nothing was started.
    """
    for tool in ("ssh", "rsync"):
        if not shutil.which(tool):
            raise UserError(f"{tool}: not installed on this host; install it and collect again")
    collection = Collection(experiments(selected, configfile), patience_s)
    with ThreadPoolExecutor(len(selected)) as pool:
        futures = [pool.submit(collection.collect, host) for host in selected]
        try:
            while wait(futures, timeout=0.5).not_done:
                pass
        except KeyboardInterrupt:
            report_status("interrupted", "ending the runs on all hosts")
            collection.stop()
    return [future.result() for future in futures]


def main(argv: Sequence[str] | None = None) -> int:
    """Collect and print each host's outcome; 1 when one failed."""
    parser = options.parser("siliconprof collect", __doc__)
    parser.add_argument("label", nargs="*", metavar="LABEL", help="default: every host")
    parser.add_argument(
        "--hosts", type=Path, default=HOSTS_FILE, metavar="FILE", help=f"default: {HOSTS_FILE}"
    )
    parser.add_argument(
        "--configfile", default=CONFIG, metavar="FILE", help=f"the experiment; default: {CONFIG}"
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="instead of ~/.ssh/config")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help=f"seconds of silence after which a connection is lost; default: {PATIENCE_S:.0f}",
    )
    arguments = parser.parse_args(argv)
    if not arguments.patience >= 1:
        raise UserError(f"--patience: is {arguments.patience}; expected at least 1")
    if not Path("Snakefile").is_file():
        raise UserError("no Snakefile in the current folder: run this in a checkout")
    configured = collect_hosts.load(arguments.hosts, arguments.ssh_config)
    selected = chosen(configured, arguments.label, arguments.hosts)
    outcomes = collect(selected, arguments.configfile, arguments.patience)
    for outcome in outcomes:
        print(f"{outcome.label}: {outcome.line}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(stage(main))
