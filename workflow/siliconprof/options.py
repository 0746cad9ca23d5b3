"""The options that stages share, each declared once; all of them are files or folders."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from siliconprof.errors import nearest, printable
from siliconprof.plugins import CHECKOUT

OPTIONS: dict[str, dict[str, Any]] = {
    "matrix": {"required": True, "help": "the expansion, results/matrix.json"},
    "tables": {
        "nargs": "+",
        "help": "of earlier stages, their folder or files; default: tables/ beside the matrix",
    },
    "registry": {"help": "the device registry; default: the checkout's"},
    "published": {
        "nargs": "+",
        "help": "published tables, their folder or files; default: the checkout's",
    },
    "claims": {"help": "default: the checkout's config/claims.yaml"},
    "results": {"help": "of a run; default: the matrix's folder"},
    "reference": {"nargs": "*", "default": [], "help": "unpacked bundles"},
    "output": {
        "nargs": "+",
        "help": "tables that are written, their folder or files; default: tables/ beside the matrix",
    },
}
SHIPPED = {
    "registry": CHECKOUT / "config" / "devices.yaml",
    "published": CHECKOUT / "config" / "published",
    "claims": CHECKOUT / "config" / "claims.yaml",
}


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong word with one line and the nearest right one."""

    def error(self, message: str) -> NoReturn:
        """End with the line and status 2."""
        known = [*self._option_string_actions]
        for action in self._actions:
            known += map(str, action.choices or ())
        wrong = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^\s'=]+)", message)
        near = nearest(wrong[1], known) if wrong else ""
        self.exit(2, f"{self.prog}: {message}{near}; see {self.prog} --help\n")


def parser(name: str | None, text: str | None) -> argparse.ArgumentParser:
    """A parser of a command.

    Args:
        text: its help, lines as they are: of its module.
    """
    as_it_is = argparse.RawDescriptionHelpFormatter
    return _Parser(prog=name, description=text, formatter_class=as_it_is)


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
    return filled(stage.parse_args(argv))


def filled(arguments: argparse.Namespace) -> argparse.Namespace:
    """The same, with folders beside the matrix and files of this checkout where none is named."""
    folder = arguments.matrix.parent
    beside = {"results": folder, "tables": [folder / "tables"], "output": [folder / "tables"]}
    for name, path in (beside | SHIPPED).items():
        if getattr(arguments, name, path) is None:
            setattr(arguments, name, path)
    for name in ("tables", "output"):
        if isinstance(paths := getattr(arguments, name, None), list):
            is_folder = len(paths) == 1 and paths[0].suffix != ".csv"
            setattr(arguments, name, paths[0] if is_folder else {p.stem: p for p in paths})
    if isinstance(paths := getattr(arguments, "published", None), list):
        arguments.published = paths[0] if paths[0].is_dir() else paths[0].parent
    return arguments


@contextmanager
def at_work(text: str) -> Iterator[None]:
    """Says on stderr what lasts over a second: moving on a terminal, else one line."""
    if sys.stderr.isatty() and find_spec("rich"):
        from rich.console import Console

        with Console(stderr=True).status(printable(text), spinner="line"):
            yield
        return
    line = threading.Timer(1, print, (f"{printable(text)} ...",), {"file": sys.stderr})
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()
