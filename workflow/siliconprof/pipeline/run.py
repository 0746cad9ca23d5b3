"""`siliconprof run …`: Snakemake, after a look at what it would end on with a traceback.

    siliconprof run --cores 1 report --configfile FILE

All arguments are Snakemake's own, and `make report` comes through here. Snakemake reads the files
of `--configfile` and makes its caches before it reads our Snakefile, so nothing there can say in a
line that a file is not YAML or that the home folder cannot be written to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from siliconprof.cells import config
from siliconprof.errors import UserError
from siliconprof.store.validation import one_line

OPTIONS = ("--configfile", "--configfiles")
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
    check(words)
    folder = unwritable_cache()
    if folder is not None:
        # `~` of a config still is the person's. Matplotlib and Triton do not ask the first.
        os.environ["XDG_CACHE_HOME"] = str(CACHES.absolute())
        os.environ.setdefault("MPLCONFIGDIR", str(CACHES.absolute() / "matplotlib"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(CACHES.absolute() / "triton"))
        print(f"{folder}: cannot be written to; caches go below {CACHES}", file=sys.stderr)
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words])
