"""The host's file: stored, rewritten only when something changed, refused on another machine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from siliconprof.errors import UserError
from siliconprof.hosts import detect, host_file, machine, registry


@pytest.fixture
def resolve(tmp_path: Path, devices: registry.Registry) -> Callable[..., dict[str, Any]]:
    """The host of a label, found and written in this test's folder of results, as by rule `host`."""

    def answer(label: str, known: registry.Registry = devices) -> dict[str, Any]:
        made = host_file.resolve(tmp_path, label, known)
        path = tmp_path / "hosts" / f"{made['label']}.json"
        path.parent.mkdir(exist_ok=True)
        host_file.main(facts=made, output=path)
        return made

    return answer


@pytest.fixture
def detections(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers detection with `found` (a test may edit it first); one entry for each detection."""
    made: list[dict[str, Any]] = []

    def answer() -> dict[str, Any]:
        made.append(copy.deepcopy(found))
        return made[-1]

    monkeypatch.setattr(detect, "detect", answer)
    return made


def test_what_is_stored_is_only_read_until_a_quick_fact_changes(
    tmp_path: Path,
    resolve: Callable,
    devices: registry.Registry,
    detections: list,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host_file.resolve(tmp_path, "auto", devices)
    assert len(detections) == 1 and list(tmp_path.iterdir()) == []  # finding writes nothing
    first = resolve("auto")
    written = {path.name for path in (tmp_path / "hosts").iterdir()}
    assert written == {"auto.json", f"{host_file.default_label()}.json"}
    assert resolve("auto") == first == host_file.load(tmp_path / f"hosts/{first['label']}.json")
    assert len(detections) == 2
    versions = detect.package_versions() | {"torch": "99.0"}
    monkeypatch.setattr(detect, "package_versions", lambda: versions)
    for _ in range(2):
        assert resolve("auto")["quick_facts_sha256"] != first["quick_facts_sha256"]
        assert len(detections) == 3


@pytest.mark.parametrize("backend", ["mlx", "torch-cuda"])
def test_something_broken_is_looked_at_until_it_works(
    backend: str,
    resolve: Callable,
    detections: list,
    found: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repaired install has the version that the broken one had, a GPU is free again: no quick
    fact changes.
    """
    monkeypatch.setitem(found["driver"], "cuda_runtime", "13.0")
    broken = {"available": False, "reason": "ImportError: broken", "fix": "reinstall it"}
    with monkeypatch.context() as patch:
        patch.setitem(found["backends"], backend, broken)
        resolve("lab")
    for _ in range(2):
        fixed = resolve("lab")
        assert fixed["backends"][backend]["fix"] is None and len(detections) == 2


def test_auto_belongs_to_the_machine_that_made_it(
    tmp_path: Path, resolve: Callable, detections: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Annas_MacBook.local")
    label = resolve("auto")["label"]
    assert label == "annas-macbook"
    monkeypatch.setattr("socket.gethostname", lambda: "renamed.example")
    assert resolve("auto")["label"] == label
    parts = machine.fingerprint_parts() | {"cpu_model": "Another CPU"}
    monkeypatch.setattr(machine, "fingerprint_parts", lambda: parts)
    before = {path: path.read_bytes() for path in tmp_path.glob("hosts/*")}
    with pytest.raises(UserError) as refused:
        resolve("auto")
    line = str(refused.value)
    assert "\n" not in line and line.startswith(f"{tmp_path / 'hosts' / 'auto.json'} was made on")
    assert f"host '{label}'" in line
    assert "set `host:`" in line and "delete that file" in line
    with pytest.raises(UserError, match=f"{label}.json was made on another machine"):
        resolve(label)
    assert {path: path.read_bytes() for path in tmp_path.glob("hosts/*")} == before
    assert resolve("mine")["label"] == "mine"


@pytest.mark.parametrize("content", ["{", '{"label": "lab"}'])
def test_a_damaged_host_file_is_named_in_one_line(
    content: str, tmp_path: Path, resolve: Callable
) -> None:
    for name in ("lab.json", "auto.json"):
        (tmp_path / "hosts").mkdir(exist_ok=True)
        (tmp_path / "hosts" / name).write_text(content)
        with pytest.raises(UserError) as refused:
            resolve(name.removesuffix(".json"))
        assert f"hosts/{name}: damaged" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UserError, match="none.json: no such file"):
        host_file.load(tmp_path / "none.json")
