"""The method code of a cell: the code that decides its numbers; see `fingerprint`."""

from __future__ import annotations

from siliconprof import plugins
from siliconprof.store.cell import Cell

# The measuring process runs these for every cell, whatever its plug-ins.
ALWAYS = ("siliconprof.session.measurement", "siliconprof.session.resolved_cell")


def code_roots(cell: Cell) -> list[str]:
    """The modules from which all code that measures this cell is reached."""
    probes = cell.parameters.get("probes")  # None: all there are
    probe_names = plugins.names("probes") if probes is None else probes
    chosen = [
        ("backends", cell.backend),
        ("workloads", cell.module),
        *(("probes", name) for name in probe_names),
    ]
    if cell.trainer:
        chosen.append(("trainers", cell.trainer))
    modules = (plugins.module_name(kind, name) for kind, name in chosen)
    return [*ALWAYS, *modules]
