"""Processes that have imported what cells need, and fork: a cell then starts in no time.

Importing torch and a model's library takes seconds, and every cell has a process of its own. So a
run of the pipeline on Linux keeps a tree of processes that import and do nothing else. Its root has
a child for each environment, since libraries read variables, and the cores that they may use, when
they are loaded; below that, one has imported the framework, a child of it a model's libraries too,
and so on. A cell's supervisor asks the root; the request goes down to the process that has imported
what the cell imports, and that one forks. Nothing is computed before; where a library has started
threads all the same, that it does not start again in a fork, there is none. The fork reads the code
of this package, and variables of this package, anew.

Each process ends when the socket to the one above it closes, and the root with the pipeline,
whatever kills that. A measuring process ends with its supervisor, which holds the other end of the
socket that came with the request.

What a run's cells import is imported before the first of them is measured, while the run prepares
its data (`prepare`).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from siliconprof.errors import in_one_line
from siliconprof.measure import leftovers
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session.trial import Trial
from siliconprof.store.cell import Cell

VARIABLE = "SILICONPROF_FORK_SERVER"  # the root's address, for supervisors
OWN = "SILICONPROF_"  # variables of this package
# Where compilers keep what they have made: read when they compile, and not when they are loaded.
COMPILER_CACHES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MLX_PTX_CACHE_DIR")
OF_THE_SHELL = ("_", "OLDPWD", "PWD", "SHLVL")  # no library reads them, and every folder has others
OF_A_JOB = ("TEMP", "TEMPDIR", "TMP")  # Snakemake's; read when a temporary file is made
MODULE, WORKER = "siliconprof.measure.fork_server", "siliconprof.measure.worker"
MESSAGE_BYTES = 2**20
STARTS_WITHIN_S = 300.0  # imports of all kinds from a slow disk
POLL_S = 0.25
ROOM = "-" * 2**13  # in a command line, for the worker's, which a fork writes over it
STARTED_AGAIN = {"jemalloc_bg_thd"}  # by its own fork handler
PEER = struct.Struct("3i")  # unix(7), SO_PEERCRED: process, user, group
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23  # asm-generic/mman-common.h

Message = dict[str, Any]


class NoFork(Exception):
    """No process that has imported can fork; why."""


def _send(to: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(to, [json.dumps(message).encode()], descriptors)


def _receive(source: socket.socket) -> tuple[Message, list[int]]:
    """(a message, the descriptors that came with it); ({}, []) where nobody is left to send one."""
    try:
        text, descriptors, _, _ = socket.recv_fds(source, MESSAGE_BYTES, 4)
    except ConnectionError:
        return {}, []
    return json.loads(text) if text else {}, descriptors


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# -- in the pipeline's main process ----------------------------------------------------------------


def start() -> int | None:
    """Start the root for the cells that this process has measured; None where there is none.

    Whoever started this process may have started a root, and that one serves.

    Returns:
        A descriptor: the root ends when it is closed, as it is with this process.
    """
    if sys.platform != "linux" or _answers():
        return None
    address = f"siliconprof-{secrets.token_hex(8)}"  # an abstract one leaves no file
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        ends, lives = os.pipe()
        environment = os.environ | {"PYTHONPATH": str(PACKAGE_DIR.parent)}
        _started(environment, [listener.fileno(), ends])
        os.close(ends)
    os.environ[VARIABLE] = address
    return lives


def _answers() -> bool:
    """Whether the root that the environment names lives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as root, suppress(KeyError, OSError):
        root.connect(f"\0{os.environ[VARIABLE]}")
        return True
    return False


def _started(environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
    """Start a process of the tree, out of reach of the terminal's signals."""
    subprocess.Popen(
        [sys.executable, "-m", MODULE, *map(str, descriptors), ROOM],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


def prepare(trials: Iterable[tuple[Trial, Mapping[str, str]]]) -> None:
    """Have the tree import what cells import; until it has, no cell is forked.

    Args:
        trials: each with the environment of its measuring process.
    """
    asked = set()
    for trial, environment in trials:
        request = _request(trial, environment)
        key = json.dumps([request["branch"], request["imports"]], sort_keys=True)
        if key in asked or trial.refusal():
            continue
        asked.add(key)
        with suppress(OSError):  # without a root every cell starts an interpreter of its own
            _ask(request)


def _ask(request: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a request to the root."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as root:
        root.connect(f"\0{os.environ[VARIABLE]}")
        _send(root, request, descriptors)


def _request(trial: Trial, environment: Mapping[str, str]) -> Message:
    """What the tree needs to know of a cell."""
    return {
        "environment": dict(environment),
        "branch": _of_branch(environment),
        "package": str(PACKAGE_DIR.parent),
        "cores": sorted(os.sched_getaffinity(0)),
        "folder": os.getcwd(),
        "cell": trial.cell.to_json(),
        "imports": [name for name, _ in trial.imports()],
    }


# -- in a supervisor -------------------------------------------------------------------------------


class Forked:
    """A measuring process that was forked.

    Args:
        environment: of the process.
        arguments: of the worker.
        limited: whether its memory will be: then the pages that a fork shares are its own before.
        descriptors: of its output, its progress and the lock.
        check: called while it starts; what it raises ends the wait.

    Raises:
        NoFork: no process could be forked.
    """

    def __init__(
        self,
        trial: Trial,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        limited: bool,
        descriptors: tuple[int, int, int],
        check: Callable[[], None],
    ) -> None:
        self._connection, theirs = _pair()
        own = {"arguments": list(arguments), "limited": limited}
        try:
            with theirs:
                _ask(_request(trial, environment) | own, [theirs.fileno(), *descriptors])
            answer = self._answer(check)
        except OSError as error:
            self._connection.close()
            raise NoFork(f"the fork server does not answer: {error}") from None
        if "pid" not in answer:
            self._connection.close()
            raise NoFork(answer.get("error", "the fork server was killed"))
        self.pid: int = answer["pid"]

    def _answer(self, check: Callable[[], None]) -> Message:
        until = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < until:
            if select.select([self._connection], [], [], POLL_S)[0]:
                return _receive(self._connection)[0]
            check()
        return {"error": f"the fork server took more than {STARTS_WITHIN_S:g} s"}

    def ended(self) -> int:
        """Wait for its end: its exit code as of `Popen`.

        Where what has forked it was killed, nobody can tell, and it is killed as well.
        """
        end = _receive(self._connection)[0]
        if "status" not in end:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            return -signal.SIGKILL
        return int(end["status"])

    def end_leftovers(self) -> tuple[list[str], list[str]]:
        """Names of what it had started and had to be killed, and of what still lives."""
        with self._connection:
            told = _receive(self._connection)[0]
        return told.get("killed", []), told.get("left", [])


def _of_branch(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries may read when they are loaded.

    This package's own are read anew in a fork, and so is its code, which comes first on the path.
    """
    others = environment["PYTHONPATH"].partition(os.pathsep)[2]
    later = {*COMPILER_CACHES, *OF_THE_SHELL, *OF_A_JOB}
    theirs = {n: v for n, v in environment.items() if n not in later and not n.startswith(OWN)}
    return theirs | {"PYTHONPATH": others}


# -- the tree --------------------------------------------------------------------------------------


class Branch:
    """A process of the tree below the root.

    Args:
        control: the socket to the process above.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.depth = 0  # how many of a request's imports it has made
        self.failed = ""  # why it could not
        self.pages: list[tuple[int, int]] = []  # of files, as after its imports
        self.below: dict[str, tuple[socket.socket, int]] = {}  # next import -> socket, process
        leftovers.adopt()

    def serve(self) -> tuple[Message, list[int]] | None:
        """Hand requests down or fork, until the process above ends.

        Returns:
            In a fork that is to measure, its request and the descriptors that it keeps.
        """
        while True:
            request, descriptors = _receive(self.control)
            if not request:
                return None
            missing = request["imports"][self.depth :]
            try:
                if self.failed:
                    _refuse(descriptors[0], self.failed)
                elif not missing:  # and with arguments it is to be measured
                    if "arguments" in request and self._forked(*descriptors[:2]):
                        return request, descriptors[2:]
                elif missing[0] in self.below or not self._branched_off(request):
                    _send(self.below[missing[0]][0], request, descriptors)
            except OSError as error:  # a full process table, or the one below was killed
                self.below.pop(missing[0] if missing else "", None)
                _refuse(descriptors[0], in_one_line(error))
            for descriptor in descriptors:
                os.close(descriptor)

    def _branched_off(self, request: Message) -> bool:
        """Start the process that makes the request's next import; true in that one."""
        here, there = _pair()
        pid = os.fork()
        if pid:
            there.close()
            self.below[request["imports"][self.depth]] = here, pid
            return False
        here.close()
        self._let_go()
        self.control, self.below = there, {}
        leftovers.adopt()
        try:
            _, make_import = Trial(Cell.from_json(request["cell"])).imports()[self.depth]
            make_import()
            if _threads_that_a_fork_misses():
                what = request["imports"][self.depth]
                self.failed = f"importing {what} starts threads, which a fork would not have"
        except Exception as error:  # the cell's own process finds out what that means
            self.failed = in_one_line(error)
        gc.freeze()  # a fork that collects garbage would write to, and so copy, every page
        self.depth += 1
        self.pages = _pages(of_files=True)
        return True

    def _let_go(self) -> None:
        """Close what only the process that has forked this one holds."""
        for mine in (self.control, *(one for one, _ in self.below.values())):
            mine.close()

    def _forked(self, descriptor: int, output: int) -> bool:
        """Fork a measuring process, see it to its end and end what it leaves; true in that one.

        When the supervisor dies, all of that is ended at once.
        """
        pid = os.fork()
        if not pid:
            self._let_go()
            os.close(descriptor)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            _populate(self.pages, MADV_POPULATE_READ)
            return True
        spared = [process for _, process in self.below.values()]
        with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
            _send(connection, {"pid": pid})
            ends = os.pidfd_open(pid)
            ready, _, _ = select.select([ends, connection.fileno()], [], [])
            os.close(ends)
            if connection.fileno() not in ready:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _send(connection, {"status": status})
                killed, left = leftovers.end(leftovers.GRACE_S, pid, spared)
                _send(connection, {"killed": killed, "left": left})
                return False
        leftovers.end(0, pid, spared)
        return False


def _threads_that_a_fork_misses() -> int:
    """How many threads this process has that nobody starts again in a fork: one waits for ever there.

    OpenBLAS ends its own when a process forks, so this one forks once.
    """
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    names = [
        Path(task, "comm").read_text(encoding="utf-8").strip()
        for task in Path("/proc/self/task").iterdir()
        if task.name != str(os.getpid())
    ]
    return len([name for name in names if name not in STARTED_AGAIN])


def _refuse(descriptor: int, why: str) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
        _send(connection, {"error": why})


def root(listener: socket.socket, life: int) -> None:
    """Hand requests to a branch for each environment, until the pipeline's process has ended."""
    below: dict[str, socket.socket] = {}
    importing: list[socket.socket] = []  # closed at the other end once what was asked for is there
    while life not in select.select([listener.fileno(), life], [], [])[0]:
        with listener.accept()[0] as connection:
            user = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            if PEER.unpack(user)[1] != os.getuid():
                continue  # anybody may connect to an abstract address
            request, descriptors = _receive(connection)
        if not request:
            continue
        if not descriptors:
            ours, theirs = _pair()
            importing.append(ours)
            descriptors = [theirs.detach()]
        while "arguments" in request and importing:  # nothing runs beside a cell
            with importing.pop() as ours:
                _receive(ours)
        package, cores = request["package"], request["cores"]
        if package != (own := str(PACKAGE_DIR.parent)):  # another copy's, maybe with other plug-ins
            with suppress(LookupError):
                Trial(Cell.from_json(request["cell"]))
                package = own
        branch = request.pop("branch")
        branch["PYTHONPATH"] = os.pathsep.join(filter(None, [package, branch["PYTHONPATH"]]))
        key = json.dumps([branch, cores], sort_keys=True)
        try:
            if key not in below:
                below[key], there = _pair()
                os.sched_setaffinity(0, cores)
                with there:
                    _started(request["environment"] | branch, [there.fileno()])
            _send(below[key], request, descriptors)
        except OSError as error:
            below.pop(key, None)
            _refuse(descriptors[0], in_one_line(error))
        for descriptor in descriptors:
            os.close(descriptor)


def descriptor_arguments(progress: int, held: int) -> list[str]:
    """The worker's arguments about what it inherits."""
    return ["--progress-fd", str(progress), "--lock-fd", str(held)]


def become_worker(request: Message, kept: Sequence[int]) -> None:
    """Run the worker in this process, with today's code of this package and its own name."""
    if request["limited"]:
        _populate(_pages(of_files=False), MADV_POPULATE_WRITE)
    arguments = [*request["arguments"], *descriptor_arguments(*kept)]
    _rename([sys.executable, "-m", WORKER, *arguments])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # which this module remembers
    atexit._clear()  # of what was imported; multiprocessing's forks do the same (gh-83856)
    sys.path[:2] = [request["folder"], request["package"]]  # of this one: of the root, or another's
    sys.argv = [WORKER, *arguments]
    # multiprocessing calls the program by a second name
    theirs = [n for n in sys.modules if n.split(".")[0] in ("siliconprof", "__mp_main__")]
    _kept = [sys.modules.pop(name) for name in theirs]  # to take them apart copies their pages
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)


def _rename(words: Sequence[str]) -> None:
    """Have this process show other words as its command line, as far as there is room.

    They are written over those that it was started with; proc_pid_stat(5) says where they are.
    """
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    text = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def can_copy_pages() -> bool:
    """Whether this system copies pages on request: Linux from 5.14 on."""
    return ctypes.CDLL(None).madvise(None, 0, MADV_POPULATE_WRITE) == 0


def _pages(of_files: bool) -> list[tuple[int, int]]:
    """(address, bytes) of what this process has read of files, or of its own memory.

    A fork has none of the first in its page tables: it counts as less memory, and what uses it
    faults. The second it shares until it writes: then the copy counts. See proc_pid_pagemap(5).
    """
    size = os.sysconf("SC_PAGE_SIZE")
    found = []
    with open("/proc/self/maps", encoding="utf-8") as maps, open("/proc/self/pagemap", "rb") as f:
        for line in maps:
            span, permissions, _, _, inode = line.split()[:5]
            if (inode == "0" or "w" in permissions) if of_files else permissions[:4] != "rw-p":
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


def _populate(pages: Sequence[tuple[int, int]], advice: int) -> None:
    """Have these pages in the page tables of this process, where Linux is 5.14 or newer."""
    library = ctypes.CDLL(None)
    for address, n_bytes in pages:
        library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), advice)


def main(argv: Sequence[str]) -> None:
    """Be the root, with a listener and what tells its end, or a branch, with a socket; and ROOM."""
    control = socket.socket(fileno=int(argv[0]))
    if len(argv) > 2:
        root(control, int(argv[1]))
    elif asked := Branch(control).serve():
        become_worker(*asked)
    else:
        os._exit(0)  # libraries take a while to go, and have nothing to tidy


if __name__ == "__main__":
    main(sys.argv[1:])
