"""The checks that a bundle of records must pass before any of it is used.

A bundle comes from elsewhere, so nothing in it is trusted: names, sizes, hashes and every
document are checked in memory, and all problems are reported at once. `bundle_pack.py`
makes bundles, `bundle_import.py` imports them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError
from siliconprof.store import documents, record
from siliconprof.store.cell import RECORD
from siliconprof.store.names import LABEL
from siliconprof.store.validation import one_line

if TYPE_CHECKING:
    from siliconprof.store.contents import Record

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
LIMIT_BYTES = 2**30  # of all members, unpacked; a cell has about 55 kB
RATIO_LIMIT = 200  # records shrink about tenfold; deflate's own limit is near 1030
MOST_PROBLEMS = 20  # named: a bundle of another version has one for each record
RESERVED_LABEL = "auto"  # results/hosts/auto.json says which label is this host's

_MEMBER = re.compile(rf"records/{RECORD.pattern}|hosts/{LABEL}\.json|{re.escape(MANIFEST)}")
_READ_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,  # encrypted
    OSError,
    ValueError,
)


@dataclass(frozen=True)
class Bundle:
    """A bundle that has passed every check."""

    path: Path
    sha256: str  # of the zip
    files: Mapping[str, bytes]  # member -> content; all but the manifest
    records: Mapping[str, Record]  # by member

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


def as_json(document: Any) -> str:
    """A document as a bundle has it: the same content gives the same text."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _member_problem(info: zipfile.ZipInfo) -> str | None:
    """Why a member must not be read; None when it may be."""
    name = info.orig_filename  # zipfile has tidied up `filename`
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        return "not a regular file"
    if not _MEMBER.fullmatch(name):
        return "not a name that a bundle has"
    if name != MANIFEST and label_of(name).lower() == RESERVED_LABEL:
        return f"of a host '{RESERVED_LABEL}', which is a reserved label"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "compressed with a method other than deflate"
    ratio = info.file_size / max(info.compress_size, 1)
    if ratio > RATIO_LIMIT:
        return f"compressed {ratio:.0f}:1, over the limit of {RATIO_LIMIT}:1 (a zip bomb?)"
    return None


def _contents(
    archive: zipfile.ZipFile, problems: list[str]
) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """(name, content, JSON object) of every sound member; the others' problems are appended."""
    spellings: dict[str, str] = {}  # some file systems ignore case
    for info in archive.infolist():
        name = info.orig_filename
        problem = _member_problem(info)
        if name.casefold() in spellings:
            problem = f"in the bundle twice, see {spellings[name.casefold()]!r}"
        spellings.setdefault(name.casefold(), name)
        try:
            if problem is None:
                content = archive.read(info)
                yield name, content, parsed(content)
        except _READ_ERRORS as error:
            problem = f"damaged: {error}"
        if problem:
            problems.append(f"{name!r}: {problem}")


def parsed(content: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is anything else, or has NaN or endless nesting.
    """
    document = documents.parsed(content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _listing_problems(
    manifest: Mapping[str, Any], files: Mapping[str, bytes], present: set[str]
) -> Iterator[str]:
    """Where the manifest's hashes and the members differ.

    Args:
        files: the members that could be read; `present` has the names of all.
    """
    from siliconprof.store import contents, model

    if mistakes := model.problems(contents.Manifest, manifest, f"{MANIFEST}: "):
        yield from mistakes
        return
    listed = manifest["files"]
    for name in sorted(listed.keys() - present):
        yield f"{name!r}: listed in {MANIFEST}, but not in the bundle"
    for name in sorted(files.keys() - listed.keys()):
        yield f"{name!r}: in the bundle, but not listed in {MANIFEST}"
    for name in sorted(files.keys() & listed.keys()):
        if sha256(files[name]) != listed[name]:
            yield f"{name!r}: SHA-256 differs from that in {MANIFEST}"


def _record(name: str, data: Mapping[str, Any]) -> Record:
    """The record that a member is.

    Raises:
        ValueError, UserError: it is none, or another cell's; a line for each mistake.
    """
    if data.get("sha256") != record.content_sha256(data):
        raise ValueError("its content does not match its own `sha256`")
    record.refuse_other_versions(data)
    made = record.typed(data)
    if (own := f"records/{made.cell.path}.json") != name:
        raise ValueError(f"the record of another cell, {own!r}")
    return made


def _host_problems(name: str, host: Mapping[str, Any], with_records: Collection[str]) -> list[str]:
    """What is wrong with a bundle's host file."""
    from siliconprof.hosts import models
    from siliconprof.store import model

    problems = model.problems(models.Host, host)
    if not problems and host["label"] != label_of(name):
        problems = [f"the file of another host, '{host['label']}'"]
    if label_of(name) not in with_records:
        problems.append("the bundle has no record of that host")
    return problems


def read_bundle(path: Path) -> Bundle:
    """A bundle, every part of it checked; nothing is written.

    Raises:
        UserError: it cannot be read, is too large or not a bundle; all its problems, one line
            each; or this Python cannot check bundles.
    """
    if not record.can_check():
        raise UserError(
            f"{path}: checking a bundle needs pydantic and PyYAML; install the pins in envs/"
        )
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise UserError(f"{path}: over the limit of {LIMIT_BYTES} bytes")
        packed = path.read_bytes()  # all at once, so that it cannot change under way
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    return check(packed, path)


def check(packed: bytes, path: Path) -> Bundle:
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
    total = sum(info.file_size for info in archive.infolist())
    if total > LIMIT_BYTES:  # it is held in memory
        raise _refusal(path, [f"{total} bytes unpacked, over the limit of {LIMIT_BYTES}"])
    files: dict[str, bytes] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, content, document in _contents(archive, problems):
        files[name], found[name] = content, document
    manifest = found.pop(MANIFEST, None)
    if manifest is None:
        raise _refusal(path, problems or [f"no {MANIFEST}: not a bundle of this program"])
    if (version := manifest.get("bundle_version")) != BUNDLE_VERSION:
        raise _refusal(path, [f"bundle version {version!r}; this version reads {BUNDLE_VERSION}"])
    del files[MANIFEST]
    problems += _listing_problems(manifest, files, set(archive.namelist()))
    records: dict[str, Record] = {}
    with_records = {label_of(name) for name in files if name.startswith("records/")}
    for name, document in found.items():
        if name.startswith("records/"):
            try:
                records[name], own_problems = _record(name, document), []
            except (ValueError, UserError) as error:
                own_problems = str(error).splitlines()
        else:
            own_problems = _host_problems(name, document, with_records)
        problems += [f"{name!r}: {problem}" for problem in own_problems[:5]]
    if problems:
        raise _refusal(path, problems)
    return Bundle(path, sha256(packed), files, records)


def _refusal(path: Path, problems: Sequence[str]) -> UserError:
    lines = [f"{path}: {one_line(line)}" for line in problems[:MOST_PROBLEMS]]
    more = len(problems) - len(lines)
    return UserError("\n".join(lines + [f"{path}: and {more} more"] * (more > 0)))
