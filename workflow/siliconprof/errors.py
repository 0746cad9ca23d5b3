"""Errors that a person can fix, and the two rules every stage follows.

A `UserError` carries clear lines (what, where, how to fix it); a stage prints them to
standard error and exits with status 2, never with a traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from siliconprof.lifetime import end_with_pipeline

USER_ERROR_EXIT_STATUS = 2
PACKAGE_FOLDER = Path(__file__).resolve().parent
CANNOT_WRITE_STATUS = 74  # what a measuring process ends with: EX_IOERR of sysexits.h
# Control characters except line feed and tab, halves of surrogate pairs, and what is no character:
# no text of a person's, and no XML.
_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"
CONTROL_CHARACTERS = re.compile(f"[{_CONTROL}]")
# Those, and marks that change the direction of writing.
_NOT_SHOWN = re.compile(rf"[{_CONTROL}\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


# In what CUDA says where another process has the GPU and its compute mode lets one alone, and what fixes it.
BUSY = "busy or unavailable"
EXCLUSIVE = (
    "another process holds the GPU, whose compute mode (`nvidia-smi -q -d COMPUTE`) lets one alone use it: "
    "end that process, or let several: `sudo nvidia-smi -c 0`"
)


class UserError(Exception):
    """Something the person at the keyboard can fix; the message says what, where and how."""


class CannotWrite(UserError):
    """The system does not let a file be written: no room, read-only, not allowed."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_WRITING = (*_NO_ROOM, errno.EROFS)  # errors of nothing but writing


def cannot_write(path: Path | str, error: OSError) -> CannotWrite:
    """The error for a file that the system refuses to write, in one line."""
    fix = "make room there" if error.errno in _NO_ROOM else "make it writable"
    why = f"cannot write: {error.strerror or error}"
    return CannotWrite(f"{path}: {why}; {fix} and run the same command again")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` while writing a file into `CannotWrite`, one line."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


def in_one_line(error: BaseException) -> str:
    """An exception's type and message as part of a reason, cut where it is long."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")[:500]


def explained(error: BaseException) -> str:
    """An error in one line, with the innermost line of our own code."""
    ours = [
        f"{Path(frame.filename).relative_to(PACKAGE_FOLDER).as_posix()}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(PACKAGE_FOLDER)
    ]
    return printable(in_one_line(error)) + (f" ({ours[-1]})" if ours else "")


def printable(text: str) -> str:
    """Return the text with control characters, by which a name could manipulate a terminal, spelt out."""
    return _NOT_SHOWN.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_texts(value: Any) -> Any:
    """Return the document with every text in it `printable`; keys stay as they are."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: printable_texts(inner) for key, inner in value.items()}
    return [printable_texts(inner) for inner in value] if isinstance(value, list) else value


def nearest(word: Any, choices: Iterable[Any]) -> str:
    """`; did you mean 'x'?`, or nothing when no choice is near.

    Case does not count, and `nvidia-h200` is near `h200`, which its letters alone are not.
    """
    names = {str(choice).lower(): str(choice) for choice in choices}
    text = str(word).lower()
    tails = [part for part in names if text.endswith(f"-{part}")]
    close = tails or difflib.get_close_matches(text, names, n=1)
    return f"; did you mean '{names[close[0]]}'?" if close else ""


def require_this_checkout() -> None:
    """Stop when the code that runs is not the code of the checkout in the current folder.

    An editable install of a first clone would otherwise run its code in every other clone.
    """
    here = Path.cwd() / "workflow" / "siliconprof"
    if (here / "__init__.py").is_file() and here.resolve() != PACKAGE_FOLDER:
        raise UserError(
            f"siliconprof: this folder is a checkout, but the code that runs lies in {PACKAGE_FOLDER}; "
            "set PYTHONPATH=workflow, or run `pip install -e .` here"
        )


class _Printable:
    """A stream that writes only `printable` text."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def replace_what_cannot_be_shown() -> None:
    """Write characters that the terminal's encoding lacks as `?`, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def stage(main: Callable[[Sequence[str] | None], int], ends_itself: bool = False) -> int:
    """Run a stage's `main` the way every stage runs; return the process's exit status.

    Args:
        ends_itself: `main` itself ends when the pipeline does; without it, a thread here ends it.
    """
    try:
        require_this_checkout()
        if not ends_itself:
            end_with_pipeline()
        replace_what_cannot_be_shown()
        # None: a shell's `>&-` has closed it
        with contextlib.redirect_stdout(sys.stdout and _Printable(sys.stdout)):
            return main(None)
    except UserError as error:
        _print_error(error)
        return USER_ERROR_EXIT_STATUS
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _NO_WRITING:
            raise
        _print_error(cannot_write(error.filename or "a file of this stage", error))
        return USER_ERROR_EXIT_STATUS


def _print_error(error: UserError) -> None:
    # Standard error of a job is its log, which may lie on the disk that is full.
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(OSError):
            print(printable(str(error)), file=stream, flush=True)
            return
