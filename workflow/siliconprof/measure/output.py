"""The output of a cell, of bounded size: its beginning goes to the log at once, its end later."""

from __future__ import annotations

import codecs
import sys
from contextlib import suppress

from siliconprof.errors import printable

HEAD_BYTES = TAIL_BYTES = 2**20
TAIL_LINES = 200
LONGEST = 1000  # characters of a last line


class Output:
    """What the processes of one cell write, one after the other.

    The log is standard error. It gets the first `HEAD_BYTES` as they come and the last
    `TAIL_BYTES` at `close`, with a line between them that counts what was left out.
    """

    def __init__(self) -> None:
        self._end = bytearray()  # at least the last TAIL_BYTES
        self._n_bytes = self._n_written = self._begun = 0
        self._beginning = True
        self._terminal = sys.stderr.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> None:
        """Another process begins: `tail` is of that one alone."""
        self._begun = self._n_bytes

    def add(self, chunk: bytes) -> None:
        """Take in what a process wrote."""
        self._n_bytes += len(chunk)
        self._end += chunk
        if len(self._end) > 2 * TAIL_BYTES:
            del self._end[:-TAIL_BYTES]
        if self._beginning:
            room = HEAD_BYTES - self._n_written
            if len(chunk) > room:
                self._beginning = False
                chunk = _whole_characters(chunk[:room])
            self._n_written += len(chunk)
            self._write(chunk)

    def _write(self, content: bytes) -> None:
        with suppress(OSError):  # a full disk must not keep a cell from writing
            sys.stderr.flush()
            if self._terminal:
                sys.stderr.write(printable(self._decoder.decode(content)))
            else:
                sys.stderr.buffer.write(content)
            sys.stderr.flush()

    @property
    def tail(self) -> str:
        """The last lines of the latest process."""
        n_bytes = min(self._n_bytes - self._begun, TAIL_BYTES)
        content = bytes(self._end[-n_bytes:]) if n_bytes else b""
        return "\n".join(content.decode(errors="replace").splitlines()[-TAIL_LINES:])

    @property
    def last_line(self) -> str:
        """The last line of the latest process that is not empty, printable and cut where long."""
        lines = (line.strip() for line in reversed(self.tail.splitlines()))
        return printable(next((line for line in lines if line), "")[:LONGEST])

    def close(self) -> None:
        """Write the end to the log."""
        left = min(self._n_bytes - self._n_written, TAIL_BYTES)
        if not left:
            return
        end, omitted = bytes(self._end[-left:]), self._n_bytes - self._n_written - left
        if omitted:
            line = end.find(b"\n", 0, TAIL_BYTES // 2) + 1  # a whole one, where lines are short
            shown = _whole_characters(end[line:])
            omitted += left - len(shown)
            note = f"\n[siliconprof: {omitted} bytes of output are left out here]\n"
            self._write(note.encode() + shown)
        else:
            self._write(end)


def _whole_characters(content: bytes) -> bytes:
    """UTF-8 text without the half of a character at which it was cut."""
    return content.decode(errors="ignore").encode()
