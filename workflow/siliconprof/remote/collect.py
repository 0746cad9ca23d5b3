"""Measure on other hosts over ssh and bring their records here; `config/hosts.yaml` names them.

    siliconprof collect [LABEL ...] [--configfile F]     all hosts, or those named
    siliconprof collect --list                           list the hosts and their records here

All hosts are collected from at the same time. The project is sent with rsync, Snakemake on the
host measures what is new, and the records that are not here yet come back as a bundle, which is
checked as any other. A host that fails does not hold up the others; collect again to go on.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.cells import config
from siliconprof.errors import UserError, stage
from siliconprof.hosts import host_file as hosts
from siliconprof.remote import bundle_import, collect_hosts
from siliconprof.remote.collect_run import RESULTS, Collection, Outcome, report_status, seals
from siliconprof.store import validation

HOSTS_FILE = Path("config/hosts.yaml")
CONFIG = "config/config.yaml"
PATIENCE_S = 60.0


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
