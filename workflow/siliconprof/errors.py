"""Errors that a person can mend, and the two rules every stage follows.

A `UserError` carries clear lines (what, where, how to mend it); a stage prints them to
standard error and exits with status 2, never with a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

USER_ERROR_EXIT_STATUS = 2


class UserError(Exception):
    """Something the person at the keyboard can mend; the message says what, where and how."""


def in_one_line(error: BaseException) -> str:
    """An exception's type and message as part of a reason, cut where it is long."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")[:500]


def require_this_checkout() -> None:
    """Stop when the code that runs is not the code of the checkout in the current folder.

    An editable install of a first clone would otherwise run its code in every other clone.
    A folder without a checkout (a bare host) has nothing to compare and passes.

    Raises:
        UserError: the imported package lies elsewhere.
    """
    here = Path.cwd() / "workflow" / "siliconprof"
    package = Path(__file__).resolve().parent
    if (here / "__init__.py").is_file() and here.resolve() != package:
        raise UserError(
            f"siliconprof: this folder is a checkout, but the code that runs lies in {package}; "
            "set PYTHONPATH=workflow, or run `pip install -e .` here"
        )


def stage(main: Callable[[Sequence[str] | None], int]) -> int:
    """Run a stage's `main` the way every stage runs; the process's exit status comes back."""
    try:
        require_this_checkout()
        return main(None)
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_ERROR_EXIT_STATUS
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
