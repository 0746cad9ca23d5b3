"""Commands: typed functions whose parameters are the words and options of their command line.

A parameter before `*` is a word, one after it an option; `json_` is `--json`. One without a default
must be given, a `bool` is a flag, a `Sequence` takes several values. `Annotated` has its help, then
settings of argparse's `add_argument`. The help of a command is the docstring of its module.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

from siliconprof.errors import nearest, printable, stage
from siliconprof.plugins import CHECKOUT

Command = Callable[..., int | None]  # answers its exit status; None = 0
REGISTRY_FILE = CHECKOUT / "config" / "devices.yaml"
PUBLISHED = CHECKOUT / "config" / "published"
CLAIMS = CHECKOUT / "config" / "claims.yaml"
# Options that commands share.
Matrix = Annotated[Path, "the expansion, results/matrix.json"]
_TABLES = "their folder or files; default: tables/ beside the matrix"
Tables = Annotated[Sequence[Path], f"of earlier stages, {_TABLES}"]
Output = Annotated[Sequence[Path], f"tables that are written, {_TABLES}"]
Registry = Annotated[Path, "the device registry; default: the checkout's"]
Published = Annotated[
    Sequence[Path], "published tables, their folder or files; default: the checkout's"
]
Claims = Annotated[Path, "default: the checkout's config/claims.yaml"]
Results = Annotated[Path, "of a run; default: results"]
Json = Annotated[bool, "print JSON instead of text"]
AS_JSON = {"type": json.loads, "metavar": "JSON"}


class _Parser(argparse.ArgumentParser):
    """A parser whose error is one line, with the nearest correct word."""

    def error(self, message: str) -> NoReturn:
        """End with the line and status 2."""
        known = [*self._option_string_actions]
        for action in self._actions:
            known += map(str, action.choices or ())
        wrong = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^\s'=]+)", message)
        near = nearest(wrong[1], known) if wrong else ""
        self.exit(2, printable(f"{self.prog}: {message}{near}; see {self.prog} --help\n"))


def parser(name: str | None, text: str | None) -> argparse.ArgumentParser:
    """A parser of a command.

    Args:
        text: its help, lines as they are: of its module.
    """
    as_it_is = argparse.RawDescriptionHelpFormatter
    return _Parser(prog=name, description=text, formatter_class=as_it_is)


def call(command: Command, words: Sequence[str] | None, name: str | None = None) -> int:
    """Parse the command line of a command, call it, and return its exit status.

    Args:
        words: by default those of this process.
        name: what it is called by; by default its module's.
    """
    module = sys.modules[command.__module__]
    own = parser(name or (module.__spec__.name if module.__spec__ else None), module.__doc__)
    hints, asked = get_type_hints(command, include_extras=True), inspect.signature(command)
    for key, parameter in asked.parameters.items():
        kind, text, *more = get_args(hints[key])
        has_default = parameter.default is not parameter.empty
        settings: dict[str, Any] = {"help": text, "type": (*get_args(kind), kind)[0]}
        if parameter.kind is not parameter.KEYWORD_ONLY:
            settings |= {"nargs": "?", "default": parameter.default} if has_default else {}
            own.add_argument(key, **settings | dict(*more))
            continue
        if kind is bool:
            settings = {"help": text, "action": "store_true"}
        elif get_origin(kind) is Sequence:
            settings |= {"nargs": "+", "action": "extend"}
        settings |= {"required": not has_default, "default": argparse.SUPPRESS} | dict(*more)
        flag = f"--{key.rstrip('_').replace('_', '-')}"
        own.add_argument(*settings.pop("flags", ()), flag, **settings)
    given = vars(own.parse_args(words))
    by_key = {key: given[key.rstrip("_")] for key in asked.parameters if key.rstrip("_") in given}
    return command(**by_key) or 0


def run(command: Command, name: str | None = None, ends_itself: bool = False) -> NoReturn:
    """Run a command as this process, see `call` and `errors.stage`."""
    sys.exit(stage(partial(call, command, name=name), ends_itself))


def tables_of(paths: Sequence[Path], matrix: Path) -> Path | dict[str, Path]:
    """Return a folder of tables, or their files by name; by default the folder beside the matrix."""
    first = paths[0] if paths else matrix.parent / "tables"
    return first if len(paths) < 2 and first.suffix != ".csv" else {p.stem: p for p in paths}


def folder_of(paths: Sequence[Path]) -> Path:
    """Return a folder, given itself or its files."""
    return paths[0] if paths[0].is_dir() else paths[0].parent


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Say on stderr what takes longer than a second: a spinner on a terminal, else one line."""
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
