"""Readers of what others wrote, against tens of thousands of documents that nobody meant.

Each reader answers with a value or with a `UserError` whose every line names the file; nothing
else, not even slowly, and without a trace outside `results/`. Another seed, or all 100,000 inputs,
are one variable away:

    SILICONPROF_FUZZ_SEED=8 SILICONPROF_FUZZ_TIMES=1 python -m pytest tests/test_fuzz.py
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import fuzz_inputs as fuzz
import numpy as np
import pytest
import yaml
from conftest import ROOT
from siliconprof import declarations
from siliconprof.analyse import (
    aggregate,
    cell_columns,
    operator_rows,
    published_values,
    record_rows,
    step_parts,
    study_rows,
)
from siliconprof.backends import _saved
from siliconprof.cells import config, matrix
from siliconprof.claims import claims_file
from siliconprof.datasets import source_files, token_data
from siliconprof.errors import UserError
from siliconprof.hosts import host_file, registry
from siliconprof.measure import child
from siliconprof.pipeline import progress
from siliconprof.remote import bundle_check, bundle_import, collect_hosts
from siliconprof.render import figures
from siliconprof.store import (
    documents,
    matrix_file,
    names,
    record,
    records,
    table_files,
    validation,
)
from synthetic_cells import everything, named
from synthetic_results import base_record, make, matmul, render, table
from test_bundle import a_host, bundle_of
from test_config import SMALL as CONFIG

SEED = int(os.environ.get("SILICONPROF_FUZZ_SEED", "7"))
TIMES = float(os.environ.get("SILICONPROF_FUZZ_TIMES", "0.2"))
BATCH = 100  # inputs for each seed
HANG_S = 20.0


# -- what may not happen -----------------------------------------------------------------------


class Watch:
    """Every file that this process opens for writing, renames or removes, while it is switched on.

    An audit hook stays for the life of a process; switched off it costs a comparison.
    """

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            if writes or (mode is None and flags & (os.O_WRONLY | os.O_RDWR)):
                self.seen.append(os.fspath(path) if not isinstance(path, int) else "")
        elif event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link"):
            self.seen += [os.fspath(p) for p in arguments[:2] if isinstance(p, str | os.PathLike)]
        elif event == "subprocess.Popen" and list(arguments[1]) == ["lscpu"]:
            return  # how this machine is told from the bundle's; no input has a say in it
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "pickle.find_class"):
            self.seen.append(f"{event}: {arguments[:2]!r:.200}")


WATCH = Watch()


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """End what takes too long with an exception that no reader catches."""

    def stop(*_: Any) -> None:
        pytest.fail(f"no answer in {HANG_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def listing(folder: Path, *but: Path) -> dict[Path, tuple[int, int]]:
    """Every file below a folder with size and time, but for these and what is below them."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not any(map(path.is_relative_to, but))
    }


# -- readers -----------------------------------------------------------------------------------

Input = tuple[bytes, str]  # a file's content, and how it was made


@dataclass(frozen=True)
class Reader:
    """Something that reads what others wrote."""

    file: str  # where the input lies, below the project
    make: Callable[[Random], Input]
    read: Callable[[Path], Any]
    inputs: int
    named: str = ""  # what every line begins with or holds; the file's name if empty
    beside: Mapping[str, bytes] | None = None  # other files that it reads


def structured(*originals: Any) -> Callable[[Random], Input]:
    """Inputs that are JSON of another content."""

    def made(chance: Random) -> Input:
        value, how = fuzz.document(originals, chance)
        return fuzz.as_json(value, chance), how

    return made


def bytewise(*originals: bytes) -> Callable[[Random], Input]:
    """Inputs that are damaged files."""
    return lambda chance: fuzz.damaged(chance.choice(originals), chance)


def yamlwise(*originals: Any) -> Callable[[Random], Input]:
    """Inputs that are YAML of another content."""

    def made(chance: Random) -> Input:
        value, how = fuzz.document(originals, chance)
        with contextlib.suppress(UnicodeEncodeError):
            if chance.random() < 0.5:
                return yaml.dump(value, Dumper=yaml.CSafeDumper).encode(), how
        return fuzz.as_json(value, chance), how  # which is YAML as well

    return made


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the hash of what it now says, as a forger would do it."""
    try:
        return {**data, "sha256": record.content_sha256(data)}
    except (ValueError, TypeError, RecursionError):
        return {**data, "sha256": "0" * 64}


def small(data: dict[str, Any]) -> dict[str, Any]:
    """A record with fewer repeats: the schema looks at every number."""
    for point in data["points"]:
        for part, most in (("times", 4), ("steps", 6), ("curve", 4)):
            if point.get(part):
                point[part] = {name: values[:most] for name, values in point[part].items()}
    return data


RECORDS = [small(data) for data in everything()]
RECORD_FILES = [json.dumps(sealed(data)).encode() for data in RECORDS]


FREE = """cell started_at environment method probes accounting points samples precision checks
dataset flags scenario""".split()


def forged(chance: Random) -> Input:
    """A record of another content that agrees with its own hash."""
    whole = chance.choice(RECORDS)
    parts = [name for name in FREE if whole.get(name)]
    if chance.random() < 0.7:  # deep inside: the top is soon refused
        part = chance.choice(parts)
        inner, how = fuzz.document([whole[part]], chance, deep=True)
        value, how = {**whole, part: inner}, f"{part}: {how}"
    else:
        value, how = fuzz.document([whole], chance)
    return fuzz.as_json(sealed(value) if isinstance(value, dict) else value, chance), how


def rows_of(path: Path) -> None:
    """A record and all its lines of the tables; both checkers of its schema agree on it."""
    document, schema = record.read(path), validation.load_schema("record")
    assert validation.problems(document, schema, most_values=math.inf) == []
    data = record.load(path)
    cell_columns.cell_row(records.HERE, path, data, path.parent / "history")
    for rows in (
        record_rows.point_rows,
        record_rows.energy_rows,
        record_rows.probe_rows,
        study_rows.evaluation_rows,
        study_rows.text_rows,
        operator_rows.rows,
        step_parts.lines,
    ):
        for row in rows(data):
            for name, value in row.items():
                assert not isinstance(value, float) or math.isfinite(value), f"{name} = {value}"
    for blocks in (
        record_rows.step_blocks,
        record_rows.training_step_blocks,
        record_rows.sample_blocks,
        study_rows.curve_blocks,
    ):
        for _, columns in blocks(data):
            assert len({len(values) for values in columns.values()}) <= 1, columns.keys()


FAR = sealed(small(named(matmul(host="far"), "product")))
MEMBER = "records/far/cpu-x/torch-cpu/product/auto/fp32.json"
MEMBERS = {MEMBER: json.dumps(FAR).encode(), "hosts/far.json": json.dumps(a_host("far")).encode()}
NAMES = [
    "../up.json", "/abs.json", "records/far/../../x.json", "C:/x.json", "hosts/auto.json", "x\0y",
    "hosts/far.json\n", "records/far/cpu-x/torch-cpu/a b/auto/fp32.json", "records\\far", "hosts/",
    "records/far/cpu-x/torch-cpu/; touch pwned/auto/fp32.json", "hosts/" + "x" * 300 + ".json",
    "records/FAR/cpu-x/torch-cpu/product/auto/fp32.json", "hosts/é.json",
    f"hosts/{'x' * 65}.json", "hosts/{x}.json", "hosts/.far.json", "manifest.json/x",
]  # fmt: skip


def bundle_with_changes(chance: Random) -> Input:
    """A whole bundle of which one document, or a name, is another."""
    files = dict(MEMBERS)
    which = chance.choice(["record", "host", "manifest", "name", "none"])
    if which == "record":
        value, how = fuzz.document([FAR], chance)
        files[MEMBER] = fuzz.as_json(sealed(value) if isinstance(value, dict) else value, chance)
    elif which == "host":
        value, how = fuzz.document([a_host("far")], chance)
        files["hosts/far.json"] = fuzz.as_json(value, chance)
    elif which == "name":
        how = chance.choice(NAMES)
        files[how] = files.pop(chance.choice(list(files)))
    elif which == "manifest":
        key = chance.choice(["bundle_version", "files", "siliconprof_version"])
        value = chance.choice(fuzz.VALUES)
        with contextlib.suppress(ValueError, RecursionError):
            return bundle_of(files, {key: value}), f"{key} = {value!r:.60}"
        return bundle_of(files), "nothing"
    else:
        return fuzz.damaged(bundle_of(files), chance)
    return bundle_of(files), f"{which}: {how}"


EXPERIMENT = config.resolve(CONFIG | {"devices": ["local"]})
DEVICES = registry.load(ROOT / "config" / "devices.yaml")
HOST = a_host("desk") | {
    "packages": {"python": "3.11", **dict.fromkeys(declarations.libraries(), "1")}
}


def expanded(path: Path) -> None:
    """A host file, and the cells of a small experiment on that host."""
    matrix.expand(EXPERIMENT, {"devices": {}, "sources": {}}, host_file.load(path))


def configured(path: Path) -> None:
    """A config file as Snakemake hands it over, resolved."""
    config.resolve(validation.load_yaml(path), path.name)


MATRIX = {
    "experiment": EXPERIMENT,
    "host": HOST,
    "hosts": [HOST],
    "not_measured": [{"device": "h200", "reason": "none"}],
    "cells": [
        {"cell": data["cell"], "record": f"results/records/{record.cell_path(data)}.json"}
        for data in RECORDS[:2]
    ],
}


def of_matrix(path: Path) -> None:
    """matrix.json and what the aggregation asks of it."""
    document = matrix_file.read(path)
    with contextlib.suppress(UserError):  # that a record is missing
        list(aggregate.gather(document, path.parent, []))
    aggregate.outside(document, path.parent)


TOKENS = np.arange(40, dtype=np.uint16)
FACTS = {
    "name": "d",
    "kind": "text",
    "vocab_size": 512,
    "tokens_sha256": token_data.prepared.array_sha256(TOKENS),
}


def saved(array: np.ndarray) -> bytes:
    """An array as a file."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def tokens(path: Path) -> None:
    """A prepared data set, cut into batches."""
    token_data.load(path.parent)


def source_state(path: Path) -> None:
    """Which files a data set was made from; damage means that nobody knows."""
    assert isinstance(source_files.state(path.parent), str)


SOURCES = {
    "state": "x",
    "roots": {
        str(ROOT / "config"): {
            "names_sha256": None,
            "files": {"config.yaml": {"bytes": 1, "mtime_ns": 1, "sha256": "a" * 64}, "gone": None},
        }
    },
}


def shown_progress(path: Path) -> None:
    """A line of a child's progress, by the supervisor and on the terminal."""
    read_end, write_end = os.pipe()
    os.write(write_end, path.read_bytes()[:60_000] + b"\n")
    os.close(write_end)
    reader = object.__new__(child.Child)
    reader.progress = {"doing": "start", "step": 0}
    reader._read_progress(read_end)
    assert f"{reader.progress['doing']}, {reader.progress['step']}"
    HANDLER.path = path
    assert not set(HANDLER._render().plain) & {"\x1b", "\n", "\x00"}


HANDLER = progress.LiveHandler(Path("none"))
WEIGHTS = {"a": ((2, 3), "float32")}


def checkpoint() -> bytes:
    """A checkpoint of one small array."""
    from safetensors.numpy import save

    return save({"a": np.zeros((2, 3), np.float32)}, _saved.metadata(0, 0))


CLAIMS = {"claims": validation.load_yaml(ROOT / "config/claims.yaml")["claims"][:1]}


def claimed(path: Path) -> None:
    """The claims of a file."""
    tables = published_values.Published(ROOT / "config" / "published", DEVICES)
    claims_file.load(path, DEVICES, tables)


def recognised(path: Path) -> None:
    """A registry, and which device of it one is that was found."""
    known = registry.load(path)
    facts = {"kind": "gpu", "vendor": "nvidia", "name": "NVIDIA H200", "memory_bytes": 2**37}
    registry.recognise(known, facts)


RESOURCES = {"slurm_partition": "gpu", "constraint": "h200", "gres": "gpu:h200:1", "runtime": 30}
CLUSTER = {"cluster": {"hall": {"device": "h200", "resources": RESOURCES}}}
HOSTS = {
    "mac": {"ssh": "me@mac.example:22", "folder": "~/study", "environment": "make"},
    "box": {
        "ssh": "box",
        "folder": "/srv/study",
        "environment": "/srv/python",
        "identity": "~/.ssh/id_box",
        "configfile": "config/config.yaml",
    },
}
CELLS_CSV = (
    b"source,host,device,backend,workload,scenario,precision,status,wall_s\r\n"
    b"this host,desk,cpu-x,mlx,p,auto,fp32,ok,1.5\r\nthis host,desk,cpu-x,mlx,q,auto,fp32,,\r\n"
)

REGISTRY = validation.load_yaml(ROOT / "config" / "devices.yaml")
REGISTRY["devices"] = {name: REGISTRY["devices"][name] for name in ("h200", "m2-ultra-76")}
PRINTED = "config/published/table4_pass_time.csv"
RECORD = "results/records/desk/cpu-x/torch-cpu/p/auto/fp32.json"
DESK = "results/hosts/desk.json"
READERS = {
    "record, damaged": Reader(RECORD, bytewise(*RECORD_FILES), record.read, 26_000),
    "record, forged": Reader(RECORD, forged, rows_of, 2_500),
    "bundle, damaged": Reader(
        "far.zip",
        bytewise(bundle_of(MEMBERS)),
        lambda path: bundle_check.check(path.read_bytes(), path),
        12_000,
    ),
    "bundle, changed": Reader(
        "far.zip",
        bundle_with_changes,
        lambda path: bundle_import.import_bundle(path, path.parent / "results", replace=True),
        3_000,
        beside={"results/hosts/auto.json": b'{"label":"desk","fingerprint":"x"}'},
    ),
    "host file, damaged": Reader(DESK, bytewise(json.dumps(HOST).encode()), host_file.load, 8_000),
    "host file, changed": Reader(DESK, structured(HOST), expanded, 2_500),
    "config, damaged": Reader(
        "config/config.yaml", bytewise(yaml.safe_dump(CONFIG).encode()), configured, 1_500
    ),
    "config, changed": Reader("config/config.yaml", yamlwise(CONFIG | CLUSTER), configured, 1_500),
    "hosts.yaml, changed": Reader("config/hosts.yaml", yamlwise(HOSTS), collect_hosts.load, 1_500),
    "registry, changed": Reader("config/devices.yaml", yamlwise(REGISTRY), recognised, 700),
    "claims, changed": Reader("config/claims.yaml", yamlwise(CLAIMS), claimed, 1_500),
    "published tables": Reader(
        PRINTED, bytewise((ROOT / PRINTED).read_bytes()), published_values.read_table, 6_000
    ),
    "matrix.json, changed": Reader("results/matrix.json", structured(MATRIX), of_matrix, 1_500),
    "dataset.json": Reader(
        "results/data/d/dataset.json",
        structured(FACTS),
        tokens,
        4_000,
        "results/data/d",
        beside={"results/data/d/tokens.npy": saved(TOKENS)},
    ),
    "arrays": Reader(
        "results/data/d/tokens.npy",
        bytewise(saved(TOKENS)),
        tokens,
        6_000,
        beside={"results/data/d/dataset.json": json.dumps(FACTS).encode()},
    ),
    "sources.json": Reader("results/data/d/sources.json", structured(SOURCES), source_state, 3_000),
    "progress": Reader("x.progress", structured({"doing": "x", "step": 1}), shown_progress, 2_000),
    "checkpoints": Reader(
        "results/checkpoints/x.safetensors",
        bytewise(checkpoint()),
        lambda path: _saved.read_metadata(path, WEIGHTS),
        3_000,
    ),
    "tables": Reader("results/tables/cells.csv", bytewise(CELLS_CSV), table_files.read, 700),
}


def lay_out(project: Path, reader: Reader) -> Path:
    """A project around an input; the input's path."""
    for name, content in {**(reader.beside or {}), "README.md": b"x", reader.file: b""}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(content)
    (project / "results").mkdir(exist_ok=True)
    return project / reader.file


def one(reader: Reader, path: Path, content: bytes, how: str) -> str:
    """Try one input; whether it was taken or refused."""
    path.write_bytes(content)
    WATCH.seen.clear()
    WATCH.on = True
    try:
        reader.read(path)
        return "taken"
    except UserError as error:
        lines = str(error).split("\n")
        named = reader.named or path.name
        wrong = [line for line in lines if named not in line or len(line) < len(named) + 5]
        assert not wrong, f"{how}: lines that do not say where: {wrong[:3]}"
        return "refused"
    except Exception as error:
        raise AssertionError(
            f"{how}: {type(error).__name__}: {error}; {content[:300]!r}"
        ) from error
    finally:
        WATCH.on = False


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_reader_answers_with_a_value_or_with_lines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = READERS[name]
    project = tmp_path / "around" / "project"
    path = lay_out(project, reader)
    monkeypatch.chdir(project)
    verdicts: Counter[str] = Counter()
    batches = max(1, round(reader.inputs * TIMES / BATCH))
    before = listing(tmp_path, path, project / "results")
    seeds = Random(SEED)
    for number in (seeds.getrandbits(64) for _ in range(batches)):
        chance = Random(number)
        for index in range(BATCH):
            content, how = reader.make(chance)
            with no_hang():
                verdict = one(reader, path, content, f"{name}, seed {number}, {index}: {how}")
            verdicts[verdict] += 1
            strange = [
                seen
                for seen in WATCH.seen
                if not Path(os.path.abspath(seen)).is_relative_to(project / "results")
                and seen != os.devnull
            ]
            assert not strange, f"{how}: {strange}"
            if verdict == "refused":
                assert not WATCH.seen, f"{how}: refused, and yet it wrote {WATCH.seen[:3]}"
    assert listing(tmp_path, path, project / "results") == before
    tried = sum(verdicts.values())
    assert tried >= batches * BATCH, verdicts
    with capsys.disabled():
        print(f"\n{name}: {tried} inputs, {dict(verdicts)}, seed {SEED}", end=" ")


# -- what the reader takes goes through everything -----------------------------------------------


@pytest.mark.slow
def test_what_the_reader_takes_becomes_tables_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of forged records through every stage, some of them onto the page."""
    chance, taken = Random(SEED), []
    path = tmp_path / "p" / "fp32.json"
    path.parent.mkdir()
    while len(taken) < 60:
        content, _ = forged(chance)
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            data = record.read(path)
            taken.append({**data, "cell": data["cell"] | {"workload": f"w{len(taken)}"}})
    results = make(tmp_path / "many", taken)
    rows = table(results, "cells")
    assert {row["workload"] for row in rows} == {data["cell"]["workload"] for data in taken}
    kernels = [data for data in taken if data["cell"]["trainer"] is None][:4]
    few = make(tmp_path / "few", kernels)
    monkeypatch.setattr(figures, "publish", drawn_once)
    render(few)
    assert "<script>alert(1)" not in (few / "study.html").read_text(encoding="utf-8")


def drawn_once(name: str, draw: Any, *_: Any) -> str:
    """A figure is drawn and kept nowhere."""
    figures._svg(draw())
    return ""


# -- single inputs that random damage does not find ----------------------------------------------


def refused(read: Callable[[Path], Any], path: Path, content: str | bytes) -> str:
    """The one line with which a file is refused; it may not take long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with no_hang(), pytest.raises(UserError) as error:
        read(path)
    (line,) = str(error.value).split("\n")
    assert line.startswith(str(path)) and len(line) < 2500
    return line


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join(10 * [f'*a{i - 1}'])}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, "aliases of aliases"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        ("- " * 100_000 + "x", "nested too deeply"),
        ("\n".join(" " * i + "a:" for i in range(1000)), "nested too deeply"),
        ("experiment: " + "7" * 10_000, "not YAML"),
        ("experiment: !!timestamp x", "not YAML"),
        ("experiment: 2026-13-45", "not YAML"),
        ("workloads: {a: {}, a: {}}", "the key 'a' stands twice"),
        ("experiment: !!python/object/apply:os.system ['touch pwned']", "not YAML"),
        (b"experiment: \xff", "not YAML"),
    ],
    ids="laughs itself brackets dashes steps digits tag date twice code bytes".split(),
)
def test_yaml_that_would_take_the_reader_down(text: Any, why: str, tmp_path: Path) -> None:
    """libyaml dies of depth, aliases grow without end, and tags raise what they like."""
    for read, name in ((configured, "config.yaml"), (registry.load, "devices.yaml")):
        assert why in refused(read, tmp_path / name, text)
    assert not list(tmp_path.rglob("pwned"))


def test_aliases_reach_the_config_by_the_command_line_too() -> None:
    """Snakemake itself reads `--configfile`: what it hands over is not walked without end."""
    with no_hang(), pytest.raises(UserError, match="aliases of aliases"):
        config.resolve(yaml.safe_load(LAUGHS))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": ' * 100_000, "nested too deeply"),
        ("[" * 500 + "]" * 500, "nested too deeply"),
        ('{"seed": ' + "9" * 10_000 + "}", "Exceeds the limit"),
        ('{"seed": ' + "9" * 40 + "}", "beyond 64 bits"),
        ('{"flops": 1e999}', "is not a JSON number"),
        ('{"flops": NaN}', "is not a JSON number"),
        ('{"reason": "\\ud800"}', "surrogate"),
        (b'{"reason": "\xed\xa0\x80"}', "not UTF-8"),
        ("", "Expecting value"),
    ],
)
def test_json_that_breaks_what_comes_after(text: Any, why: str, tmp_path: Path) -> None:
    for read in (record.read, host_file.load, matrix_file.read):
        assert why in refused(read, tmp_path / "x.json", text)


@pytest.mark.slow
def test_a_record_of_a_million_points_is_read_or_refused_in_seconds(tmp_path: Path) -> None:
    """As large as a bundle lets through."""
    data = base_record("matmul", "product")
    point = {"params": {"m": 1}, "times": {"step_s": [1.0]}, "flops": None, "bytes": None}
    data["points"] = [point | {"memory": {}}] * 120_000
    data["samples"] = [{"t_s": 0.1 * i} for i in range(120_000)]
    path = tmp_path / "fp32.json"
    path.write_text(json.dumps(sealed(data)))
    assert path.stat().st_size > 12 * 2**20
    with no_hang():
        assert len(record.read(path, check_schema=False)["points"]) == 120_000
    with open(path, "ab") as stream:
        stream.truncate(documents.LIMIT_BYTES + 1)
    with no_hang(), pytest.raises(UserError, match="over the limit"):
        record.read(path)


TRAINED = next(data for data in RECORDS if data["cell"]["module"] == "gpt2")


def trained_with(where: str, value: Any) -> dict[str, Any]:
    """That record with another value somewhere, sealed."""
    path = [int(part) if part.isdigit() else part for part in where.split(".")]
    return sealed(fuzz.put(TRAINED, path, value))


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        ("cell.parameters.batch_size", [4], "is [4]; expected integer or string"),
        ("cell.parameters.size", 7, "is 7; expected string"),
        ("cell.parameters.learning_rate", 0, "is 0; expected more than 0"),
        ("cell.parameters.dataset_vocab_size", [], "is []; expected"),
        ("cell.module", "a/b", "is 'a/b'; expected text that matches"),
        ("cell.trainer", {}, "is {}; trainer plug-in, by name, or null"),
        ("cell.workload", "w" * 65, "expected text of at most 64 characters"),
        ("cell.host", "../up", "is '../up'; expected text that matches"),
        ("started_at", "9999-99-99T99:99:99+00:00", "is '9999-99-99T99"),
        ("started_at", "2026-02-30T00:00:00+00:00", "expected a date-time that exists"),
        ("points.0.times.step_s", [0.0, 1e-99], "has 1e-99; expected seconds, 0 or at least 1e-12"),
        ("points.0.times.step_s", [-1.0], "is -1.0; expected at least 0"),
        ("points.0.times.step_s", [1e10], "expected at most 1000000000.0"),
        ("points.0.flops", 0.5, "is 0.5; expected"),
        ("points.0.params.m", -64, "is -64; expected at least 0"),
        ("points.0.params.note", "x" * 1001, "is 'xxx"),
        ("points.0.params.batch_size", "x", "is 'x'; expected"),
    ],
)
def test_a_record_s_types_lengths_and_dates(
    tmp_path: Path, where: str, value: Any, why: str
) -> None:
    line = refused(record.read, tmp_path / "fp32.json", json.dumps(trained_with(where, value)))
    assert where in line and why in line, line


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("cell.module", "of-a-later-checkout"),
        ("cell.parameters.size", "of-a-later-checkout"),
        ("cell.parameters.of_a_later_checkout", []),
        ("started_at", "1970-01-01T00:00:09+00:00"),
        ("started_at", "2199-12-31T23:59:59+00:00"),
        ("points.0.times.step_s", [0.0, 1e-9]),
    ],
)
def test_what_another_checkout_or_a_wrong_clock_wrote_is_read(
    tmp_path: Path, where: str, value: Any
) -> None:
    """Nothing measured is lost: what is not known here is no mistake, nor is a clock's date."""
    path = tmp_path / "fp32.json"
    path.write_text(json.dumps(made := trained_with(where, value)), encoding="utf-8")
    assert record.read(path)["cell"] == made["cell"]


def test_names_become_files_that_lie_where_they_should() -> None:
    texts = [text for text in fuzz.VALUES if isinstance(text, str)]
    texts += ["Net", "net", "a.b", "a/b", "a b", "..", ".", "-x", "x" * 161, "x" * 162, "CON:"]
    slugs = {text: names.slug(text) for text in dict.fromkeys(texts)}
    assert len({slug.casefold() for slug in slugs.values()}) == len(slugs)
    for text, slug in slugs.items():
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,159}", slug), text
        assert names.slug(slug) == slug
    assert slugs["a.b"] == "a.b" and slugs["net"] == "net"
    assert registry.generic_id("a" * 300) != registry.generic_id("a" * 301)
    assert registry.ID.fullmatch(registry.generic_id("a" * 300))
    label = names.cut("x" * 300)
    assert re.fullmatch(names.LABEL, label)
