"""Work done beside the process that asks for it: figures are drawn on every processor.

A worker is a fork of the process as it is when the first result is asked for, so what it draws
needs no description that could be sent to another process, and is the same as without any worker.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from siliconprof.errors import UserError
from siliconprof.lifetime import end_with

_handed_out: list[Callable[[], Any]] = []  # a fork has what its parent had


def most_workers(wanted: int | None = None) -> int:
    """How many processes may draw: one for each processor, and one where a fork is not safe.

    Apple's frameworks, which NumPy computes with on a Mac, may crash in a forked process; Python
    itself does not fork there by default for that reason (its documentation of
    `multiprocessing`, "Contexts and start methods").
    """
    if sys.platform != "linux":
        return 1
    usable = len(os.sched_getaffinity(0))
    return max(min(wanted or usable, usable), 1)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage seldom: new objects after every figure or two, all objects hardly ever.

    A figure is a hundred thousand objects that refer to each other, beside millions of the tables.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def handed_out(works: Sequence[Callable[[], Any]], workers: int) -> Iterator[Callable[[int], Any]]:
    """Hand work out to so many processes; what it gives waits for the result of a work.

    What nobody has begun is dropped at the end, so that after an error nothing is waited for.
    """
    if workers < 2 or not works:
        yield lambda index: works[index]()
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or a worker would write it again
    _handed_out[:] = works
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(workers, len(works)), context, end_with, (os.getpid(),))
    begun = [pool.submit(_work, index) for index in range(len(works))]

    def result(index: int) -> Any:
        try:
            return begun[index].result()
        except BrokenProcessPool:
            raise UserError(
                "a process that drew a figure ended without a word; memory may be short: "
                "`--jobs 1` draws in one process"
            ) from None

    try:
        yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _work(index: int) -> Any:
    return _handed_out[index]()
