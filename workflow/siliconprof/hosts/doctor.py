"""What this host is, what works on it, and for each thing that does not: why, and how to fix it.

    siliconprof doctor [--json]

The host is detected anew, whatever its file says; nothing is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from siliconprof import declarations, formatting, options, packages, plugins
from siliconprof.hosts import environment, host_file, machine, registry, remedies
from siliconprof.hosts.remedies import Remedy, remedy

GIB = 2**30
LITTLE_DISK_BYTES = 2 * GIB
LITTLE_MEMORY_BYTES = 2 * GIB
BUSY_SHARE = 0.25  # of the usable cores; one busy core of two made a small product 80 times slower
COMPILERS = ("c++", "g++", "clang++")
ROW_LABELS = {"cpp compiler": "C++ compiler", "cpu governor": "CPU governor"}


def report(host: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that `siliconprof doctor` prints, as plain data, by a host file's content."""
    now = _now()
    return {
        "host": {name: host[name] for name in ("label", "os", "cpu")},
        **{name: host[name] for name in ("devices", "backends", "packages", "blas", "driver")},
        "probes": {name: _probe(name) for name in plugins.names("probes")},
        "now": now,
        "advice": [
            *remedies.remedies_of_host(host),
            *_package_advice(host),
            *_now_advice(host, now, now["load_average_1min"]),
        ],
    }


def _package_advice(host: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield a remedy for each package that is missing or broken and that cells or data sets need."""
    for name, why in packages.broken().items():
        yield remedy(name, f"does not load: {why}", packages.remedy(name))
    names, own = {*declarations.OF_DATA}, set[str]()
    for backend, state in host["backends"].items():
        plugin = plugins.load("backends", backend)
        own.update(plugin.LIBRARIES)
        if state["available"]:
            names.update(declarations.libraries_with(plugin.framework))
    for name in filter(packages.is_absent, sorted(names - own)):
        why = "is not installed, so what needs it is not measured"
        yield remedy(name, why, packages.remedy(name))


def before_a_run(
    host: Mapping[str, Any], busy_cores: float | None, precisions: Set[str]
) -> Iterator[str]:
    """Yield lines about what should be fixed before cells are measured.

    Args:
        busy_cores: cores that other processes use now. The load average still has what went before
            the run: its own installation, or the run that was interrupted.
        precisions: of the cells on the CPU.
    """
    kinds = {precision.removeprefix("amp-") for precision in precisions}
    unused = {remedies.ON_THE_CPU.format(kind) for kind in {*remedies.INSTRUCTIONS} - kinds}
    for one in (*remedies.remedies_of_host(host), *_now_advice(host, _now(), busy_cores)):
        if one["fix"] and one["about"] not in unused:
            yield from _remedy_lines(one)


def _probe(name: str) -> dict[str, Any]:
    found, why = machine.reading(plugins.load("probes", name).available)
    available, reason = found or (False, why)
    return {"available": available, "reason": reason}


def _now() -> dict[str, Any]:
    """Return the readings that change by themselves and decide whether measuring now makes sense.

    What cannot be read is None, and `reasons` has why.
    """
    readings = {
        "memory_available_bytes": machine.by_psutil(lambda ps: ps.virtual_memory().available),
        "swap_used_bytes": machine.by_psutil(lambda ps: ps.swap_memory().used),
        "disk_free_bytes": machine.reading(lambda: shutil.disk_usage(".").free),
        "load_average_1min": machine.reading(lambda: os.getloadavg()[0]),
    }
    governor = machine.read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    return {
        **{name: value for name, (value, _) in readings.items()},
        "power_source": environment.power_source(),
        "low_power_mode": environment.power_mode()[1],
        "cpu_governor": governor or None,
        "cpp_compiler": next(filter(shutil.which, [os.environ.get("CXX", ""), *COMPILERS]), None),
        "reasons": {name: why for name, (_, why) in readings.items() if why is not None},
    }


def _now_advice(
    host: Mapping[str, Any], now: Mapping[str, Any], load: float | None
) -> Iterator[Remedy]:
    """Yield reasons against measuring now; `load` is in cores, None where unknown."""
    if now["cpp_compiler"] is None:
        yield remedy(
            "C++ compiler",
            "there is none: mx.compile silently runs uncompiled, and DeepSpeed's CPU optimizer "
            "cannot be built",
            "install one: apt install g++ on Debian or Ubuntu, xcode-select --install on a Mac",
        )
    cores = host["cpu"]["usable_cores"]
    if load is not None and load > BUSY_SHARE * cores:
        yield remedy(
            "load",
            f"this machine is busy now: a load of {load:.1f} on {cores} usable cores; cells that "
            "other work disturbs are flagged, and slow",
            "wait until it is idle, or end the other work",
        )
    if now["power_source"] == "battery":
        yield remedy("power", "on battery, where clocks are held down", "plug it in")
    if now["low_power_mode"]:
        fix = "on a Mac sudo pmset -a powermode 0, or lowpowermode 0; on Linux powerprofilesctl"
        yield remedy("power", "low power mode holds clocks down", fix)
    if now["cpu_governor"] not in (None, "performance"):
        yield remedy(
            "CPU governor",
            f"it is '{now['cpu_governor']}': the clock follows the load, and short runs see it "
            "rise",
            "sudo cpupower frequency-set -g performance",
        )
    available, free = now["memory_available_bytes"], now["disk_free_bytes"]
    if available is not None and available < LITTLE_MEMORY_BYTES:
        yield remedy(
            "memory",
            f"{_gib(available)} are available: cells may swap or be killed",
            "close other programs",
        )
    results = Path("results")
    if not_executable := machine.not_executable(results if results.is_dir() else Path()):
        yield remedy("run folder", *not_executable)
    if free is not None and free < LITTLE_DISK_BYTES:
        yield remedy(
            "disk",
            f"{_gib(free)} are free here: records and figures may not fit, "
            "pretrained weights will not",
            "make room, or work in a folder on another disk",
        )


def _gib(size: int | None) -> str:
    return "size unknown" if size is None else f"{size / GIB:.1f} GiB"


def as_text(document: Mapping[str, Any]) -> str:
    """A report for a person."""
    host, cpu, now = document["host"], document["host"]["cpu"], document["now"]
    system = host["os"]["distribution"] or host["os"]["system"]
    lines = [
        f"Host {host['label']}",
        f"  {system}, {host['os']['machine']}, kernel {host['os']['release']}",
        f"  {cpu['model']}: {cpu['physical_cores'] or 'unknown'} cores, {cpu['logical_cores']} "
        f"threads, {cpu['usable_cores']} usable; {_gib(cpu['memory_bytes'])} of memory",
    ]
    sections: dict[str, list[tuple[str, ...]]] = {
        "Devices": [
            (
                device["id"],
                device["name"],
                _gib(device["memory_bytes"]),
                ", ".join(device["backends"]) or "no backend",
            )
            for device in document["devices"]
        ],
        "Backends": [
            (
                name,
                "works" if state["available"] else "no",
                "; ".join(filter(None, (", ".join(state["devices"]), state["reason"]))),
            )
            for name, state in document["backends"].items()
        ],
        "Probes": [
            (name, "works" if probe["available"] else "no", probe["reason"])
            for name, probe in document["probes"].items()
        ],
        "Packages": [item for item in document["packages"].items() if item[1]],
        "Matrix products on the CPU": [
            (name, blas or "not known") for name, blas in document["blas"].items()
        ],
        "Drivers and runtimes": [item for item in document["driver"].items() if item[1]],
        "Now": [
            _now_row(name, value, now["reasons"].get(name))
            for name, value in now.items()
            if name != "reasons" and (value is not None or name in now["reasons"])
        ],
    }
    for title, rows in sections.items():
        if rows:
            lines += ["", title, *(f"  {line}" for line in formatting.aligned(rows))]
    if not document["advice"]:
        return "\n".join([*lines, "", "Nothing to fix."])
    lines += ["", "Warnings and fixes"]
    lines += (f"  {line}" for one in document["advice"] for line in _remedy_lines(one))
    return "\n".join(lines)


def _remedy_lines(one: Remedy) -> Iterator[str]:
    yield f"{one['about']}: {one['why']}"
    if one["fix"]:
        yield f"  -> {one['fix']}"


def _now_row(name: str, value: Any, why: str | None) -> tuple[str, str]:
    """Return (name, reading) for a person, with the unit moved from the key to the value."""
    label = name.removesuffix("_bytes").replace("_", " ")
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    if value is None:
        shown = f"not known: {why}"
    elif name.endswith("_bytes"):
        shown = _gib(value)
    return ROW_LABELS.get(label, label), shown


def main(*, json_: options.Json = False) -> None:
    """Print the report."""
    devices = registry.load(registry.shipped())
    with options.spinner("looking at this host"):
        document = report(host_file.resolve(Path("results"), "auto", devices, again=True))
    print(json.dumps(document, indent=2) if json_ else as_text(document))
