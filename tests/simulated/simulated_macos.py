"""macOS below siliconprof: what it asks the system by commands and by its C library, on an M2."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

POWERS_W = {"cpu_total_mj": 4.0, "gpu_mj": 12.0, "dram_mj": 1.0, "ane_mj": 0.0}


def commands(memory_bytes: int) -> dict[str, str]:
    """What macOS's commands print."""
    return {
        "sysctl -n machdep.cpu.brand_string": "Apple M2\n",
        "sysctl -n hw.memsize": f"{memory_bytes}\n",
        "sysctl -n hw.physicalcpu": "8\n",
        "sysctl -n hw.logicalcpu": "8\n",
        "sysctl -n hw.perflevel0.logicalcpu": "4\n",
        "sysctl -n hw.optional.arm.FEAT_FP16": "1\n",
        "sysctl -n hw.optional.arm.FEAT_BF16": "1\n",
        "ioreg -rd1 -c IOPlatformExpertDevice": '"IOPlatformUUID" = "simulated"\n',
        "ioreg -rc AGXAccelerator -d1": '"gpu-core-count" = 10\n',
        "pmset -g": " powermode            0\n",
    }


def monitor() -> Any:
    """zeus-apple-silicon's AppleEnergyMonitor: constant powers, in whole millijoules."""
    began_s = time.monotonic()

    def energy() -> Any:
        elapsed_s = time.monotonic() - began_s
        return SimpleNamespace(**{n: int(1e3 * w * elapsed_s) for n, w in POWERS_W.items()})

    return SimpleNamespace(get_cumulative_energy=energy)


def install(spec: dict[str, Any], module: Any) -> None:
    """Put a Mac in this machine's place.

    Args:
        module: siliconprof.hosts.machine, or siliconprof.hosts.sensors.apple.
    """
    if hasattr(module, "SYSTEM_LIBRARY"):
        module.SYSTEM_LIBRARY = spec["macos"]
        return
    printed = {} if spec.get("unreadable") == "start" else commands(spec["memory_bytes"])
    module.is_mac = lambda: True
    module.run = lambda command, limit_s=0: printed.get(" ".join(command), "")
    module.read_text = lambda path: ""
    sys.modules["zeus_apple_silicon"] = SimpleNamespace(AppleEnergyMonitor=monitor)  # type: ignore[assignment]
