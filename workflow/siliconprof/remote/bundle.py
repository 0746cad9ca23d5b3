"""Records between hosts: packed into a zip on one, checked and imported on another.

    python -m siliconprof.remote.bundle pack --output F [--host LABEL ...] ...
    python -m siliconprof.remote.bundle import F [--replace]
    python -m siliconprof.remote.bundle unpack-reference --bundle F --output-dir D

A bundle holds `records/{host}/….json`, `hosts/{label}.json` and a `manifest.json` with the
SHA-256 of each. All of it is checked (`bundle_check.py`) before the first file is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.errors import stage
from siliconprof.remote.bundle_import import import_bundle, unpack_reference
from siliconprof.remote.bundle_pack import pack, shas_of

VERBS = ("pack", "import", "unpack-reference")


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Give a parser the arguments of one of `VERBS`, for `run`."""
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
            help="pack this host's records; may be repeated; default: every host with a file in "
            "results/hosts",
        )
        parser.add_argument("--force", action="store_true", help="replace an existing bundle")
        parser.add_argument(
            "--without",
            type=Path,
            metavar="LIST",
            help="leave out the records whose SHA-256 this file lists, one per line",
        )
    else:
        parser.add_argument("bundle", type=Path, help="a bundle that `pack` has made")
        parser.add_argument(
            "--replace",
            action="store_true",
            help="replace different records of the same cells, which stay in results/history",
        )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb of the command line and return the exit status."""
    if arguments.verb == "pack":
        without = shas_of(arguments.without) if arguments.without else ()
        lines = pack(arguments.results, arguments.host, arguments.output, arguments.force, without)
    elif arguments.verb == "import":
        line = import_bundle(arguments.bundle, arguments.results, arguments.replace).line()
        lines = [line]
    else:
        bundle = unpack_reference(arguments.bundle, arguments.output_dir)
        lines = [f"{len(bundle.records)} records of {', '.join(bundle.hosts)} unpacked"]
    print("\n".join(lines))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Pack, import or unpack a bundle."""
    parser = options.parser("siliconprof", __doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        add_arguments(verbs.add_parser(verb), verb)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(stage(main))
