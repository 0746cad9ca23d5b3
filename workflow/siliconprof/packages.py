"""Which packages a process finds, and which load: a library takes along whatever it finds.

transformers imports soundfile as soon as it is there, and where soundfile's own shared library is
not, no language model loads. So a process hides from itself what its work does not need; for the
libraries in it that is not installed.

    python -m siliconprof.packages

imports each installed one by itself and prints what happened, a line of JSON each.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, NoReturn

from siliconprof import declarations
from siliconprof.errors import in_one_line
from siliconprof.lifetime import killed_by
from siliconprof.plugins import PACKAGE_DIR

PACKAGE_MARK, TRIES = "siliconprof-package: ", "is being imported"
# Distribution -> what is imported of it, where that is not its top.
MODULES = {"mlx": "mlx.core", "pyyaml": "yaml"}
# What measures on any host, beside a framework.
REQUIRED = ("numpy", "psutil", "pydantic", "pyyaml")
# What this package itself may read and write with in any process, and no library merely looks for.
CELL_PACKAGES = {"numpy", "safetensors", "tokenizers"}
IMPORT_LIMIT_S = 300.0  # for all imports, from a cold network disk
# Modules that a cell's process hides: all but what cells of its framework may need, and, where these do
# not load, all but what it needs itself.
HIDDEN, HIDDEN_ALONE = "SILICONPROF_HIDDEN", "SILICONPROF_HIDDEN_ALONE"


class NotLoaded(Exception):
    """A package that this process finds does not load; its work may need fewer packages."""


def module_of(distribution: str) -> str:
    """Return the name of the module that a distribution installs."""
    return MODULES.get(distribution, distribution.replace("-", "_"))


def is_absent(distribution: str) -> bool:
    """Whether this Python has no such module."""
    return find_spec(module_of(distribution).partition(".")[0]) is None


# -- what a process finds ------------------------------------------------------------------------


class _PackageHider:
    """A finder of modules that hides some packages."""

    def __init__(self, finder: Any, hidden: Collection[str]) -> None:
        self._finder, self._hidden = finder, hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(modules: Iterable[str]) -> set[str]:
    """Hide packages in this process, except those already loaded; a second call changes nothing.

    Returns:
        The modules that are hidden: whoever adds one hides it too.
    """
    hidden = set(modules)
    # What is hidden is not missing, of which transformers would warn.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    sys.meta_path[:] = [
        _PackageHider(finder, hidden) if finder is PathFinder else finder
        for finder in sys.meta_path
    ]
    return hidden


@cache
def all_but(needed: frozenset[str]) -> list[str]:
    """Return the modules of all packages that plug-ins and data sets name, except some and their requirements."""
    found = requirements(needed) | CELL_PACKAGES
    return [
        module_of(name).partition(".")[0]
        for name in declarations.libraries_but_of_probes()
        if name not in found
    ]


def environment(framework: Iterable[str], cell: Iterable[str]) -> dict[str, str]:
    """Return variables by which a cell's process hides all packages but its framework's, or but its own."""
    needed = {HIDDEN: framework, HIDDEN_ALONE: cell}
    return {name: ",".join(all_but(frozenset(of))) for name, of in needed.items()}


def hide_as_told(told: Mapping[str, str] = os.environ) -> None:
    """Hide the packages that an environment's variables name."""
    hide(told.get(HIDDEN, "").split(","))


def has_isolated_packages() -> bool:
    """Whether this process already finds only its cell's own packages, the fewest there are to try."""
    return os.environ.get(HIDDEN, "") == os.environ.get(HIDDEN_ALONE, "")


def restart_isolated(module: str, *arguments: str) -> NoReturn:
    """Replace this process by a module that finds only its cell's own packages."""
    os.environ[HIDDEN] = os.environ[HIDDEN_ALONE]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def requirements(distributions: Iterable[str]) -> set[str]:
    """Return packages and all of `declarations.libraries` that they require, by their metadata."""
    known, found, rest = {*declarations.libraries()}, set[str](), [*distributions]
    while rest:
        name = re.sub(r"[-_.]+", "-", rest.pop()).lower()
        if name in known and name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):
                lines = metadata.requires(name) or ()
                rest += [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    return found


# -- what loads ----------------------------------------------------------------------------------


def remedy(distribution: str) -> str:
    """Return how to fix a package that is missing or does not load."""
    version = declarations.installed_version(distribution)
    if version is None:
        return f"pip install {distribution}"
    return f"pip install --force-reinstall --no-deps {distribution}=={version}"


NO_NVCC = "unable to compile CUDA op"  # of its MissingCUDAException


def fix(distribution: str, why: str) -> str:
    """Return how to fix a package that does not load, by the reason; some versions of DeepSpeed look for nvcc."""
    if NO_NVCC not in why:
        return remedy(distribution)
    return (
        "pip install deepspeed==0.19.8, which does without, or install NVIDIA's compiler nvcc (Debian: apt-get "
        "install nvidia-cuda-toolkit) and set CUDA_HOME to the folder above its bin/"
    )


def failure(distributions: Iterable[str]) -> str | None:
    """Return a line on the first of some packages that this process cannot import: which, why, and the fix."""
    for name in sorted(requirements(distributions), key=lambda one: len(requirements([one]))):
        if declarations.installed_version(name) is None and is_absent(name):
            if name in distributions:
                return f"needs {name}, which this Python does not have: {remedy(name)}"
            continue
        if why := _import(name):
            return f"{name} does not load ({why}): {fix(name, why)}"
    return None


def _import(distribution: str) -> str | None:
    """Return why importing a package fails; None where it works, or there is nothing to import."""
    if is_absent(distribution):
        return None
    try:
        importlib.import_module(module_of(distribution))
    except Exception as error:  # a broken one raises anything
        return in_one_line(error)
    return None


def broken() -> dict[str, str]:
    """Packages that are installed and do not load -> why.

    One process imports them one after the other, those first that need no other. One that fails is
    hidden from the rest; one that ends the process is left out of the next.
    """
    found: dict[str, str] = {}
    search = os.pathsep.join(filter(None, [str(PACKAGE_DIR.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONSAFEPATH": "1"}
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "siliconprof.packages", *found],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=IMPORT_LIMIT_S,
            env=environment,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(PACKAGE_MARK)]
        tried: dict[str, str | None] = {}
        for line in lines:
            tried |= json.loads(line.removeprefix(PACKAGE_MARK))
        found |= {name: why for name, why in tried.items() if why and why != TRIES}
        last = next((name for name, why in tried.items() if why == TRIES), None)
        if last is None:
            return found
        end = done.returncode
        found[last] = killed_by(-end) if end < 0 else f"its import ends Python with status {end}"


def main(argv: Sequence[str]) -> int:
    """Import each that is installed, but for those named; print why one fails, null where none does."""
    names = [name for name in declarations.libraries_but_of_probes() if name not in argv]
    hidden = hide(all_but(frozenset(names)))
    for name in sorted(names, key=lambda one: len(requirements([one]))):
        if not is_absent(name):
            print(f"\n{PACKAGE_MARK}{json.dumps({name: TRIES})}", flush=True)
            if why := _import(name):
                hidden.add(module_of(name).partition(".")[0])
            print(f"\n{PACKAGE_MARK}{json.dumps({name: why})}", flush=True)
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # libraries take a while to go
