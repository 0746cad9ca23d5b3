"""Pack records into a bundle: a zip of the records of some hosts, their host files and a manifest.

It holds `records/{host}/….json`, `hosts/{label}.json` and a `manifest.json` with versions. The home
folder, the user and the host's names of whoever packs are placeholders in it; a record that held one
of them gets a hash of its new content. Labels of hosts stay.
"""

from __future__ import annotations

import getpass
import io
import re
import socket
import stat
import sys
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof import __version__, options
from siliconprof.errors import UserError, nearest, stage
from siliconprof.remote.bundle_check import (
    BUNDLE_VERSION,
    MANIFEST,
    as_json,
    check,
)
from siliconprof.store import record, temporary

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say
HOME, USER, HOST = "[home]", "[user]", "[host]"
# Names that tell nobody from anybody else.
EVERYBODYS = {"admin", "localhost", "localhost.localdomain", "root", "runner", "ubuntu", "user"}
# Keys of what the numbers are about: a user called `ada` does not hide an RTX 6000 Ada.
FACTS = set("blas code cpu declared device_name devices driver fingerprint_parts packages".split())


def pack(
    results: Path,
    hosts: Sequence[str] | None,
    output: Path,
    force: bool = False,
) -> list[str]:
    """Write the records of some hosts, and their host files, into a bundle; lines that say so.

    The same records give the same bytes.

    Args:
        hosts: labels; None for every host here that has both records and a host file.
        force: whether an existing `output` may be replaced.

    Raises:
        UserError: nothing to pack, `output` exists, or damaged records (all of them); nothing
            was written.
    """
    if output.exists() and not force:
        raise UserError(f"{output}: exists; name another file, or replace it with --force")
    labels = sorted(path.name for path in (results / "records").glob("*") if path.is_dir())
    chosen = _chosen_hosts(results, labels, hosts or ())
    names = names_here(labels)
    members: dict[str, bytes] = {}
    problems, n_changed = [], 0
    for label in chosen:
        for path in sorted((results / "records" / label).rglob("*.json")):
            try:
                stored = record.read(path, in_place=True)
            except UserError as error:
                problems.append(str(error))
                continue
            data = without_names(stored, names)
            data["sha256"] = record.content_sha256(data)
            same = data["sha256"] == stored["sha256"]
            member = path.relative_to(results).as_posix()
            members[member] = path.read_bytes() if same else as_json(data).encode()
            n_changed += not same
    n_packed = len(members)
    for label in chosen:
        path = results / "hosts" / f"{label}.json"
        if path.is_file():
            members[f"hosts/{label}.json"] = _host_file(path, names)
    if problems:
        raise UserError("\n".join(problems))
    manifest = {"bundle_version": BUNDLE_VERSION, "siliconprof_version": __version__}
    packed = _zipped(members | {MANIFEST: as_json(manifest).encode()})
    if record.can_check():
        check(packed, output)  # what leaves here can be imported
    lines = [f"{output}: {n_packed} records of {', '.join(chosen)}, {len(packed)} bytes"]
    if n_changed:
        lines.append(f"{n_changed} of them with {HOME}, {USER} or {HOST} in place of this host's")
    skipped = [label for label in labels if label not in chosen]
    if skipped:
        lines.append(f"hosts not packed: {', '.join(skipped)}; add them with --host")
    temporary.write(output, packed)
    return lines


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

    Keys stay, and `FACTS` below them, and texts of one word, which are ids or of a fixed list.
    """
    if isinstance(value, str) and not re.fullmatch(r"[\w.+-]*", value):
        either = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        return re.sub(rf"(?<![\w-])(?:{either})(?![\w-])", lambda m: names[m[0]], value)
    if isinstance(value, dict):
        return {k: v if k in FACTS else without_names(v, names) for k, v in value.items()}
    return [without_names(entry, names) for entry in value] if isinstance(value, list) else value


def _chosen_hosts(results: Path, local_labels: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The labels to pack, sorted: those asked for, or all that have both records and a file."""
    packable = {name for name in local_labels if any((results / "records" / name).rglob("*.json"))}
    files = {path.stem for path in (results / "hosts").glob("*.json")}
    chosen = sorted({*asked} & packable if asked else files & packable)
    if not chosen or {*asked} - packable:
        problem, near = "no host has both records and a file in hosts/; name one with --host", ""
        if unknown := sorted({*asked} - packable):
            problem, near = (
                f"no records of host {', '.join(unknown)}",
                nearest(unknown[0], packable),
            )
        listed = ", ".join(sorted(packable)) or "none"
        raise UserError(f"{results}: {problem} (records are of: {listed}){near}")
    return chosen


def _host_file(path: Path, names: Mapping[str, str]) -> bytes:
    """A host file as a bundle has it."""
    from siliconprof.hosts import host_file as hosts

    host = hosts.load(path)
    if host["label"] != path.stem:
        raise UserError(f"{path}: belongs to host '{host['label']}', not to '{path.stem}'")
    packed = without_names(host, names)
    return path.read_bytes() if packed == host else as_json(packed).encode()


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


def main(argv: Sequence[str] | None = None) -> int:
    """Pack, and say what was packed."""
    parser = options.parser("siliconprof pack", __doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the zip")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    parser.add_argument(
        "--host",
        action="append",
        metavar="LABEL",
        help="pack this host's records; may be repeated; default: every host with a file in "
        "results/hosts",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    arguments = parser.parse_args(argv)
    with options.at_work(f"packing the records of {arguments.results}"):
        lines = pack(arguments.results, arguments.host, arguments.output, arguments.force)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
