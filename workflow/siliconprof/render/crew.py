"""Work done beside the process that asks for it: figures are drawn on every processor.

A worker is a fork of the process as it is when work is handed out, so what it draws needs no
description that could be sent to another process, and is the same as without any worker.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from siliconprof.errors import UserError
from siliconprof.lifetime import end_with

PIECES = 4  # for each process: a fork of a large process takes a tenth of a second


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


@dataclass(frozen=True)
class _Failed:
    """What stands in the place of a result where work raised an error."""

    error: Exception


class Crew:
    """Hands out work, a few pieces to each process, at most so many processes at a time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._waiting: list[tuple[int, Callable[[], Any]]] = []
        self._running: dict[Connection, tuple[multiprocessing.process.BaseProcess, list[int]]] = {}
        self._results: list[Any] = []

    def do(self, work: Callable[[], Any]) -> int:
        """Begin some work; it is done here and now where there is one worker alone.

        Returns:
            the index that `result` takes.

        Raises:
            UserError: earlier work ended without a word.
        """
        index = len(self._results)
        if self.workers < 2:
            try:
                self._results.append(work())
            except Exception as error:
                self._results.append(_Failed(error))
            return index
        self._results.append(None)
        self._waiting.append((index, work))
        if len(self._waiting) == PIECES:
            self._hand_out()
        return index

    def _hand_out(self) -> None:
        """Begin what waits."""
        while len(self._running) >= self.workers:
            self._collect()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the worker would write it again
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        indices, works = map(list, zip(*self._waiting, strict=True))
        self._waiting.clear()
        worker = context.Process(target=_work, args=(works, theirs, os.getpid()), daemon=True)
        worker.start()
        theirs.close()
        self._running[ours] = worker, indices

    def result(self, index: int) -> Any:
        """What the work came to, waited for.

        Raises:
            UserError: it, or other work, ended without a word; or whatever this work raised.
        """
        if self._waiting:
            self._hand_out()
        while any(index in pending for _, pending in self._running.values()):
            self._collect()
        result = self._results[index]
        if isinstance(result, _Failed):
            raise result.error
        return result

    def _collect(self) -> None:
        """Wait until something is done, and take it in."""
        for ready in wait(list(self._running)):
            assert isinstance(ready, Connection)
            worker, indices = self._running[ready]
            try:
                result, error, where = ready.recv()
            except EOFError:
                self._end(ready)
                raise UserError(
                    f"a process that drew a figure ended with status {worker.exitcode}; memory may "
                    "be short: `--jobs 1` draws in one process"
                ) from None
            if error is not None:
                error.add_note(f"in a process that drew a figure:\n{where}")
                result = _Failed(error)
            self._results[indices.pop(0)] = result
            if not indices:
                self._end(ready)

    def _end(self, connection: Connection) -> None:
        """Wait for the end of a process that has nothing left to do."""
        worker, _ = self._running.pop(connection)
        connection.close()
        worker.join()


def _work(works: Sequence[Callable[[], Any]], answer: Connection, parent: int) -> None:
    end_with(parent)
    gc.disable()  # it ends before there is much to collect
    for work in works:
        try:
            done: tuple[Any, ...] = work(), None, ""
        except Exception as error:
            done = None, error, traceback.format_exc()
        try:
            answer.send(done)
        except Exception as error:  # what was raised cannot be sent
            answer.send((None, RuntimeError(repr(error)), done[2]))
