"""`siliconprof`: what this host is, what a run would do, and records in and out.

The measuring itself is `snakemake --cores 1 report`, or `make report`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from siliconprof import __version__, options
from siliconprof.errors import stage

VERBS = {  # verb -> (module, one line of help)
    "doctor": ("pipeline.doctor", "what this host is, what works, and how to mend what does not"),
    "plan": ("cells.plan", "cells that would run, have run, cannot run here and why"),
    "run": ("pipeline.run", "start Snakemake, once its --configfile and caches are checked"),
    "remeasure": ("pipeline.remeasure", "measure flagged cells again, and make the report"),
    "pack": ("remote.bundle_pack", "write records into a bundle"),
    "import": ("remote.bundle_import", "add the records of a bundle"),
    "collect": ("remote.collect", "measure on other hosts over ssh and bring their records here"),
    "compare": ("compare.compare", "say which points of two result sets are faster or slower"),
    "explain": ("compare.explain", "say why one training takes longer than another"),
    "predict": ("compare.predict", "say how long a training step should take that was never run"),
}


def dispatch(argv: Sequence[str] | None = None) -> int:
    """Run the verb's module on its arguments; return its exit status."""
    parser = options.parser("siliconprof", __doc__)
    parser.add_argument("--version", action="version", version=f"siliconprof {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_, line) in VERBS.items():
        verbs.add_parser(name, help=line, add_help=False)
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = parser.parse_args(arguments[:1])
    module_name, _ = VERBS[chosen.verb]
    module = importlib.import_module(f"siliconprof.{module_name}")
    return module.main(arguments[1:])


def main() -> int:
    """The console command."""
    return stage(dispatch)


if __name__ == "__main__":
    sys.exit(main())
