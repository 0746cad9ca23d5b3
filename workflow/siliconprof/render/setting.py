"""What was measured on what: the host, its software, when, and every cell with its status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import (
    BACKEND,
    PRECISION,
    Table,
    Value,
    badged,
    missing,
    told,
)
from siliconprof.render.variants import Row
from siliconprof.store.records import HERE

FOLD_ABOVE = 60  # rows that a table shows without being opened


def host_line(data: Data) -> str:
    """This host in one line."""
    host = data.host
    cpu = host["cpu"]
    gpus = [
        f"{device['name']} (emulated)" if device.get("emulated") else device["name"]
        for device in host["devices"]
        if device["kind"] == "gpu"
    ]
    memory = words.mebibytes(cpu["memory_bytes"]) if cpu["memory_bytes"] else ""
    system = host["os"]["distribution"] or f"{host['os']['system']} {host['os']['release']}"
    parts = [
        *gpus,
        f"{cpu['model']} with {words.count(cpu['usable_cores'], 'usable core')}",
        f"{memory} of memory" if memory else "",
        system,
    ]
    return f"{host['label']}: {', '.join(filter(None, parts))}"


def when(cells: Iterable[Row]) -> str:
    """First to last start of a cell, UTC."""
    starts = sorted(cell["started_at"] for cell in cells if cell["started_at"])
    if not starts:
        return ""
    first, last = (start[:16].replace("T", " ") for start in (starts[0], starts[-1]))
    same_day = first[:10] == last[:10]
    return f"{first} to {last[11:] if same_day else last} UTC" if first != last else f"{first} UTC"


def statuses(cells: Iterable[Row]) -> str:
    """`18 ok, 4 unsupported`."""
    counts = Counter(cell["status"] for cell in cells)
    return ", ".join(f"{n} {status}" for status, n in counts.most_common())


def commits(cells: Iterable[Row]) -> str:
    """The commits that made the records, shortened."""
    hashes = sorted({cell["git_commit"] for cell in cells if cell["git_commit"]})
    short = [c[:12] + (" with changes" if c.endswith("+changes") else "") for c in hashes]
    return words.listing(short) or "unknown (not a git checkout)"


def add(data: Data, book: Book) -> None:
    """Facts of this host, versions, and the table of all cells."""
    own = data.only(HERE)
    host, os_ = data.host, data.host["os"]
    system = f"{os_['system']} {os_['release']}, {os_['machine']}"
    packages = sorted(host["packages"].items())
    drivers = (f"{name.replace('_', ' ')} {v}" for name, v in host["driver"].items() if v)
    blas = (f"{name}: {library or 'unknown'}" for name, library in host["blas"].items())
    book.facts(
        [
            ("Host", host_line(data)),
            ("Devices", "; ".join(_device(device) for device in host["devices"])),
            ("System", ", ".join(filter(None, [os_["distribution"], system]))),
            ("Driver", ", ".join(drivers)),
            ("Packages", ", ".join(f"{name} {version}" for name, version in packages if version)),
            ("BLAS", "; ".join(blas)),
            ("Measured", when(own.cells)),
            ("Code", commits(own.cells)),
        ]
    )
    if data.cells:
        book.table("cells", "cells", cells_table(data.cells), counted="cell", above=FOLD_ABOVE)
    if not own.cells:
        book.note("The experiment has no cell on this host.")


def _device(device: Row) -> str:
    memory = f", {words.mebibytes(device['memory_bytes'])}" if device["memory_bytes"] else ""
    remark = "" if device["registry_id"] else "; not in the registry, so its peak is unknown"
    return f"{device['name']} ({device['id']}, {device['kind']}{memory}{remark})"


def cells_table(cells: Iterable[Row]) -> Table:
    """Every cell, measured or not."""
    return Table.of(cells, CELLS, css=lambda cell: "" if _is_ok(cell) else "failed")


def _is_ok(cell: Row) -> bool:
    return bool(cell["status"] == "ok")


def status(cell: Row) -> Value:
    """A cell's status, and for the pointer what it means."""
    name = cell["status"]
    return Value(name, name, mark=f"status-{name}", title=words.STATUS_WORDS.get(name, ""))


def _remarks(cell: Row) -> Value:
    codes = sorted({code for code, _ in words.flags(cell)})
    text = cell["reason"] or ", ".join(codes) or "no flags"
    return Value(text, title=cell["flag_details"] or "", mark="note")


def _scenario(cell: Row) -> Value:
    ran = cell.get("scenario_applied") or cell["scenario_derived"]
    if not ran:
        return Value(cell["scenario"], title="no memory model")
    return Value(f"{cell['scenario']} → {ran}")


SCENARIO = "asked for, and what was run; else what the memory model derives"
CELLS = (
    told("Device", partial(badged, "device"), folds=True),
    BACKEND,
    told("Workload", "workload"),
    PRECISION,
    told("Status", status),
    told("Reason, or flags", _remarks),
    told(
        "Effective precision",
        lambda cell: cell["effective_precision"] or missing("not measured"),
        "proved by the error of a product",
    ),
    told("Scenario", _scenario, SCENARIO),
    told("SHA-256", lambda cell: Value(cell["record_sha256"], mark="hash"), "of its record"),
)
