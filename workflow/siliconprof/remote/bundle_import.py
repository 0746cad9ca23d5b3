"""Add the records of a bundle to this checkout, or unpack it as a reference.

All of it is checked (`bundle_check.py`) before the first file is written.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from siliconprof import options
from siliconprof.errors import UserError, stage, writing
from siliconprof.remote.bundle_check import (
    RESERVED_LABEL,
    Bundle,
    as_json,
    parsed,
    read_bundle,
)
from siliconprof.store import documents, record, temporary, validation
from siliconprof.store.contents import Record


@dataclass(frozen=True)
class Imported:
    """The result of `import_bundle`, in numbers of records."""

    hosts: Sequence[str]
    added: int
    present: int  # the same record was here
    replaced: int

    def line(self) -> str:
        """The result as a line for the terminal."""
        total = self.added + self.present + self.replaced
        return (
            f"{total} records of {', '.join(self.hosts)}: {self.added} new, "
            f"{self.present} already here, {self.replaced} replaced"
        )


def import_bundle(
    path: Path,
    results: Path,
    replace: bool = False,
    only: str | None = None,
) -> Imported:
    """Add another host's records to this checkout, byte for byte.

    Args:
        only: the only label of which it may hold records; None for any.
        replace: whether a record may replace a different one of the same cell, which then stays
            in `results/history`.

    Raises:
        UserError: the bundle is unsound, holds records of a host that this checkout measures, or
            of another machine under a label that is in use here; or it differs from the records
            here. One line each, and nothing was written.
    """
    bundle = read_bundle(path)
    if not results.is_dir():
        raise UserError(f"{results}: no such folder; run this in a checkout, or give --results")
    state = {name: _state(results / name, data) for name, data in bundle.records.items()}
    refusals = [*_refusals(bundle, results, only)]
    if not refusals and not replace:
        refusals = [*_differences(bundle, results, state)]
    if refusals:
        raise UserError("\n".join(refusals))
    for label in bundle.hosts:  # before the host file, see `own_labels`
        note = as_json({"bundle": path.name, "sha256": bundle.sha256})
        temporary.write(_note_path(results, label), note)
    for name, raw in sorted(bundle.files.items()):
        target, how = results / name, state.get(name)
        with writing(target):
            if how == "differs":
                existing = target.read_text(encoding="utf-8")
                folder = results / "history" / bundle.records[name].cell.path
                record.keep_in_history(folder, json.loads(existing)["sha256"], existing)
            if how != "same":
                temporary.write(target, raw)
    counts = Counter(state.values())
    return Imported(
        bundle.hosts,
        added=counts["absent"],
        present=counts["same"],
        replaced=counts["differs"] + counts["damaged"],
    )


def _refusals(bundle: Bundle, results: Path, only: str | None) -> Iterator[str]:
    """Why records under the labels of a bundle may not come in, one line for each label."""
    from siliconprof.hosts import host_file as hosts

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
            if hosts.load(path)["fingerprint"] != parsed(bundle.files[name])["fingerprint"]:
                message = (
                    f"'{label}' is another machine here: give one of the two another label, or "
                    f"delete {path} and {results / 'records' / label}; nothing imported"
                )
                yield f"{bundle.path}: {validation.one_line(message)}"


def _differences(bundle: Bundle, results: Path, state: Mapping[str, str]) -> Iterator[str]:
    """The records here that a bundle would replace, and how to have them replaced."""
    changed = {name: how for name, how in sorted(state.items()) if how in ("differs", "damaged")}
    for name, how in changed.items():
        yield f"{results / name}: the record here {'is damaged' if how == 'damaged' else how}"
    if changed:
        end = "nothing imported; --replace imports it and keeps the replaced records in "
        yield f"{bundle.path}: {end}{results / 'history'}"


def own_labels(results: Path) -> set[str]:
    """Labels of this host and of the last run here, case-folded: some file systems ignore case."""
    from siliconprof.hosts import host_file as hosts

    auto = results / "hosts" / f"{RESERVED_LABEL}.json"
    labels = set()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        cells = documents.read(results / "matrix.json")["cells"]  # absent or damaged: made again
        labels = {planned["cell"]["host"] for planned in cells}
    try:
        own = parsed(auto.read_bytes())["label"] if auto.exists() else hosts.default_label()
    except (OSError, ValueError, KeyError):
        message = f"{auto}: damaged; delete it, and the next run makes it again"
        raise UserError(message) from None
    return {str(label).casefold() for label in (*labels, own)}


def _note_path(results: Path, label: str) -> Path:
    """The file that says which bundle a host's records came from."""
    return results / "imported" / f"{label}.json"


def _state(path: Path, incoming: Record) -> str:
    """How the record here compares with the incoming one: absent, same, differs or damaged."""
    if not path.exists():
        return "absent"
    try:
        existing = record.read(path)
    except record.OtherVersion:
        return "differs"
    except UserError:
        return "damaged"
    return "same" if existing["sha256"] == incoming.sha256 else "differs"


def unpack_reference(path: Path, output: Path) -> Bundle:
    """Unpack a bundle as it is into a new folder that no stage takes for records of a run."""
    bundle = read_bundle(path)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: exists and is not empty; delete it first")
    output.mkdir(parents=True, exist_ok=True)
    for name, content in bundle.files.items():
        temporary.write(output / name, content)
    return bundle


def main(argv: Sequence[str] | None = None) -> int:
    """Import or unpack, and say what was new."""
    parser = options.parser("siliconprof import", __doc__)
    parser.add_argument("bundle", type=Path, help="a bundle that `siliconprof pack` has made")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace different records of the same cells, which stay in results/history",
    )
    parser.add_argument(
        "--unpack", type=Path, metavar="DIR", help="as a reference, into this new folder"
    )
    arguments = parser.parse_args(argv)
    with options.at_work(f"reading {arguments.bundle}"):
        if arguments.unpack:
            bundle = unpack_reference(arguments.bundle, arguments.unpack)
            line = f"{len(bundle.records)} records of {', '.join(bundle.hosts)} unpacked"
        else:
            line = import_bundle(arguments.bundle, arguments.results, arguments.replace).line()
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
