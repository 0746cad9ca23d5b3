"""Add the records of a bundle to this checkout, or unpack it as a reference.

A bundle comes from elsewhere, so nothing in it is trusted: names, sizes, hashes and every document
are checked in memory, and all problems are reported at once, before the first file is written.
`bundle_pack.py` makes bundles.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from siliconprof import options
from siliconprof.errors import UserError
from siliconprof.hosts import host_file, models
from siliconprof.store import documents, model, record, temporary
from siliconprof.store.cell import RECORD
from siliconprof.store.contents import Record
from siliconprof.store.names import LABEL, case_collision
from siliconprof.store.validation import one_line

BUNDLE_VERSION = 2
MANIFEST = "manifest.json"
LIMIT_BYTES = 2**30  # of all members, unpacked: they are held in memory; a cell has about 55 kB
MOST_PROBLEMS = 20  # named: a bundle of another version has one for each record
RESERVED_LABEL = "auto"  # results/hosts/auto.json says which label is this host's

_MEMBER = re.compile(rf"records/{RECORD.pattern}|hosts/{LABEL}\.json")
_READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class Bundle:
    """A bundle that has passed every check."""

    path: Path
    files: Mapping[str, bytes]  # member -> content; all but the manifest
    records: Mapping[str, Record]  # by member

    @property
    def hosts(self) -> list[str]:
        """Labels of the hosts that it has files of."""
        return sorted({_label_of(name) for name in self.files})


def _label_of(name: str) -> str:
    """The host of a member `records/{host}/…` or `hosts/{host}.json`."""
    return name.split("/")[1].removesuffix(".json")


def read_bundle(path: Path) -> Bundle:
    """A bundle, every part of it checked; nothing is written.

    Raises:
        UserError: it cannot be read, is too large or not a bundle; all its problems, one line
            each.
    """
    files: dict[str, bytes] = {}
    records: dict[str, Record] = {}
    problems: list[str] = []
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
            if total > LIMIT_BYTES:
                raise UserError(f"{total} bytes unpacked, over the limit of {LIMIT_BYTES}")
            if MANIFEST not in archive.namelist():
                raise UserError(f"no {MANIFEST}: not a bundle of this program")
            manifest = documents.parsed(archive.read(MANIFEST))
            version = manifest.get("bundle_version") if isinstance(manifest, dict) else None
            if version != BUNDLE_VERSION:
                raise UserError(f"bundle version {version!r}; this version reads {BUNDLE_VERSION}")
            for info in archive.infolist():
                name = info.orig_filename  # zipfile has tidied up `filename`
                if name == MANIFEST:
                    continue
                try:
                    if not _MEMBER.fullmatch(name) or _label_of(name).lower() == RESERVED_LABEL:
                        raise UserError("not a name that a bundle has")
                    files[name] = archive.read(info)
                    if name.startswith("records/"):
                        records[name] = _record(name, files[name])
                    else:
                        _check_host(name, files[name])
                except (UserError, *_READ_ERRORS) as error:
                    lines = str(error).splitlines() or ["damaged"]
                    problems += [f"{name!r}: {line}" for line in lines[:5]]
        problems += [
            f"{name!r}: differs from {other!r} in case alone"
            for other, name in case_collision(files)
        ]
    except UserError as error:
        problems = [str(error)]
    except OSError as error:
        problems = [error.strerror or str(error)]
    except _READ_ERRORS as error:
        problems = [f"not a bundle: {error}"]
    if problems:
        more = len(problems) - MOST_PROBLEMS
        named = problems[:MOST_PROBLEMS] + [f"and {more} more"] * (more > 0)
        raise UserError("\n".join(f"{path}: {one_line(line)}" for line in named))
    return Bundle(path, files, records)


def _record(name: str, content: bytes) -> Record:
    """Return a member's record; raise where it is none, or another cell's."""
    data = documents.parsed(content)
    if not isinstance(data, dict) or data.get("sha256") != record.content_sha256(data):
        raise UserError("its content does not match its own `sha256`")
    record.refuse_other_versions(data)
    made = record.typed(data)
    if (own := f"records/{made.cell.path}.json") != name:
        raise UserError(f"the record of another cell, {own!r}")
    return made


def _check_host(name: str, content: bytes) -> None:
    """Refuse a member that is no host file, or another host's."""
    host = model.checked(models.Host, documents.parsed(content), "")
    if host.label != _label_of(name):
        raise UserError(f"the file of another host, '{host.label}'")


def import_bundle(path: Path, results: Path, replace: bool = False, only: str | None = None) -> str:
    """Add another host's records to this checkout, byte for byte.

    Args:
        replace: whether a record may replace a different one of the same cell, which then stays
            in `results/history`.
        only: the only label of which it may hold records; None for any.

    Returns:
        How many records were new, already here and replaced, for a person.

    Raises:
        UserError: the bundle is unsound, holds records of a host that this checkout measures, or
            of another machine under a label that is in use here; or it differs from the records
            here. One line each, and nothing was written.
    """
    bundle = read_bundle(path)
    if not results.is_dir():
        raise UserError(f"{results}: no such folder; run this in a checkout, or give --results")
    here = [name for name in bundle.records if (results / name).exists()]
    different = [name for name in here if (results / name).read_bytes() != bundle.files[name]]
    refusals = [*_refusals(bundle, results, only)] or [*_alike_here(bundle, results)]
    if different and not refusals and not replace:
        refusals = [f"{results / name}: the record here differs" for name in different] + [
            f"{path}: nothing imported; --replace imports it and keeps the replaced records in "
            f"{results / 'history'}"
        ]
    if refusals:
        raise UserError("\n".join(refusals))
    for label in bundle.hosts:  # before the host file, see `own_labels`
        temporary.write(results / "imported" / f"{label}.json", json.dumps({"bundle": path.name}))
    for name in different:
        old = (results / name).read_text(encoding="utf-8", errors="replace")
        with suppress(ValueError, KeyError, TypeError):  # damaged: it need not be kept
            folder = results / "history" / bundle.records[name].cell.path
            record.keep_in_history(folder, json.loads(old)["sha256"], old)
    for name, content in bundle.files.items():
        if name not in here or name in different:
            temporary.write(results / name, content)
    new, same = len(bundle.records) - len(here), len(here) - len(different)
    return f"{new} new, {same} already here, {len(different)} replaced"


def _refusals(bundle: Bundle, results: Path, only: str | None) -> Iterator[str]:
    """Return why a bundle's records may not be imported, one line for each label."""
    if only is not None and {*bundle.hosts} - {only}:
        yield (
            f"its bundle holds records of {', '.join(bundle.hosts)}: a host may send its own only; "
            "nothing imported"
        )
        return
    own = own_labels(results)
    for label in bundle.hosts:
        name = f"hosts/{label}.json"
        if label.casefold() in own:
            yield (
                f"{bundle.path}: holds records of host '{label}', which this checkout measures: a "
                "bundle cannot change them; give one of the two another label, in `cluster` of this "
                "config or as `host` of the other checkout's (to move a checkout, copy results/)"
            )
        elif name in bundle.files and (path := results / name).exists():
            if host_file.load(path)["fingerprint"] != json.loads(bundle.files[name])["fingerprint"]:
                yield one_line(
                    f"{bundle.path}: '{label}' is another machine here: give one of the two another "
                    f"label, or delete {path} and {results / 'records' / label}; nothing imported"
                )


def _alike_here(bundle: Bundle, results: Path) -> Iterator[str]:
    """Say that a file of the bundle collides with one here where file systems ignore case."""
    files = [*results.glob("hosts/*.json"), *results.glob("records/**/*.json")]
    for other, name in case_collision(
        [*(p.relative_to(results).as_posix() for p in files), *bundle.files]
    ):
        yield one_line(
            f"{bundle.path}: {name} differs from {results / other} in case alone, and not every file "
            "system keeps them apart: choose another name; nothing imported"
        )


def own_labels(results: Path) -> set[str]:
    """Labels of this host and of the last run here, case-folded: some file systems ignore case."""
    labels = {host_file.auto(results)["label"]}
    with suppress(OSError, ValueError, KeyError, TypeError):  # absent or damaged: made again
        cells = documents.read(results / "matrix.json")["cells"]
        labels |= {planned["cell"]["host"] for planned in cells}
    return {str(label).casefold() for label in labels}


def unpack_reference(path: Path, output: Path) -> Bundle:
    """Unpack a bundle as it is into a new folder that no stage takes for records of a run."""
    bundle = read_bundle(path)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: exists and is not empty; delete it first")
    output.mkdir(parents=True, exist_ok=True)
    for name, content in bundle.files.items():
        temporary.write(output / name, content)
    return bundle


def main(
    bundle: Annotated[Path, "a bundle that `siliconprof pack` has made"],
    *,
    results: options.Results = Path("results"),
    replace: Annotated[
        bool, "replace different records of the same cells, which stay in results/history"
    ] = False,
    unpack: Annotated[
        Path | None, "as a reference, into this new folder", {"metavar": "DIR"}
    ] = None,
) -> None:
    """Import or unpack, and say what was new."""
    with options.spinner(f"reading {bundle}"):
        if unpack:
            made = unpack_reference(bundle, unpack)
            print(f"{len(made.records)} records of {', '.join(made.hosts)} unpacked")
        else:
            print(import_bundle(bundle, results, replace))


if __name__ == "__main__":
    options.run(main)
