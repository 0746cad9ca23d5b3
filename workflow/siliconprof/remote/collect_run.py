"""One host's turn in `collect`: send the project, have it measured, import what is new."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from siliconprof.errors import UserError
from siliconprof.hosts import environment, host_file
from siliconprof.remote import bundle_check, bundle_import, collect_hosts
from siliconprof.remote.collect_link import ANSWER_LIMIT_BYTES, Failed, Link, plain
from siliconprof.store import record

RESULTS = Path("results")
STEPS = re.compile(r"(\d+) of (\d+) steps")  # Snakemake's own words
NOT_OK = ("failed", "oom", "timeout")  # `unsupported` and `skipped` are results


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


class Collection:
    """One call of `collect`: what all hosts share."""

    def __init__(self, experiments: Mapping[str, dict[str, Any]], patience_s: float) -> None:
        self.experiments = experiments  # by host label
        self.patience_s = patience_s
        self.commit = environment.git_commit(Path.cwd())
        self.importing = threading.Lock()
        self.stopped = threading.Event()
        self.open: dict[str, Link] = {}
        self.sending: dict[str, subprocess.Popen] = {}

    def collect(self, host: collect_hosts.Host) -> Outcome:
        """Collect from one host; an error becomes part of the outcome."""
        log_file = RESULTS / "logs" / "collect" / f"{host.label}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with open(log_file, "w", encoding="utf-8") as log:
                try:
                    return self._collect(host, log)
                except (Failed, UserError) as error:
                    log.write(f"{error}\n")
                    raise
        except (Failed, UserError, OSError) as error:
            lines = [plain(line) for line in str(error).splitlines()] or [type(error).__name__]
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            summary = "interrupted" if self.stopped.is_set() else f"failed: {lines[0]}{more}"
            return Outcome(host.label, f"{summary}; log: {log_file}", True)

    def _collect(self, host: collect_hosts.Host, log: IO[str]) -> Outcome:
        label = host.label
        report_status(label, f"connecting to {host.target}")
        with self._linked(host, log) as link:
            link.send(label=label, folder=host.folder, silence_s=self.patience_s)
            answer = link.receive("ready", "waiting")
            if answer["event"] == "waiting":
                report_status(label, "waiting: another run is active on the host")
                answer = link.receive("ready")
            report_status(label, "sending the project")
            self._send(host, link)
            local_seals = seals(label)
            link.send(
                label=label,
                environment=host.environment if host.environment == collect_hosts.MAKE else "",
                experiment=self.experiments[label],
                commit=self.commit,
                without=sorted(local_seals),
            )
            while (answer := link.receive("stage", "done"))["event"] == "stage":
                report_status(label, plain(str(answer.get("stage"))))
            content = link.receive_bundle(answer.get("bytes"))
        imported = self._import(label, content) if content else None
        present, status = _count(answer.get("present")), answer.get("status")
        added, replaced = (imported.added, imported.replaced) if imported else (0, 0)
        line = f"{added} new, {present} already here, {replaced} replaced{_not_ok(label)}"
        if status == 0 and not added + present + replaced:
            line = "the experiment has no cell for this host"
        if status != 0:
            line += f"; the run on the host ended with status {plain(str(status))}"
            line += f"; log: {log.name}" if content else f": {link.last_line}; log: {log.name}"
        return Outcome(label, line, status != 0)

    @contextmanager
    def _linked(self, host: collect_hosts.Host, log: IO[str]) -> Iterator[Link]:
        """A connection, which `stop` can end."""

        def show_progress(line: str) -> None:
            steps = STEPS.search(line)
            if steps and sys.stderr.isatty():
                report_status(host.label, f"measuring, {steps[1]} of {steps[2]} steps done")

        link = Link(host, log, self.patience_s, show_progress)
        self.open[host.label] = link
        try:
            if self.stopped.is_set():
                raise Failed("interrupted")
            yield link
        finally:
            link.close()
            del self.open[host.label]

    def _send(self, host: collect_hosts.Host, link: Link) -> None:
        """Copy the project to the host.

        Raises:
            Failed: with rsync's message.
        """
        parts = [part for part in collect_hosts.PARTS if Path(part).exists()]
        process = subprocess.Popen(
            host.rsync(self.patience_s, parts),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.sending[host.label] = process
        if self.stopped.is_set():  # `stop` may have run before the process was listed
            process.terminate()
        output, cause = process.stdout, ""
        assert output
        with output:
            for line in iter(lambda: output.readline(ANSWER_LIMIT_BYTES), b""):
                text = line.decode("utf-8", "replace")
                cause = cause or plain(text)  # the first line is the cause, the last a summary
                link.log_line(text)
        if process.wait():
            raise Failed(f"rsync: {cause or f'exit status {process.returncode}'}")

    def _import(self, label: str, content: bytes) -> bundle_import.Imported:
        """Check a bundle as any other, and that it has this host's records only; then import it.

        Raises:
            UserError: it is unsound, or has records of another host.
        """
        with tempfile.TemporaryDirectory() as folder, self.importing:
            path = Path(folder) / f"{label}.zip"
            path.write_bytes(content)
            bundle = bundle_check.read_bundle(path)
            if {*bundle.hosts} - {label}:
                raise UserError(
                    f"its bundle holds records of {', '.join(bundle.hosts)}: a host may send its "
                    "own only; nothing imported"
                )
            _same_machine(label, bundle)
            return bundle_import.import_bundle(path, RESULTS, replace=True)

    def stop(self) -> None:
        """End every connection; the other sides end their pipelines."""
        self.stopped.set()
        for process in list(self.sending.values()):
            if process.poll() is None:
                process.terminate()
        for link in list(self.open.values()):
            threading.Thread(target=link.end).start()


def _same_machine(label: str, bundle: bundle_check.Bundle) -> None:
    """Check that a label still stands for the same machine.

    Raises:
        UserError: it does not, so records of two machines would have one label.
    """
    path, member = RESULTS / "hosts" / f"{label}.json", bundle.files.get(f"hosts/{label}.json")
    if member is None or not path.exists():
        return
    before, now = host_file.load(path), bundle_check.parsed(member)
    if before["fingerprint"] != now["fingerprint"]:
        raise UserError(
            f"'{label}' was another machine before: give this one a label of its own, or delete "
            f"{path} and "
            f"{RESULTS / 'records' / label}; nothing imported"
        )


def _records(label: str) -> Iterator[dict[str, Any]]:
    for path in sorted((RESULTS / "records" / label).rglob("*.json")):
        try:
            yield record.read(path, check_schema=False)
        except UserError:
            continue  # damaged: it is sent again


def seals(label: str) -> set[str]:
    """The SHA-256 of every sound record of a host in this checkout."""
    return {data["sha256"] for data in _records(label)}


def _not_ok(label: str) -> str:
    """`; N of M cells not ok (…)`, or nothing."""
    statuses = Counter(data["status"] for data in _records(label))
    not_ok = {status: statuses[status] for status in NOT_OK if statuses[status]}
    if not not_ok:
        return ""
    kinds = ", ".join(f"{number} {status}" for status, number in not_ok.items())
    return f"; of its {statuses.total()} cells {sum(not_ok.values())} not ok ({kinds})"


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
