"""Live progress: on a terminal one line that follows the cells, into a file nothing of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from conftest import QUICK, Checkout, until
from siliconprof.pipeline.progress import State

TERMINAL = {"TERM": "xterm", "COLUMNS": "120"}


def test_state_counts_names_and_estimates():
    state = State()
    state.run_info({"measure": 3, "render": 1})
    wildcards = {"cell": "h/cpu-x/mlx/w/auto/fp32"}
    state.started(1, "measure", wildcards, now=0.0)
    assert state.line(5.0, "warm-up 4") == "cell 1 of 3  cpu-x · mlx · w · auto · fp32  warm-up 4"
    state.finished(1, now=10.0)
    state.started(2, "measure", wildcards, now=10.0)
    # Two of 10 s, 4 s into the first, and the page.
    assert state.line(14.0, "").endswith("about 18 s left")
    state.finished(2, now=200.0)
    assert state.line(200.0, "").endswith("about 2 min left")
    state.started(3, "measure", wildcards, now=200.0)
    state.finished(3, now=200.0)
    assert state.line(200.0, "") == "about 2 s left"
    state.run_info({"measure_node": 2, "measured": 1})  # that measures no cell, and has none
    state.started(4, "measured", {}, now=200.0)
    assert state.cells_total == 2 and state.finished(4, now=201.0) == ""


@pytest.mark.slow
def test_a_terminal_sees_the_cell_and_a_file_does_not(checkout: Checkout):
    product = {"module": "matmul", "shapes": [[1, 8, 8, 8]], "burst": 0}
    checkout.configure(
        host="desk",
        backends=["mlx"],
        timing=QUICK | {"iterations": 300, "max_iterations": 300},
        workloads={"one": product, "two": product | {"shapes": [[1, 128, 128, 128]]}},
    )
    command = ("snakemake", "--cores", "1", "results/tables/cells.csv")
    log = checkout.path / "said.txt"
    with lock_held(checkout) as release, open(log, "w") as stream:
        piped = checkout.begin(*command, env=TERMINAL, stdout=stream, stderr=stream)
        while not re.search(WAITS, log.read_text()) and piped.poll() is None:
            time.sleep(0.1)
        release()
        assert piped.wait() == 0
    assert len(re.findall(WAITS, log.read_text())) == 1
    assert "cell 1 of 2" not in log.read_text() and "input: " not in log.read_text()
    assert re.search(
        r"^1/2  mlx · (one|two) · fp32 +[\d.]+ (µ|m)s  [\d.]+ \S+/s", log.read_text(), re.M
    )
    for record in (checkout.path / "results/records").rglob("*.json"):
        record.unlink()
    (checkout.path / "results/tables/cells.csv").unlink()

    reader, writer = pty.openpty()
    seen, until_s = b"", time.monotonic() + 300
    with lock_held(checkout) as release:
        process = checkout.begin(*command, env=TERMINAL, stdout=subprocess.DEVNULL, stderr=writer)
        os.close(writer)
        while True:
            try:
                chunk = os.read(reader, 65536)
            except OSError:  # Linux answers EIO once the other end is closed
                break
            if not chunk:
                break
            seen += chunk
            stays = re.search(rf"{WAITS}\r*\n", seen.decode(errors="replace"))
            if stays or time.monotonic() > until_s:
                release()
    os.close(reader)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))
    assert re.search(r"cell 1 of 2  \S+ · mlx · (one|two) · auto · fp32", text), text
    assert re.search(r"cell 2 of 2 .* left", text), text
    assert re.search(r"2/2  mlx · (one|two) · fp32 +[\d.]+ (µ|m)s ", text), text
    assert "localrule measure" not in text
    assert re.search(rf"{WAITS}\r*\n", text), text  # a line that stays


WAITS = r"waiting for (PID \d+, .+, since [\d:]{8}|another process)"


@contextmanager
def lock_held(checkout: Checkout) -> Iterator[Callable[[], None]]:
    """Hold the host's lock until the function that this yields is called."""
    with open(checkout.environment["SILICONPROF_LOCK_FILE"], "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(stream, fcntl.LOCK_UN)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_an_interrupted_run_says_how_far_it_came(checkout: Checkout, terminal: bool) -> None:
    product = {"module": "matmul", "shapes": [[1, 8, 8, 8]], "burst": 0}
    endless = {"timing": {"iterations": 10**8, "max_iterations": 10**8}}
    study = {"host": "desk", "backends": ["mlx"], "timing": QUICK}
    checkout.configure(**study, workloads={"one": product, "two": product | endless})
    reader, writer = pty.openpty() if terminal else os.pipe()
    streams = {"stdout": writer, "stderr": writer, "start_new_session": True}
    process = checkout.begin("snakemake", "--cores", "1", "report", env=TERMINAL, **streams)
    os.close(writer)
    text, told = "", False
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:
            break
        if not chunk:
            break
        text += chunk.decode(errors="replace")
        if not told and "1/2" in text:
            if terminal:  # which tells all of its processes
                os.killpg(process.pid, signal.SIGINT)
            else:  # as `kill -INT` does, while the next cell runs
                until(lambda: list((checkout.path / "results" / "logs").rglob("two/*/*.log")))
                process.send_signal(signal.SIGINT)
            told = True
    os.close(reader)
    assert process.wait() == 130, text
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    (last,) = [line for line in text.splitlines() if line.strip()][-1:]
    assert last == "Interrupted: 1 of 2 cells are done. Run the same command to go on.", text
    first = checkout.stamps()
    assert "rule measure" not in text and "Traceback" not in text and len(first) == 1
    checkout.configure(**study, workloads={"one": product, "two": product})  # has an end
    checkout.snakemake("measured")
    assert len(checkout.stamps()) == 2 and first.items() <= checkout.stamps().items()
