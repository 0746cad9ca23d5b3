"""Make a bundle: the records of some hosts, their host files, and a manifest with hashes."""

from __future__ import annotations

import io
import os
import re
import stat
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof import __version__
from siliconprof.errors import UserError
from siliconprof.remote.bundle_check import (
    BUNDLE_VERSION,
    MANIFEST,
    as_json,
    as_packed,
    check,
    label_of,
    parsed,
    place_problems,
    sha256,
)
from siliconprof.store import record, redaction, temporary

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say

Documents = dict[str, dict[str, Any]]  # member of a bundle -> a record or host file


@dataclass(frozen=True)
class Packed:
    """The result of `pack`: labels of the hosts in it, and lines for the terminal."""

    hosts: Sequence[str]
    lines: Sequence[str]


def pack(
    results: Path,
    hosts: Sequence[str] | None,
    output: Path,
    force: bool = False,
    without: Collection[str] = (),
) -> Packed:
    """Write the records of some hosts, and their host files, into a bundle.

    The same records give the same bytes, but for `created_at`; that follows SOURCE_DATE_EPOCH
    where it is set (reproducible-builds.org/specs/source-date-epoch).

    Args:
        hosts: labels; None for every host here that has both records and a host file.
        force: whether an existing `output` may be replaced.
        without: SHA-256 of records to leave out; a host of which none is left is left out whole,
            and a bundle may then be empty.

    Raises:
        UserError: nothing to pack, `output` exists, or damaged records (all of them); nothing
            was written.
    """
    if output.exists() and not force:
        raise UserError(f"{output}: exists; name another file, or replace it with --force")
    labels = sorted(path.name for path in (results / "records").glob("*") if path.is_dir())
    chosen = _chosen_hosts(results, labels, hosts or ())
    documents, files = _gathered(results, chosen)
    n_records = len(_records(documents))
    documents = _excluding(documents, without)
    notes = []
    older = len(_records(documents).keys() - files.keys())
    if older:
        notes = [f"{older} records of older versions redacted, in the bundle alone"]
    records = _records(documents)
    inside = sorted({label_of(name) for name in records})
    members = {name: files.get(name) or as_json(data).encode() for name, data in documents.items()}
    manifest = _manifest(inside, records.values(), members)
    packed = _zipped(members | {MANIFEST: as_json(manifest).encode()})
    if record.can_check():
        check(packed, output)  # what leaves here can be imported
    of = f" of {', '.join(inside)}" if inside else ""
    lines = [f"{output}: {len(records)} records{of}, {len(packed)} bytes"]
    if excluded := n_records - len(records):
        lines.append(f"{excluded} records not packed: listed in the file of --without")
    left_out = [label for label in labels if label not in chosen]
    if left_out:
        lines.append(f"hosts not packed: {', '.join(left_out)}; add them with --host")
    temporary.write(output, packed)
    return Packed(inside, [*lines, *notes])


def _gathered(results: Path, chosen: Sequence[str]) -> tuple[Documents, dict[str, bytes]]:
    """(the records, in today's schema, and host files of some hosts; those that are so on disk).

    Raises:
        UserError: damaged or misplaced ones, all of them.
    """
    documents: Documents = {}
    files: dict[str, bytes] = {}
    problems = []
    for label in chosen:
        for path in sorted((results / "records" / label).rglob("*.json")):
            name = path.relative_to(results).as_posix()
            try:
                data = record.read(path, check_schema=False)  # `check` does
            except UserError as error:
                problems.append(str(error))
                continue
            if not isinstance(data.get("environment"), dict):  # a bare host knows no schema
                problems.append(f"{path}: damaged record: no environment")
                continue
            problems += [f"{name!r}: {line}" for line in place_problems(name, data["cell"])]
            documents[name], older = as_packed(data)
            if not older:
                files[name] = path.read_bytes()
        path = results / "hosts" / f"{label}.json"
        if path.is_file():
            name, raw = f"hosts/{label}.json", path.read_bytes()
            documents[name] = _host_file(path)
            if documents[name] == parsed(raw):
                files[name] = raw
    if problems:
        raise UserError("\n".join(problems))
    return documents, files


def _records(documents: Documents) -> Documents:
    """Those of the documents that are records."""
    return {name: data for name, data in documents.items() if name.startswith("records/")}


def _excluding(documents: Documents, shas: Collection[str]) -> Documents:
    """The documents without some records, by SHA-256, and without hosts that then have none."""
    left = {name for name, data in _records(documents).items() if data["sha256"] not in shas}
    hosts = {f"hosts/{label_of(name)}.json" for name in left}
    return {name: data for name, data in documents.items() if name in left | hosts}


def shas_of(path: Path) -> frozenset[str]:
    """The SHA-256 that a file lists, one per line.

    Raises:
        UserError: it cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read: {error}") from None
    for line in lines:
        if not re.fullmatch(r"[0-9a-f]{64}", line):
            raise UserError(f"{path}: {line[:80]!r} is no SHA-256 of a record")
    return frozenset(lines)


def _chosen_hosts(results: Path, local_labels: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The labels to pack, sorted.

    Args:
        local_labels: labels that have a folder of records.
        asked: empty for every host here that has both records and a host file.

    Raises:
        UserError: there is none, or one that was asked for has no records.
    """
    packable = {name for name in local_labels if any((results / "records" / name).rglob("*.json"))}
    files = {path.stem for path in (results / "hosts").glob("*.json")}
    chosen = sorted({*asked} & packable if asked else files & packable)
    if not chosen or {*asked} - packable:
        problem = "no host has both records and a file in hosts/; name one with --host"
        if asked:
            problem = f"no records of host {', '.join(sorted({*asked} - packable))}"
        listed = ", ".join(sorted(packable)) or "none"
        raise UserError(f"{results}: {problem} (records are of: {listed})")
    return chosen


def _host_file(path: Path) -> dict[str, Any]:
    """A host file without names, which those of older versions have.

    Raises:
        UserError: it is damaged, or another host's.
    """
    from siliconprof.hosts import host_file as hosts

    host = hosts.load(path)
    if host["label"] != path.stem:
        raise UserError(f"{path}: belongs to host '{host['label']}', not to '{path.stem}'")
    hostname = parsed(path.read_bytes()).get("hostname")
    known = redaction.known([hostname] if hostname else [])
    return host | {"backends": redaction.value(host["backends"], known)}


def _manifest(
    hosts: Sequence[str], records: Collection[Mapping[str, Any]], members: Mapping[str, bytes]
) -> dict[str, Any]:
    """The bundle's manifest.

    Raises:
        UserError: SOURCE_DATE_EPOCH is not a time.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        created = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"SOURCE_DATE_EPOCH is {epoch!r}: write whole seconds since 1970, or unset it"
        ) from None
    commits = {data["environment"].get("git_commit") for data in records} - {None}
    return {
        "bundle_version": BUNDLE_VERSION,
        "created_at": created.isoformat(timespec="seconds"),
        "schema_version": record.SCHEMA_VERSION,
        "method_versions": sorted({data["method_version"] for data in records}),
        "hosts": list(hosts),
        "siliconprof_version": __version__,
        "git_commits": sorted(commits),
        "files": [
            {"path": name, "sha256": sha256(raw), "bytes": len(raw)}
            for name, raw in sorted(members.items())
        ],
    }


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip that depends on names and contents alone."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, on every system
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content, compresslevel=9)
    return target.getvalue()
