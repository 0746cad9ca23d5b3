"""The package as pip installs it from a checkout: a wheel, with what it reads of the checkout."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import PRODUCT, QUICK, ROOT, Checkout, copy_project, with_own_lock
from hub_server import serving
from siliconprof.datasets import dataset_spec

OUTER = """\
configfile: "config/config.yaml"


module siliconprof:
    snakefile:
        "{url}/workflow/Snakefile"
    config:
        config
    prefix:
        "sp"


use rule * from siliconprof as siliconprof_*


rule mine:
    default_target: True
    input:
        "sp/results/report.html",
        "sp/results/tables/cells.csv",
    output:
        "mine.txt",
    shell:
        "python scripts/mine.py {{input}} >{{output}}"
"""


def test_an_extra_has_what_data_are_prepared_with() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["data"]
    named = [*dataset_spec.KIND_LIBRARIES.values(), *dataset_spec.READERS.values()]
    assert {*extra} == {"pillow"}.union(*named)  # numpy is needed by all


@pytest.mark.slow
def test_rules_from_a_url_run_with_the_installed_package(tmp_path: Path) -> None:
    """Where no checkout lies: neither the package's nor what else it reads of one."""
    source, site = copy_project(tmp_path / "source", bundles=True), tmp_path / "site"
    for name in ("setup.py", "README.md"):
        shutil.copy2(ROOT / name, source.path)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    source.run(*pip, "--target", str(site), ".")
    for built in ("build", "workflow/siliconprof", "config"):
        shutil.rmtree(source.path / built)
    outer = with_own_lock(Checkout(tmp_path / "outer"), shared=False)
    outer.environment |= {"PYTHONPATH": str(site), "no_proxy": "127.0.0.1"}
    for folder in ("config", "scripts"):
        (outer.path / folder).mkdir(parents=True)
    (outer.path / "scripts/mine.py").write_text("from beside import said\nprint(*said)\n")
    (outer.path / "scripts/beside.py").write_text(
        "import os, sys\nsaid = sys.argv[1:], dict(os.environ)\n"
    )
    experiment = {"prefix": "sp", "host": "desk", "backends": ["mlx"], "precisions": ["fp32"]}
    experiment |= {"timing": QUICK, "remeasure_contended_s": 0, "workloads": {"product": PRODUCT}}
    (outer.path / "config/config.yaml").write_text(json.dumps(experiment), encoding="utf-8")
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(source.path))
    with serving(files) as url:
        (outer.path / "Snakefile").write_text(OUTER.format(url=url), encoding="utf-8")
        other = outer.snakemake("-n", "--config", "prefix=other", check=False)
        outer.snakemake()
        again = outer.snakemake("-n")
    assert "Nothing to be done" in again.stdout + again.stderr
    assert other.returncode and "give the config the same prefix" in other.stdout + other.stderr
    made = (outer.path / "mine.txt").read_text(encoding="utf-8")  # its rule's own environment
    assert "sp/results/tables/cells.csv" in made
    assert {*re.findall(r"'(SILICONPROF_\w+)'", made)} == {
        name for name in outer.environment if name.startswith("SILICONPROF_")
    }
    for name in ("PYTHONPATH", "PATH"):
        assert f"{name!r}: {outer.variables({})[name]!r}" in made
    names = {".snakemake", "config", "mine.txt", "scripts", "Snakefile", "sp"}
    assert {path.name for path in outer.path.iterdir()} == names
    (path,) = outer.path.glob("sp/results/records/desk/*/mlx/product/auto/fp32.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["status"] == "ok", record["reason"]
    claims = (outer.path / "sp/results/tables/claims.csv").read_text(encoding="utf-8")
    assert claims.count("\n") > 10  # the published ones, which were read of the wheel
    command = (sys.executable, "-m", "siliconprof.pipeline.cli", "plan")
    done = Checkout(tmp_path, outer.environment).run(*command, check=False)
    assert done.returncode == 2 and "go to the folder of an experiment first\n" in done.stderr
