"""Processes that have imported what cells need, and fork: a cell then starts in no time.

Importing torch and a model's library takes seconds, and every cell has a process of its own. So a
run of the pipeline on Linux keeps a tree of processes that import and do nothing else. Its root has
a child for each environment, since libraries read variables when they are loaded; below that, one
has imported the framework, a child of it a model's libraries too, and so on. A cell's supervisor
asks the root; the request goes down to the process that has imported what the cell imports, and
that one forks. Nothing is computed before; where a library has started threads all the same, that
it does not start again in a fork, there is none. The fork reads the code of this package, and
variables of this package, anew.

Each process ends when the socket to the one above it closes, and the root with the pipeline,
whatever kills that. A measuring process ends with its supervisor, which holds the other end of the
socket that came with the request.

The first cell of a run that wants one starts the root. What a cell imports is imported when it asks,
while it has the host's lock, so beside no other one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from siliconprof import declarations, packages
from siliconprof.backends.base import Backend
from siliconprof.errors import in_one_line
from siliconprof.hosts import blas, machine
from siliconprof.lifetime import PIPELINE_VARIABLE, forks_here, in_a_fork
from siliconprof.measure import environment_filter, page_tables, process_cleanup
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.cell import Cell

SERVER_VARIABLE = "SILICONPROF_FORK_SERVER"  # the root's address, for supervisors
OWN_PREFIX = "SILICONPROF_"  # variables of this package
# Where compilers keep what they have made: read when they compile, and not when they are loaded.
COMPILER_CACHES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MLX_PTX_CACHE_DIR")
# The shell's and Snakemake's, which no library reads when it is loaded
OF_A_JOB = ("_", "OLDPWD", "PWD", "SHLVL", "TEMP", "TEMPDIR", "TMP")
MODULE, WORKER = "siliconprof.measure.fork_server", "siliconprof.measure.worker"
PROCESS_NAME = "measured-cell"  # of a fork, whose command line is that of what has forked it
MESSAGE_BYTES = 2**20
STARTS_WITHIN_S = 300.0  # imports of all kinds from a slow disk
POLL_S = 0.25
STARTED_AGAIN = {"jemalloc_bg_thd"}  # by its own fork handler
PEER = struct.Struct("3i")  # unix(7), SO_PEERCRED: process, user, group

Message = dict[str, Any]


class NoFork(Exception):
    """No process that could be forked is there; the message says why."""


def _send(to: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(to, [json.dumps(message).encode()], descriptors)


def _receive(source: socket.socket) -> tuple[Message, list[int]]:
    """(a message, the descriptors that came with it); ({}, []) once the other end is closed."""
    try:
        text, descriptors, _, _ = socket.recv_fds(source, MESSAGE_BYTES, 2)
    except ConnectionError:
        return {}, []
    return json.loads(text) if text else {}, descriptors


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# -- in a supervisor -------------------------------------------------------------------------------


def start(address: str, pipeline: int) -> None:
    """Start a root for the cells of a process, unless there is one.

    Args:
        address: of its socket, an abstract one, which leaves no file.
        pipeline: the process with which it ends.

    Raises:
        OSError: it cannot be started.
    """
    if sys.platform != "linux":
        raise OSError("this system has no abstract sockets")
    lives = os.pidfd_open(pipeline)  # from Linux 5.3
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        environment = os.environ | {"PYTHONPATH": str(PACKAGE_DIR.parent), "PYTHONSAFEPATH": "1"}
        descriptors = [listener.fileno(), lives]
        # No child of this supervisor, which ends what its cell has left
        if in_a_fork(lambda: _started(environment, descriptors)):
            raise OSError("no process can be started")
    os.close(lives)


def _connected() -> socket.socket:
    """A connection to the root that the environment names, which the first cell of a run starts."""
    address, pipeline = os.environ[SERVER_VARIABLE], os.environ.get(PIPELINE_VARIABLE)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{address}")
    except ConnectionRefusedError:
        if not pipeline:
            raise
        start(address, int(pipeline))
        connection.connect(f"\0{address}")
    return connection


def _started(environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
    """Start a process of the tree, out of reach of the terminal's signals; 0."""
    subprocess.Popen(
        [sys.executable, "-m", MODULE, *map(str, descriptors)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )
    return 0


def child_environment(resolved: ResolvedCell, code: Path) -> dict[str, str]:
    """The child's environment: the cell's own, this checkout's code, and `environment_filter.without`.

    Args:
        code: the cell's folder of what is compiled (`scratch`); who keeps such between processes:
            torch/_inductor/runtime/cache_dir_utils.py, triton's knobs.py, mlx's
            backend/cpu/compiled.cpp and backend/cuda/jit_module.cpp.
    """
    path = filter(None, [str(PACKAGE_DIR.parent), os.environ.get("PYTHONPATH")])
    own = resolved.environment(os.environ)
    own |= dict.fromkeys(COMPILER_CACHES, str(code))
    own |= packages.environment(
        declarations.libraries_with(resolved.backend.framework), resolved.packages
    )
    own |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return environment_filter.without(os.environ) | own


def may_fork(resolved: ResolvedCell) -> bool:
    """Whether a fork measures it as a fresh interpreter does; nothing can be put before a fork."""
    cell = resolved.cell
    able = forks_here() and resolved.backend.features.may_fork(cell.device_kind)
    return able and not cell.parameters.get("capture")


def _request(resolved: ResolvedCell, environment: Mapping[str, str]) -> Message:
    """What the tree needs to know of a cell; its branch is what libraries may read when loaded.

    This package's own variables are read anew in a fork, and so is its code; but which BLAS MLX gets is
    decided before its import.
    """
    others = environment["PYTHONPATH"].partition(os.pathsep)[2]
    later = {*COMPILER_CACHES, *OF_A_JOB}
    later |= {n for n in environment if n.startswith(OWN_PREFIX)} - {blas.BLAS_VARIABLE}
    theirs = {n: v for n, v in environment.items() if n not in later}
    return {
        "environment": dict(environment),
        "branch": theirs | {"PYTHONPATH": others},
        "package": str(PACKAGE_DIR.parent),
        "folder": os.getcwd(),
        "cell": resolved.cell.to_json(),
        "imports": [name for name, _ in resolved.imports()],
    }


def forked(
    resolved: ResolvedCell,
    environment: Mapping[str, str],
    job: Mapping[str, Any],
    output: int,
    check: Callable[[], None],
) -> tuple[int, Callable[[], tuple[int, list[str]]]]:
    """(id of a measuring process that was forked, what waits for its end).

    The latter returns its exit code as of `Popen`, and names of what it left and had to be killed.
    Where what has forked it was killed, nobody can tell, and it is killed as well.

    Args:
        environment: of the process.
        job: of the worker.
        output: a descriptor.
        check: called while it starts; what it raises ends the wait.

    Raises:
        NoFork: no process could be forked.
    """
    try:
        connection = _connected()
        _send(connection, _request(resolved, environment) | {"job": dict(job)}, [output])
        until = time.monotonic() + STARTS_WITHIN_S
        while not select.select([connection], [], [], POLL_S)[0]:
            check()
            if time.monotonic() > until:
                raise NoFork(f"the fork server took more than {STARTS_WITHIN_S:g} s")
    except OSError as error:
        raise NoFork(f"the fork server does not answer: {error}") from None
    answer = _receive(connection)[0]
    if "pid" not in answer:
        raise NoFork(answer.get("error", "the fork server was killed"))
    pid: int = answer["pid"]

    def ended() -> tuple[int, list[str]]:
        with connection:
            end = _receive(connection)[0]
        if not end:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return end.get("status", -signal.SIGKILL), end.get("killed", [])

    return pid, ended


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
        self.below: dict[str, socket.socket] = {}  # by the next import
        process_cleanup.adopt()

    def serve(self) -> Message | None:
        """Hand requests down or fork, until the process above ends.

        Returns:
            In a fork that is to measure, its request.
        """
        while True:
            request, descriptors = _receive(self.control)
            if not request:
                return None
            missing = request["imports"][self.depth :]
            try:
                if self.failed:
                    _refuse(descriptors[0], self.failed)
                elif not missing:
                    if self._forked(*descriptors):
                        return request
                elif missing[0] in self.below or not self._branched_off(request):
                    _send(self.below[missing[0]], request, descriptors)
            except OSError as error:  # a full process table, or the one below was killed
                self.below.pop(missing[0] if missing else "", None)
                _refuse(descriptors[0], in_one_line(error))
            for descriptor in descriptors:
                os.close(descriptor)

    def _branched_off(self, request: Message) -> bool:
        """Start the process that makes the request's next import; return True in that process."""
        what = request["imports"][self.depth]
        here, there = _pair()
        if os.fork():
            there.close()
            self.below[what] = here
            return False
        here.close()
        self._let_go()
        self.control, self.below = there, {}
        process_cleanup.adopt()
        try:
            resolved = ResolvedCell(Cell.from_json(request["cell"]))
            packages.hide_as_told(request["environment"])
            resolved.imports()[self.depth][1]()
            if lacks := _what_a_fork_lacks(resolved.backend()):
                self.failed = f"importing {what} {lacks}, which a fork would not have"
        except Exception as error:  # the cell's own process finds out what that means
            self.failed = in_one_line(error)
        gc.freeze()  # a fork that collects garbage would write to, and so copy, every page
        self.depth += 1
        self.pages = machine.reading(page_tables.pages_of_files)[0] or []
        return True

    def _let_go(self) -> None:
        """Close descriptors that only the forking process needs."""
        for mine in (self.control, *self.below.values()):
            mine.close()

    def _forked(self, descriptor: int, output: int) -> bool:
        """Fork a measuring process, wait for its end and kill its leftovers; return True in the fork.

        When the supervisor dies, all of that is ended at once.
        """
        if sys.platform != "linux":  # where alone there is a tree
            return False
        pid = os.fork()
        if not pid:
            self._let_go()
            os.close(descriptor)
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            page_tables.populate(self.pages)
            return True
        with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
            _send(connection, {"pid": pid})
            ends = os.pidfd_open(pid)
            ready, _, _ = select.select([ends, connection.fileno()], [], [])
            os.close(ends)
            if connection.fileno() not in ready:
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _send(connection, {"status": status, "killed": process_cleanup.end(pid)})
                return False
        process_cleanup.end(pid, grace_s=0)
        return False


def _what_a_fork_lacks(backend: Backend) -> str:
    """The state of this process that a fork would lack, or "".

    That is an open device, or threads, which no fork restarts. OpenBLAS ends its own threads when a
    process forks, so this one forks once.
    """
    if in_a_fork(backend.features.bad_fork):
        return "opens the device"
    tasks = machine.listed("/proc/self/task", "*")
    if not tasks:
        return "may start threads, which this system does not list"
    others = (task for task in tasks if task.name != str(os.getpid()))
    names = {machine.read_text(str(task / "comm")).strip() for task in others}
    return "starts threads" if names - STARTED_AGAIN else ""


def _refuse(descriptor: int, why: str) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
        _send(connection, {"error": why})


def root(listener: socket.socket, life: int) -> None:
    """Hand requests to a branch for each environment, until the pipeline's process has ended."""
    if sys.platform != "linux":
        return
    below: dict[str, socket.socket] = {}
    while life not in select.select([listener.fileno(), life], [], [])[0]:
        with listener.accept()[0] as connection:
            user = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            if PEER.unpack(user)[1] != os.getuid():
                continue  # anybody may connect to an abstract address
            request, descriptors = _receive(connection)
            if request:
                _hand_down(below, request, [connection.fileno(), *descriptors])
            for descriptor in descriptors:
                os.close(descriptor)


def _hand_down(below: dict[str, socket.socket], request: Message, descriptors: list[int]) -> None:
    """Send a request to the branch of its environment, and start that where there is none."""
    branch, package = request.pop("branch"), request["package"]
    if package != (own := str(PACKAGE_DIR.parent)):  # another copy's, maybe with other plug-ins
        with suppress(LookupError):
            ResolvedCell(Cell.from_json(request["cell"]))
            package = own
    branch["PYTHONPATH"] = os.pathsep.join(filter(None, [package, branch["PYTHONPATH"]]))
    key = json.dumps(branch, sort_keys=True)
    try:
        if key not in below:
            below[key], there = _pair()
            with there:
                _started(request["environment"] | branch, [there.fileno()])
        _send(below[key], request, descriptors)
    except OSError as error:
        below.pop(key, None)
        _refuse(descriptors[0], in_one_line(error))


def become_worker(request: Message) -> None:
    """Run the worker in this process, with today's code of this package and its own name."""
    with suppress(OSError):  # a /proc that may not be written
        Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="ascii")
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # which this module remembers
    atexit._clear()  # of what was imported; multiprocessing's forks do the same (gh-83856)
    sys.path[:1] = [request["package"]]  # of this one: of the root, or another's
    sys.argv = [WORKER, json.dumps(request["job"])]
    # multiprocessing calls the program by a second name
    theirs = [n for n in sys.modules if n.split(".")[0] in ("siliconprof", "__mp_main__")]
    _kept = [sys.modules.pop(name) for name in theirs]  # to take them apart copies their pages
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)


def main(argv: Sequence[str]) -> None:
    """Be the root, with a listener and what tells its end, or a branch, with a socket."""
    control = socket.socket(fileno=int(argv[0]))
    if len(argv) > 1:
        root(control, int(argv[1]))
    elif asked := Branch(control).serve():
        become_worker(asked)
    else:
        os._exit(0)  # libraries take a while to go, and have nothing to tidy


if __name__ == "__main__":
    main(sys.argv[1:])
