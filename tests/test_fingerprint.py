"""The fingerprint of method code: what changes it and what does not.

Small packages show single rules; test_incremental edits the real one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from siliconprof import fingerprint
from siliconprof.fingerprint import Fingerprint, Package

BESIDE = {
    "__init__": "from siliconprof.method import one\n",
    "method/__init__": '"""Nothing."""\n',
    "method/one": "LIMIT = 1\ndef f(): return LIMIT\n",
    "method/two": "LIMIT = 2\ndef f(): return LIMIT\n",
    "method/passing": "from siliconprof.method.one import f\nfrom math import pi\n",
    "moved/uno": "LIMIT = 1\ndef f(): return LIMIT\n",
    "errors": "from siliconprof.method import two\nclass UserError(Exception): pass\n",
    "store/files": "from siliconprof.method import two\ndef write(): pass\n",
}
ONE = "from siliconprof.method import one\n"


def of_main(tmp_path: Path, main: str, more: dict[str, str] | None = None) -> Fingerprint:
    """The fingerprint of a module beside those above."""
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "siliconprof"
    for name, source in (BESIDE | {"method/main": main} | (more or {})).items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return fingerprint.fingerprint_of(["siliconprof.method.main"], Package(folder))


SAME = {
    "comments, formatting, docstrings": (
        "def f(x): return 1",
        '"""A module."""\ndef f( x ):  # a comment\n    """A function."""\n    return 1\n',
    ),
    "for types only": (
        "from typing import TYPE_CHECKING\ny: int = 1\ndef f(x): return y",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
        + ONE
        + "y: one.T = 1\ndef f(x: one.T) -> int: return y",
    ),
    "a module elsewhere": (
        ONE + "x = one.f()",
        "from siliconprof.moved import uno as one\nx = one.f()",
    ),
}
DIFFERENT = {
    "default": ("def f(x=1): pass", "def f(x=2): pass"),
    "type of a constant": ("x = 1", "x = 1.0"),
    "a field or none": ("@dataclass\nclass A:\n    x: int = 1", "@dataclass\nclass A:\n    x = 1"),
    "imported for its effect": ("x = 1", "import readline\nx = 1"),
    "another module, same name": (
        ONE + "x = one.f()",
        ONE.replace("one", "two as one") + "x = one.f()",
    ),
}


@pytest.mark.parametrize("what", [*SAME, *DIFFERENT])
def test_what_does_something_else_has_another_fingerprint(tmp_path: Path, what: str) -> None:
    before, now = (of_main(tmp_path, source) for source in (SAME | DIFFERENT)[what])
    assert (before.sha256 == now.sha256) == (what in SAME)
    assert (fingerprint.changed(before.modules, now.modules) == []) == (what in SAME)


@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("x = 1", []),
        (ONE + "one.f()", ["method.one"]),
        ("def f():\n    " + ONE + "    one.f()", ["method.one"]),
        ("import siliconprof.method.one as o\no.f()", ["method.one"]),
        ("from . import one\none.f()", ["method.one"]),
        ("from .one import f\nf()", ["method.one"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    " + ONE + "x = 1", []),
        ("from siliconprof.errors import UserError\nraise UserError()", []),
        ("from siliconprof.store import files\nfiles.write()", []),
        ("from siliconprof.method.passing import f\nf()", ["method.one", "method.passing"]),
        ("try:\n    " + ONE + "except ImportError:\n    one = None\none.f()", ["method.one"]),
    ],
)
def test_which_modules_are_hashed(tmp_path: Path, main: str, others: list[str]) -> None:
    found = of_main(tmp_path, main)
    assert list(found.modules) == sorted([*others, "method.main"])


def test_a_change_is_told_where_it_is_made(tmp_path: Path) -> None:
    before = of_main(tmp_path, ONE + "one.f()")
    now = of_main(tmp_path, ONE + "one.f()", {"method/one": "LIMIT = 3\ndef f(): return LIMIT"})
    assert fingerprint.changed(before.modules, now.modules) == ["method.one"]
    assert fingerprint.changed(before.modules, before.modules) == []
