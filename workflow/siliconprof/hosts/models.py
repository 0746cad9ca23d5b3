"""The device registry config/devices.yaml and the host file results/hosts/{label}.json, as models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from siliconprof.parameters import Count, EachOnce, Positive, one_of
from siliconprof.store.model import Id, Label, Part, Sha256, Text, absent, matches, required

Names = Annotated[list[Text], Field(min_length=1), EachOnce]

# -- the registry --------------------------------------------------------------------------------


class Source(Part):
    """One public page, data sheet or paper."""

    title: Text = required("title of the page or document")
    url: Annotated[str, matches("https?://.*")] | None = required(
        "address of the page; null where no stable address is known"
    )
    opened: bool = required(
        "whether a stored copy, or pages that quote it and that the note names, was read and its figures "
        "compared; false means cited from general knowledge and not opened, so spot-check its figures "
        "before you rely on them"
    )
    note: Text = absent("what it says or how it is to be read")


class Figure(Part):
    """A number with its source, or null. The unit is that of the key that holds it."""

    value: Positive = required("the number, in the unit of the key")
    source: Text = required("key of `sources`")
    note: Text = absent("how the number is to be read")


class Price(Figure):
    """What a device cost."""

    date: Annotated[str, matches("[0-9]{4}-(0[1-9]|1[0-2])")] = required(
        "month of the price, YYYY-MM"
    )


class Peaks(Part):
    """Peak arithmetic rates in TFLOPS (10^12 operations per second), dense, without sparsity."""

    fp32: Figure | None = required("IEEE single precision outside tensor cores, in TFLOPS")
    tf32: Figure | None = required("TF32 tensor cores, in TFLOPS")
    fp16: Figure | None = required(
        "half precision in TFLOPS, on tensor cores with fp32 accumulate unless the note says otherwise"
    )
    bf16: Figure | None = required("bfloat16 in TFLOPS, as fp16")


class Match(Part):
    """How a host recognises a device: by `names` or, for vendor apple, by `chip` and `gpu_cores`."""

    names: Names = absent(
        "exact strings as the driver reports them (torch.cuda.get_device_name); several where drivers "
        "differ"
    )
    chip: Text = absent("exact string of sysctl machdep.cpu.brand_string on macOS")
    gpu_cores: Count | None = absent("number of GPU cores (a count); null matches any number")


class Device(Part):
    """One piece of hardware under test."""

    name: Text = required("name shown in tables and figures")
    vendor: Literal["nvidia", "apple", "amd", "intel", "other"] = required("who makes it")
    kind: Literal["gpu", "cpu"] = required(
        "a graphics processor, or the processor of a host as a device of its own"
    )
    architecture: Text = required("the vendor's name for the generation")
    release_year: Annotated[int, Field(ge=2000, le=2100)] = required(
        "calendar year in which it was first sold"
    )
    backends: Annotated[list[Annotated[str, one_of("backends")]], EachOnce] = required(
        "software paths that can run on it; empty where `unsupported` says why"
    )
    unsupported: Text = absent(
        "why no backend can use it, for a device with empty `backends` and no other"
    )
    match: Match = required(
        "how a host recognises it: by `names`, or, for vendor apple, by `chip` and `gpu_cores`"
    )
    memory_kind: Literal["dedicated", "unified"] = required(
        "memory of its own, or one memory shared with the processor of the host"
    )
    memory_gib: Figure | None = required(
        "memory size as the vendor prints it, in GiB (vendors write GB); for unified memory the "
        "configuration that the note names; the size found on the host is used at run time"
    )
    bandwidth_gb_per_s: Figure | None = required(
        "peak memory bandwidth in GB/s, decimal (10^9 bytes per second)"
    )
    peak_tflops: Peaks = required("peak arithmetic rate, by precision; null where it is unknown")
    price_usd: Price | None = required(
        "launch price in US dollars of that year, without tax; of a whole computer where the note says "
        "so; null when unknown or never sold alone"
    )
    power_w: Figure | None = required("board power or TDP in watts; null when unknown")
    note: Text = absent("what a reader must know about the entry")


class Registry(Part):
    """config/devices.yaml."""

    sources: Annotated[dict[Id, Source], Field(min_length=1)] = required(
        "where the figures come from, by a short key"
    )
    devices: Annotated[dict[Id, Device], Field(min_length=1)] = required(
        "devices by id, lower case with hyphens; for Apple chips it ends in the number of GPU cores"
    )


# -- the host file -------------------------------------------------------------------------------
# Nothing in it changes by itself: no load, no free memory, no time.


class FingerprintParts(Part):
    """What identifies a machine."""

    machine_id_sha256: Sha256 | None  # None where there is none (containers)
    cpu_model: str  # as the system gives it
    architecture: str  # instruction set, such as x86_64 or arm64


class System(Part):
    """The operating system."""

    system: str  # Linux or Darwin
    release: str  # of the kernel
    distribution: str | None  # with version
    machine: str  # instruction set


class Cpu(Part):
    """The processor, and what a process may use of it."""

    model: str
    physical_cores: Count | None  # without hyper-threads
    logical_cores: Count
    usable_cores: Count  # whole ones that affinity and the cgroup's quota leave to a process
    threads: Count | None = None  # of `cpu_threads: auto`; None = as many as usable cores
    threads_rule: str | None = None  # which gave them
    # Physical or the cgroup's limit, whichever is less; on Linux rounded down to 64 MiB, because what
    # the kernel keeps differs from boot to boot.
    memory_bytes: Count | None
    features: list[str] | None  # that decide the speed of 16-bit arithmetic; None = not known


class HostDevice(Part):
    """A device of the host."""

    id: Annotated[Id, Field(max_length=64)]  # the second of a kind ends in -2
    registry_id: str | None  # None when no entry or more than one fits
    name: str  # as the driver or the system names it
    kind: Literal["cpu", "gpu"]
    vendor: str  # nvidia, apple, amd, intel; unknown for others
    memory_bytes: Count | None  # as found
    memory_kind: Literal["dedicated", "unified", "system"]
    working_set_bytes: Count | None = None  # what Metal recommends to use of unified memory
    index: Annotated[int, Field(ge=0)]  # the frameworks' number of it
    gpu_cores: Count | None  # of an Apple chip, which tell its variants apart
    driver: str | None  # or, on a Mac, system version
    compute_capability: str | None = None  # of an NVIDIA GPU, where a framework told
    simulated: str = absent("what plays the device in a test; absent for a real one")
    backends: Annotated[list[str], EachOnce]  # that were seen to work on it


class BackendState(Part):
    """A backend, and why it does not work here."""

    available: bool
    reason: str | None  # why not, or not on a GPU
    fix: str | None  # what to do
    devices: list[str]  # ids


class Driver(Part):
    """Versions below the frameworks."""

    nvidia: str | None  # kernel driver
    macos: str | None  # MPS and Metal come with it
    cuda_runtime: str | None  # that torch was built for
    rocm_runtime: str | None  # that torch was built for
    cublas: str | None  # that torch loads


class Packages(Part, extra="allow"):
    """Version of Python and of each distribution that counts; None when not installed."""

    __pydantic_extra__: dict[str, str | None]
    python: str


class Blas(Part, extra="allow"):
    """The library that answers matrix products on the CPU, with its version and file name."""

    __pydantic_extra__: dict[str, str | None]
    torch: str | None
    mlx: str | None


class Host(Part):
    """results/hosts/{label}.json: what one computer is, as far as it can decide a measurement."""

    schema_version: Literal[2]
    label: Label
    fingerprint: Sha256  # of `fingerprint_parts`
    fingerprint_parts: FingerprintParts
    os: System
    cpu: Cpu
    devices: Annotated[list[HostDevice], Field(min_length=1)]  # GPUs first; the CPU is one
    backends: dict[str, BackendState]
    packages: Packages
    blas: Blas
    driver: Driver
    cpu_adam: Sha256 | None = None  # DeepSpeed's compiled Adam, where it is built
    quick_facts_sha256: Sha256  # of the cheap facts it was made from; while equal, it holds
