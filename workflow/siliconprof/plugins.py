"""One file = one plug-in = one class, found by its file name.

`workloads/matmul.py` holds `class Plugin` and is the workload `matmul`; a module whose name
starts with an underscore, or is `base`, is shared code and no plug-in. Hyphens in names are
underscores in file names (`torch-cpu` is `backends/torch_cpu.py`).
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, in_one_line

PACKAGE_DIR = Path(str(files("siliconprof"))).resolve()
_COPY = PACKAGE_DIR / "shipped"
# Where tables, registry, claims and templates lie: of a wheel, in the copy that setup.py makes.
CHECKOUT = _COPY if _COPY.is_dir() else PACKAGE_DIR.parent.parent
KINDS = ("backends", "workloads", "trainers", "probes")


def shipped(path: str) -> Path:
    """A file or folder that comes with this package: of its checkout, or within the wheel.

    A short name in the checkout itself, so that a moved one reruns nothing.
    """
    return Path(path) if Path.cwd() == CHECKOUT else CHECKOUT / path


def names(kind: str) -> list[str]:
    """The plug-ins of a kind, one of `KINDS`, sorted."""
    return list(_names(kind))


@cache
def _names(kind: str) -> tuple[str, ...]:
    modules = (path.stem for path in PACKAGE_DIR.joinpath(*kind.split(".")).glob("*.py"))
    separator = "-" if kind == "backends" else "_"
    stems = (stem for stem in modules if stem != "base" and not stem.startswith("_"))
    return tuple(sorted(stem.replace("_", separator) for stem in stems))


def module_name(kind: str, name: str) -> str:
    """The dotted module of a plug-in, without importing it."""
    return f"siliconprof.{kind}.{name.replace('-', '_')}"


def load(kind: str, name: str) -> Any:
    """The plug-in's class. Importing it imports no framework.

    Raises:
        LookupError: there is no plug-in of that name.
        UserError: its file cannot be imported, or has no class `Plugin`.
    """
    if name not in names(kind):
        raise LookupError(f"no {kind} plug-in '{name}'; there are: {', '.join(names(kind))}")
    module = module_name(kind, name)
    file = f"{'/'.join(module.split('.')[1:])}.py"
    try:
        return importlib.import_module(module).Plugin
    except Exception as error:
        raise UserError(f"{file}: cannot be imported ({in_one_line(error)})") from error
