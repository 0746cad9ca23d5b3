"""Records of schema 1 and method 1, made by the code of that time: read, shown, and not compared.

`schema_1.zip` is a bundle that the code of commit 0661a5e packed, the last whose records kept to
schema 1: an export of that commit (`git archive`) with `host: lab`, two workloads (GPT-2 nano,
batch 2 of 16 tokens; a product of 16³) on two backends and three repeats, `snakemake --cores 1`,
then `python -m siliconprof.remote.bundle pack`. Nothing in it was changed afterwards.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from siliconprof.compare import noise_floor
from siliconprof.errors import UserError
from siliconprof.remote import bundle
from siliconprof.render import figures
from siliconprof.store import migration, record, records
from siliconprof.store.record import NewerRecord, OlderRecord
from synthetic_results import host_file, load, make, render, table, training

BUNDLE = Path(__file__).parent / "schema_1.zip"
MEMBER = "records/lab/cpu-amd-epyc/mlx/nano/auto/fp32.json"


def stored() -> dict[str, Any]:
    """The content of one of the bundle's records, as that code wrote it."""
    with zipfile.ZipFile(BUNDLE) as archive:
        return json.loads(archive.read(MEMBER))


def put(folder: Path, data: dict[str, Any]) -> Path:
    """A record at its place."""
    path = folder / MEMBER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def test_every_older_schema_has_a_step():
    assert list(migration.STEPS) == list(range(1, record.SCHEMA_VERSION))


def test_a_record_is_read_as_one_of_today_and_nothing_is_invented(tmp_path):
    old = stored()
    path = put(tmp_path, old)
    content = path.read_bytes()
    assert records.damaged([path], records.Notes(tmp_path)) == {}
    data = record.read(path)  # today's schema holds
    assert path.read_bytes() == content
    assert (data["schema_version"], data["method_version"]) == (record.SCHEMA_VERSION, 1)
    assert data["sha256"] == old["sha256"]
    assert data["points"][0]["times"] == old["points"][0]["times"]
    assert data["dataset"]["data_sha256"] == old["dataset"]["tokens_sha256"]
    scenario = data["scenario"]
    assert (scenario["applied"], scenario["batch_size"]) == ("fits", 2)
    assert scenario["capacity_bytes"] is None and "not recorded" in scenario["capacity_source"]
    assert "energy" not in data["points"][0] and "checks" not in data
    first, second = [flag for flag in data["flags"] if flag["code"] == migration.FLAG]
    assert "schema 1; not recorded" in first["detail"] and "energy" in first["detail"]
    assert "schema 2; not recorded" in second["detail"] and "fingerprint" in second["detail"]
    assert data["code"] == {"fingerprint": None, "modules": old["code"]}


@pytest.mark.parametrize(
    ("change", "why", "kind"),
    [
        ({"scenario": {}}, "damaged record: not a record of schema version 1: KeyError", UserError),
        ({"points": [7]}, "damaged record: not a record of schema version 1: TypeError", UserError),
        ({"dataset": []}, "damaged record: not a record of schema version 1: TypeError", UserError),
        ({"status": "great"}, "damaged record: status: is 'great'", UserError),
        ({"schema_version": 0}, "schema version 0; this version reads 1, 2, 3, 4", OlderRecord),
        ({"schema_version": True}, "schema version True; this version reads 1, 2, 3, 4", UserError),
        ({"schema_version": 9}, "schema version 9; this version reads 1, 2, 3, 4", NewerRecord),
        ({"method_version": 9}, "method version 9; this version reads 1 to 2", NewerRecord),
        ({"method_version": 0}, "method version 0; this version reads 1 to 2", UserError),
    ],
)
def test_what_is_not_of_its_version_is_refused(tmp_path, change, why, kind):
    data = stored() | change
    data["sha256"] = record.content_sha256(data)
    with pytest.raises(UserError) as error:
        record.read(put(tmp_path, data))
    assert type(error.value) is kind
    assert why in str(error.value) and len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match="does not match its own"):
        record.read(put(tmp_path, data | {"status": "failed"}))


def test_a_noise_floor_is_of_the_method_that_made_it(tmp_path):
    names = dict.fromkeys(("cell", "device", "backend", "point", "metric", "group"), "x")
    figure = names | {"values": [1.0]}
    figures_ = [figure | {"method_version": method} for method in (1, record.METHOD_VERSION)]
    document = {"floor_version": noise_floor.VERSION, "host": "h", "runs": [{"figures": figures_}]}
    path = tmp_path / "h.json"
    path.write_text(json.dumps(document))
    (todays,) = noise_floor.read(path).figures
    assert vars(todays) == figures_[1]


def test_an_older_bundle_is_imported_shown_and_compared_with_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Path("results")
    results.mkdir()
    assert bundle.import_bundle(BUNDLE, results).added == 4
    with zipfile.ZipFile(BUNDLE) as archive:
        assert (results / MEMBER).read_bytes() == archive.read(MEMBER)
    own = [training(0.010), training(0.030, backend="mlx")]
    make(Path(), own, hosts=[host_file()])
    for path in sorted((results / "tables").glob("*.csv")):
        named = "cpu-amd-epyc" in path.read_text() and path.stem != "models"
        assert named == (path.stem == "other_methods"), path
    rows = {(row["backend"], row["workload"]): row for row in table(results, "other_methods")}
    assert len(rows) == 4 and {row["method_version"] for row in rows.values()} == {1}
    times = stored()["points"][0]["times"]["unsplit_step_s"]
    assert rows["mlx", "nano"]["unsplit_step_median_s"] == sorted(times)[1]
    assert load(results).hosts() == []
    monkeypatch.setattr(figures, "publish", lambda *_, **__: ("", ""))  # the tables are enough
    page = render(results, ())
    assert "4 records of another method than today" in page.html
    shown = (results / "figures/table-other-methods.csv").read_text()
    assert "lab" in shown and "method 1" in shown
