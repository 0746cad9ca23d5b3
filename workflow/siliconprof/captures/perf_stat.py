"""Linux's `perf stat`: counters of the kernel and the processor over a few steps.

perf attaches to the training process and counts between two commands over a pipe (`--control`,
perf 5.10), so that neither the start-up nor perf's own is counted.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from siliconprof.captures.base import Capture
from siliconprof.errors import UserError

EVENTS = (
    "task-clock,context-switches,cpu-migrations,page-faults,minor-faults,major-faults,"
    "cycles,instructions,cache-references,cache-misses,branch-misses,dTLB-load-misses"
)
# These happen in the kernel: where perf may count user space alone, it prints 0 for them.
IN_KERNEL = ("context-switches", "cpu-migrations")
NO_VALUE = {
    "<not supported>": "this processor, or this virtual machine, has no such counter",
    "<not counted>": "it never ran in these steps, where counters take turns or a processor has "
    "cores of several kinds",
}
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
FILE = "perf-stat.csv"
ANSWER_LIMIT_S = 30.0


class Plugin(Capture):
    """perf-stat"""

    name = "perf-stat"
    means = "perf stat, attached to the process and all its threads: totals over the steps"
    program = ("perf", "it is Linux's (Debian: apt install linux-perf)")

    def begin(self) -> None:
        """See `Capture.begin`."""
        listen, self._commands = os.pipe()
        self._answers, answer = os.pipe()
        command = f"perf stat --field-separator , --event {EVENTS} --delay -1 --pid {os.getpid()}"
        command += f" --control fd:{listen},{answer} --output"
        self._process = subprocess.Popen(
            [*command.split(), str(self.folder / FILE)],
            pass_fds=(listen, answer),
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(listen)
        os.close(answer)
        self._command("enable")
        self._began = time.perf_counter()

    def _command(self, command: str) -> None:
        """Send perf a command, and wait until it has acknowledged it.

        Raises:
            UserError: perf has ended, or does not answer.
        """
        try:
            os.write(self._commands, f"{command}\n".encode())
        except BrokenPipeError:
            pass  # perf has ended: no answer comes
        ready, _, _ = select.select([self._answers], [], [], ANSWER_LIMIT_S)
        if ready and os.read(self._answers, 64).startswith(b"ack"):
            return
        if ready:
            output = self._process.communicate()[0].decode(errors="replace")
            raise UserError(refusal(output, self._process.returncode))
        self._process.kill()
        raise UserError(f"perf stat did not answer '{command}' within {ANSWER_LIMIT_S:g} s")

    def end(self) -> dict[str, Any]:
        """See `Capture.end`."""
        self._command("disable")
        window_s = time.perf_counter() - self._began
        self._process.send_signal(signal.SIGINT)  # makes it print its counts
        output = self._process.communicate()[0].decode(errors="replace")
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        try:
            lines = (self.folder / FILE).read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        facts = counters(lines)
        if not facts["counters"]:
            raise UserError(refusal(output, self._process.returncode))
        return facts | {"window_s": window_s}


def refusal(output: str, code: int) -> str:
    """Why perf counted nothing, from its output, and how to mend that."""
    if "perf_event_paranoid" in output:
        level = PARANOID.read_text(encoding="ascii").strip() if PARANOID.exists() else "unknown"
        return (
            "the kernel does not let perf count: kernel.perf_event_paranoid must be 2 or less "
            f"(it is {level}; `sysctl kernel.perf_event_paranoid=2`) or perf must have the "
            "capability CAP_PERFMON, and a container must allow perf_event_open"
        )
    line = next((text.strip() for text in output.splitlines() if text.strip()), "no output")
    return f"perf stat ended with exit status {code}: {line}"


def counters(lines: Iterable[str]) -> dict[str, Any]:
    """The output of `perf stat --field-separator ,` by counter.

    Its fields are value, unit, event, nanoseconds that the counter ran, and the percentage of the
    time that it ran (perf-stat(1), CSV FORMAT); where that is below 100, counters took turns and
    the value is perf's estimate.

    Returns:
        `counters`: name (with `_s` for the task clock) -> number or None; `counter_reasons`: why
        one is None; `counter_running_shares`: of those that took turns; `counter_scope`.
    """
    values: dict[str, float | int | None] = {}
    reasons: dict[str, str] = {}
    shares: dict[str, float] = {}
    user_only = False
    for line in lines:
        fields = line.split(",")
        if line.startswith("#") or len(fields) < 5:
            continue
        text, unit, event, _, percentage = fields[:5]
        event, _, modifier = event.partition(":")
        user_only |= modifier == "u"
        name = event.replace("-", "_") + {"msec": "_s", "": ""}.get(unit, f"_{unit}")
        values[name] = None
        if text.startswith("<"):
            reasons[name] = f"{text}: {NO_VALUE.get(text, 'perf gives no value')}"
        elif modifier == "u" and event in IN_KERNEL:
            reasons[name] = (
                "happens in the kernel, and kernel.perf_event_paranoid lets perf count user space "
                "only; set it to 1 or less"
            )
        elif unit == "msec":
            values[name] = float(text) / 1e3
        else:
            values[name] = float(text) if "." in text else int(text)
        if percentage and float(percentage) < 100 and values[name] is not None:
            shares[name] = float(percentage) / 100
    return {
        "counters": values,
        "counter_reasons": reasons,
        "counter_running_shares": shares,
        "counter_scope": "user space" if user_only else "user space and kernel",
    }
