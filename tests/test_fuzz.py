"""Readers of what others wrote, against documents that nobody meant, and against hand-made ones.

Each reader answers with a value or with a `UserError` whose every line names the file; nothing else,
not even slowly. Another seed, or more inputs, are one variable away:

    SILICONPROF_FUZZ_SEED=8 SILICONPROF_FUZZ_INPUTS=20000 python -m pytest tests/test_fuzz.py
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import fuzz_inputs as fuzz
import pytest
from conftest import NANO
from siliconprof.cells import config
from siliconprof.errors import UserError
from siliconprof.hosts import host_file as hosts
from siliconprof.hosts import registry
from siliconprof.remote import bundle_import
from siliconprof.store import matrix_file, record, validation
from synthetic_cells import everything, named
from synthetic_results import bundle_of, host_file, matmul

SEED = int(os.environ.get("SILICONPROF_FUZZ_SEED", "7"))
INPUTS = int(os.environ.get("SILICONPROF_FUZZ_INPUTS", "400"))  # for each reader
HANG_S = 20.0
RECORDS = everything()
MEMBER = "records/far/cpu-x/torch-cpu/product/auto/fp32.json"
BUNDLE = {MEMBER: named(matmul(host="far"), "product"), "hosts/far.json": host_file(label="far")}
CONFIG: dict[str, Any] = {"experiment": "x", "host": "desk", "seed": 1, "cpu_threads": 2} | {
    "devices": ["local"],
    "backends": ["mlx"],
    "scenarios": ["auto"],
    "precisions": ["fp32"],
    "timing": {"budget_s": 1.0},
    "datasets": {"d": {"source": "builtin", "vocab_size": 512, "path": None}},
    "workloads": {
        "g": NANO | {"dataset": "d", "timing": {"iterations": 3}, "device_kinds": ["cpu"]},
        "m": {"module": "matmul", "shapes": [[1, 2, 2, 2]], "precisions": ["fp32"]},
    },
    "report": {"title": "t"},
}


def forged(value: Any) -> bytes:
    """A record's file that agrees with its own hash, as of a forger; anything else as it is."""
    if isinstance(value, dict):
        with suppress(ValueError, TypeError, RecursionError):
            value = {**value, "sha256": record.content_sha256(value)}
    return json.dumps(value).encode()


def bundle(value: Any) -> bytes:
    """A bundle of such files by name."""
    if not isinstance(value, dict):
        return json.dumps(value).encode()
    hosts = {name: json.dumps(part).encode() for name, part in value.items()}
    return bundle_of(hosts | {name: forged(value[name]) for name in value if name == MEMBER})


def configured(path: Path) -> None:
    """A config file as Snakemake hands it over, resolved."""
    config.resolve(validation.load_yaml(path), path.name)


def imported(path: Path) -> None:
    """A bundle, taken in where nothing else is."""
    results = path.parent / "results"
    (results / "hosts").mkdir(parents=True, exist_ok=True)
    (results / "hosts/auto.json").write_text('{"label": "desk", "fingerprint": "x"}')
    bundle_import.import_bundle(path, results, replace=True)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "whole", "written", "read"),
    [
        ("fp32.json", RECORDS, forged, record.load),
        ("far.zip", [BUNDLE], bundle, imported),
        ("config.yaml", [CONFIG], lambda value: json.dumps(value).encode(), configured),
    ],
    ids=["record", "bundle", "config"],
)
def test_a_reader_answers_with_a_value_or_with_lines(
    name: str,
    whole: Sequence[Any],
    written: Callable[[Any], bytes],
    read: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    """To a document of another content that is whole, or to a damaged file."""
    path, chance, taken = tmp_path / "in" / name, Random(SEED), 0
    path.parent.mkdir()
    for number in range(INPUTS):
        value = chance.choice(whole)
        if chance.random() < 0.3:
            content, how = fuzz.damaged(written(value), chance)
        else:
            value, how = fuzz.document(value, chance)
            content = written(value)
        path.write_bytes(content)
        began = time.monotonic()
        try:
            read(path)
            taken += 1
        except UserError as error:
            wrong = [line for line in str(error).split("\n") if name not in line]
            assert not wrong, f"{number}: {how}: lines that do not say where: {wrong[:3]}"
        except Exception as error:
            raise AssertionError(f"{number}: {how}: {error!r}") from error
        assert time.monotonic() - began < HANG_S, f"{number}: {how}"
    assert 0 < taken < INPUTS
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]
    assert {entry.name for entry in path.parent.iterdir()} <= {name, "results"}


# -- single inputs that random damage does not find ----------------------------------------------


def refused(read: Callable[[Path], Any], path: Path, content: str | bytes) -> str:
    """The one line with which a file is refused; it may not take long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.monotonic()
    with pytest.raises(UserError) as error:
        read(path)
    assert time.monotonic() - began < HANG_S
    (line,) = str(error.value).split("\n")
    assert line.startswith(str(path)) and len(line) < 2500
    return line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("experiment: " + "7" * 10_000, "not YAML"),
        ("experiment: !!timestamp x", "not YAML"),
        ("experiment: 2026-13-45", "not YAML"),
        ("workloads: {a: {}, a: {}}", "the key 'a' stands twice"),
        ("experiment: !!python/object/apply:os.system ['touch pwned']", "not YAML"),
        (b"experiment: \xff", "not YAML"),
    ],
    ids="digits tag date twice code bytes".split(),
)
def test_yaml_that_would_take_the_reader_down(text: Any, why: str, tmp_path: Path) -> None:
    """Tags raise what they like."""
    for read, name in ((configured, "config.yaml"), (registry.load, "devices.yaml")):
        assert why in refused(read, tmp_path / name, text)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": ' * 100_000, "nested too deeply"),
        ('{"seed": ' + "9" * 10_000 + "}", "Exceeds the limit"),
        (b'{"reason": "\xed\xa0\x80"}', "utf-8"),
        ("", "Expecting value"),
    ],
)
def test_json_that_breaks_what_comes_after(text: Any, why: str, tmp_path: Path) -> None:
    for read in (record.read, hosts.load, matrix_file.read):
        assert why in refused(read, tmp_path / "x.json", text)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("cell.module", "of-a-later-checkout"),
        ("cell.parameters.size", "of-a-later-checkout"),
        ("cell.parameters.of_a_later_checkout", []),
        ("started_at", "2199-12-31T23:59:59+00:00"),
    ],
)
def test_what_another_checkout_or_a_wrong_clock_wrote_is_read(
    tmp_path: Path, where: str, value: Any
) -> None:
    """Nothing measured is lost: what is not known here is no mistake, nor is a clock's date."""
    trained = next(data for data in RECORDS if data["cell"]["module"] == "gpt2")
    made, path = fuzz.put(trained, where.split("."), value), tmp_path / "fp32.json"
    path.write_bytes(forged(made))
    assert vars(record.load(path).cell) | made["cell"] == vars(record.load(path).cell)
