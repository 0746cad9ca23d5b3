"""`siliconprof run …`: measure what is due and make the report, by Snakemake.

  siliconprof run --cores 1 report                          everything, as `make report` does
  siliconprof run --cores 1 quick                           a first answer in half a minute
  siliconprof run --cores 1 report --configfile FILE        laid over config/config.yaml
  siliconprof run --cores 1 report --configfile FILE --replace-workflow-config    in its place
  siliconprof run --cores 1 report --dry-run                only count the jobs that are due
  siliconprof run --cores 1 report --forcerun FILE ...      measure these records again
  siliconprof run --cores 1 figures                         every figure as SVG, PNG and PDF
  siliconprof run --workflow-profile profiles/slurm report  on a cluster: docs/cluster.md
  siliconprof run --cores 1 --unlock                        after a run was killed

A target stands before `--configfile`, `--forcerun` and `--quiet`, which take every word after them.
All arguments are Snakemake's own; `snakemake --help` lists them.
"""

# Snakemake reads the files of `--configfile` and makes its caches before it reads our Snakefile, so
# nothing there can say in a line that a file is not YAML or that the home folder is read-only.

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from siliconprof.cells import config
from siliconprof.errors import UserError, nearest
from siliconprof.store.validation import one_line

OPTIONS = ("--configfile", "--configfiles")
# For these Snakemake's parser, which takes a second to import, is not asked what else there is.
USUAL = {*OPTIONS, "--cores", "--replace-workflow-config", "--forcerun", "--dry-run", "--quiet"}
USUAL |= {"--workflow-profile", "--unlock", "--"}
CACHES = Path("results/history/cache")


def config_files(words: Sequence[str]) -> Iterator[str]:
    """The files of `--configfile`, which takes every word up to the next option."""
    taking = False
    for word in words:
        option, equals, value = word.partition("=")
        if word.startswith("-"):
            taking = option in OPTIONS
            word = value if equals else ""
        if taking and word:
            yield word


def check(words: Sequence[str]) -> None:
    """Refuse a file of `--configfile` that is none, or not YAML."""
    own = [] if "--replace-workflow-config" in words else [config.DEFAULT]
    for name in (*own, *config_files(words)):
        exists = os.path.exists(name) and not os.path.isdir(name)
        if not exists and not name.endswith((".yaml", ".yml", ".json")):
            raise UserError(
                f"--configfile: '{one_line(name)}' is no file; Snakemake takes every word after it for "
                f"one, so write the target first: {one_line(name)} --configfile FILE"
            )
        if not exists or os.path.isfile(name):  # a pipe can be read once only
            config.read(name)


def check_options(words: Sequence[str]) -> None:
    """Refuse what is no option of Snakemake's, whose own answer is a usage of a hundred lines."""
    asked = [word.partition("=")[0] for word in words if word.startswith("--")]
    asked = [option for option in asked if option not in USUAL]
    if asked:
        from snakemake.cli import get_argument_parser

        known = [*get_argument_parser()._option_string_actions]
        for option in asked:
            if not any(name.startswith(option) for name in known):
                raise UserError(
                    f"{option}: no option of Snakemake{nearest(option, known)}; "
                    "`siliconprof run --help` has the usual ones"
                )


def unwritable_cache() -> Path | None:
    """The folder that Snakemake and other libraries cache in, where it cannot be written to."""
    configured = os.environ.get("XDG_CACHE_HOME")
    folder = Path(configured) if configured else Path.home() / ".cache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return folder
    return None if os.access(folder, os.W_OK) else folder


def main(argv: Sequence[str] | None = None) -> int:
    """Check, and become Snakemake."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    check(words)
    check_options(words)
    folder = unwritable_cache()
    if folder is not None:
        # `~` of a config still is the person's. Matplotlib and Triton do not ask the first.
        os.environ["XDG_CACHE_HOME"] = str(CACHES.absolute())
        os.environ.setdefault("MPLCONFIGDIR", str(CACHES.absolute() / "matplotlib"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(CACHES.absolute() / "triton"))
        print(f"{folder}: cannot be written to; caches go below {CACHES}", file=sys.stderr)
    os.environ["PYTHONSAFEPATH"] = "1"  # a `profile.py` that lies here is not the library's
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])
