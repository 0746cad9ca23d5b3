"""The host file results/hosts/{label}.json: this host's label, its devices by id, its libraries.

    python -m siliconprof.hosts.host_file --facts JSON --output F

writes what `resolve` has found, which Snakemake's process calls while it plans; with `--label` this
node of a cluster is detected, whichever machine the label led to before; with `--machine` only which
machine has a label is written, results/machines/{label}.json. No framework is imported here: the file
is used as it is while the quick facts are those that it was made from; otherwise `detect` runs again.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from siliconprof import options, plugins
from siliconprof.errors import UserError, printable_texts
from siliconprof.fingerprint import fingerprint_of as code_fingerprint
from siliconprof.hosts import blas, detect, machine, mlx_blas, models, offload_ops, registry
from siliconprof.store import documents, model, names, temporary
from siliconprof.store.cell import canonical_sha256

HOST_SCHEMA_VERSION = 2
MACHINES = "machines"  # folder of the results: which machine has a label
# Which label this host has where the config says `auto`, whatever it is called.
AUTO_FILE = "auto.json"
MAKE_AGAIN = "delete it to have it made again"
# The code that detects a host; it imports MLX as its backend does, hence the second.
DETECTOR = ("siliconprof.hosts.detect", "siliconprof.backends.mlx")
BLAS_LIBRARIES = "libopenblas.so.0 libblas.so.3 libcblas.so.3 libmkl_rt.so.2 libblis.so.4".split()
# Variables that decide which BLAS or GPU a framework gets.
DECIDING_VARIABLES = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", blas.BLAS_VARIABLE),
)
TORCH_DRIVER_FACTS = ("cuda_runtime", "rocm_runtime", "cublas")


def fingerprint(parts: Mapping[str, str | None] | None = None) -> str:
    """Hex SHA-256 of what identifies this machine (`machine.fingerprint_parts`)."""
    return canonical_sha256(machine.fingerprint_parts() if parts is None else parts)


def default_label() -> str:
    """The short hostname in lower case, for file names; `host` when no character remains."""
    short = socket.gethostname().split(".")[0].lower()
    label = re.sub(r"[^a-z0-9-]+", "-", short).strip("-")
    return names.cut(label) if label not in ("", "auto") else "host"


def quick_facts() -> dict[str, Any]:
    """Facts that can change the host file and take milliseconds to read, without any framework.

    The interpreter's path is not one: a second clone with a `.venv` of its own is the same host.
    """
    return {
        "schema_version": HOST_SCHEMA_VERSION,
        "detector": code_fingerprint(DETECTOR).sha256,
        "packages": detect.package_versions(),
        "backends": plugins.names("backends"),
        "cpu": machine.cpu(),
        "os": machine.operating_system(),
        "nvidia": machine.read_text("/proc/driver/nvidia/version"),
        "gpus": sorted([*_nvidia_models(), *(gpu["name"] for gpu in machine.other_gpus())]),
        "blas": _blas_files(),
        "cpu_adam": offload_ops.built(),
        "variables": {name: os.environ.get(name) for name in DECIDING_VARIABLES},
    }


def _nvidia_models() -> Iterator[str]:
    for path in machine.listed("/proc/driver/nvidia/gpus", "*/information"):
        model = re.search(r"^Model:\s*(.+)$", machine.read_text(str(path)), re.M)
        if model:
            yield model[1].strip()


def _blas_files() -> list[str]:
    """Return the BLAS libraries that the loader finds, links resolved; their file names carry versions."""
    listed = [] if machine.is_mac() else machine.run(["/sbin/ldconfig", "-p"]).splitlines()
    found = dict(line.strip().partition(" => ")[::2] for line in listed)
    files = [file for name, file in found.items() if name.partition(" ")[0] in BLAS_LIBRARIES]
    return sorted(os.path.realpath(file) for file in [*files, *map(str, mlx_blas.built())])


def _has_broken_framework(host: Mapping[str, Any]) -> bool:
    """Whether an installed framework, or the GPU it was built for, failed when last detected.

    A repair changes no version, nor does another process that gives the GPU back. That a build has
    no kernels for a GPU is only mended by another version, which is a quick fact.
    """
    backends = [("torch", "torch-cpu"), ("torch", "torch-mps"), ("mlx", "mlx")]
    if host["driver"]["cuda_runtime"]:
        backends.append(("torch", "torch-cuda"))
    return any(
        host["packages"].get(package)
        and host["backends"][backend]["fix"]
        and detect.NO_KERNELS not in host["backends"][backend]["reason"]
        for package, backend in backends
    )


def load(path: Path | str) -> dict[str, Any]:
    """The host file at a path, which names its label.

    Raises:
        UserError: it is missing, damaged or another host's; one line.
    """
    host = _read(path := Path(path))
    if mistakes := model.problems(models.Host, host):
        raise UserError(f"{path}: damaged ({mistakes[0]}); {MAKE_AGAIN}")
    if host["label"] != path.stem:  # renamed or copied by hand
        raise UserError(f"{path}: is the file of host '{host['label']}'; {MAKE_AGAIN}")
    return host


def _read(path: Path) -> Any:
    try:
        return printable_texts(documents.read(path))  # maybe another machine's, by a bundle
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `siliconprof doctor` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: damaged ({error}); {MAKE_AGAIN}") from None


def auto(results_dir: Path | str) -> dict[str, str]:
    """`label` and `fingerprint` of the host that ran here first with `auto`; else of this one."""
    path = Path(results_dir) / "hosts" / AUTO_FILE
    if not path.exists():
        return {"label": default_label(), "fingerprint": fingerprint()}
    return _machine(path)


def _machine(path: Path) -> dict[str, str]:
    saved = _read(path)
    if not isinstance(saved, dict) or not {"label", "fingerprint"} <= saved.keys():
        raise UserError(f"{path}: damaged; {MAKE_AGAIN}")
    return saved


def label(results_dir: Path | str, configured_label: str) -> str:
    """Return the label of this host, without detecting it.

    Args:
        results_dir: the folder that holds `hosts/`.
        configured_label: the config's `host`: `auto`, or a label of one's own.

    Raises:
        UserError: the stored files are another machine's or damaged, or the label cannot be a file's
                name.
    """
    if configured_label == "auto":
        own = auto(results_dir)
        _require_this_machine(Path(results_dir) / "hosts" / AUTO_FILE, own)
        return own["label"]
    if not re.fullmatch(names.LABEL, configured_label):
        raise UserError(f"host: is '{configured_label}'; expected auto, or {names.LABEL_RULE}")
    known = [path.stem for path in (Path(results_dir) / "hosts").glob("*.json")]
    for other, _ in names.case_collision([*known, configured_label]):
        if other.casefold() == configured_label.casefold():
            raise UserError(
                f"host: is '{configured_label}', and {results_dir} has '{other}', which differs in "
                "case alone: not every file system keeps them apart; choose another label"
            )
    if (path := Path(results_dir) / MACHINES / f"{configured_label}.json").exists():
        _require_this_machine(path, _machine(path))
    return configured_label


def resolve(
    results_dir: Path | str,
    configured_label: str,
    registry_: registry.Registry,
    again: bool = False,
) -> dict[str, Any]:
    """Return this host from its file if that is up to date, else detect it again; nothing is written.

    Args:
        results_dir, configured_label: see `label`.
        registry_: from `registry.load`; the devices' ids follow it, also when only it has changed.
        again: detect even where the quick facts are unchanged.

    Raises:
        UserError: see `label`; or the file of this label is another machine's.
    """
    own = label(results_dir, configured_label)
    path = Path(results_dir) / "hosts" / f"{own}.json"
    old = load(path) if path.exists() else None
    if old is not None:
        _require_this_machine(path, old)
    quick_sha256 = canonical_sha256(quick_facts())
    up_to_date = old is not None and old["quick_facts_sha256"] == quick_sha256
    if old is None or again or not up_to_date or _has_broken_framework(old):
        return assemble(detect.detect(), own, quick_sha256, registry_)
    return assemble(old, own, quick_sha256, registry_)


def _require_this_machine(path: Path, host: Mapping[str, Any]) -> None:
    if host["fingerprint"] != fingerprint():
        raise UserError(
            f"{path} was made on another machine (host '{host['label']}'); set `host:` in the config "
            "to a label of your own, or delete that file to start one for this machine"
        )


def assemble(
    facts: Mapping[str, Any], label: str, quick_sha256: str, registry_: registry.Registry
) -> dict[str, Any]:
    """The host file's content: detected facts, and the ids that the registry gives the devices."""
    devices = identify(facts["devices"], registry_)
    backends = {
        name: {
            **{key: state[key] for key in ("available", "reason", "fix")},
            "devices": [device["id"] for device in devices if name in device["backends"]],
        }
        for name, state in facts["backends"].items()
    }
    return {
        "schema_version": HOST_SCHEMA_VERSION,
        "label": label,
        "fingerprint": fingerprint(facts["fingerprint_parts"]),
        "fingerprint_parts": dict(facts["fingerprint_parts"]),
        "devices": devices,
        "backends": backends,
        **{name: facts[name] for name in ("os", "cpu", "packages", "blas", "driver", "cpu_adam")},
        "quick_facts_sha256": quick_sha256,
    }


def identify(
    devices: Sequence[Mapping[str, Any]], registry_: registry.Registry
) -> list[dict[str, Any]]:
    """Devices with `id` and `registry_id`; the second of a kind is `rtx-4090-2`."""
    identified: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for device in devices:
        registry_id = registry.recognise(registry_, device)
        base = registry_id or registry.generic_id(device["name"], device["kind"])
        counts[base] = counts.get(base, 0) + 1
        suffix = f"-{counts[base]}" if counts[base] > 1 else ""
        identified.append({**device, "id": base + suffix, "registry_id": registry_id})
    return identified


def store(path: Path, host: Mapping[str, Any]) -> None:
    """Write a host file.

    Raises:
        UserError: it is no host file, one line for each mistake; nothing is written.
    """
    model.checked(models.Host, host, f"hosts/{host['label']}.json: ")
    temporary.write(path, json.dumps(host, indent=2, sort_keys=True, allow_nan=False) + "\n")


def environment_slice(
    host: Mapping[str, Any],
    device_id: str,
    backend: str,
    packages: Sequence[str],
    offloaded: bool = False,
) -> dict[str, Any]:
    """Return the part of a host that one cell uses; the cell is measured again when it changes.

    A CPU cell uses its framework's BLAS, a GPU cell the driver and, under torch, the CUDA runtime
    and cuBLAS; an offloaded one DeepSpeed's compiled Adam, where that is built.

    Args:
        device_id: an id of `host["devices"]`.
        packages: distributions whose versions the cell's numbers depend on.
        offloaded: whether it is trained under ZeRO-Offload.
    """
    (device,) = (device for device in host["devices"] if device["id"] == device_id)
    framework = plugins.load("backends", backend).framework
    part: dict[str, Any] = {
        "python": host["packages"]["python"],
        "packages": {name: host["packages"].get(name) for name in sorted(packages)},
    }
    if device["kind"] == "cpu":
        part["blas"] = host["blas"][framework]
    else:
        part["driver"] = {
            name: value
            for name, value in host["driver"].items()
            if value is not None and (framework == "torch" or name not in TORCH_DRIVER_FACTS)
        }
    if offloaded:
        part["cpu_adam"] = host.get("cpu_adam")
    if device.get("simulated"):
        part["simulated"] = device["simulated"]
    return part


def main(
    *,
    facts: Annotated[dict[str, Any] | None, "the file's content", options.AS_JSON] = None,
    machine: Annotated[
        dict[str, Any] | None, "in its place: a label and a fingerprint", options.AS_JSON
    ] = None,
    label: Annotated[str | None, "in its place: of a cluster's nodes, of which this is one"] = None,
    registry_: options.Registry = options.REGISTRY_FILE,
    output: Annotated[Path, "the file"],
) -> None:
    """Write a host file and, unless it is a cluster node's, this host's label from now on."""
    if machine:
        temporary.write(output, json.dumps(machine))
    elif label:
        quick_sha256, known = canonical_sha256(quick_facts()), registry.load(registry_)
        host = assemble(detect.detect(), label, quick_sha256, known)
        store(output, host)
        devices = ", ".join(device["id"] for device in host["devices"])
        print(f"{label}: node {socket.gethostname()}: {devices}", file=sys.stderr)
    elif facts:
        store(output, facts)
        if not (auto := output.with_name(AUTO_FILE)).exists():
            temporary.write(auto, json.dumps({key: facts[key] for key in ("label", "fingerprint")}))
    else:
        raise UserError(
            "--facts, --machine or --label is required; see siliconprof.hosts.host_file --help"
        )


if __name__ == "__main__":
    options.run(main)
