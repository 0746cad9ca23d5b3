"""Import one module of a large package, and not all that its packages import for themselves."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def import_directly(name: str, bare: Collection[str]) -> None:
    """Import a dotted module without running the code of the `bare` packages above it."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package in bare and package not in sys.modules:
            above = sys.modules.get(".".join(parts[: depth - 1]))
            spec = PathFinder.find_spec(package, above.__path__ if above else None)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = module_from_spec(spec)
            if above:
                setattr(above, parts[depth - 1], sys.modules[package])
        else:
            import_module(package)
    import_module(name)
