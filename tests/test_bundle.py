"""Bundles: what goes in comes out byte for byte, and nothing else ever comes in."""

from __future__ import annotations

import json
import socket
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic_results
from conftest import Checkout
from siliconprof.analyse import aggregate
from siliconprof.errors import UserError
from siliconprof.hosts import host_file as hosts
from siliconprof.remote import bundle_import, bundle_pack
from siliconprof.store import record
from synthetic_results import (
    base_record,
    bundle_of,
    host_file,
    make,
    matmul,
    table,
    training,
    without_result,
)

MEMBER = "records/far/cpu-x/mlx/product/auto/fp32.json"


def a_record(
    host: str = "far", workload: str = "product", reason: str = "a test does not measure"
) -> dict[str, Any]:
    """A record of a cell that was skipped for a reason."""
    made = base_record("matmul", workload, host=host, backend="mlx")
    return without_result(made, "skipped", reason)


def put(results: Path, data: dict[str, Any]) -> Path:
    """Write a record to its place, and to history."""
    return synthetic_results.put(results / "records", data, results / "history")


def put_host(results: Path, host: dict[str, Any], name: str | None = None) -> None:
    """Write a host file to its place."""
    path = results / "hosts" / f"{name or host['label']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(host))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The results of another host: two records and a host file."""
    results = tmp_path / "there" / "results"
    put(results, a_record())
    put(results, a_record(workload="another"))
    put_host(results, host_file(label="far"))
    return results


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The results of this host, named `desk`, with a record of its own."""
    results = tmp_path / "here" / "results"
    put(results, a_record("desk"))
    put_host(results, host_file(label="desk", fingerprint=hosts.fingerprint()))
    put_host(results, {"label": "desk", "fingerprint": hosts.fingerprint()}, "auto")
    return results


@pytest.fixture
def packed(there: Path, tmp_path: Path) -> Path:
    """The other host's bundle."""
    path = tmp_path / "far.zip"
    bundle_pack.pack(there, [], path)
    return path


# -- the round trip ----------------------------------------------------------------------------


def test_equal_records_make_equal_bundles_and_an_import_adds_what_is_missing(
    here, there, packed, tmp_path, capsys
):
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
    expected = {name: content for name, content in tree(there).items() if "history" not in name}
    assert names == sorted([*expected, "manifest.json"])
    for path in there.rglob("*.json"):
        path.touch()
    bundle_pack.pack(there, ["far"], tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()

    own = tree(here)
    bundle_import.main(packed, results=here)
    assert capsys.readouterr().out == "2 new, 0 already here, 0 replaced\n"
    after = tree(here)
    assert json.loads(after.pop("imported/far.json")) == {"bundle": "far.zip"}
    assert json.loads(after.pop("hosts/far.json")) == json.loads(expected.pop("hosts/far.json"))
    assert after == own | expected
    again = bundle_import.import_bundle(packed, here)
    assert again == "0 new, 2 already here, 0 replaced"


# -- packing -----------------------------------------------------------------------------------


def test_what_is_packed_and_what_cannot_be(there, packed, tmp_path, capsys):
    def refusal(*hosts: str) -> list[str]:
        with pytest.raises(UserError) as error:
            bundle_pack.pack(there, hosts, tmp_path / "c.zip")
        assert not (tmp_path / "c.zip").exists()
        return str(error.value).splitlines()

    put(there, a_record("bare"))  # without a host file
    before = packed.read_bytes()
    with pytest.raises(UserError, match="far.zip: exists; .*--force"):
        bundle_pack.main(output=packed, results=there)
    assert packed.read_bytes() == before
    bundle_pack.main(output=packed, results=there, force=True)
    assert "3 records of bare, far" in capsys.readouterr().out
    assert "1 records of bare" in bundle_pack.pack(there, ["bare"], tmp_path / "b.zip")

    (line,) = refusal("far", "nobody")
    assert "no records of host nobody (records are of: bare, far)" in line
    (there / "records/far/cpu-x/mlx/product").rename(there / "records/far/cpu-x/mlx/renamed")
    (line,) = refusal()
    assert "renamed/auto/fp32.json: misplaced record" in line
    paths = sorted((there / "records").rglob("*.json"))
    for path in paths:
        path.write_text(path.read_text().replace("2026-01-02", "2026-01-03"))
    assert [line.split(": ")[0] for line in refusal()] == [str(path) for path in paths]


# -- without names -----------------------------------------------------------------------------


def test_home_user_and_host_are_placeholders_in_the_bundle_alone(
    there, here, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(socket, "gethostname", lambda: "Marias-Mac.lab.example.org")
    for name, value in (("HOME", "/home/mgarcia"), ("LOGNAME", "mgarcia")):
        monkeypatch.setenv(name, value)
    texts = {
        "/home/mgarcia/thesis/x.py: no": "[home]/thesis/x.py: no",
        "in '/home/mgarcia'; not /home/mgarcia2/x": "in '[home]'; not /home/mgarcia2/x",
        "mgarcia@marias-mac.lab.example.org: 3/4": "[user]@[host]: 3/4",
        "Marias-Mac is up, far too: /data/mgarcia/x": "[host] is up, far too: /data/[user]/x",
        "mgarcia2, my-mgarcia, marias-mac2 and mgarcia-x": None,
    }
    data = a_record(workload="named", reason="; ".join(texts))
    data["cell"]["parameters"] = {"weights_path": "/home/mgarcia/gpt2"}
    data["environment"]["declared"] = {"blas": "mgarcia BLAS 1.2"}  # what the numbers are about
    path = put(there, data)
    before = tree(there)
    bundle_pack.main(output=tmp_path / "a.zip", results=there)
    assert "1 of them with [home], [user] or [host] in place of" in capsys.readouterr().out
    assert tree(there) == before
    packed = bundle_import.read_bundle(tmp_path / "a.zip")
    member = MEMBER.replace("product", "named")
    assert [n for n in packed.records if packed.files[n] != before[n]] == [member]
    inside = json.loads(packed.files[member])
    assert inside["reason"] == "; ".join(after or text for text, after in texts.items())
    assert inside["cell"]["parameters"] == {"weights_path": "[home]/gpt2"}
    changed = {key: inside[key] for key in ("reason", "cell", "sha256")}
    assert inside == record.read(path) | changed  # all else is as it was measured
    assert inside["sha256"] == record.content_sha256(inside)
    assert bundle_import.import_bundle(tmp_path / "a.zip", here).startswith("3 new, ")


# -- what is refused ---------------------------------------------------------------------------


def rebuilt(
    packed: Path, change: Callable[[dict[str, bytes]], None] = lambda files: None, **manifest: Any
) -> None:
    """Change a bundle's members and manifest, as a forger would."""
    with zipfile.ZipFile(packed) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    del files["manifest.json"]
    packed.write_bytes(bundle_of(files, **manifest))


def resealed(content: bytes, **change: Any) -> bytes:
    """A record with other values and a hash that fits them."""
    data = json.loads(content) | change
    data["sha256"] = record.content_sha256(data)
    return json.dumps(data).encode()


def refusal(packed: Path, here: Path, **more: Any) -> list[str]:
    """The lines of a refused import, after which nothing has changed."""
    before = tree(here.parent)
    with pytest.raises(UserError) as error:
        bundle_import.import_bundle(packed, here, **more)
    assert tree(here.parent) == before
    return [line.removeprefix(f"{packed}: ") for line in str(error.value).splitlines()]


def unsound(packed: Path, here: Path) -> list[str]:
    """The lines that refuse a bundle to whoever wants to use it, whatever for."""
    lines = refusal(packed, here)
    with pytest.raises(UserError) as error:
        bundle_import.unpack_reference(packed, here.parent / "unpacked")
    assert not (here.parent / "unpacked").exists()
    assert str(error.value).splitlines() == [f"{packed}: {line}" for line in lines]
    return lines


def test_unsafe_names(packed, here):
    names = r"""../escaped.json records/far/../../../escaped.json /tmp/escaped.json C:/escaped.json
    records\far\escaped.json records/far/ records/far/cpu-x/mlx/product/auto/fp99.json
    records/far/cpu-x/mlx/product/auto/fp32.json.py records/far/cpu-x/mlx/.hidden/auto/fp32.json
    Snakefile results/records/x.json hosts/auto.json""".split()
    rebuilt(packed, lambda files: files.update(dict.fromkeys(names, b"{}")))
    assert unsound(packed, here) == [f"{name!r}: not a name that a bundle has" for name in names]
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"bundle_version": 2}))
        link = zipfile.ZipInfo(MEMBER)
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    (line,) = unsound(packed, here)  # it is read as a file
    assert line.startswith(f"{MEMBER!r}: ")


def test_what_is_no_sound_zip(packed, here, monkeypatch):
    whole = packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        info = archive.getinfo(MEMBER)
        total = sum(member.file_size for member in archive.infolist())
    middle = info.header_offset + 30 + len(MEMBER) + info.compress_size // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    rebuilt(packed, lambda files: files.update({MEMBER: b" " * 10_000_000}))
    true_size, small = (10_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    assert packed.read_bytes().count(true_size) == 2  # in the member's own header and in the list
    lie = packed.read_bytes().replace(true_size, small)
    for content, says in (
        (flipped, f"{MEMBER!r}: "),
        (lie, f"{MEMBER!r}: "),
        (b"PK\x05\x06 and no more", "not a bundle: "),
    ):
        packed.write_bytes(content)
        assert unsound(packed, here)[0].startswith(says)
    packed.write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(bundle_import, "LIMIT_BYTES", total - 1)
        with pytest.raises(UserError, match=f"{total} bytes unpacked, over"):
            bundle_import.read_bundle(packed)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(MEMBER, "{}")
    assert unsound(packed, here)[0] == "no manifest.json: not a bundle of this program"


def test_members_that_are_not_what_they_say(packed, here):
    cell = a_record()["cell"]
    newest = record.RECORD_SCHEMA_VERSION + 1
    changes: dict[str, tuple[dict[str, Any], str]] = {  # workload -> change, how its line begins
        "off-schema": ({"surprise": 1}, "surprise: unknown key"),
        "newer": ({"schema_version": newest}, f"record of schema version {newest}; this version"),
        "host": (
            {"cell": cell | {"host": "desk"}},
            f"the record of another cell, {MEMBER.replace('far', 'desk')!r}",
        ),
    }

    def change(files: dict[str, bytes]) -> None:
        content = files.pop(MEMBER)
        files[MEMBER.replace("product", "edited")] = content.replace(b"01-02", b"01-03")
        for name, (altered, _) in changes.items():
            files[MEMBER.replace("product", name)] = resealed(content, **altered)
        files["hosts/far.json"] = json.dumps(host_file(label="desk")).encode()

    rebuilt(packed, change)
    lines = unsound(packed, here)
    assert lines[:2] == [
        "'hosts/far.json': the file of another host, 'desk'",
        f"{MEMBER.replace('product', 'edited')!r}: its content does not match its own `sha256`",
    ]
    for name, (_, begins) in changes.items():
        start = f"{MEMBER.replace('product', name)!r}: {begins}"
        assert [line for line in lines if line.startswith(start)], (start, lines)
    rebuilt(packed, bundle_version=1)
    assert unsound(packed, here) == ["bundle version 1; this version reads 2"]


# -- what is here already ----------------------------------------------------------------------


def test_this_hosts_own_records_never_come_from_outside(there, here, packed, tmp_path):
    mine = here / "records" / MEMBER.split("/", 1)[1].replace("far", "FAR", 1)
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")
    (line, *_) = refusal(packed, here)  # one folder on a Mac
    assert "in case alone" in line and "nothing imported" in line
    mine.unlink()
    (here / "matrix.json").write_text(json.dumps({"cells": [{"cell": {"host": "FAR"}}]}))
    (line,) = refusal(packed, here, only="near")  # as collected from that host
    assert line.startswith("its bundle holds records of far: a host may send its own only")
    (line,) = refusal(packed, here)  # a run here has measured it
    assert "'far', which this checkout measures" in line
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    put_host(fresh, {"label": "Desk", "fingerprint": "0"}, "auto")
    put(there, a_record("DESK"))
    bundle_pack.pack(there, ["DESK"], tmp_path / "own.zip")
    (line,) = refusal(tmp_path / "own.zip", fresh)
    assert line.startswith("holds records of host 'DESK', which this checkout measures")
    # but as a reference, marked as such, they may
    bundle_import.unpack_reference(tmp_path / "own.zip", tmp_path / "reference")


def test_a_different_record_is_replaced_only_when_asked_and_is_kept(there, here, packed, tmp_path):
    bundle_import.import_bundle(packed, here)
    put(there, a_record(reason="another day"))  # the other host has measured one cell anew
    bundle_pack.pack(there, [], remeasured := tmp_path / "later.zip")
    before = tree(here)
    old = json.loads(before[MEMBER])
    said = refusal(remeasured, here)
    assert said[0] == f"{here / MEMBER}: the record here differs"
    assert len(said) == 2 and "--replace" in said[1]
    done = bundle_import.import_bundle(remeasured, here, replace=True)
    assert done == "0 new, 1 already here, 1 replaced"
    assert record.read(here / MEMBER)["reason"] == "another day"
    kept = here / "history/far/cpu-x/mlx/product/auto/fp32" / f"{old['sha256']}.json"
    assert kept.read_bytes() == before[MEMBER]
    assert record.earlier(kept.parent, record.read(here / MEMBER)["sha256"]) == [kept]
    put_host(there, host_file(label="far", fingerprint="d" * 64))
    bundle_pack.pack(there, [], tmp_path / "twin.zip")
    for replace in (False, True):  # the records that stay would be those of two machines
        (line,) = refusal(tmp_path / "twin.zip", here, replace=replace)
        assert line.startswith("'far' is another machine here: give")


# -- references ----------------------------------------------------------------------------------


def test_two_references_of_one_cell_are_refused_unless_they_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Path("results")
    make(Path(), [training(0.020)], hosts=[host_file()])
    for name, step_s in (("a", 0.010), ("b", 0.010), ("c", 0.040)):
        put(results / "reference" / name, training(step_s, host="lab"))

    def aggregated(*names: str) -> int:
        folders = [results / "reference" / name for name in names]
        aggregate.main(matrix=results / "matrix.json", reference=folders)
        return (results / "tables/cells.csv").read_text().count("\nreference,")

    assert aggregated("a", "b") == 1
    with pytest.raises(UserError, match=r"c/.*: another record of the cell lab/cpu-x/.* is .*/a/"):
        aggregated("a", "c")


def sources(project: Checkout) -> dict[str, str]:
    """Host -> where the rows of cells.csv say that its records come from."""
    return {row["host"]: row["source"] for row in table(project.path / "results", "cells")}


@pytest.mark.slow
def test_reference_and_imported_records_are_shown_as_such_and_own_nothing(clone, tmp_path):
    """A bundle as shipped reference data, and then imported: leaf inputs, byte for byte."""
    far, shipped = tmp_path / "far/results", clone.path / "config/measured/far.zip"
    measured = put(far, matmul(host="far"))
    put(far, training(0.010, host="far"))
    put_host(far, host_file(label="far"))
    bundle_pack.pack(far, [], shipped)
    before = clone.stamps()
    clone.snakemake("report")
    assert sources(clone) == {"desk": "this host", "far": "reference"}
    assert clone.stamps() == before
    page = (clone.path / "results/report.html").read_text(encoding="utf-8")
    assert "matmul-small" in page and "reference: far" in page
    # a training that was measured there alone is no answer here
    assert "far · " not in (clone.path / "results/summary.txt").read_text(encoding="utf-8")
    assert "Nothing to be done" in clone.snakemake("report").stderr

    bundle = shipped.rename(tmp_path / "far.zip")
    clone.stage("pipeline.cli", "import", str(bundle))
    imported = clone.path / "results" / measured.relative_to(far)
    assert imported.read_bytes() == measured.read_bytes()
    stamps, written = clone.stamps(), imported.stat().st_mtime_ns
    clone.snakemake("results/tables/cells.csv")
    assert sources(clone) == {"desk": "this host", "far": "another host"}
    assert (clone.stamps(), imported.stat().st_mtime_ns) == (stamps, written)
