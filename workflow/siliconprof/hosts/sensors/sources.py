"""The sensors of this host, from one module per vendor; see `sensors.base`."""

from __future__ import annotations

from siliconprof.hosts import machine
from siliconprof.hosts.sensors import apple, linux, nvml, rapl
from siliconprof.hosts.sensors.base import EnergySensor, Gpu, Hardware

GPUS = {"nvidia": nvml.gpu, "apple": apple.gpu}  # by the vendor in an address


def gpu(address: tuple[str, str] | None) -> Gpu:
    """The GPU of a `Backend.gpu_address`; with a reason where there is none, or no sensor."""
    if address is None:
        return Gpu("the backend does not work on a GPU")
    vendor, name = address
    return GPUS[vendor](name)


def host() -> Hardware:
    """The clocks and temperatures of this host's CPU."""
    return apple.MacHost() if machine.is_mac() else linux.LinuxHost()


def energy(address: tuple[str, str] | None) -> list[EnergySensor]:
    """The energy sensors for a cell on a device of this `Backend.gpu_address`, readable or not."""
    own = gpu(address).energy()
    around = apple.energy(address is not None) if machine.is_mac() else rapl.energy()
    return [around] if own is None else [own, around]
