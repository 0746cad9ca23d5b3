"""Python runs this at its start where this folder is on PYTHONPATH: frameworks find a simulated GPU.

`SILICONPROF_SIMULATED` says which, as JSON. NVIDIA's: `library` (device.cpp compiled), and `lost_after`
that many kernels. A Mac's: `library`, `memory_bytes`, `recommended_bytes` (Metal's working set) and
`macos` (fake_macos.cpp compiled). Of any host: `unreadable`, when its readings raise (unreadable.py).
"""

import ctypes
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys

PLAYED = json.loads(os.environ.get("SILICONPROF_SIMULATED", "{}"))
# By module: who plays what is below it, once it is imported
NVIDIA = {"torch": ["simulated_cuda"], "mlx.core": ["simulated_mlx"]}
MAC = {
    "torch": ["simulated_mps"],
    "mlx.core": ["simulated_mlx"],
    "siliconprof.hosts.machine": ["simulated_macos"],
    "siliconprof.hosts.sensors.apple": ["simulated_macos"],
}
SENSORS = ("session.sampler", "hosts.sensors.linux", "hosts.sensors.apple")


class After(importlib.abc.MetaPathFinder):
    """Plays a part as soon as the module that it stands below is imported."""

    def __init__(self, players):
        self.players = players

    def find_spec(self, name, path=None, target=None):
        if name not in self.players:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)  # it may only be asked whether the module is there
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def and_play(module):
            if name == "torch":
                ctypes.CDLL(PLAYED["library"])  # it asks for its hooks while it is imported
            execute(module)
            for player in self.players[name]:
                importlib.import_module(player).install(PLAYED, module)

        spec.loader.exec_module = and_play
        return spec


if PLAYED:
    players = MAC if "macos" in PLAYED else NVIDIA if "library" in PLAYED else {}
    if "unreadable" in PLAYED:
        importlib.import_module("unreadable").begin(PLAYED)
        for name in (f"siliconprof.{sensor}" for sensor in SENSORS):
            players[name] = [*players.get(name, ()), "unreadable"]
    sys.meta_path.insert(0, After(players))
