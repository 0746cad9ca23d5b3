"""`siliconprof`: how fast this machine trains models, and why it is slower than that one.

  doctor     what this host is, what works, and how to fix what does not
  plan       cells that would run, have run, cannot run here and why
  compare    say which points of two result sets are faster or slower
  explain    say why one training takes longer than another
  predict    say how long a training step should take that was never run

more:
  pack       write records into a bundle
  import     add the records of a bundle
  collect    measure on other hosts over ssh and bring their records here

`siliconprof VERB --help` explains each. `snakemake --cores 1 report`, or `make report`, measures.
"""

from __future__ import annotations

import importlib
import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from siliconprof import __version__, options
from siliconprof.errors import UserError, nearest, stage
from siliconprof.plugins import CHECKOUT

VERBS = {  # verb -> module
    "doctor": "hosts.doctor",
    "plan": "cells.plan",
    "compare": "compare.compare",
    "explain": "compare.explain",
    "predict": "compare.predict",
    "pack": "remote.bundle_pack",
    "import": "remote.bundle_import",
    "collect": "remote.collect",
}
OWN_OPTIONS = ("-h", "--help", "--version")
OF_A_CHECKOUT = ("plan", "explain", "predict", "collect")


def dispatch(argv: Sequence[str] | None = None) -> int:
    """Run the verb's module on its arguments; return its exit status.

    Raises:
        UserError: see the module; or the verb needs a checkout, and this folder is none.
    """
    parser = options.parser("siliconprof", __doc__)
    parser.usage = "siliconprof VERB ..."
    parser.add_argument("--version", action="version", version=f"siliconprof {__version__}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of these")
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else ""
    if first.startswith("-") and first not in OWN_OPTIONS:
        raise UserError(
            f"siliconprof: {first}: no verb, nor an option of siliconprof itself"
            f"{nearest(first, (*OWN_OPTIONS, *VERBS))}; see siliconprof --help"
        )
    verb = parser.parse_args(arguments[:1]).verb
    options_given = {word.partition("=")[0] for word in arguments}
    if verb in OF_A_CHECKOUT and not options_given & {"-h", "--help", "--configfile", "--results"}:
        if not Path("config/config.yaml").is_file() and not Path("results").is_dir():
            raise UserError(
                f"{Path.cwd()}: has neither config/config.yaml nor results/; go to the folder of an "
                "experiment first"
                + (f": cd {CHECKOUT}" if (CHECKOUT / "config/config.yaml").is_file() else "")
            )
    module = importlib.import_module(f"siliconprof.{VERBS[verb]}")
    return options.call(module.main, arguments[1:], f"siliconprof {verb}")


def give_user_and_home() -> None:
    """What libraries ask for, where the system does not know this user, as in a container."""
    try:
        pwd.getpwuid(os.getuid())
        return
    except KeyError:
        os.environ["USER"] = os.environ.get("USER") or f"uid-{os.getuid()}"
    if not os.access(os.environ.get("HOME", ""), os.W_OK):  # often `/`
        os.environ["HOME"] = str(Path(".cache", "home").absolute())


def main() -> int:
    """The console command."""
    give_user_and_home()
    return stage(dispatch)


if __name__ == "__main__":
    sys.exit(main())
