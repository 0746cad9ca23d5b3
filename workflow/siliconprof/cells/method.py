"""The method code of a cell: what decides which numbers it gets, and how; see `fingerprint`."""

from __future__ import annotations

from siliconprof import plugins
from siliconprof.store.cell import Cell

# What the measuring process runs of every cell, whatever its plug-ins.
ALWAYS = ("siliconprof.session.measurement", "siliconprof.session.trial")


def code_roots(cell: Cell) -> list[str]:
    """Modules from which everything that this cell is measured with is reached."""
    probes = cell.parameters.get("probes")  # None: all there are
    read = plugins.names("probes") if probes is None else probes
    named = [
        ("backends", cell.backend),
        ("workloads", cell.module),
        *(("probes", name) for name in read),
        *(("captures", name) for name in cell.parameters.get("capture", ())),
    ]
    if cell.trainer:
        named.append(("trainers", cell.trainer))
    if "of_workload" in cell.parameters:  # whose step gives the shapes
        named.append(("workloads", cell.parameters["of_workload"]["module"]))
    modules = (plugins.module_name(kind, name) for kind, name in named)
    return [*ALWAYS, *modules]
