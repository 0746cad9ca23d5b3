"""What was measured on what: the host, its software, when, and every cell with its status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from siliconprof import words
from siliconprof.render import uncertainty
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.variants import Row

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


def add(data: Data, book: Book, own: Data) -> None:
    """Facts of this host, versions, and the table of all cells."""
    host, cpu = data.host, data.host["cpu"]
    threads = sorted({int(c["threads"]) for c in own.cells if c["threads"]})
    packages = sorted(host["packages"].items())
    book.facts(
        [
            ("Host", host["label"]),
            ("Processor", f"{cpu['model']}, {_cores(data)}"),
            ("Useful features", ", ".join(cpu["features"])),
            ("Memory", words.mebibytes(cpu["memory_bytes"]) if cpu["memory_bytes"] else ""),
            ("Devices", "; ".join(_device(device) for device in host["devices"])),
            (
                "System",
                f"{host['os']['distribution'] or ''}, {host['os']['system']} "
                f"{host['os']['release']}, {host['os']['machine']}".lstrip(", "),
            ),
            (
                "Driver",
                ", ".join(
                    f"{name.replace('_', ' ')} {version}"
                    for name, version in host["driver"].items()
                    if version
                ),
            ),
            ("Packages", ", ".join(f"{name} {version}" for name, version in packages if version)),
            ("Not installed", ", ".join(name for name, version in packages if not version)),
            (
                "BLAS",
                "; ".join(
                    f"{name}: {library or 'unknown'}" for name, library in host["blas"].items()
                ),
            ),
            (
                "Kernels of training steps",
                words.listing(sorted({c["kernels"] for c in own.cells if c["kernels"]})),
            ),
            ("CPU threads", words.listing(map(str, threads))),
            ("Measured", when(own.cells)),
            ("Code", commits(own.cells)),
            (
                "Method",
                words.listing(sorted({f"version {int(c['method_version'])}" for c in own.cells})),
            ),
            ("Intervals", uncertainty.method(own.points, host["label"], data.floors)),
            ("Cells", f"{len(own.cells)}: {statuses(own.cells)}" if own.cells else "none"),
        ]
    )
    fold = f"{len(own.cells)} cells" if len(own.cells) > FOLD_ABOVE else ""
    if own.cells:
        book.table("cells", "cells", cells_table(own.cells), folded=fold)
    else:
        book.note("The experiment has no cell on this host.")


def _cores(data: Data) -> str:
    cpu = data.host["cpu"]
    physical = f"{cpu['physical_cores']} physical, " if cpu["physical_cores"] else ""
    return f"{physical}{cpu['logical_cores']} logical, {cpu['usable_cores']} usable cores"


def _device(device: Row) -> str:
    memory = f", {words.mebibytes(device['memory_bytes'])}" if device["memory_bytes"] else ""
    remark = "" if device["registry_id"] else "; not in the registry, so its peak is unknown"
    return f"{device['name']} ({device['id']}, {device['kind']}{memory}{remark})"


def cells_table(cells: Iterable[Row]) -> Table:
    """Every cell, measured or not."""
    table = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Workload"),
            Column("Precision"),
            Column("Status"),
            Column("Reason, or flags"),
            Column("Effective precision", help="proved by the error of a product"),
            Column(
                "Scenario", help="asked for, and what was run; else what the memory model derives"
            ),
            Column("points", "", True),
            Column("wall", "s", True, "the whole cell's process"),
            Column("in timed regions", "s", True, "warm-up and repeats"),
        ]
    )
    for cell in cells:
        ok = cell["status"] == "ok"
        codes = [code for code, _ in words.flags(cell)]
        badge = words.SOURCE_BADGES.get(cell["source"], "")
        scenario = cell.get("scenario_applied") or cell["scenario_derived"]
        why = "ended before it was measured" if not ok else "not recorded"
        table.add(
            Value(cell["device"], sort=cell["device"], badge=badge),
            words.backend_name(cell),
            cell["workload"],
            cell["precision"],
            Value(
                cell["status"],
                sort=cell["status"],
                mark=f"status-{cell['status']}",
                title=words.STATUS_WORDS.get(cell["status"], ""),
            ),
            Value(
                cell["reason"] or ", ".join(sorted(set(codes))) or "no flags",
                title=cell["flag_details"] or "",
                mark="note",
            ),
            cell["effective_precision"] or missing(why),
            Value(f"{cell['scenario']} → {scenario}")
            if scenario
            else Value(cell["scenario"], title="no memory model"),
            integer(cell["points"], why),
            missing("was not started")
            if cell["status"] == "unsupported" and not cell["child_wall_s"]
            else quantity(cell["wall_s"], why),
            quantity(cell["timed_s"], why),
            css="" if ok else "failed",
            of=cell,
        )
    return table
