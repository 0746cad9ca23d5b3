"""The claims file: published rows, quantities, and a line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from claim_entries import GROWS, SHIPPED, altered, claim, judged, shipped
from conftest import ROOT
from siliconprof.claims.quantities import READERS, Quantity
from siliconprof.errors import UserError
from siliconprof.store import model, published, table_files


def test_every_quantity_is_used() -> None:
    """A quantity by a claim, and what reads one in Python by a quantity."""
    document = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    used = {e["compare"]["quantity"] for e in document["claims"] if "compare" in e}
    assert used == document["quantities"].keys()
    readers = {quantity.get("reader") for quantity in document["quantities"].values()}
    assert readers - {None} == READERS.keys()


def test_a_published_row_gives_devices_workloads_and_value(tmp_path: Path) -> None:
    """The number is read from config/published, where the page's tables read it too."""
    entry = claim("ratio", "epoch_speed", "mlp cnn lstm", "about 0 0.1", a={}, b={})
    del entry["source"], entry["compare"]["value"]
    statement = "faster up to 1.77 times for MLP with a batch size of 1024"
    entry["published"] = {"table": "daniel2023_speedups", "statement": statement}
    (row,) = judged(tmp_path, [entry], {})
    assert row["published_devices"] == "m2-max-30;p100-pcie-16gb"
    assert (row["published_value"], row["published_unit"]) == ("1.77", "times")
    assert row["claimed_low"] == pytest.approx(1.77 / 1.1)
    assert "Daniel 2023, Results" in row["source"]


IN_TABLE = {"table": "daniel2023_speedups", "statement": "M2 Max is always faster than the M1"}


@pytest.mark.parametrize(
    ("where", "value", "line"),
    [
        ("id", "Bad Id", "claims.0.id: is 'Bad Id'; expected text that matches"),
        ("untestable", "why", "expected either compare or untestable"),
        ("published", IN_TABLE, "expected either source or published"),
        ("source", IN_TABLE | {"statement": "x"}, "no row of daniel2023_speedups.csv has it"),
        ("compare.along", None, "claims.0.compare: a trend needs along"),
        ("compare.quantity", "througput", "did you mean 'throughput'?"),
        ("compare.quantity", "heat", "trend.compare.quantity: is 'heat'; expected one of: cold_la"),
        ("compare.a", {"backend": "mlx"}, "claims.0.compare: a trend has no side a"),
        ("compare.tolerance", 0.1, "compare: expected tolerance and tolerance_reason, both"),
        ("consistency", "so so", "consistency: is 'so so'; expected 'consistent' or "),
    ],
)
def test_a_bad_claims_file_gets_a_line_for_each_mistake(
    tmp_path: Path, where: str, value: Any, line: str
) -> None:
    key = where.removeprefix("compare.") if "." in where else ""
    entry = altered(GROWS, "trend", **{key: value} if key else {})
    if where == "source":  # a published row in place of it
        entry["published"] = value
        del entry["source"]
    elif not key:
        entry |= {where: value}
    with pytest.raises(UserError) as error:
        judged(tmp_path, [entry], {})
    lines = str(error.value).splitlines()
    assert len(lines) == 1 and line in lines[0], lines
    assert lines[0].startswith(str(tmp_path / "claims.yaml"))


@pytest.mark.parametrize(
    ("quantity", "line"),
    [
        ({"value": "1 / epch_s"}, "q: no column is called 'epch_s'; did you mean 'epoch_s'?"),
        ({"word": "verdct"}, "q: no column is called 'verdct'; did you mean 'verdict'?"),
        ({"value": "(epoch_s"}, "expected a formula with its brackets closed"),
        ({"value": "epoch_s) * (2"}, "expected a formula with its brackets closed"),
        ({"value": "epoch_s.step_s"}, "expected a formula of columns"),
        ({"value": "epoch_s +* 2"}, "q.value: is 'epoch_s +* 2'; expected a formula of columns"),
        ({"value": "epoch_s", "unit": "tims"}, "did you mean"),
        ({"value": "epoch_s", "word": "verdict"}, "q: expected one of value, word and reader"),
    ],
)
def test_a_bad_quantity_gets_a_line(quantity: dict[str, str], line: str) -> None:
    (problem,) = model.problems(dict[str, Quantity], {"q": {"label": "x"} | quantity})
    assert line in problem


def test_a_bad_published_table_gets_a_line_for_each_mistake(tmp_path: Path) -> None:
    """By column and line of the file."""
    path = tmp_path / "table6_kernel_launch.csv"
    path.write_text(
        "device,cold_launch_ms,followup_launch_ms,source,note\nx,-1,0.1,here,\n,inf,0.1,here,\n"
    )
    with pytest.raises(UserError) as error:
        published.read(tmp_path, path.stem)
    assert str(error.value).splitlines() == [
        f"{path}: device.3: is ''; expected a text",
        f"{path}: cold_launch_ms.2: is '-1'; expected a positive number",
        f"{path}: cold_launch_ms.3: is 'inf'; expected a positive number",
    ]


def test_the_shipped_claims_name_every_printed_statement() -> None:
    """No statement of a published table is without its claim."""
    named = {tuple(entry["published"].values()) for entry in shipped() if "published" in entry}
    for name in ("feng2025_statements", "wide_deep_report_speedups", "daniel2023_speedups"):
        rows = table_files.rows(table_files.read(ROOT / f"config/published/{name}.csv"))
        assert {(name, row["statement"]) for row in rows} <= named
