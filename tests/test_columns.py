"""Columns are declared once, and `siliconprof.load` reads every table by its declaration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import siliconprof
from conftest import ROOT
from golden import update
from siliconprof.errors import UserError
from siliconprof.store import columns, table_files
from synthetic_results import kernel_launch, make, matmul, metered, probed, training


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with a line in every table that records make."""
    trained = metered(training(0.1), {"rapl-package": 500.0})
    trained["points"][0] |= {
        "curve": {"loss": [6.0, 5.5], "gradient_norm": [1.0, 1.0], "learning_rate": [0.1, 0.1]},
        "evaluations": [{"step": 2, "loss": 5.5, "seconds": 0.1}],
        "texts": [{"temperature": 0, "prompt": "a", "text": "007"}],
    }
    slower = training(0.3, workload="gpt2-slower")
    own = [probed(trained), matmul(), kernel_launch(), slower]
    return make(tmp_path_factory.mktemp("columns"), own)


def test_what_is_written_is_declared_and_what_is_declared_is_written(results: Path) -> None:
    """Also where there is nothing to say: an empty table has its header."""
    paths = [results / "results.csv", *(results / "tables").glob("*.csv")]
    frames = {path.stem: table_files.read(path) for path in paths}
    assert frames.keys() == columns.tables().keys()
    for name, frame in frames.items():
        declared = columns.columns_of_table(name)
        always = {column for column, one in declared.items() if not one.optional}
        assert set(frame.columns) - declared.keys() == set(), name
        assert always - set(frame.columns) == set(), name


@pytest.mark.parametrize("name", update.NAMES)
def test_every_column_of_a_real_run_is_declared(name: str, tmp_path: Path) -> None:
    """Which has every workload, and the probes of its host."""
    archive = ROOT / "tests/golden/tables" / f"{name}.tar.xz"
    for path in update.unpack(archive, tmp_path).glob("*.csv"):
        header = path.read_text(encoding="utf-8").split("\n")[0].split(",")
        if not path.name.startswith("page-"):
            assert set(header) - columns.columns_of_table(path.stem).keys() == set(), path.name


def test_every_column_has_a_type_a_unit_by_its_name_and_a_meaning() -> None:
    for table in columns.tables():
        for name, column in columns.columns_of_table(table).items():
            assert column.type in ("text", "number", "integer", "boolean"), name
            assert column.help and not column.help.endswith("."), name
            end = name.rpartition("_")[2]
            if end in columns.UNITS and column.type != "text" and not name.endswith("_per_s"):
                assert column.unit == columns.UNITS[end], f"{table}: {name}"


def test_a_table_is_read_by_its_declaration(results: Path) -> None:
    read = siliconprof.load(results)
    assert read.texts["text"].tolist() == ["007"]
    assert read.texts["temperature"].tolist() == [0]
    assert read.cells["data_synthetic"].dtype == "boolean"
    assert read.points is read.points


def test_a_name_that_is_no_table_and_a_folder_without_results_are_said(
    results: Path, tmp_path: Path
) -> None:
    with pytest.raises(AttributeError, match="no table pionts; did you mean 'points'"):
        _ = siliconprof.load(results).pionts
    with pytest.raises(UserError) as error:
        siliconprof.load(tmp_path)
    assert "no folder of results" in str(error.value) and "\n" not in str(error.value)


def test_the_example_for_a_notebook_runs(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 2
    monkeypatch.chdir(results.parent)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)
    assert isinstance(namespace["results"], type(siliconprof.load(results)))


def test_the_page_of_columns_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/columns.md is what `make docs` writes."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    page = (ROOT / "docs/columns.md").read_text(encoding="utf-8")
    assert page == generate.columns_page(), "run `make docs`"
