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
import zipfile
import zlib
from collections.abc import Mapping, Sequence
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

BUNDLE_VERSION = 2
READ_VERSIONS = (1, BUNDLE_VERSION)  # the first has checksums beside the records' own and the zip's
MANIFEST = "manifest.json"
LIMIT_BYTES = 2**30  # of all members, unpacked: they are held in memory; a cell has about 55 kB
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


def parsed(content: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: it is anything else, or has NaN or endless nesting.
    """
    document = documents.parsed(content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _record(name: str, data: Mapping[str, Any]) -> Record:
    """The record that a member is.

    Raises:
        UserError: it is none, or another cell's; a line for each mistake.
    """
    if data.get("sha256") != record.content_sha256(data):
        raise UserError("its content does not match its own `sha256`")
    record.refuse_other_versions(data)
    made = record.typed(data)
    if (own := f"records/{made.cell.path}.json") != name:
        raise UserError(f"the record of another cell, {own!r}")
    return made


def _check_host(name: str, host: Mapping[str, Any]) -> None:
    """Refuse what is no host file, or another host's."""
    from siliconprof.hosts import models
    from siliconprof.store import model

    if mistakes := model.problems(models.Host, host):
        raise UserError("\n".join(mistakes))
    if host["label"] != label_of(name):
        raise UserError(f"the file of another host, '{host['label']}'")


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
    total = sum(info.file_size for info in archive.infolist())
    if total > LIMIT_BYTES:
        raise _refusal(path, [f"{total} bytes unpacked, over the limit of {LIMIT_BYTES}"])
    try:
        version = parsed(archive.read(MANIFEST)).get("bundle_version")
    except KeyError:
        raise _refusal(path, [f"no {MANIFEST}: not a bundle of this program"]) from None
    except _READ_ERRORS as error:
        raise _refusal(path, [f"{MANIFEST!r}: damaged: {error}"]) from None
    if version not in READ_VERSIONS:
        raise _refusal(path, [f"bundle version {version!r}; this version reads {BUNDLE_VERSION}"])
    problems: list[str] = []
    files: dict[str, bytes] = {}
    records: dict[str, Record] = {}
    for info in archive.infolist():
        name = info.orig_filename  # zipfile has tidied up `filename`
        try:
            if name == MANIFEST:
                continue
            if not _MEMBER.fullmatch(name) or label_of(name).lower() == RESERVED_LABEL:
                raise UserError("not a name that a bundle has")
            files[name] = archive.read(info)
            document = parsed(files[name])
            if name.startswith("records/"):
                records[name] = _record(name, document)
            else:
                _check_host(name, document)
        except (UserError, *_READ_ERRORS) as error:
            lines = str(error).splitlines() or ["damaged"]
            problems += [f"{name!r}: {line}" for line in lines[:5]]
    if problems:
        raise _refusal(path, problems)
    return Bundle(path, sha256(packed), files, records)


def _refusal(path: Path, problems: Sequence[str]) -> UserError:
    lines = [f"{path}: {one_line(line)}" for line in problems[:MOST_PROBLEMS]]
    more = len(problems) - len(lines)
    return UserError("\n".join(lines + [f"{path}: and {more} more"] * (more > 0)))
