"""Pages of files in a process's page tables, which a fork does not inherit."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from itertools import groupby

MADV_POPULATE_READ = 22  # asm-generic/mman-common.h


def pages_of_files() -> list[tuple[int, int]]:
    """(address, bytes) of file pages that this process has mapped in, see proc_pid_pagemap(5).

    A fork has none of them in its page tables: it counts as less memory, and their use faults.
    """
    size = os.sysconf("SC_PAGE_SIZE")
    found = []
    with open("/proc/self/maps", encoding="utf-8") as maps, open("/proc/self/pagemap", "rb") as f:
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


def populate(pages: Sequence[tuple[int, int]]) -> None:
    """Map these pages into the page tables of this process, with Linux 5.14 or newer."""
    library = ctypes.CDLL(None)
    for address, n_bytes in pages:
        library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), MADV_POPULATE_READ)
