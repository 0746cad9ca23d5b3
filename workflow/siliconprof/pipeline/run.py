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

# Snakemake reads the files of `--configfile` before it reads our Snakefile, so nothing there can say
# in a line that a file is not YAML.

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from siliconprof.cells import config
from siliconprof.errors import UserError, nearest
from siliconprof.hosts import machine
from siliconprof.plugins import CHECKOUT
from siliconprof.store.validation import one_line

LEAST_FREE_BYTES = 16 * 2**20
OPTIONS = ("--configfile", "--configfiles")
PROFILE = "--workflow-profile"
WITH_VALUE = {*OPTIONS, "--cores", PROFILE}
# For these Snakemake's parser, which takes a second to import, is not asked what else there is.
USUAL = WITH_VALUE | {"--replace-workflow-config", "--forcerun", "--dry-run", "-n", "--quiet"}
USUAL |= {"--unlock", "--"}
TARGETS = ("report", "quick", "measured", "figures", "all")  # without wildcards


def values(words: Sequence[str], *options: str) -> Iterator[str]:
    """What options are given, as `--configfile` takes every word up to the next option."""
    taking = False
    for word in words:
        option, equals, value = word.partition("=")
        if word.startswith("-"):
            taking = option in options
            word = value if equals else ""
        if taking and word:
            yield word


def check(words: Sequence[str]) -> None:
    """Refuse a file of `--configfile` that is none, or not YAML, and a profile that is none."""
    own = [] if "--replace-workflow-config" in words else [config.DEFAULT]
    for name in (*own, *values(words, *OPTIONS)):
        exists = os.path.exists(name) and not os.path.isdir(name)
        if not exists and not name.endswith((".yaml", ".yml", ".json")):
            raise UserError(
                f"--configfile: '{one_line(name)}' is no file; Snakemake takes every word after it for "
                f"one, so write the target first: {one_line(name)} --configfile FILE"
            )
        if not exists or os.path.isfile(name):  # a pipe can be read once only
            config.read(name)
    for name in [*values(words, PROFILE)][:1]:  # without it Snakemake goes on here, where it is
        folders = (Path(name), Path("profiles") / name, CHECKOUT / "profiles" / name)
        if name != "none" and not any(map(Path.exists, folders)):
            shipped = sorted(one.name for one in (CHECKOUT / "profiles").iterdir())
            raise UserError(
                f"{PROFILE}: {one_line(name)}: no such folder; in profiles/ there are: "
                f"{', '.join(shipped)}{nearest(Path(name).name, shipped)}"
            )


def check_room() -> None:
    """Refuse a disk that is full, where Snakemake ends with a traceback."""
    for folder in filter(os.path.isdir, (".", "results")):
        free, _ = machine.reading(lambda: shutil.disk_usage(folder).free)  # noqa: B023
        if free is not None and free < LEAST_FREE_BYTES:
            raise UserError(
                f"{os.path.abspath(folder)}: {free / 2**20:.1f} MiB are free on this disk, too little "
                "for tables and a page; make room there and run the same command again: what was "
                "measured is kept"
            )


def check_target(words: Sequence[str]) -> None:
    """Refuse a target that is nearly one of ours, where Snakemake speaks of input functions."""
    for before, word in zip(("", *words), words, strict=False):
        is_name = not before.startswith("-") and word.isidentifier() and word not in TARGETS
        if is_name and (near := nearest(word, TARGETS)):
            raise UserError(
                f"{word}: no target, which is a file or one of: {', '.join(TARGETS)}{near}"
            )


def check_options(words: Sequence[str]) -> None:
    """Refuse what Snakemake's parser does, whose own answer is a usage of a hundred lines."""
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    if {*options} <= USUAL and (not words or words[-1] not in WITH_VALUE):
        return
    from snakemake.cli import get_argument_parser

    parser = get_argument_parser()
    known = {*re.findall(r"--?[a-zA-Z][\w-]*", parser.format_help())}

    def refuse(message: str) -> NoReturn:
        raise UserError(f"siliconprof run: {message}; `siliconprof run --help` has the usual ones")

    for option in options:
        if option.startswith("--") and not any(name.startswith(option) for name in known):
            refuse(f"{option}: no option of Snakemake{nearest(option, known)}")
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            given = parser.parse_known_args(list(words))[0]
    except SystemExit:
        refuse(said.getvalue().splitlines()[-1].partition(": error: ")[2])
    for setting in given.config or ():
        if "=" not in setting:
            refuse(f"--config: '{one_line(setting)}' is no KEY=VALUE")


def stay_awake() -> None:
    """Keep the system from going to sleep as long as this process lives, or Snakemake in its place.

    By caffeinate(8) on a Mac, else by systemd-inhibit(1), in a session of its own, where nothing can
    ask for a password; who may not inhibit is refused.
    """
    own = str(os.getpid())
    waits = ["tail", f"--pid={own}", "--follow", os.devnull]
    programs = {
        "caffeinate": ["-i", "-w", own],
        "systemd-inhibit": [
            "--what=idle:sleep",
            "--who=siliconprof",
            "--why=a measurement",
            *waits,
        ],
    }
    program = next(filter(shutil.which, programs), None)
    if program is None:
        return
    subprocess.Popen(
        [program, *programs[program]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Check, and become Snakemake."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    check(words)
    check_room()
    check_target(words)
    check_options(words)
    stay_awake()
    # A `profile.py` that lies here is not the library's.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "snakemake", *words], environment)
