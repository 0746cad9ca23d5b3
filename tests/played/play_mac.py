"""A process that imports this at its start is on a played Mac.

`SILICONPROF_PLAYED_MAC` says which, as JSON: `memory_bytes`, `recommended_bytes` (Metal's working
set), `metal` (metal.cpp compiled) and `macos` (fake_macos.cpp compiled).
"""

import importlib.abc
import importlib.util
import json
import os
import sys

PLAYED = json.loads(os.environ["SILICONPROF_PLAYED_MAC"])


def torch_(module):
    import played_mps

    played_mps.install(PLAYED["metal"], PLAYED["recommended_bytes"])


def mlx_(module):
    import played_mlx

    played_mlx.install(PLAYED["memory_bytes"], PLAYED["recommended_bytes"])


def machine_(module):
    import played_macos

    played_macos.install(module, PLAYED["memory_bytes"])


def apple_(module):
    module.LIBRARY = PLAYED["macos"]


AFTER = {
    "torch": torch_,
    "mlx.core": mlx_,
    "siliconprof.hosts.machine": machine_,
    "siliconprof.hosts.sensors.apple": apple_,
}


class After(importlib.abc.MetaPathFinder):
    """Plays a part as soon as the module that it stands below is imported."""

    def find_spec(self, name, path=None, target=None):
        play = AFTER.pop(name, None)
        if play is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def and_play(module):
            execute(module)
            play(module)

        spec.loader.exec_module = and_play
        return spec


sys.meta_path.insert(0, After())
