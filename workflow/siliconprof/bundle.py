"""Records between hosts: packed into a zip on one, checked and imported on another.

    python -m siliconprof.bundle pack --output F [--host LABEL ...] [--results D] [--force]
    python -m siliconprof.bundle import F [--replace] [--results D]
    python -m siliconprof.bundle unpack-reference --bundle F --output-dir D

A bundle holds `records/{host}/….json`, `hosts/{label}.json` and a `manifest.json` with the
SHA-256 of each. All of it is checked (`bundle_check.py`) before the first file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof import __version__, record, records
from siliconprof.bundle_check import (
    BUNDLE_VERSION,
    MANIFEST,
    RESERVED_LABEL,
    Bundle,
    can_check,
    check,
    parsed,
    place_problems,
    read_bundle,
    sha256,
)
from siliconprof.errors import UserError, stage

VERBS = ("pack", "import", "unpack-reference")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say


@dataclass(frozen=True)
class Packed:
    """What `pack` has done."""

    output: Path
    hosts: Sequence[str]
    records: int
    size_bytes: int  # of the zip
    left_out: Sequence[str]  # hosts with records here that were not asked for

    def lines(self) -> list[str]:
        """For a person."""
        found = [
            f"{self.output}: {self.records} records of {', '.join(self.hosts)}, "
            f"{self.size_bytes} bytes"
        ]
        if self.left_out:
            found.append(f"not packed: {', '.join(self.left_out)}; name a host with --host")
        return found


@dataclass(frozen=True)
class Imported:
    """What `import_bundle` has done, in numbers of records."""

    hosts: Sequence[str]
    added: int
    present: int  # the same record was here
    replaced: int

    def lines(self) -> list[str]:
        """For a person."""
        return [
            f"{self.added + self.present + self.replaced} records of {', '.join(self.hosts)}: "
            f"{self.added} new, {self.present} already here, {self.replaced} replaced"
        ]


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write: {error.strerror or error}") from None


# -- packing -----------------------------------------------------------------------------------


def pack(results: Path, hosts: Sequence[str] | None, output: Path, force: bool = False) -> Packed:
    """Write the records of some hosts, and their host files, into a bundle.

    The same records give the same bytes, but for `created_at`; that follows SOURCE_DATE_EPOCH
    where it is set (reproducible-builds.org/specs/source-date-epoch).

    Args:
        hosts: labels; None for every host here that has both records and a host file.
        force: whether an existing `output` may be replaced.

    Raises:
        UserError: nothing to pack, `output` exists, or damaged records, all of them.
    """
    if output.exists() and not force:
        raise UserError(f"{output}: exists; name another file, or replace it with --force")
    here = sorted(path.name for path in (results / "records").glob("*") if path.is_dir())
    chosen = _chosen_hosts(results, here, hosts)
    files: dict[str, bytes] = {}
    packed = []
    problems = []
    for label in chosen:
        for path in sorted((results / "records" / label).rglob("*.json")):
            name = path.relative_to(results).as_posix()
            try:
                data = record.read(path, check_schema=False)  # `check` does, below
            except UserError as error:
                problems.append(str(error))
                continue
            problems += place_problems(name, data["cell"])
            packed.append(data)
            files[name] = path.read_bytes()
        host_file = results / "hosts" / f"{label}.json"
        if host_file.is_file():
            files[f"hosts/{label}.json"] = _host_file(host_file)
    if problems:
        raise UserError("\n".join(problems))
    manifest = _manifest(chosen, packed, files)
    content = _zipped(files | {MANIFEST: manifest})
    if can_check():
        check(content, output)  # what leaves here can be imported
    with _writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, output)
    left_out = [label for label in here if label not in chosen]
    return Packed(output, chosen, len(packed), len(content), left_out)


def _chosen_hosts(results: Path, here: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    """The labels to pack, sorted.

    Args:
        here: labels that have a folder of records.

    Raises:
        UserError: there is none, or one that was asked for has no records.
    """
    known = [label for label in here if any((results / "records" / label).rglob("*.json"))]
    listed = ", ".join(known) or "none"
    if asked is None:
        chosen = [label for label in known if (results / "hosts" / f"{label}.json").is_file()]
        if not chosen:
            raise UserError(
                f"{results}: no host has both records and a file in hosts/; name one with --host "
                f"(records are of: {listed})"
            )
        return chosen
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise UserError(
            f"{results}: no records of host {', '.join(unknown)} (records are of: {listed})"
        )
    return sorted(set(asked))


def _host_file(path: Path) -> bytes:
    """A host file's content.

    Raises:
        UserError: it is damaged, or another host's.
    """
    from siliconprof import hosts

    label = hosts.load(path)["label"]
    if label != path.stem:
        raise UserError(f"{path}: it is the file of host '{label}'")
    return path.read_bytes()


def _manifest(
    hosts: Sequence[str], packed: Sequence[Mapping[str, Any]], files: Mapping[str, bytes]
) -> bytes:
    """What the bundle says about itself."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.now(UTC)
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch else now
    commits = {data["environment"].get("git_commit") for data in packed} - {None}
    document = {
        "bundle_version": BUNDLE_VERSION,
        "created_at": created.isoformat(timespec="seconds"),
        "schema_version": record.SCHEMA_VERSION,
        "method_versions": sorted({data["method_version"] for data in packed}),
        "hosts": list(hosts),
        "siliconprof_version": __version__,
        "git_commits": sorted(commits),
        "files": [
            {"path": name, "sha256": sha256(content), "bytes": len(content)}
            for name, content in sorted(files.items())
        ],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


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


# -- importing ---------------------------------------------------------------------------------


def import_bundle(path: Path, results: Path, replace: bool = False) -> Imported:
    """Add another host's records to this checkout, byte for byte.

    Args:
        replace: whether a record may take the place of a different one of the same cell, which
            then stays in `results/history`.

    Raises:
        UserError: the bundle is unsound, holds records of this host, or differs from what is
            here; all of it, one line each, and nothing was written.
    """
    bundle = read_bundle(path)
    if not results.is_dir():
        raise UserError(f"{results}: no such folder; run this in a checkout, or give --results")
    own = own_labels(results)
    mine = [label for label in bundle.hosts if label.casefold() in own]
    if mine:
        raise UserError(
            f"{path}: holds records of host '{mine[0]}', which is this host: what it measured is "
            "not changed from outside (to move a checkout, copy results/ and run "
            "`siliconprof adopt`)"
        )
    state = {name: _state(results / name, data) for name, data in bundle.records.items()}
    if not replace:
        _refuse_differences(bundle, results, state)
    for label in bundle.hosts:  # before the host file, see `own_labels`
        with _writing(_note_path(results, label)):
            record.write_atomically(_note_path(results, label), _note(bundle))
    for name, content in sorted(bundle.files.items()):
        target = results / name
        with _writing(target):
            if state.get(name) == "differs":
                existing = target.read_bytes()
                record.keep_in_history(
                    json.loads(existing), existing.decode("utf-8"), results / "history"
                )
            elif state.get(name) == "damaged":
                with contextlib.suppress(UserError):
                    records.set_damaged_aside([target], results, dry_run=False)
            if state.get(name) != "same":
                record.write_atomically(target, content.decode("utf-8"))
    counts = list(state.values())
    return Imported(
        bundle.hosts,
        added=counts.count("absent"),
        present=counts.count("same"),
        replaced=counts.count("differs") + counts.count("damaged"),
    )


def own_labels(results: Path) -> set[str]:
    """Labels of this very host, case-folded: on some file systems case does not count.

    A host file with this machine's fingerprint is its own unless it was imported: containers
    without a machine id share a fingerprint with every machine of the same CPU.

    Raises:
        UserError: a file in `results/hosts` is damaged.
    """
    from siliconprof import hosts

    auto = results / "hosts" / f"{RESERVED_LABEL}.json"
    if auto.exists():
        try:
            labels = {str(parsed(auto.read_bytes())["label"])}
        except (OSError, ValueError, KeyError):
            raise UserError(f"{auto}: damaged; delete it to have it made again") from None
    else:
        labels = {hosts.default_label()}  # what the first run will be called
    here = hosts.fingerprint()
    for path in (results / "hosts").glob("*.json"):
        if path != auto and not _note_path(results, path.stem).exists():
            if hosts.load(path)["fingerprint"] == here:
                labels.add(path.stem)
    return {label.casefold() for label in labels}


def _note_path(results: Path, label: str) -> Path:
    """Where it stands which bundle a host's records came from."""
    return results / "imported" / f"{label}.json"


def _note(bundle: Bundle) -> str:
    manifest = {key: value for key, value in bundle.manifest.items() if key != "files"}
    document = {"bundle": bundle.path.name, "sha256": bundle.sha256, "manifest": manifest}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _state(path: Path, incoming: Mapping[str, Any]) -> str:
    """How a record's place stands: `absent`, `same`, `differs` or `damaged`."""
    if not path.exists():
        return "absent"
    try:
        existing = record.read(path, check_schema=False)
    except UserError:
        return "damaged"
    return "same" if existing["sha256"] == incoming["sha256"] else "differs"


def _refuse_differences(bundle: Bundle, results: Path, state: Mapping[str, str]) -> None:
    """Stop where something here would be replaced.

    Raises:
        UserError: one line for each.
    """
    lines = [
        f"{results / name}: the record here {'is damaged' if how == 'damaged' else 'is another'}"
        for name, how in sorted(state.items())
        if how in ("differs", "damaged")
    ]
    for name, content in sorted(bundle.files.items()):
        path = results / name
        if name.startswith("hosts/") and path.exists():
            from siliconprof import hosts

            here, there = hosts.load(path), json.loads(content)
            if here["fingerprint"] != there["fingerprint"]:
                lines.append(
                    f"{path}: '{here['label']}' is another machine here (hostname "
                    f"{here['hostname']}, in the bundle {there['hostname']})"
                )
    if lines:
        end = "nothing imported; with --replace the bundle's are taken and replaced records kept "
        raise UserError("\n".join([*lines, f"{bundle.path}: {end}in {results / 'history'}"]))


# -- reference bundles -------------------------------------------------------------------------


def unpack_reference(path: Path, output: Path) -> Bundle:
    """Unpack a bundle as it is into a folder that no stage takes for records of a run.

    Raises:
        UserError: the bundle is unsound, or the folder exists and is not empty.
    """
    bundle = read_bundle(path)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: exists and is not empty; delete it first")
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    manifest = json.dumps(bundle.manifest, indent=1, sort_keys=True) + "\n"
    try:
        with _writing(output):
            for name, content in bundle.files.items():
                record.write_atomically(temporary / name, content.decode("utf-8"))
            record.write_atomically(temporary / MANIFEST, manifest)
            os.replace(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return bundle


# -- command line ------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Give a parser the arguments of one of `VERBS`; `run` does what they say."""
    parser.set_defaults(verb=verb)
    if verb == "unpack-reference":
        parser.add_argument("--bundle", type=Path, required=True)
        parser.add_argument("--output-dir", type=Path, required=True)
        return
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    if verb == "pack":
        parser.add_argument(
            "-o", "--output", type=Path, required=True, metavar="FILE", help="the bundle, a zip"
        )
        parser.add_argument(
            "--host",
            action="append",
            metavar="LABEL",
            help="whose records; may be repeated; default: every host with a file in results/hosts",
        )
        parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    else:
        parser.add_argument("bundle", type=Path, help="a bundle that `pack` has made")
        parser.add_argument(
            "--replace",
            action="store_true",
            help="let the bundle's records take the place of different ones, which stay in "
            "results/history",
        )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked on the command line; the exit status."""
    if arguments.verb == "pack":
        done = pack(arguments.results, arguments.host, arguments.output, arguments.force)
        lines = done.lines()
    elif arguments.verb == "import":
        lines = import_bundle(arguments.bundle, arguments.results, arguments.replace).lines()
    else:
        bundle = unpack_reference(arguments.bundle, arguments.output_dir)
        lines = [f"{len(bundle.records)} records of {', '.join(bundle.hosts)} unpacked"]
    print("\n".join(lines))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Pack, import or unpack a bundle."""
    parser = argparse.ArgumentParser(prog="siliconprof.bundle", description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        add_arguments(verbs.add_parser(verb), verb)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(stage(main))
