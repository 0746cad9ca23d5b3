"""The options that stages share, each declared once; all of them are files or folders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

OPTIONS: dict[str, dict[str, Any]] = {
    "matrix": {"required": True, "help": "the expansion, results/matrix.json"},
    "tables": {"required": True, "help": "folder of the tables of earlier stages"},
    "registry": {"required": True, "help": "the device registry"},
    "published": {"required": True, "help": "folder of published tables"},
    "claims": {"required": True, "help": "config/claims.yaml"},
    "results": {"default": Path("results"), "help": "of a run"},
    "reference": {"nargs": "*", "default": [], "help": "unpacked bundles"},
    "output-dir": {"required": True, "help": "folder for what is written"},
}


def parser(name: str | None, text: str | None) -> argparse.ArgumentParser:
    """A parser of a command.

    Args:
        text: its help, lines as they are: of its module.
    """
    as_it_is = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=text, formatter_class=as_it_is)


def parsed(main: Callable[..., int], argv: Sequence[str] | None, *names: str) -> argparse.Namespace:
    """What a stage is called with.

    Args:
        main: of the stage, whose module's text is the help.
        names: the options that it takes, of `OPTIONS`.
    """
    module = sys.modules[main.__module__]
    stage = parser(module.__spec__.name if module.__spec__ else None, module.__doc__)
    for name in names:
        stage.add_argument(f"--{name}", type=Path, **OPTIONS[name])
    return stage.parse_args(argv)
