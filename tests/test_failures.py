"""What fails costs itself alone: data that cannot be prepared, a page that cannot be drawn."""

from __future__ import annotations

import html
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import TABLE, TINY, named, until

pytestmark = pytest.mark.slow


def test_data_that_cannot_be_prepared_cost_their_own_cells(clone, tmp_path):
    """Their records, page and terminal say why; each run tries again, and they go with the cause."""
    lines = tmp_path / "own" / "train.jsonl"
    own = {"source": "folder", "path": str(lines.parent), "vocab_size": 300}
    far = own | {"source": "hub", "path": "somebody/a-set"}  # and no hub is reachable
    nano = TINY["workloads"]["nano-2"]

    def add(config: dict[str, Any]) -> None:
        config["datasets"] |= {"own": own, "far": far}
        # Which no cell reads: the experiment is longer than a word of a command on Linux.
        unread = {"source": "folder", "path": "/none/" + "x" * 400, "vocab_size": 300}
        config["datasets"] |= {f"unread{n}": unread for n in range(400)}
        config["workloads"] |= {"nano-own": nano | {"dataset": "own"}}
        config["workloads"] |= {"nano-far": nano | {"dataset": "far"}}

    clone.reconfigure(add)
    new = {"mlx/nano-own/fp32", "mlx/nano-far/fp32"}
    before = clone.stamps()
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = clone.snakemake("report", env=offline)
    assert (clone.path / "results/experiment.json").stat().st_size > 128 * 1024
    assert named(key for key, stamp in clone.stamps().items() if before.get(key) != stamp) == new
    records = {record["cell"]["workload"]: record for record in clone.records().values()}
    for name, said in (("own", f"no folder '{lines.parent}'"), ("far", "somebody/a-set")):
        record = records[f"nano-{name}"]
        assert record["status"] == "failed"
        assert record["reason"].startswith(f"dataset '{name}': ") and said in record["reason"]
        assert record["reason"] in done.stdout  # of the stage
    assert "mlx: 2 of 5 cells failed: dataset '" in done.stdout
    page = html.unescape((clone.path / "results/report.html").read_text(encoding="utf-8"))
    assert f"no folder '{lines.parent}'" in page
    lines.parent.mkdir()
    lines.write_text("".join(f'{{"text": "line {n} of a text"}}\n' for n in range(300)))
    clone.snakemake(TABLE, env=offline)
    records = {record["cell"]["workload"]: record for record in clone.records().values()}
    statuses = [records[f"nano-{name}"]["status"] for name in ("own", "far")]
    assert statuses == ["ok", "failed"]


def test_a_page_that_leaves_something_out_stands_and_the_run_fails(clone):
    """A template, and one exhibit's code, are broken on purpose; a caption is worded anew."""
    page, template = clone.path / "results/report.html", clone.path / "report/page.html.j2"
    before = {path.name for path in clone.path.glob("results/figures/*.*")}
    assert "losses.svg" in before
    printed = {path.name for path in clone.path.glob("results/print/[!.]*")}
    drawn = {Path(name).stem for name in before if name.endswith(".svg")}
    assert printed == {f"{stem}.{kind}" for stem in drawn for kind in ("svg", "png", "pdf")}

    whole = template.read_text(encoding="utf-8")
    template.write_text("{{ nothing_of_this_name }}", encoding="utf-8")
    done = clone.snakemake("report", check=False)
    assert done.returncode
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rule render failed: ")]
    assert "nothing_of_this_name" in line and line.endswith("its log: results/logs/render.log")
    assert "set -euo" not in done.stdout + done.stderr  # the command

    template.write_text(whole, encoding="utf-8")
    killed = clone.begin("snakemake", "--cores", "1", "report", start_new_session=True)
    until(lambda: list(clone.path.glob(".snakemake/incomplete/*")))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    clone.snakemake("--unlock")
    clone.snakemake("report")
    assert {path.name for path in clone.path.glob("results/figures/*.*")} == before

    captions = clone.path / "report/captions.yaml"
    worded = captions.read_text(encoding="utf-8").replace("title: ", "title: Newly worded ", 1)
    captions.write_text(worded, encoding="utf-8")
    code = clone.path / "workflow/siliconprof/render/exhibits/beyond/explained.py"
    text = code.read_text(encoding="utf-8")
    first = "    losses = compared(frames)\n"
    assert text.count(first) == 1
    code.write_text(text.replace(first, f"    raise KeyError(0)\n{first}"), encoding="utf-8")
    culprit = "KeyError: 0 (render/exhibits/beyond/explained.py:"
    records = clone.stamps()
    done = clone.snakemake("report", check=False)
    assert done.returncode and "rule render failed: the page stands without 1 of" in done.stdout
    assert culprit in (clone.path / "results/logs/render.log").read_text(encoding="utf-8")
    boxed = html.unescape(page.read_text(encoding="utf-8"))
    assert culprit in boxed and 'id="paper-table-6"' in boxed and "Newly worded" in boxed
    assert clone.stamps() == records
