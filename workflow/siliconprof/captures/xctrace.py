"""macOS' `xctrace`: an Instruments trace of a few steps.

Written from xctrace(1) and from how others drive it; it has not been run on a Mac.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from siliconprof.captures.base import Capture
from siliconprof.errors import UserError

TEMPLATES = {"gpu": "Metal System Trace", "cpu": "Time Profiler"}
FILE = "xctrace.trace"  # a folder
# The line that xctrace prints once it records.
RECORDS = "Ctrl-C to stop the recording"
START_LIMIT_S = 60.0
SAVE_LIMIT_S = 600.0
POLL_S = 0.05


class Plugin(Capture):
    """xctrace"""

    name = "xctrace"
    means = "xctrace record, attached to the process: Metal System Trace or Time Profiler"
    program = (
        "xctrace",
        "it comes with Xcode, on macOS (`xcode-select --switch /Applications/Xcode.app`)",
    )

    def begin(self) -> None:
        """See `Capture.begin`; waits until recording has begun."""
        # Beside the folder whose files are saved; deleted with the temporary files.
        self._log = Path(self.folder.parent, "xctrace.log")
        command = ["xctrace", "record", "--template", TEMPLATES[self.device_kind], "--no-prompt"]
        command += ["--attach", str(os.getpid()), "--output", str(self.folder / FILE)]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        limit = time.monotonic() + START_LIMIT_S
        while RECORDS not in self._output():
            if self._process.poll() is not None:
                raise UserError(self._failed())
            if time.monotonic() > limit:
                self._process.kill()
                raise UserError(f"xctrace did not begin to record within {START_LIMIT_S:g} s")
            time.sleep(POLL_S)

    def _output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _failed(self) -> str:
        lines = [line.strip() for line in self._output().splitlines() if line.strip()]
        message = lines[-1] if lines else "no output"
        return f"xctrace ended with exit status {self._process.returncode}: {message}"

    def end(self) -> dict[str, Any]:
        """See `Capture.end`; Ctrl-C ends the recording, and saving it takes a while."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(SAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise UserError(f"xctrace did not save within {SAVE_LIMIT_S:g} s") from None
        if not (self.folder / FILE).exists():
            raise UserError(self._failed())
        return {}
