"""One timed cell at a time on a host, whoever started it.

Snakemake's resource keeps cells of one pipeline apart; this lock keeps apart two pipelines, or
one and a cell started by hand. It is an advisory `flock` of the supervisor alone. Its file says who
holds it and which child is measured, so that whoever gets it after a supervisor was killed waits
for that child to end; and whoever waits for the lock says for whom. All users may write the file:
no process is waited for or ended that the system does not show to be a measuring one.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, printable, writing
from siliconprof.measure import processes
from siliconprof.store import documents

NAME = "siliconprof.lock"
LOCK_FILE_VARIABLE = "SILICONPROF_LOCK_FILE"
POLL_S = 0.1
WAITING = "waiting for"
TELL_EVERY_S = 60.0  # of one that waits
ENDS_WITHIN_S = 2.0  # a measuring process whose supervisor was killed; it looks twice a second
LINE_BYTES = 2048
LONGEST = 200  # characters of a name in the file
WORKER = "siliconprof.measure.worker"


def lock_file() -> Path:
    """The host's lock file: one for all users, in the temporary folder that all share."""
    configured = os.environ.get(LOCK_FILE_VARIABLE)
    shared = Path("/tmp") if Path("/tmp").is_dir() else Path(tempfile.gettempdir())
    return Path(configured) if configured else shared / NAME


class Held:
    """A lock file that this process has locked.

    Attributes:
        waited_s: seconds until then.
    """

    def __init__(self, descriptor: int, doing: str, waited_s: float) -> None:
        self.waited_s = waited_s
        self._descriptor = descriptor
        self._line: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "name": f"{doing[:LONGEST]} of {_user()}",
            "since": int(time.time()),
        }
        self._write()

    def measuring(self, child: int) -> None:
        """Note the process that is being measured from now on."""
        process = processes.look(child)
        if process:
            self._line["child"] = [process.pid, process.started]
            self._write()

    def end(self) -> None:
        """Forget what was noted, unless the measured process has not ended."""
        if _measured(self._line) is None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)

    def _write(self) -> None:
        content = json.dumps(self._line).encode()
        with suppress(OSError):  # a full disk: only what others are told is missing
            os.pwrite(self._descriptor, content.ljust(LINE_BYTES), 0)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return f"user {os.getuid()}"


def _noted(descriptor: int) -> dict[str, Any]:
    """What the holder of a lock file, or the one before, has noted; {} where it makes no sense."""
    try:
        line = documents.parsed(os.pread(descriptor, LINE_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return line if isinstance(line, dict) else {}


def _measured(line: dict[str, Any]) -> int | None:
    """The measuring process that a holder has noted, if it is one and lives."""
    child = line.get("child")
    if line.get("host") != socket.gethostname() or not isinstance(child, list) or len(child) != 2:
        return None
    pid, started = child
    if type(pid) is not int or not 0 < pid < 2**31:
        return None
    process = processes.look(pid)
    same = process is not None and process.started == started
    return pid if same and WORKER in processes.command(pid) else None


def _orphan(line: dict[str, Any]) -> int | None:
    """That process, if the supervisor that its own command line names is gone."""
    pid = _measured(line)
    words = processes.command(pid) if pid is not None else []
    with suppress(ValueError, IndexError):
        if processes.look(int(words[words.index("--supervisor") + 1])) is None:
            return pid
    return None


def _holder(descriptor: int) -> str:
    """Who holds a lock file by its own words: `PID n, NAME, since HH:MM:SS`."""
    line = _noted(descriptor)
    pid, name, since = line.get("pid"), line.get("name"), line.get("since")
    if type(pid) is not int or type(name) is not str or type(since) is not int:
        return "another process"
    began = time.strftime("%H:%M:%S", time.localtime(since % 2**31))
    return f"PID {pid}, {printable(name[:LONGEST])}, since {began}".replace("\n", " ")


@contextmanager
def alone(
    check: Callable[[], None],
    tell: Callable[[str], None],
    doing: str,
    path: Path | None = None,
) -> Iterator[Held]:
    """Hold a lock file, and wait for it and for the process that its last holder measured.

    Args:
        check: called while waiting, ten times a second; what it raises ends the wait, so that
            nobody queues for a pipeline that has died meanwhile.
        tell: called when the wait begins and each minute, with whom it is for.
        doing: what this process does with the lock, for others that wait.
        path: of the lock file; None for the host's, see `lock_file`.

    Raises:
        UserError: the file system has no locks; one line.
        CannotWrite: the file cannot be opened; one line.
    """
    path = path or lock_file()
    descriptor = _opened_for_all(path)
    started, told_s = time.monotonic(), -math.inf

    def wait(whom: Callable[[], str]) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= TELL_EVERY_S:
            told_s = time.monotonic()
            tell(f"{WAITING} {whom()}")
        check()
        time.sleep(POLL_S)

    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                wait(lambda: _holder(descriptor))
            except OSError as error:  # Lustre mounted without `flock`, NFS without its lock service
                raise UserError(
                    f"{path}: cannot be locked ({error.strerror}), and without its lock two cells "
                    f"could be measured at once; name a file on a local disk in {LOCK_FILE_VARIABLE}"
                ) from None
        before, locked_s, told_s = _noted(descriptor), time.monotonic(), -math.inf
        while (orphan := _orphan(before)) is not None:
            wait(lambda: f"PID {orphan}, a measuring process whose supervisor has died")
            if time.monotonic() - locked_s > ENDS_WITHIN_S:
                with suppress(PermissionError, ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
        with suppress(OSError):
            os.utime(descriptor)  # old files in /tmp are cleared away, locked or not
        held = Held(descriptor, doing, time.monotonic() - started)
        try:
            yield held
        finally:
            held.end()
    finally:
        os.close(descriptor)


def _opened_for_all(path: Path) -> int:
    """A descriptor of a file that every user may open.

    Raises:
        CannotWrite: one line.
    """
    before = os.umask(0)
    try:
        with writing(path):
            try:
                # O_NOFOLLOW: the folder is writable by others
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except PermissionError:
                # protected_regular forbids O_CREAT on another user's file in a sticky folder
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    finally:
        os.umask(before)
