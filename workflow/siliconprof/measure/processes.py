"""Processes of this host, from /proc or, where there is none, from ps(1)."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from siliconprof.hosts import machine

PROC = Path("/proc")
ENDED = ("Z", "X")  # a zombie, a dead process: proc_pid_stat(5), ps(1)
MADV_POPULATE_READ = 22  # asm-generic/mman-common.h
PS_COLUMNS = "pid=,ppid=,pgid=,stat=,lstart=,comm="
PS_LIMIT_S = 5.0


@dataclass(frozen=True)
class Process:
    """A process that has not ended."""

    pid: int
    parent: int
    group: int
    started: str  # with `pid` it tells this process from a later one; of no fixed unit
    name: str  # as it calls itself: any characters


def living() -> list[Process]:
    """All processes that this one can see."""
    if not (PROC / "self/stat").exists():
        return list(_of_ps("-ax"))
    pids = (int(name) for name in os.listdir(PROC) if name.isdecimal())
    return [process for process in map(_of_proc, pids) if process]


def look(pid: int) -> Process | None:
    """One process; None when it has ended."""
    if (PROC / "self/stat").exists():
        return _of_proc(pid)
    return next(_of_ps("-p", str(pid)), None)


def command(pid: int) -> list[str]:
    """The words of a process's command line; none when it has ended."""
    if (PROC / "self/cmdline").exists():
        try:
            words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            return []
        return [word.decode(errors="replace") for word in words]
    return machine.run(["ps", "-ww", "-p", str(pid), "-o", "args="], PS_LIMIT_S).split()


def rename(words: Sequence[str]) -> None:
    """Have this process of Linux show other words as its command line, as far as there is room.

    They are written over those that it was started with; proc_pid_stat(5) says where they are.
    """
    fields = (PROC / "self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    text = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


# -- resident pages of files -----------------------------------------------------------------------


def file_pages() -> list[tuple[int, int]]:
    """(address, bytes) of all that this process of Linux has read of the files it has mapped.

    A fork has none of it in its page tables, though it is in memory: it counts as less memory, and
    what uses it faults. See proc_pid_pagemap(5).
    """
    size = os.sysconf("SC_PAGE_SIZE")
    found = []
    with open(PROC / "self/maps", encoding="utf-8") as maps, open(PROC / "self/pagemap", "rb") as f:
        for line in maps:
            span, permissions, _, _, inode = line.split()[:5]
            if inode == "0" or "w" in permissions:
                continue
            begin, end = (int(word, 16) for word in span.split("-"))
            f.seek(begin // size * 8)
            entries = array("Q", f.read((end - begin) // size * 8))
            address = begin
            for present, run in groupby(entry >> 63 for entry in entries):
                n_bytes = size * sum(1 for _ in run)
                if present:
                    found.append((address, n_bytes))
                address += n_bytes
    return found


def map_file_pages(pages: Sequence[tuple[int, int]]) -> None:
    """Have these pages of files in the page tables of this process, where Linux is 5.14 or newer."""
    library = ctypes.CDLL(None)
    for address, n_bytes in pages:
        library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), MADV_POPULATE_READ)


def _of_proc(pid: int) -> Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name may hold spaces and parentheses
    fields = tail.split()  # from the third on: state, ppid, pgrp, …, starttime is the 22nd
    if len(fields) < 20 or fields[0] in ENDED:
        return None
    name = head.partition("(")[2]
    return Process(pid, int(fields[1]), int(fields[2]), fields[19], name)


def _of_ps(*selection: str) -> Iterator[Process]:
    for line in machine.run(["ps", *selection, "-o", PS_COLUMNS], PS_LIMIT_S).splitlines():
        words = line.split(None, 9)  # a start, such as `Sun Nov 22 18:04:37 2026`, is five of them
        if len(words) == 10 and words[3][0] not in ENDED:
            started = " ".join(words[4:9])
            name = os.path.basename(words[9])
            yield Process(int(words[0]), int(words[1]), int(words[2]), started, name)
