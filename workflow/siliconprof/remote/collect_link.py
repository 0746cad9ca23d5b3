"""The connection to one host: ssh with `collect_there.py` at the other end.

What the host sends is not trusted: answers have a greatest length, a bundle a greatest size, and
text is shown without control characters.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from siliconprof.remote import collect_there
from siliconprof.remote.bundle_check import LIMIT_BYTES
from siliconprof.remote.collect_hosts import Host

ANSWER_LIMIT_BYTES = 64 * 1024
LINE_LIMIT = 300  # characters of a remote line that are shown
END_S = collect_there.END_S + 10.0  # what the other side gets to end its pipeline


class Failed(Exception):
    """Collecting from this host failed; the message says why."""


def plain(text: str) -> str:
    """A line of untrusted text as it may be shown on a terminal."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    shown = " ".join(words)
    return shown if len(shown) <= LINE_LIMIT else shown[: LINE_LIMIT - 3] + "..."


class Link:
    """A running ssh with `collect_there.py` at its other end."""

    def __init__(
        self, host: Host, log: IO[str], patience_s: float, on_line: Callable[[str], None]
    ) -> None:
        """Connect.

        Args:
            log: receives the remote standard error.
            patience_s: seconds of silence after which both sides give up.
            on_line: called with each line of the log.
        """
        self.host, self.log, self.on_line = host, log, on_line
        self.patience_s = patience_s
        self.last_line = ""  # line of the log
        program = Path(collect_there.__file__).read_bytes()
        self.process = subprocess.Popen(
            host.remote(patience_s, len(program)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        self.writing = threading.Lock()
        self.closed = threading.Event()
        self._write(program)
        self.follower = threading.Thread(target=self._follow, args=[self.process.stderr])
        self.follower.start()
        threading.Thread(target=self._beat, daemon=True).start()

    def _write(self, content: bytes) -> None:
        assert self.process.stdin
        try:
            with self.writing:
                self.process.stdin.write(content)
                self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has ended; `receive` finds out why

    def _beat(self) -> None:
        while not self.closed.wait(self.patience_s / 4):
            self._write(b"\n")

    def _follow(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(ANSWER_LIMIT_BYTES), b""):
            self.log_line(line.decode("utf-8", "replace"))

    def log_line(self, line: str) -> None:
        """Write one line of a program's output into the log, without control characters."""
        shown = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line.rstrip())
        self.log.write(shown + "\n")
        self.log.flush()
        self.last_line = plain(line) or self.last_line
        self.on_line(line)

    def send(self, **request: Any) -> None:
        """Send one request."""
        self._write(json.dumps(request).encode() + b"\n")

    def receive(self, *events: str) -> Mapping[str, Any]:
        """The next answer, which is one of these.

        Raises:
            Failed: there is none, or the host cannot go on.
        """
        assert self.process.stdout
        line = self.process.stdout.readline(ANSWER_LIMIT_BYTES)
        if not line.endswith(b"\n") and len(line) < ANSWER_LIMIT_BYTES:
            raise Failed(self._end())
        try:
            answer = json.loads(line)
            if answer["event"] not in (*events, "refused"):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Failed(
                f"unexpected answer {plain(line.decode('utf-8', 'replace'))!r}: the host's shell "
                f"start-up files must print nothing; try `ssh {self.host.target} true`"
            ) from None
        if answer["event"] == "refused":
            raise Failed(plain(str(answer.get("line"))))
        return answer

    def receive_bundle(self, size: Any) -> bytes:
        """The bundle that follows an answer.

        Raises:
            Failed: it is too large or incomplete.
        """
        assert self.process.stdout
        if not isinstance(size, int) or not 0 <= size <= LIMIT_BYTES:
            raise Failed(f"its bundle has {plain(str(size))} bytes; the limit is {LIMIT_BYTES}")
        content = self.process.stdout.read(size)
        if len(content) < size:
            raise Failed(self._end())
        return content

    def _end(self) -> str:
        """Why the connection has ended."""
        code = self.process.wait()
        self.follower.join()
        if code in (126, 127):
            return (
                f"no Python on the host: {self.host.python} ({self.last_line}); install it, or "
                "name another `environment`"
            )
        if code == 255:
            return self.last_line or "ssh ended without a message"
        return f"the program on the host ended with status {code}: {self.last_line}"

    def end(self) -> None:
        """Hang up, and wait until the other side has ended its pipeline."""
        self.closed.set()
        assert self.process.stdin
        with self.writing, contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Hang up and leave nothing open."""
        self.end()
        self.follower.join()
        assert self.process.stdout
        self.process.stdout.close()
