"""What `collect` settles before the first connection: which hosts, and what each is to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.cells import config
from siliconprof.errors import UserError
from siliconprof.remote import bundle_import, collect_hosts
from siliconprof.store import validation

RESULTS = Path("results")


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
