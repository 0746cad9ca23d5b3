"""Pack records into a bundle: a zip of the records of some hosts, their host files and a manifest.

It holds `records/{host}/….json`, `hosts/{label}.json` and a `manifest.json` with versions. The home
folder, the user and the host's names of whoever packs are placeholders in it; a record that held one
of them gets a hash of its new content. Labels of hosts stay.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from siliconprof import __version__, options
from siliconprof.errors import UserError, nearest
from siliconprof.hosts import host_file
from siliconprof.remote.bundle_import import BUNDLE_VERSION, MANIFEST
from siliconprof.store import record, temporary

HOME, USER, HOST = "[home]", "[user]", "[host]"
# Names that tell nobody from anybody else.
EVERYBODYS = {"admin", "localhost", "localhost.localdomain", "root", "runner", "ubuntu", "user"}
# Keys of what the numbers are about: a user called `ada` does not hide an RTX 6000 Ada.
PACKED_FACTS = set(
    "blas code cpu declared device_name devices driver fingerprint_parts packages".split()
)


def pack(results: Path, hosts: Sequence[str], output: Path, force: bool = False) -> str:
    """Write the records of some hosts, and their host files, into a bundle; return a line about it.

    The same records give the same bytes.

    Args:
        hosts: labels; none for every host with records here.
        force: whether an existing `output` may be replaced.

    Raises:
        UserError: nothing to pack, `output` exists, or damaged records (all of them); nothing
            was written.
    """
    if output.exists() and not force:
        raise UserError(f"{output}: exists; name another file, or replace it with --force")
    labels = {path.relative_to(results).parts[1] for path in results.glob("records/*/**/*.json")}
    if unknown := sorted({*hosts} - labels):
        near, listed = nearest(unknown[0], labels), ", ".join(sorted(labels)) or "none"
        what = f"no records of host {', '.join(unknown)} (records are of: {listed}){near}"
        raise UserError(f"{results}: {what}")
    if not labels:
        raise UserError(f"{results}: no records to pack")
    names, chosen = names_here(labels), sorted(hosts or labels)
    manifest = {"bundle_version": BUNDLE_VERSION, "siliconprof_version": __version__}
    members = {MANIFEST: _as_json(manifest)}
    problems, n_changed = [], 0
    for path in (file for label in chosen for file in results.glob(f"records/{label}/**/*.json")):
        try:
            stored = record.read(path, in_place=True)
        except UserError as error:
            problems.append(str(error))
            continue
        data = without_names(stored, names)
        data["sha256"] = record.content_sha256(data)
        members[path.relative_to(results).as_posix()] = _as_json(data)
        n_changed += data["sha256"] != stored["sha256"]
    if problems:
        raise UserError("\n".join(sorted(problems)))
    n_packed = len(members) - 1
    for label in chosen:
        if (path := results / "hosts" / f"{label}.json").is_file():
            host = host_file.load(path)
            members[f"hosts/{label}.json"] = _as_json(without_names(host, names))
    with temporary.opened(output) as stream, zipfile.ZipFile(stream, "w") as archive:
        for member, text in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(member), text, zipfile.ZIP_DEFLATED, compresslevel=9)
    line = f"{output}: {n_packed} records of {', '.join(chosen)}, {output.stat().st_size} bytes"
    if n_changed:
        line += f"; {n_changed} of them with {HOME}, {USER} or {HOST} in place of this host's"
    return line


def _as_json(document: Any) -> str:
    """Return a document as `record.write` formats it, so that a record without names keeps its bytes."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def names_here(labels: Collection[str]) -> dict[str, str]:
    """Home folder, user and names of this host -> placeholder; labels of hosts stay."""
    names = {}
    with suppress(OSError, KeyError, RuntimeError):  # some containers have neither
        names[str(Path.home())] = HOME
        names[getpass.getuser()] = USER
    for host in (socket.gethostname(), socket.gethostname().lower()):
        names |= {host: HOST, host.partition(".")[0]: HOST}
    skipped = EVERYBODYS.union(labels)
    return {name: mark for name, mark in names.items() if len(name) > 1 and name not in skipped}


def without_names(value: Any, names: Mapping[str, str]) -> Any:
    """A JSON value with placeholders for names, as whole words of its texts.

    Keys stay, and `PACKED_FACTS` below them, and texts of one word, which are ids or of a fixed list.
    """
    if isinstance(value, str) and not re.fullmatch(r"[\w.+-]*", value):
        either = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        return re.sub(rf"(?<![\w-])(?:{either})(?![\w-])", lambda m: names[m[0]], value)
    if isinstance(value, dict):
        return {k: v if k in PACKED_FACTS else without_names(v, names) for k, v in value.items()}
    return [without_names(entry, names) for entry in value] if isinstance(value, list) else value


def main(
    *,
    output: Annotated[Path, "the zip", {"flags": ["-o"], "metavar": "FILE"}],
    results: options.Results = Path("results"),
    host: Annotated[
        Sequence[str],
        "pack this host's records; may be repeated; default: every host with records",
        {"metavar": "LABEL"},
    ] = (),
    force: Annotated[bool, "replace an existing bundle"] = False,
) -> None:
    """Pack, and say what was packed."""
    with options.spinner(f"packing the records of {results}"):
        print(pack(results, host, output, force))
