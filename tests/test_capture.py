"""`capture`: a command before the measuring process, its file, and what becomes of the cell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import QUICK, Checkout, codes
from project_copy import script

TOOL = '[ "$1" = -o ] && shift\necho "$@" >"$1"\nshift 2\nexec "$@"\n'
PRODUCT = {"module": "matmul", "backends": ["torch-cpu"], "shapes": [[1, 8, 8, 8]]}
PERF = ["perf", "stat", "-x,", "-e", "task-clock"]


def perf_counts() -> bool:
    """Whether perf is here and may count."""
    done = shutil.which("perf") and subprocess.run([*PERF, "true"], capture_output=True)
    return bool(done) and done.returncode == 0


def test_a_cell_runs_under_a_command_or_says_in_a_line_why_not(
    checkout: Checkout, tmp_path: Path
) -> None:
    tool = script(tmp_path / "tools" / "tool", TOOL)
    paths = (tool.parent, Path(sys.executable).parent, os.environ["PATH"])
    checkout.environment["PATH"] = os.pathsep.join(map(str, paths))
    entries: dict[str, Any] = {
        "plain": PRODUCT,
        "under": PRODUCT | {"capture": "tool -o {output}.txt --"},
        "missing": PRODUCT | {"capture": "no-such-tool {output} --"},
    }
    if perf_counts():
        entries["perf"] = PRODUCT | {"capture": " ".join([*PERF, "-o {output} --"])}
    checkout.configure(timing=QUICK, workloads=entries)
    checkout.snakemake("results/tables/cells.csv")
    records = {one["cell"]["workload"]: one for one in checkout.records().values()}

    folder = checkout.path / "results" / "captures"
    (file,) = folder.rglob("tool.txt")
    assert "/under/auto/fp32/tool.txt" in file.as_posix()
    assert "-m siliconprof.measure.worker {" in file.read_text()
    under, plain, missing = records["under"], records["plain"], records["missing"]
    assert under["status"] == plain["status"] == "ok"
    assert "captured" in codes(under) and "captured" not in codes(plain)
    assert under["method"]["process"] == "an interpreter of its own"
    assert missing["status"] == "failed" and "no-such-tool is not on PATH" in missing["reason"]
    if "perf" in records:
        assert records["perf"]["status"] == "ok"
        (counts,) = folder.rglob("perf/auto/fp32/perf")
        assert "task-clock" in counts.read_text()
