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
from functools import partial
from pathlib import Path

from siliconprof import options
from siliconprof.errors import UserError, stage
from siliconprof.remote import anonymise
from siliconprof.remote.bundle_import import import_bundle, unpack_reference
from siliconprof.remote.bundle_pack import pack, shas_of

SHOWN, WIDTH = 20, 160  # texts before a bundle is written; characters of each
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
        parser.add_argument(
            "--anonymise",
            nargs="?",
            const=anonymise.KEPT,
            choices=(anonymise.KEPT, anonymise.ONCE),
            help="replace labels of hosts, and list them; kept (default): by the "
            f"same pseudonyms in every bundle, made with results/{anonymise.SALT_FILE}; once: by "
            "pseudonyms that no other bundle has",
        )
        parser.add_argument(
            "--all-texts",
            action="store_true",
            help=f"list all reasons and details in it; default: the {SHOWN} most frequent",
        )
        parser.add_argument(
            "--yes", action="store_true", help="do not ask on a terminal whether to write it"
        )
    else:
        parser.add_argument("bundle", type=Path, help="a bundle that `pack` has made")
        parser.add_argument(
            "--replace",
            action="store_true",
            help="replace different records of the same cells, which stay in results/history",
        )


def look(output: Path, everything: bool, yes: bool, texts: Sequence[tuple[int, str]]) -> None:
    """Show the texts of a bundle before it is written, and ask where a person is there to answer.

    Args:
        texts: (how often, text), the most frequent first.

    Raises:
        UserError: the answer is no.
    """
    shown = texts if everything else texts[:SHOWN]
    if texts:
        print(f"texts that go out, redacted ({len(texts)} kinds, numbers aside):")
    for count, text in shown:
        one_line = " ".join(text.split())
        cut = one_line if len(one_line) <= WIDTH or everything else one_line[:WIDTH] + " ..."
        print(f"{count:6} x  {cut}")
    if len(shown) < len(texts):
        print(f"          and {len(texts) - len(shown)} more: --all-texts")
    if yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return
    if input(f"write {output}? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise UserError(f"{output}: not written")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb of the command line and return the exit status."""
    if arguments.verb == "pack":
        without = shas_of(arguments.without) if arguments.without else ()
        show = partial(look, arguments.output, arguments.all_texts, arguments.yes)
        how = (arguments.force, without, arguments.anonymise, show)
        lines = pack(arguments.results, arguments.host, arguments.output, *how).lines
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
