"""Measure on other hosts over ssh and bring their records here; `config/hosts.yaml` names them.

    siliconprof collect [LABEL ...] [--configfile F]     all hosts, or those named
    siliconprof collect --list                           list the hosts and their records here

All hosts are collected from at the same time. The project is sent with rsync, Snakemake on the
host measures what is new, and the records that are not here yet come back as a bundle, which is
checked as any other. A host that fails does not hold up the others; collect again to go on.

What a host sends is not trusted: lines and the bundle have a greatest length, and text is shown
without control characters.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from siliconprof import options
from siliconprof.cells import config
from siliconprof.errors import UserError, printable, stage
from siliconprof.hosts import environment
from siliconprof.hosts import host_file as hosts
from siliconprof.remote import bundle_import, collect_hosts
from siliconprof.remote.bundle_check import LIMIT_BYTES
from siliconprof.store import record, validation
from siliconprof.store.contents import Record

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


@dataclass(frozen=True)
class Outcome:
    """The outcome of collecting from one host."""

    label: str
    line: str
    failed: bool


def report_status(label: str, event: str) -> None:
    """Print one line about a host on standard error."""
    sys.stderr.write(f"{label}: {event}\n")  # in one piece, since hosts' threads write at once
    sys.stderr.flush()


@dataclass(frozen=True)
class Done:
    """A command that has run.

    Attributes:
        first, last: lines that it printed on standard error; empty if it printed none.
    """

    status: int
    output: bytes
    first: str
    last: str


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
            with open(log_file, "w", encoding="utf-8", buffering=1) as log:
                try:
                    return self._collect(host, log)
                except UserError as error:
                    log.write(f"{error}\n")
                    raise
        except (UserError, OSError) as error:
            lines = [validation.one_line(line) for line in str(error).splitlines()] or [
                type(error).__name__
            ]
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            summary = "interrupted" if self.stopped.is_set() else f"failed: {lines[0]}{more}"
            return Outcome(host.label, f"{summary}; log: {log_file}", True)

    def _collect(self, host: collect_hosts.Host, log: IO[str]) -> Outcome:
        label = host.label
        report_status(label, f"connecting to {host.target}")
        with open(collect_hosts.THERE, "rb") as script:
            done = self._run(label, log, host.prepare(self.patience_s), script)
        if done.status:
            raise UserError(done.last or f"ssh: exit status {done.status}")
        report_status(label, "sending the project")
        with self._parts(label) as parts:
            done = self._run(label, log, host.rsync(self.patience_s, parts), subprocess.DEVNULL)
        if done.status:  # the first line is the cause, the last a summary
            raise UserError(f"rsync: {done.first or f'exit status {done.status}'}")
        # Nothing is written to standard input: its end tells the host that this side is gone.
        done = self._run(label, log, host.measure(self.patience_s), subprocess.PIPE)
        if done.status in (SSH_FAILED, REFUSED):
            raise UserError(done.last or "ssh ended without a message")
        imported = self._import(label, done.output) if done.output else None
        added, replaced = (imported.added, imported.replaced) if imported else (0, 0)
        present = len(seals(label)) - added - replaced
        line = f"{added} new, {present} already here, {replaced} replaced{_not_ok(label)}"
        if done.status:
            line += f"; the run on the host ended with status {done.status}"
            line += f"; log: {log.name}" if imported else f": {done.last}; log: {log.name}"
        elif not imported:
            line = "the experiment has no cell for this host"
        return Outcome(label, line, done.status != 0)

    def _run(
        self, label: str, log: IO[str], command: list[str], standard_input: IO[bytes] | int
    ) -> Done:
        """Run one command to its end; its standard error goes to the log.

        Raises:
            UserError: `stop` was called, or there is too much output.
        """
        lines: list[str] = []

        def follow(stream: IO[bytes]) -> None:
            for raw in iter(lambda: stream.readline(LINE_LIMIT_BYTES), b""):
                line = printable(raw.decode("utf-8", "replace").strip())
                log.write(line + "\n")
                steps = STEPS.search(line)
                if line.startswith(SHOWN):
                    report_status(label, validation.one_line(line.removeprefix(SHOWN)))
                elif steps and sys.stderr.isatty():
                    report_status(label, f"measuring, {steps[1]} of {steps[2]} steps done")
                if line:
                    lines[1:] = [validation.one_line(line)]  # the first stays

        pipe = subprocess.PIPE  # in a session of its own: Ctrl-C is ours to pass on
        process = self.running[label] = subprocess.Popen(
            command, stdin=standard_input, stdout=pipe, stderr=pipe, start_new_session=True
        )
        with process:
            if self.stopped.is_set():  # `stop` may have run before the process was listed
                process.terminate()
            follower = threading.Thread(target=follow, args=[process.stderr])
            follower.start()
            assert process.stdout
            output = process.stdout.read(LIMIT_BYTES + 1)
            if len(output) > LIMIT_BYTES:
                process.terminate()
            follower.join()
        if self.stopped.is_set():
            raise UserError("interrupted")
        if len(output) > LIMIT_BYTES:
            raise UserError(f"its bundle has over {LIMIT_BYTES} bytes, the limit")
        first, last = (lines[0], lines[-1]) if lines else ("", "")
        return Done(process.returncode, output, first, last)

    @contextmanager
    def _parts(self, label: str) -> Iterator[list[str]]:
        """What is sent: the project, and a folder that says what to measure and what is here."""
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder, collect_hosts.OWN)
            own.mkdir()
            contents = {
                "README": README,
                "commit": self.commit or "",
                # JSON is YAML; the label in it is text, whatever it is
                "experiment.json": json.dumps(self.experiments[label]),
                "without": "".join(f"{seal}\n" for seal in sorted(seals(label))),
            }
            for name, content in contents.items():
                (own / name).write_text(content, encoding="utf-8")
            yield [part for part in collect_hosts.PARTS if Path(part).exists()] + [str(own)]

    def _import(self, label: str, content: bytes) -> bundle_import.Imported:
        """Check a bundle as any other, and that it has this host's records only; then import it.

        Raises:
            UserError: it is unsound, or has records of another host.
        """
        with tempfile.TemporaryDirectory() as folder, self.importing:
            path = Path(folder) / f"{label}.zip"
            path.write_bytes(content)
            return bundle_import.import_bundle(path, RESULTS, replace=True, only=label)

    def stop(self) -> None:
        """End every connection, and with it what runs on the hosts."""
        self.stopped.set()
        for process in list(self.running.values()):
            process.terminate()


def _records(label: str) -> Iterator[Record]:
    for path in sorted((RESULTS / "records" / label).rglob("*.json")):
        try:
            yield record.load(path)
        except UserError:
            continue  # damaged: it is sent again


def seals(label: str) -> set[str]:
    """The SHA-256 of every sound record of a host in this checkout."""
    return {data.sha256 for data in _records(label)}


def _not_ok(label: str) -> str:
    """`; of its M cells N not ok (…)`, or nothing."""
    statuses: Counter[str] = Counter(data.status for data in _records(label))
    not_ok = {status: statuses[status] for status in NOT_OK if statuses[status]}
    if not not_ok:
        return ""
    kinds = ", ".join(f"{number} {status}" for status, number in not_ok.items())
    return f"; of its {statuses.total()} cells {sum(not_ok.values())} not ok ({kinds})"


def chosen(
    configured: Mapping[str, collect_hosts.Host], labels_asked: Sequence[str], path: Path
) -> list[collect_hosts.Host]:
    """The hosts of some labels, or all.

    Raises:
        UserError: a label is unknown or this host's own, or the file names no host.
    """
    if not configured:
        raise UserError(f"{path}: names no host; its comments show how to add one")
    labels = list(dict.fromkeys(labels_asked)) or list(configured)
    own = bundle_import.own_labels(RESULTS)
    problems = []
    for label in labels:
        if label not in configured:
            near = validation.nearest(label, configured)
            listed = ", ".join(configured)
            problems.append(f"{label!r}: no such host in {path}; expected one of: {listed}{near}")
        elif label.casefold() in own:
            problem = "is this host's own label; give the other host another one"
            problems.append(f"{path}: {label}: {problem}")
    if problems:
        raise UserError("\n".join(problems))
    return [configured[label] for label in labels]


def experiments(
    chosen_hosts: Sequence[collect_hosts.Host], configfile: str
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """(label -> the experiment for that host, notes for the user), checked before anything is sent.

    Raises:
        UserError: all mistakes, one line each.
    """
    by_label: dict[str, dict[str, Any]] = {}
    problems: dict[str, None] = {}  # in order, each once
    notes: dict[str, None] = {}
    for host in chosen_hosts:
        name = host.configfile or configfile
        raw = validation.load_yaml(Path(name).expanduser())
        if not isinstance(raw, dict):
            raise UserError(f"{name}: is empty or not a mapping; see config/README.md")
        raw = raw | {"host": host.label}
        try:
            resolved = config.resolve(raw, name)
        except UserError as error:
            problems |= dict.fromkeys(str(error).splitlines())
            continue
        if host.label in resolved.get("cluster", {}):
            problems[
                f"{name}: cluster.{host.label}: is also a host to collect from; give one of the "
                "two another label"
            ] = None
        for kind, key in (("datasets", "path"), ("workloads", "weights_path")):
            for entry, values in resolved[kind].items():
                if values.get(key) and values.get("source", "folder") == "folder":
                    notes[f"{name}: {kind}.{entry}.{key}: {values[key]} is read on the host"] = None
        # The host makes no page, and may not know the label of the host that the page is about.
        report = {key: value for key, value in raw.get("report", {}).items() if key != "host"}
        by_label[host.label] = raw | {"report": report}
    if problems:
        raise UserError("\n".join(problems))
    return by_label, list(notes)


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
    by_label, notes = experiments(selected, configfile)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    collection = Collection(by_label, patience_s)
    with ThreadPoolExecutor(len(selected)) as pool:
        futures = [pool.submit(collection.collect, host) for host in selected]
        try:
            while wait(futures, timeout=0.5).not_done:
                pass
        except KeyboardInterrupt:
            report_status("interrupted", "ending the runs on all hosts")
            collection.stop()
    return [future.result() for future in futures]


def listing(configured: Mapping[str, collect_hosts.Host]) -> list[str]:
    """One line per host: its address, its devices, its records here and when the last came."""
    lines = []
    for label, host in configured.items():
        port = f":{host.port}" if host.port else ""
        columns = [label, f"{host.target}{port}:{host.folder}"]
        note, host_file = (RESULTS / kind / f"{label}.json" for kind in ("imported", "hosts"))
        if note.exists() and host_file.exists():
            records = len(seals(label))
            moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.stat().st_mtime))
            columns.append(", ".join(device["id"] for device in hosts.load(host_file)["devices"]))
            columns.append(f"{records} record{'s' * (records != 1)}, last new {moment}")
        else:
            columns.append("never collected")
        lines.append("  ".join(columns))
    return lines


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
    parser.add_argument("--list", action="store_true", help="list the hosts and exit")
    arguments = parser.parse_args(argv)
    if not arguments.patience >= 1:
        raise UserError(f"--patience: is {arguments.patience}; expected at least 1")
    if not Path("Snakefile").is_file():
        raise UserError("no Snakefile in the current folder: run this in a checkout")
    configured = collect_hosts.load(arguments.hosts, arguments.ssh_config)
    if arguments.list:
        print("\n".join(listing(configured) or [f"{arguments.hosts}: names no host"]))
        return 0
    selected = chosen(configured, arguments.label, arguments.hosts)
    outcomes = collect(selected, arguments.configfile, arguments.patience)
    for outcome in outcomes:
        print(f"{outcome.label}: {outcome.line}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(stage(main))
