"""Measure on other hosts over ssh and bring their records here; `config/hosts.yaml` names them.

    siliconprof collect [LABEL ...] [--configfile F]     all hosts, or those named
    siliconprof collect --list                           what each host is, and what lies here

Hosts are collected from side by side, each alone on its machine. The project is sent with rsync,
Snakemake measures there what is new, and the records that are not here yet come back as a bundle,
which is checked as any other. One host that fails holds up none; collect again to go on.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from siliconprof.cells import config
from siliconprof.errors import UserError, stage
from siliconprof.hosts import host_file as hosts
from siliconprof.remote import bundle_import, collect_hosts
from siliconprof.remote.collect_run import RESULTS, Collection, Outcome, seals, tell
from siliconprof.store import validation


def chosen(
    known: Mapping[str, collect_hosts.Host], asked: Sequence[str], path: Path
) -> list[collect_hosts.Host]:
    """The hosts asked for, or all.

    Raises:
        UserError: no such host, none at all, or one that is this host.
    """
    if not known:
        raise UserError(f"{path}: names no host; its comments show how")
    wrong = [
        f"{label!r}: no such host in {path}; expected one of: {', '.join(known)}"
        f"{validation.nearest(label, known)}"
        for label in asked
        if label not in known
    ]
    own = bundle_import.own_labels(RESULTS)
    labels = list(dict.fromkeys(asked)) or list(known)
    wrong += [
        f"{path}: {label}: is this host's own label; give that host another"
        for label in labels
        if label.casefold() in own
    ]
    if wrong:
        raise UserError("\n".join(wrong))
    return [known[label] for label in labels]


def experiments(
    chosen_hosts: Sequence[collect_hosts.Host], configfile: str
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """(label -> what that host is to measure, notes for a person), checked before anything is sent.

    Raises:
        UserError: all mistakes, one line each.
    """
    found: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    notes: dict[str, None] = {}
    for host in chosen_hosts:
        name = host.configfile or configfile
        raw = validation.load_yaml(Path(name).expanduser())
        if not isinstance(raw, dict):
            raise UserError(f"{name}: is empty or no mapping; see config/README.md")
        raw = raw | {"host": host.label}
        try:
            resolved = config.resolve(raw, name)
        except UserError as error:
            wrong += [line for line in str(error).splitlines() if line not in wrong]
            continue
        if host.label in resolved.get("cluster", {}):
            wrong.append(
                f"{name}: cluster.{host.label}: is a host to collect from, too; give one another "
                "label"
            )
        for kind, key in (("datasets", "path"), ("workloads", "weights_path")):
            for entry, values in resolved[kind].items():
                if values.get(key) and values.get("source", "folder") == "folder":
                    notes[f"{name}: {kind}.{entry}.{key}: {values[key]} is a folder there"] = None
        # Which host the page is about is nothing to a host that makes none: it may not know it.
        report = {key: value for key, value in raw.get("report", {}).items() if key != "host"}
        found[host.label] = raw | {"report": report}
    if wrong:
        raise UserError("\n".join(wrong))
    return found, list(notes)


HOSTS_FILE = Path("config/hosts.yaml")
CONFIG = "config/config.yaml"
PATIENCE_S = 60.0


def collect(
    asked: Sequence[collect_hosts.Host],
    configfile: str = CONFIG,
    jobs: int | None = None,
    patience_s: float = PATIENCE_S,
) -> list[Outcome]:
    """Collect from hosts side by side; their outcomes in order.

    Args:
        jobs: hosts at a time; None for all.
        patience_s: after that long without a sign of life a connection counts as lost.

    Raises:
        UserError: a bad config, or no ssh or rsync here; nothing was begun.
    """
    for tool in ("ssh", "rsync"):
        if not shutil.which(tool):
            raise UserError(f"{tool}: not installed on this host; install it and collect again")
    wanted, notes = experiments(asked, configfile)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    collection = Collection(wanted, patience_s)
    with ThreadPoolExecutor(jobs or len(asked)) as pool:
        futures = [pool.submit(collection.collect, host) for host in asked]
        try:
            while wait(futures, timeout=0.5).not_done:
                pass
        except KeyboardInterrupt:
            tell("interrupted", "ending the runs there")
            for future in futures:
                future.cancel()
            collection.stop()
            wait(futures)
    return [
        Outcome(host.label, "not begun: interrupted", True)
        if future.cancelled()
        else future.result()
        for host, future in zip(asked, futures, strict=True)
    ]


def listing(known: Mapping[str, collect_hosts.Host]) -> list[str]:
    """One line per host: where it is, which devices it has, what lies here and since when."""
    lines = []
    for label, host in known.items():
        port = f":{host.port}" if host.port else ""
        words = [label, f"{host.target}{port}:{host.folder}"]
        note, host_file = (RESULTS / kind / f"{label}.json" for kind in ("imported", "hosts"))
        if note.exists() and host_file.exists():
            devices = [device["id"] for device in hosts.load(host_file)["devices"]]
            records = len(seals(label))
            moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(note.stat().st_mtime))
            words += [
                ", ".join(devices),
                f"{records} record{'s' * (records != 1)}, last new {moment}",
            ]
        else:
            words.append("never collected")
        lines.append("  ".join(words))
    return lines


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Collect and say how it went with each host; 1 when one failed."""
    parser = argparse.ArgumentParser(
        prog="siliconprof collect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("label", nargs="*", metavar="LABEL", help="default: every host")
    parser.add_argument(
        "--hosts", type=Path, default=HOSTS_FILE, metavar="FILE", help=f"default: {HOSTS_FILE}"
    )
    parser.add_argument(
        "--configfile", default=CONFIG, metavar="FILE", help=f"the experiment; default: {CONFIG}"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="hosts at a time; default: all")
    parser.add_argument("--ssh-config", metavar="FILE", help="instead of ~/.ssh/config")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="S",
        help=f"seconds of silence after which a connection is lost; default: {PATIENCE_S:.0f}",
    )
    parser.add_argument("--list", action="store_true", help="say what each host is, and end")
    arguments = parser.parse_args(argv)
    for name in ("jobs", "patience"):
        if getattr(arguments, name) is not None and not getattr(arguments, name) >= 1:
            raise UserError(f"--{name}: is {getattr(arguments, name)}; expected at least 1")
    if not Path("Snakefile").is_file():
        raise UserError("no Snakefile in the current folder: run this in a checkout")
    known = collect_hosts.load(arguments.hosts, arguments.ssh_config)
    if arguments.list:
        print("\n".join(listing(known) or [f"{arguments.hosts}: names no host"]))
        return 0
    asked = chosen(known, arguments.label, arguments.hosts)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    outcomes = collect(asked, arguments.configfile, arguments.jobs, arguments.patience)
    for outcome in outcomes:
        print(f"{outcome.label}: {outcome.line}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(stage(main))
