"""The sensors of this host, from one module per vendor; see `sensors.base`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siliconprof.hosts import machine
from siliconprof.hosts.sensors import apple, linux, nvml, rapl
from siliconprof.hosts.sensors.base import EnergySensor, Gpu, Hardware

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend

GPUS = {"nvidia": nvml.gpu, "apple": apple.gpu}  # by the vendor in `Backend.gpu_address`


def gpu(backend: Backend) -> Gpu:
    """The GPU that a backend works on; with a reason where there is none, or no sensor."""
    address = backend.gpu_address()
    if address is None:
        return Gpu("the backend does not work on a GPU")
    vendor, name = address
    return GPUS[vendor](name)


def host() -> Hardware:
    """The clocks and temperatures of this host's CPU."""
    return apple.MacHost() if machine.is_mac() else linux.LinuxHost()


def energy(backend: Backend) -> list[EnergySensor]:
    """The energy sensors for a cell on this backend, readable or not."""
    own = gpu(backend).energy()
    with_gpu = backend.gpu_address() is not None
    around = apple.energy(with_gpu) if machine.is_mac() else rapl.energy()
    return [around] if own is None else [own, around]
