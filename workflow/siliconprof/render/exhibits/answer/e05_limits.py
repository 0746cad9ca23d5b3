"""What the hardware does at most: products, bandwidth and launches measured here, and the data sheet."""

from typing import Any

import pandas as pd

from siliconprof.analyse import throughputs
from siliconprof.analyse.frames import DEVICE, PRECISIONS, Frames, rank
from siliconprof.analyse.scaling import AMORTISED
from siliconprof.render.exhibit import PLACE, Exhibit, Num

QUANTITIES = {
    "matmul": "product",
    "memory_bandwidth": "memory",
    "cache_bandwidth": "cache",
    AMORTISED: "launch",
}
COLUMNS = {  # of ceilings.csv -> what ends a column of the table
    **{"value": "", "value_low": "_low", "value_high": "_high", "n": "_n", "how": "_how"},
    **{"datasheet_value": "_sheet", "share": "_share", "datasheet_source": "_source"},
    **{"datasheet_reason": "_sheet_why", "workload": "_workload"},
}
BACKEND = [*DEVICE, "backend"]


def rows(frames: Frames) -> pd.DataFrame:
    lines, cells = frames.table("ceilings"), frames.cells
    lines = lines[lines["quantity"].isin(QUANTITIES)]
    disturbed = lines["record"].isin(cells.loc[cells["disturbed"], "record"])
    lines = lines.assign(
        column=lines["quantity"].map(QUANTITIES),
        how=lines["how"].mask(disturbed, lines["how"] + ", disturbed"),
    )
    by = [*BACKEND, "precision", "column"]
    frame = pd.DataFrame(lines.set_index(by)[[*COLUMNS]].unstack("column"))
    pairs: list[Any] = list(frame.columns)
    frame.columns = pd.Index([f"{name}{COLUMNS[column]}" for column, name in pairs])
    every = [f"{name}{end}" for name in QUANTITIES.values() for end in COLUMNS.values()]
    names = [*BACKEND, "device_label", "whose", "backend_label", "place", "order"]
    frame = (
        frame.reindex(columns=every)
        .reset_index()
        .merge(cells[names].drop_duplicates(BACKEND), on=BACKEND)
    )
    sheets = throughputs.of_sheets(frame[DEVICE], frames.sheets.bandwidth)
    frame = frame.assign(
        memory_sheet=sheets["datasheet_value"],
        nth=rank(frame["precision"], PRECISIONS),
        workload=frame["product_workload"].fillna(frame["memory_workload"]),
        source_text=frame["product_source"].fillna(sheets["datasheet_source"]),
        product_share_why=frame["product_sheet_why"],
        memory_share_why=sheets["datasheet_reason"],
    )
    return frame.sort_values(["order", "nth"], kind="stable", ignore_index=True)


GIGA = 1e9
EXHIBIT = Exhibit(
    id="limits",
    rows=rows,
    table=(
        *PLACE,
        Num("product", "Fastest matmul", "GFLOP/s", scale=GIGA, below="product_how"),
        Num("product_sheet", "Data sheet", "GFLOP/s", scale=GIGA, published=True, folds=True),
        Num("product_share", "Share of peak matmul", percent=True, folds=True),
        Num("memory", "Memory", "GB/s", scale=GIGA, below="memory_how"),
        Num("memory_sheet", "Data sheet", "GB/s", scale=GIGA, published=True, folds=True),
        Num("memory_share", "Share of it", percent=True, folds=True),
        Num("cache", "Cache", "GB/s", scale=GIGA, below="cache_how", folds=True),
        Num("launch", "Launch, among many", "µs", scale=1e-6),
    ),
    needs="It needs a cell of matrix products, memory bandwidth or kernel launches.",
)
