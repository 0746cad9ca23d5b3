"""Live progress: on a terminal one line that follows the cells, into a file nothing of it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from conftest import QUICK, Checkout
from siliconprof.pipeline.progress import State


def test_state_counts_names_and_estimates():
    state = State()
    state.run_info({"measure": 3, "render": 1})
    wildcards = {"cell": "h/cpu-x/mlx/w/auto/fp32"}
    state.started(1, "measure", wildcards, now=0.0)
    assert state.line(5.0, "warm-up 4") == "cell 1 of 3  cpu-x · mlx · w · auto · fp32  warm-up 4"
    state.finished(1, now=10.0)
    state.started(2, "measure", wildcards, now=10.0)
    assert state.line(14.0, "").endswith("about 16 s left")  # two of 10 s, 4 s into the first
    state.finished(2, now=200.0)
    assert state.line(200.0, "").endswith("about 2 min left")


@pytest.mark.slow
def test_a_terminal_sees_the_cell_and_a_file_does_not(checkout: Checkout):
    product = {"module": "matmul", "shapes": [[1, 8, 8, 8]], "burst": 0}
    checkout.configure(
        host="desk",
        backends=["mlx"],
        timing=QUICK | {"iterations": 300, "max_iterations": 300},
        workloads={"one": product, "two": product | {"shapes": [[1, 128, 128, 128]]}},
    )
    piped = checkout.snakemake("results/tables/cells.csv")
    assert "cell 1 of 2" not in piped.stdout + piped.stderr
    for record in (checkout.path / "results/records").rglob("*.json"):
        record.unlink()
    (checkout.path / "results/tables/cells.csv").unlink()

    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "results/tables/cells.csv"]
    environment = dict(os.environ) | checkout.environment | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command, cwd=checkout.path, env=environment, stdout=subprocess.DEVNULL, stderr=writer
    )
    os.close(writer)
    seen = b""
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # Linux answers EIO once the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(reader)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))
    assert re.search(r"cell 1 of 2  \S+ · mlx · (one|two) · auto · fp32", text), text
    assert re.search(r"cell 2 of 2 .* left", text), text
    assert "localrule measure" not in text
