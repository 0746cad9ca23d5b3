"""A cell's time over its records: what results/history has of it, oldest first.

A cell that is measured again, by other code or versions or after a flag, leaves its earlier records
there. Reading them is a courtesy: one that cannot be read is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from siliconprof.analyse import record_rows
from siliconprof.declarations import TIMES
from siliconprof.errors import UserError
from siliconprof.store import record, table_files
from siliconprof.store.contents import Record
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row

MOST = 20  # records of a cell, the newest, that a page shows


def of_cell(data: Record, history: Path) -> list[Row]:
    """Lines of history.csv: of each record of a cell that is ok, each of its points.

    None come of fewer than two records that hold figures.

    Args:
        data: its newest record.
    """
    found = {data.sha256: list(_of_record(data))} if data.status == "ok" else {}
    for path in record.earlier(history / data.cell.path, data.sha256)[:MOST]:
        with suppress(UserError, ValueError, KeyError, TypeError, AttributeError):
            earlier = record.load(path)
            if earlier.status == "ok":
                found[earlier.sha256] = list(_of_record(earlier))
    rows = chain.from_iterable(found.values()) if len(found) > 1 else ()
    return sorted(rows, key=lambda row: row["started_at"])


def _of_record(data: Record) -> Iterator[Row]:
    for point in record_rows.point_rows(data):
        series = next((name for name in TIMES if point.get(f"{name}_median_s")), None)
        if series is None:
            continue
        yield table_files.key_of(HERE, data.cell) | {
            "point": point["point"],
            "params": point["params"],
            "started_at": data.started_at,
            "node": data.environment.node,
            "framework_version": data.environment.backend.framework_version,
            "git_commit": data.environment.git_commit,
            "code_sha256": data.code.fingerprint,
            "series": f"{series}_s",
            "step_s": point[f"{series}_median_s"],
            "step_low_s": point[f"{series}_low_s"],
            "step_high_s": point[f"{series}_high_s"],
            "flags": ";".join(sorted(data.codes)),
            "record_sha256": data.sha256,
        }
