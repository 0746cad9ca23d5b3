"""The checks that a bundle of records must pass before any of it is used.

A bundle comes from elsewhere, so nothing in it is trusted: names, sizes, hashes and every
document are checked in memory, and all problems are reported at once. `bundle_pack.py`
makes bundles, `bundle_import.py` imports them.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents, record, validation
from siliconprof.store.cell import AXES, RECORD
from siliconprof.store.names import LABEL

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
LIMIT_BYTES = 2**30  # of all members, unpacked; a cell has about 55 kB
MEMBER_LIMIT_BYTES = documents.LIMIT_BYTES
MEMBERS_LIMIT = 100_000
RATIO_LIMIT = 200  # records shrink about tenfold; deflate's own limit is near 1030
RESERVED_LABEL = "auto"  # results/hosts/auto.json says which label is this host's

_MEMBER = re.compile(rf"records/{RECORD.pattern}|hosts/{LABEL}\.json|{re.escape(MANIFEST)}")
_READ_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
)


@dataclass(frozen=True)
class Bundle:
    """A bundle that has passed every check."""

    path: Path
    sha256: str  # of the zip
    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]  # member -> content; all but the manifest
    records: Mapping[str, Mapping[str, Any]]  # member -> record in today's schema

    @property
    def hosts(self) -> list[str]:
        """Labels of the hosts that it has files of."""
        return sorted({label_of(name) for name in self.files})


def label_of(name: str) -> str:
    """The host of a member `records/{host}/…` or `hosts/{host}.json`."""
    folder, rest = name.split("/", 1)
    return rest.split("/")[0] if folder == "records" else rest.removesuffix(".json")


def sha256(content: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _name_problem(info: zipfile.ZipInfo) -> str | None:
    """Why a member must not be unpacked under its name; None when it may be."""
    name = info.orig_filename  # zipfile has tidied up `filename`
    mode = info.external_attr >> 16
    if name.startswith("/"):
        return "an absolute path"
    if re.match(r"[A-Za-z]:", name):
        return "a path with a drive letter"
    if "\\" in name:
        return "a name with a backslash"
    if ".." in name.split("/"):
        return "a path that leads out of the bundle"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if name.endswith("/") or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "not a regular file"
    if not _MEMBER.fullmatch(name):
        return "not a name that a bundle has"
    if name != MANIFEST and label_of(name).lower() == RESERVED_LABEL:
        return f"of a host '{RESERVED_LABEL}', which is a reserved label"
    return None


def _size_problem(info: zipfile.ZipInfo) -> str | None:
    """Why a member must not be read; None when it may be."""
    if info.flag_bits & 1:
        return "encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "compressed with a method other than deflate"
    if info.file_size > MEMBER_LIMIT_BYTES:
        return f"{info.file_size} bytes unpacked, over the limit of {MEMBER_LIMIT_BYTES}"
    ratio = info.file_size / max(info.compress_size, 1)
    if ratio > RATIO_LIMIT:
        return f"compressed {ratio:.0f}:1, over the limit of {RATIO_LIMIT}:1 (a zip bomb?)"
    return None


def _sound_members(
    infos: Sequence[zipfile.ZipInfo], limit_bytes: int, problems: list[str]
) -> dict[str, zipfile.ZipInfo]:
    """The members that may be read, by name; what is wrong with the others goes to `problems`."""
    if len(infos) > MEMBERS_LIMIT:
        problems.append(f"{len(infos)} files, over the limit of {MEMBERS_LIMIT}")
        return {}
    sound = {}
    spellings: dict[str, str] = {}
    for info in infos:
        name = info.orig_filename
        member_problems = [
            problem for problem in (_name_problem(info), _size_problem(info)) if problem
        ]
        twin = spellings.setdefault(name.casefold(), name)
        if name in sound:
            member_problems.append("in the bundle twice")
        elif twin != name:
            member_problems.append(f"differs from {twin!r} only in case")
        problems += [f"{name!r}: {problem}" for problem in member_problems]
        if not member_problems:
            sound[name] = info
    total = sum(info.file_size for info in infos)
    if total > limit_bytes:
        problems.append(f"{total} bytes unpacked, over the limit of {limit_bytes}")
        return {}
    return sound


def parsed(content: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is anything else, or has NaN or endless nesting.
    """
    document = documents.parsed(content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _read_manifest(content: bytes, problems: list[str]) -> dict[str, Any] | None:
    """The manifest, or None when it is damaged or of another version."""
    try:
        manifest = parsed(content)
    except ValueError as error:
        problems.append(f"{MANIFEST}: damaged: {error}")
        return None
    version = manifest.get("bundle_version")
    if version != BUNDLE_VERSION:
        problems.append(f"bundle version {version!r}; this version reads {BUNDLE_VERSION}")
        return None
    schema = validation.load_schema("manifest")
    violations = validation.problems(manifest, schema, f"{MANIFEST}: ", most_values=math.inf)
    problems += violations
    return None if violations else manifest


def _listing_problems(
    manifest: Mapping[str, Any], files: Mapping[str, bytes], present: set[str]
) -> list[str]:
    """Where the manifest and the members differ.

    Args:
        files: the members that could be read; `present` has the names of all.
    """
    problems = []
    listed = {entry["path"]: entry for entry in manifest["files"]}
    if len(listed) != len(manifest["files"]):
        problems.append(f"{MANIFEST}: lists a file twice")
    for name in sorted(listed.keys() - present):
        problems.append(f"{name!r}: listed in {MANIFEST}, but not in the bundle")
    for name in sorted(files.keys() - listed.keys()):
        problems.append(f"{name!r}: in the bundle, but not listed in {MANIFEST}")
    for name in sorted(files.keys() & listed.keys()):
        if sha256(files[name]) != listed[name]["sha256"]:
            problems.append(f"{name!r}: SHA-256 differs from that in {MANIFEST}")
        elif len(files[name]) != listed[name]["bytes"]:
            problems.append(f"{name!r}: size differs from that in {MANIFEST}")
    with_records = {label_of(name) for name in files if name.startswith("records/")}
    if set(manifest["hosts"]) != with_records:
        problems.append(
            f"{MANIFEST}: hosts are {', '.join(sorted(manifest['hosts'])) or 'none'}, but the "
            f"records are of {', '.join(sorted(with_records)) or 'none'}"
        )
    for label in sorted({label_of(name) for name in files} - with_records):
        problems.append(f"'hosts/{label}.json': the bundle has no record of that host")
    return problems


def _record(name: str, stored: dict[str, Any], problems: list[str]) -> dict[str, Any] | None:
    """A member's record in today's schema; None, and its problems noted, where it is unsound."""
    try:
        intact = stored.get("sha256") == record.content_sha256(stored)
    except ValueError:  # 1e999 is read as an infinity, which no record can hold
        intact = False
    own_problems = [] if intact else ["its content does not match its own `sha256`"]
    data = None
    try:
        data = record.as_today(stored)
        own_problems += (record.schema_problems(data) or [])[:5]
    except (ValueError, UserError) as error:
        own_problems.append(str(error))
    own_problems = [f"{name!r}: {line}" for line in own_problems]
    if data is not None and not own_problems:
        own_problems = place_problems(name, data["cell"])
    problems += own_problems
    return None if own_problems else data


def place_problems(name: str, cell: Mapping[str, Any]) -> list[str]:
    """Why a record's own cell does not belong at its member's name, if so."""
    if cell.get("host") != label_of(name):
        return [f"{name!r}: a record of host '{cell.get('host')}'"]
    own = f"records/{'/'.join(str(cell.get(axis)) for axis in AXES)}.json"
    return [f"{name!r}: the record of another cell, {own!r}"] if own != name else []


def _host_problems(name: str, host: Mapping[str, Any]) -> list[str]:
    """What is wrong with a bundle's host file."""
    problems = validation.problems(host, validation.load_schema("host"))
    if not problems and host["label"] != label_of(name):
        problems = [f"the file of another host, '{host['label']}'"]
    return [f"{name!r}: {line}" for line in problems[:5]]


def can_check() -> bool:
    """Whether this Python can check schemas: a bare host packs without, and imports nothing."""
    try:
        import jsonschema  # noqa: F401
        import yaml  # noqa: F401
    except ImportError:
        return False
    return True


def read_bundle(path: Path, limit_bytes: int = LIMIT_BYTES) -> Bundle:
    """A bundle, every part of it checked; nothing is written.

    Args:
        limit_bytes: of everything in it, unpacked; it is held in memory.

    Raises:
        UserError: it is not a bundle; or all its problems, one line each.
    """
    return check(bytes_of(path, limit_bytes), path, limit_bytes)


def bytes_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """A bundle's own bytes, unchecked.

    Raises:
        UserError: it cannot be read, is too large, or this Python cannot check bundles.
    """
    if not can_check():
        raise UserError(
            f"{path}: checking a bundle needs jsonschema and PyYAML; install the pins in envs/"
        )
    try:
        if path.stat().st_size > limit_bytes:
            raise UserError(f"{path}: over the limit of {limit_bytes} bytes")
        return path.read_bytes()  # all at once, so that it cannot change under way
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def check(packed: bytes, path: Path, limit_bytes: int = LIMIT_BYTES) -> Bundle:
    """The bundle in the bytes of a zip file, every part of it checked.

    Args:
        path: begins the lines of an error.

    Raises:
        UserError: see `read_bundle`.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(packed))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: not a bundle: {error}") from None
    problems: list[str] = []
    files: dict[str, bytes] = {}
    for name, info in _sound_members(archive.infolist(), limit_bytes, problems).items():
        try:
            files[name] = archive.read(info)
        except _READ_ERRORS as error:
            problems.append(f"{name!r}: damaged: {error}")
    content = files.pop(MANIFEST, None)
    manifest = None
    if content is not None:
        manifest = _read_manifest(content, problems)
    elif not problems:
        problems.append(f"no {MANIFEST}: not a bundle of this program")
    newer = _newer(manifest) if manifest is not None else None
    if newer:
        raise UserError(f"{path}: {newer}")
    if manifest is not None:
        problems += _listing_problems(manifest, files, set(archive.namelist()))
    records: dict[str, Mapping[str, Any]] = {}
    for name, content in files.items():
        try:
            document = parsed(content)
        except ValueError as error:
            problems.append(f"{name!r}: damaged: {error}")
            continue
        if name.startswith("records/"):
            data = _record(name, document, problems)
            if data is not None:
                records[name] = data
        else:
            problems += _host_problems(name, document)
    methods = sorted({data["method_version"] for data in records.values()})
    if manifest is not None and not problems and sorted(manifest["method_versions"]) != methods:
        problems.append(f"{MANIFEST}: method versions differ from those of the records, {methods}")
    if problems or manifest is None:
        raise UserError("\n".join(f"{path}: {validation.one_line(line)}" for line in problems))
    return Bundle(path, sha256(packed), manifest, files, records)


def _newer(manifest: Mapping[str, Any]) -> str | None:
    """Why this version can read nothing of a bundle: its schema or method is newer."""
    for kind, versions, supported in (
        ("schema", [manifest["schema_version"]], record.SCHEMA_VERSION),
        ("method", manifest["method_versions"], record.METHOD_VERSION),
    ):
        if max(versions, default=supported) > supported:
            return (
                f"records of {kind} version {max(versions)}; this version reads up to {supported}: "
                "import it with a newer checkout"
            )
    return None
