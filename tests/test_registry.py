"""The device registry: what recognises a device, and its mistakes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from shared_fixtures import REGISTRY
from siliconprof.errors import UserError
from siliconprof.hosts import registry

GIB = 2**30


def test_every_entry_is_recognised_by_its_own_match(devices: registry.Registry) -> None:
    """With what the host really reports: a driver keeps some percent of the memory back."""
    for device_id, entry in devices["devices"].items():
        match, printed = entry["match"], entry["memory_gib"]
        facts = {"kind": entry["kind"], "gpu_cores": match.get("gpu_cores")}
        facts["memory_bytes"] = int(printed["value"] * 0.97 * GIB) if printed else None
        for name in match.get("names", [match.get("chip")]):
            assert registry.recognise(devices, facts | {"name": name}) == device_id


@pytest.mark.parametrize(
    ("gib", "expected"),
    [(15.77, "small"), (31.75, "large"), (24, None), (None, None)],  # never guessed
)
def test_one_name_in_two_sizes_is_told_apart_and_never_guessed(
    devices: registry.Registry, gib: float | None, expected: str | None
) -> None:
    entry = devices["devices"]["v100-pcie-16gb"] | {"match": {"names": ["Tesla V100"]}}
    known = {
        name: entry | {"memory_gib": entry["memory_gib"] | {"value": size}}
        for name, size in (("small", 16), ("large", 32))
    }
    facts = {"kind": "gpu", "name": "Tesla V100", "gpu_cores": None}
    facts["memory_bytes"] = int(gib * GIB) if gib else None
    assert registry.recognise({"devices": known}, facts) == expected


def test_all_mistakes_of_the_registry_are_listed_at_once(tmp_path: Path) -> None:
    document = yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))
    entries = document["devices"]
    entries["RTX 4090 Ti"] = copy.deepcopy(entries["rtx-4090"]) | {"power": 450}
    entries["rtx-4090"]["memory_gib"]["source"] = "nvidia-adda"
    del entries["t4"]["price_usd"]
    del entries["mi300x"]["unsupported"]
    path = tmp_path / "devices.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        registry.load(path)
    lines = str(refused.value).splitlines()
    for expected in (
        "devices.RTX 4090 Ti: is 'RTX 4090 Ti'; expected an id of at most 64 lower-case letters, digits",
        "devices.RTX 4090 Ti.power: unknown key",
        "devices.rtx-4090.memory_gib.source: is 'nvidia-adda'; expected a key of sources; did you "
        "mean 'nvidia-ada'?",
        "devices.t4.price_usd: is missing",
        "devices.mi300x.backends: is []; expected a list of at least 1",
    ):
        assert any(line.startswith(f"{path}: {expected}") for line in lines), (expected, lines)
    assert all(line.startswith(f"{path}: devices.") for line in lines)
