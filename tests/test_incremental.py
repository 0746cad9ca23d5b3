"""A change reruns exactly what it touches: shown on a tiny experiment, through Snakemake."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys

import numpy as np
import pytest
from conftest import PRODUCT, TABLE, TINY, Checkout, named, own_project
from siliconprof import __version__, fingerprint, plugins
from siliconprof.cells import config

pytestmark = pytest.mark.slow

NO_CELL = "results/records/desk/cpu/mlx/nothing-such/auto/fp32.json"


def rerun(clone: Checkout, *arguments: str) -> set[str]:
    """Run again; the cells that have another record now."""
    before = clone.stamps()
    clone.snakemake(*arguments or (TABLE,))
    return named(key for key, stamp in clone.stamps().items() if before.get(key) != stamp)


def test_a_config_on_the_command_line_is_read_as_a_file_s_is(clone):
    """Numbers and truth values inside of lists and mappings too, which Snakemake hands over as texts."""
    assert due(clone, "measured") == (set(), set()) == due(clone, "measured", "--config", "seed=0")
    words = ("--config", "timing={budget_s: 0.5, iterations: 3}", "precisions=[fp32]")
    assert due(clone, "measured", *words)[1] == ALL
    done = clone.snakemake("-n", "--config", "timing={budget_s: much}", check=False)
    assert done.returncode and "timing.budget_s: is 'much'" in done.stdout + done.stderr


def test_a_quick_answer_comes_first_and_the_report_goes_on_from_there(tmp_path):
    fresh = own_project(tmp_path)
    fresh.configure(**TINY, quick=["nano-2", "product"])
    made = fresh.snakemake("quick").stdout
    first = {"mlx/nano-2/fp32", "mlx/product/fp32"}
    assert named(fresh.stamps()) == first
    assert "2 cells to measure on desk" in made
    summary = (fresh.path / "results/quick/summary.txt").read_text(encoding="utf-8")
    assert summary.startswith("training ")
    assert made.endswith(f"{summary}report: results/quick.html\n")
    assert made.index("mlx · product") < made.index("mlx · nano-2")  # in the config's order
    page = (fresh.path / "results/quick.html").read_text(encoding="utf-8")
    assert 'id="fastest"' in page and 'id="checks"' not in page
    assert due(fresh, "report")[1] == ALL - first


def snapshot(clone: Checkout) -> dict[str, tuple[int, int]]:
    """Path -> time and size of all that lies here, but for Snakemake's own folder."""
    states = {p.relative_to(clone.path): p.lstat() for p in clone.path.rglob("*")}
    return {
        path.as_posix(): (state.st_mtime_ns, state.st_size)
        for path, state in states.items()
        if path.parts[0] != ".snakemake"
    }


def due(clone: Checkout, *arguments: str) -> tuple[set[str], set[str]]:
    """(rules, cells) that a run would have jobs of, by a dry run, which writes nothing."""
    before = snapshot(clone)
    said = clone.snakemake("-n", *arguments, "--quiet", "progress").stdout
    assert snapshot(clone) == before
    rules = set(re.findall(r"^ *(?:local)?(?:rule|checkpoint) (\w+):$", said, re.M))
    return rules, named(re.findall(r"^ *output: results/records/(\S+)\.json$", said, re.M))


MATMULS = {"mlx/product/fp32", "torch-cpu/product-torch/fp32"}
ALL = MATMULS | {"mlx/launch/fp32", "mlx/nano-2/fp32"}


# Of the default target of each Snakefile, and of the target that the root's stands for.
BATCHES = [("all", "Snakefile"), ("report", "Snakefile"), ("report", "workflow/Snakefile")]


def test_a_dry_run_writes_nothing_and_shows_what_is_due(checkout, clone):
    checkout.configure(**TINY)
    rules, cells = due(checkout, TABLE)
    assert rules == {
        "experiment",
        "host",
        "machine",
        "matrix",
        "prepare_text",
        "measure",
        "aggregate",
    }
    assert cells == ALL
    for name, snakefile in BATCHES:
        words = ("--snakefile", snakefile, "--batch")
        batches = [due(checkout, *words, f"{name}={n}/3") for n in (1, 2)]
        cells = [cells for _, cells in batches]
        assert all(cells) and not set.intersection(*cells), (name, snakefile)
        assert not any("render" in rules for rules, _ in batches), (name, snakefile)
    clone.reconfigure(lambda config: config["workloads"].pop("nano-2"))
    assert due(clone, TABLE) == ({"experiment", "matrix", "aggregate"}, set())
    clone.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # which may change what the host is
    assert due(clone, TABLE) == ({"experiment", "host", "matrix", "aggregate"}, set())


def test_batches_make_the_report_between_them(clone):
    (clone.path / "results/report.html").unlink()
    for path in clone.path.glob("results/records/**/fp32.json"):
        path.unlink()
    made = [rerun(clone, "--batch", f"report={n}/2") for n in (1, 2)]
    assert all(made) and set.union(*made) == ALL
    assert (clone.path / "results/report.html").exists()
    assert "Nothing to be done" in clone.snakemake("report").stderr


DELETED = {
    "tables/claims.csv": {"analyse", "render"},
    "tables/cells.csv": {"aggregate", "analyse", "render"},
    "results.csv": {"analyse", "render"},
    "summary.txt": {"render"},
    "figures": {"render"},
    "matrix.json": {"matrix", "aggregate", "analyse", "render"},
    "hosts/desk.json": {"host", "matrix", "aggregate", "analyse", "render"},
}


def test_what_the_report_promises_and_somebody_deleted_is_made_again(clone, tmp_path):
    """From the records that are there, whatever it is."""
    for deleted, rules in DELETED.items():
        path = (clone.path / "results" / deleted).rename(tmp_path / "deleted")
        assert due(clone, "report") == (rules | {"report"}, set()), deleted
        path.rename(clone.path / "results" / deleted)


def test_a_moved_output_moves_its_file(clone):
    """Commands get their outputs' paths, and those who read them their inputs'."""
    rules = clone.path / "workflow/rules"
    moved = {
        "analyse": ("results/results.csv", "results/sheet/results.csv"),
        "render": ("results/report.html", "results/site/index.html"),
        "aggregate": ("results/tables/{table}.csv", "results/of-records/{table}.csv"),
    }
    for name, (before, after) in moved.items():
        file = rules / f"{name}.smk"
        text = file.read_text(encoding="utf-8")
        assert f'"{before}"' in text
        file.write_text(text.replace(f'"{before}"', f'"{after}"'), encoding="utf-8")
    shutil.rmtree(clone.path / "results/tables")
    for name in ("results.csv", "report.html"):
        (clone.path / "results" / name).unlink()
    assert rerun(clone, "report") == set()
    results = clone.path / "results"
    for name in ("sheet/results.csv", "site/index.html", "of-records/cells.csv"):
        assert (results / name).is_file(), name
    assert {path.name for path in (results / "tables").iterdir()} == {
        f"{name}.csv"
        for name in "ceilings checks expected scaling attribution predicted claims".split()
    }
    assert not (results / "results.csv").exists() and not (results / "report.html").exists()


def test_deleted_data_are_prepared_before_what_reads_them(clone):
    """A record that is forced needs all of its data's files, and not their facts alone."""
    (clone.path / "results/data/words/tokens.npy").unlink()
    assert "Nothing to be done" in clone.snakemake("report").stderr  # which no record needs
    (key,) = (key for key in clone.stamps() if "/nano-2/" in key)
    record = f"results/records/{key}.json"
    rules, cells = due(clone, record, "--forcerun", record)
    assert rules >= {"prepare_text", "measure"} and cells == {"mlx/nano-2/fp32"}


def test_options_of_snakemake_do_what_its_manual_says(clone):
    assert "\nmeasure (Measure one cell" in clone.snakemake("--list-rules").stdout
    for option in ("--rulegraph", "--dag"):
        assert re.match(r"digraph \w+ {.*measure.*}\s*$", clone.snakemake(option).stdout, re.S)
    listed = clone.run(sys.executable, "-m", "snakemake", "--summary")  # which needs no --cores
    summary = csv.DictReader(listed.stdout.splitlines(), delimiter="\t")
    of_cells = {row["output_file"]: row for row in summary if row["rule"] == "measure"}
    assert {(row["status"], row["plan"]) for row in of_cells.values()} == {("ok", "no update")}
    assert len(of_cells) == len(ALL)
    anew = ("--forcerun", "measure")
    assert due(clone, "report", *anew)[1] == ALL
    assert due(clone, "report", *anew, "--until", "measure") == ({"measure"}, ALL)
    assert due(clone, "report", *anew, "--omit-from", "aggregate") == ({"measure"}, ALL)
    path = next(path for path in of_cells if "/nano-2/" in path)
    assert due(clone, path, "--forcerun", path) == ({"measure"}, {"mlx/nano-2/fp32"})
    (clone.path / path).unlink()
    said = clone.snakemake("report", "--until", "measure", "--cores", "2", "-p", "--quiet", "host")
    assert "1 cell to measure on desk" in said.stdout and "-m siliconprof.measure" in said.stderr
    assert "threads: 2\n" in said.stderr  # all there are, so that nothing runs beside a cell
    assert "report:" not in said.stdout  # since none was made


def test_new_axes_run_exactly_the_new_cells(clone):
    def grow(config):
        config["workloads"]["product"]["precisions"] = ["fp32", "bf16"]
        config["workloads"]["nano-3"] = config["workloads"]["nano-2"] | {"batch_size": 3}
        config["workloads"]["nano-2-hf"] = config["workloads"]["nano-2"] | {
            "trainer": "hf",
            "backends": ["torch-cpu"],
        }

    clone.reconfigure(grow)
    # Left by torchrun and by a search for a mistake: nothing of it may reach the cells, which
    # would wait for others or train otherwise.
    alien = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1",
             "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "PYTHONOPTIMIZE": "2",
             "ACCELERATE_USE_FSDP": "true", "CUDA_LAUNCH_BLOCKING": "1",
             "MLX_MAX_OPS_PER_BUFFER": "1"}  # fmt: skip
    chosen = {"OMP_SCHEDULE": "static", "OMP_NUM_THREADS": "1", "MKL_DEBUG_CPU_TYPE": "/a/path"}
    chosen["AGX_RELAX_CDM_CTXSTORE_TIMEOUT"] = "1"
    chosen["LD_PRELOAD"] = "/no/such/libjemalloc.so.2"  # the loader says so, and goes on
    before = clone.stamps()
    clone.environment |= alien | chosen
    assert rerun(clone) == {"mlx/product/bf16", "mlx/nano-3/fp32", "torch-cpu/nano-2-hf/fp32"}
    for name, record in clone.records().items():
        variables = record["environment"]["variables"]
        if name not in before:
            assert record["status"] == "ok", record["reason"]
            assert set(variables["taken_out"]) >= alien.keys()
            assert variables["left"].items() >= {"OMP_SCHEDULE": "static"}.items()
            assert variables["left"]["MKL_DEBUG_CPU_TYPE"] is None
            assert variables["left"]["AGX_RELAX_CDM_CTXSTORE_TIMEOUT"] == "1"
            assert variables["left"]["LD_PRELOAD"] == "libjemalloc.so.2"
            assert "OMP_NUM_THREADS" not in variables["left"]  # the cell has its own
            (flag,) = [f for f in record["flags"] if f["code"] == "environment_variables"]
            assert "OMP_SCHEDULE" in flag["detail"]
        else:
            assert not set(variables["taken_out"]) & alien.keys()


def test_an_edit_reruns_its_cells_and_nothing_but_their_jobs_touches_a_record(clone):
    """That they are measured then, test_freshness shows."""
    module = clone.path / "workflow/siliconprof/workloads/matmul.py"
    text = module.read_text()
    counted = '"flops": flops(shape)'
    assert counted in text
    module.write_text(f"# a comment\n{text}")
    assert due(clone, "report") == (set(), set())
    package = clone.path / "workflow/siliconprof/__init__.py"
    own = package.read_text()
    package.write_text(own.replace(__version__, "9.9.9"))  # a release: the page shows its version
    rules, cells = due(clone, "report")
    assert "render" in rules and not cells | rules & {"prepare_text", "host", "measure"}
    package.write_text(own)
    module.write_text(text.replace(counted, '"flops": 3.5 * flops(shape)'))
    here = snapshot(clone)
    no_target, no_cell = ("nosuchtarget", "MissingRuleException"), (NO_CELL, "no cell of this exp")
    for target, said in (no_target, no_cell):
        done = clone.snakemake(target, check=False)
        assert done.returncode and said in done.stderr and "(most recent call" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if NO_CELL.split("/")[6] in line]
    assert "siliconprof plan" in lines[0]
    assert due(clone, "report", "--rerun-triggers", "mtime") == (set(), set())
    assert due(clone, TABLE) == ({"matrix", "measure", "aggregate"}, MATMULS)
    assert snapshot(clone) == here
    assert rerun(clone, "report", "--touch") == set()
    assert due(clone, "report") == (set(), set())


def test_an_edit_makes_the_cells_due_that_it_touches(clone):
    """A sweep's shapes, a backend's code, versions; each undone before the next."""
    host = clone.path / "results/hosts/desk.json"
    backend = clone.path / "workflow/siliconprof/backends/torch_cpu.py"
    shapes = json.loads(json.dumps(TINY))
    shapes["workloads"]["product"]["shapes"].append([1, 8, 8, 8])
    told = json.loads(host.read_text())
    in_torch, in_mlx = {"torch-cpu/product-torch/fp32"}, {"mlx/nano-2/fp32"}

    def newer(part: str, **version: str) -> str:
        return json.dumps(told | {part: told[part] | version})

    for path, text, expected in (
        (clone.path / "config/config.yaml", json.dumps(shapes), {"mlx/product/fp32"}),
        (backend, backend.read_text() + "\nANOTHER = 1\n", in_torch),
        (host, newer("packages", **{"mlx-lm": "0.0.1"}), in_mlx),
        (host, newer("packages", mlx="0.0.1"), in_mlx | {"mlx/product/fp32", "mlx/launch/fp32"}),
        (host, newer("blas", torch="another"), in_torch),
        (host, newer("packages", peft="0.0.1"), set()),
    ):
        before = path.read_bytes()
        path.write_text(text)
        said = clone.stage("pipeline.cli", "plan", "--json").stdout
        cells = [row["cell"] for row in json.loads(said)["cells"] if row["due"]]
        keys = {f"{cell['backend']}/{cell['workload']}/{cell['precision']}" for cell in cells}
        assert keys == expected, path.name
        path.write_bytes(before)


def test_what_the_child_loaded_was_declared(tiny):
    for key, record in tiny.records().items():
        method = {
            name
            for name in record["modules_loaded"]
            if "." in name and name.split(".")[0] not in fingerprint.SUPERVISION
        }
        assert method and method <= record["code"]["modules"].keys(), key
        assert "session.measurement" in method and "measure.worker" in record["modules_loaded"]


def test_damaged_data_leave_no_record_and_their_remedy_works(clone):
    (path,) = clone.path.glob("results/records/**/nano-2/auto/fp32.json")
    path.unlink()
    (clone.path / "results/data/words/tokens.npy").write_bytes(b"damaged")
    done = clone.snakemake("measured", check=False)
    assert done.returncode and "delete that folder and run" in done.stdout and not path.exists()
    shutil.rmtree(clone.path / "results/data/words")
    assert rerun(clone, "measured") == {"mlx/nano-2/fp32"}


def test_a_persons_own_files_are_looked_at(checkout, tmp_path, monkeypatch):
    """A data set's folder and a folder of weights; what is not read does not count."""
    from safetensors.numpy import save_file

    entry = TINY["workloads"]["nano-2"] | {
        "dataset": "own",
        "weights": "pretrained",
        "weights_path": str(tmp_path / "weights"),
    }
    own = {"source": "folder", "path": str(tmp_path / "own"), "vocab_size": 300}
    experiment = TINY | {
        "datasets": {"own": own, "absent": own | {"path": "nowhere"}},
        "workloads": {"own": entry},
    }
    parameters = config.resolve(experiment)["workloads"]["own"] | {"dataset_vocab_size": 300}
    shapes = plugins.load("workloads", "gpt2")(parameters).weights.shapes
    (tmp_path / "weights").mkdir()
    weights = tmp_path / "weights" / "model.safetensors"
    save_file({name: np.full(shape, 0.01, np.float32) for name, shape in shapes.items()}, weights)
    (tmp_path / "own").mkdir()
    lines = tmp_path / "own" / "train.jsonl"
    lines.write_text("".join(f'{{"text": "line {n} of a text"}}\n' for n in range(300)))
    before = {path: path.read_bytes() for path in (lines, weights)}
    checkout.configure(**experiment)
    checkout.snakemake("results/tables/cells.csv")
    (record,) = checkout.records().values()
    assert record["status"] == "ok", record["reason"]
    monkeypatch.chdir(checkout.path)

    def said() -> tuple[str | None, dict[str, str]]:
        """Why the cell is due, and which data are to be prepared again, by the plan."""
        made = json.loads(checkout.stage("pipeline.cli", "plan", "--json").stdout)
        (row,) = made["cells"]
        return row["why"] if row["due"] else None, made["data_due"]

    assert said() == (None, {})

    lines.write_bytes(before[lines].replace(b"line 7 ", b"line 8 "))
    assert due(checkout, TABLE)[0] == {"prepare_text", "measure", "aggregate"}
    assert said() == ("what it reads is made again", {"results/data/own": "params changed"})
    checkout.snakemake("results/tables/cells.csv")
    assert said() == (None, {})

    weights.write_bytes(before[weights][:-4] + bytes(4))
    assert said() == ("updated input files", {})
    weights.write_bytes(before[weights])
    (tmp_path / "own").rename(tmp_path / "taken-away")  # what was prepared from it stands
    assert said() == (None, {})


def test_a_run_from_elsewhere(tiny, tmp_path):
    """Another working directory with a config of its own."""
    one = TINY | {"workloads": {"product": PRODUCT | {"backends": ["mlx"]}}}
    elsewhere = Checkout(tmp_path / "far", dict(tiny.environment))
    shutil.copytree(tiny.path / "results/hosts", elsewhere.path / "results/hosts")
    (tmp_path / "own.yaml").write_text(json.dumps(one))
    before = snapshot(tiny)
    words = ("-d", str(elsewhere.path), "--configfile", "own.yaml")
    beside = Checkout(tmp_path, elsewhere.environment)
    done = beside.snakemake("-n", "-s", str(tiny.path / "workflow/Snakefile"), *words)
    assert f"profile {tiny.path}/workflow/profiles/default" in done.stderr
    beside.snakemake("report", "-s", str(tiny.path / "Snakefile"), *words)
    page = (elsewhere.path / "results/report.html").read_text(encoding="utf-8")
    assert "snakemake --cores 1 report --configfile results/experiment.json" in page
    kept = json.loads((elsewhere.path / "results/experiment.json").read_text(encoding="utf-8"))
    assert kept["workloads"].keys() == {"product"} and len(elsewhere.records()) == 1
    assert snapshot(tiny) == before
