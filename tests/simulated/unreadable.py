"""A host whose readings raise, below siliconprof: files of the system, commands, libraries.

What others read, such as a framework, is left as it is. Readings raise from the start, or late: once a
cell has been sampled for a while.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

FOLDERS = ("/proc", "/sys")
BETWEEN = ("pathlib", __name__)  # modules through which our code asks the system
COMMANDS = "siliconprof.hosts.machine"  # who asks them to read the host
LATE_S = 0.6


class Broken:
    """What raises now: the beginnings of paths and of functions' names."""

    names: tuple[str, ...] = ()

    def set(self, *names: str) -> None:
        """Have these raise from here on; without any, all."""
        self.names = names or ("",)

    def clear(self) -> None:
        """Have nothing raise any more."""
        self.names = ()


broken = Broken()


def _asked_by(own: str) -> bool:
    """Whether our code asks, by itself or through the standard library.

    Args:
        own: how the names of its modules begin.
    """
    frame: Any = sys._getframe(2)
    while frame and frame.f_globals.get("__name__") in BETWEEN:
        frame = frame.f_back
    return bool(frame) and str(frame.f_globals.get("__name__")).startswith(own)


def file(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the system whose first argument is a path."""

    @functools.wraps(real)
    def opened(path: Any = ".", *arguments: Any, **more: Any) -> Any:
        name = str(getattr(path, "path", path))  # of a file that stays open
        hit = name.startswith(FOLDERS) and name.startswith(broken.names)
        if hit and _asked_by("siliconprof."):
            raise OSError(5, "Input/output error", name)
        return real(path, *arguments, **more)

    return opened


def library(real: Callable[..., Any], own: str = "siliconprof.") -> Callable[..., Any]:
    """A function of a library that was built for another system."""

    @functools.wraps(real)
    def asked(*arguments: Any, **more: Any) -> Any:
        if real.__name__.startswith(broken.names) and _asked_by(own):
            raise RuntimeError(f"{real.__name__} failed: (ipc/mig) array not large enough")
        return real(*arguments, **more)

    return asked


def boundaries() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(where, name, what raises there) of everything by which a Linux host is read."""
    import psutil

    for module, names in (
        (builtins, ("open",)),
        (io, ("open",)),
        (os, ("open", "scandir", "listdir", "stat")),
    ):
        for name in names:
            yield module, name, file(getattr(module, name))
    for name in ("virtual_memory", "swap_memory", "cpu_times"):
        yield psutil, name, library(getattr(psutil, name))
    yield psutil.Process, "memory_info", library(psutil.Process.memory_info)
    yield os, "getloadavg", library(os.getloadavg)
    yield shutil, "disk_usage", library(shutil.disk_usage)
    yield subprocess, "run", library(subprocess.run, COMMANDS)


def begin(spec: dict[str, Any]) -> None:
    """Have this process's readings raise, from the start or later."""
    for where, name, raising in boundaries():
        setattr(where, name, raising)
    if spec["unreadable"] == "start":
        broken.set()


def install(spec: dict[str, Any], module: Any) -> None:
    """Have what an imported module reads by itself raise too, or begin late.

    Args:
        module: siliconprof.session.sampler, hosts.sensors.linux or hosts.sensors.apple.
    """
    if hasattr(module, "KernelFile"):
        module.KernelFile.read = file(module.KernelFile.read)
    if hasattr(module, "MacHost"):
        for kind, name in ((module.MacHost, "_level"), (module.VirtualMemory, "swapped")):
            setattr(kind, name, library(getattr(kind, name)))
        energy = module.AppleEnergy
        energy.read = library(energy.read)
    if hasattr(module, "Sampler") and spec["unreadable"] == "late":
        run = module.Sampler._run

        def late(self: Any) -> None:
            threading.Timer(LATE_S, broken.set).start()
            run(self)

        module.Sampler._run = late
