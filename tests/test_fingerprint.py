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
    "measure/checks": "def write(): pass\n",
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
    return fingerprint.of(["siliconprof.method.main"], Package(folder))


SAME = {
    "a module by another name": (ONE + "x = one.f(1)", ONE[:-1] + " as o\nx = o.f(1)"),
    "a module elsewhere": (ONE + "x = one.f()", "from siliconprof.moved import uno\nx = uno.f()"),
    "supervision elsewhere": (
        "from siliconprof.store import files\nfiles.write()",
        "from siliconprof.measure.checks import write\nwrite()",
    ),
    "for types only": (
        "def f(x): return 1",
        "from siliconprof.method.two import f as T\nfrom typing import Any\n"
        "def f(x: T) -> Any: return 1",
    ),
    "message": ("raise E('a' + f'b {x:.1f} c')", "raise E('b' + f'{x!r}')"),
    "declared": ("x = {'a': Quantity('b', 's')}", "x = {'a': Quantity('c', 'ms')}"),
    "description": ("x = {'description': 'a'}", "x = {'description': 'b'}"),
    "shadowed elsewhere": (
        ONE + "def g(one): return one.f\ny = [one for one in one.f()]\nx = one.f()",
        "from siliconprof.moved import uno\n"
        "def g(one): return one.f\ny = [one for one in uno.f()]\nx = uno.f()",
    ),
}
DIFFERENT = {
    "another module, same name": (
        ONE + "x = one.f()",
        ONE.replace("one", "two as one") + "x = one.f()",
    ),
    "default": ("def f(x=1): pass", "def f(x=2): pass"),
    "type of a constant": ("x = 1", "x = 1.0"),
    "name of a quantity": ("x = {'a': Quantity('b', 's')}", "x = {'c': Quantity('b', 's')}"),
    "text beside a description": (
        "x = {'description': 'a', 'default': 'a'}",
        "x = {'description': 'a', 'default': 'b'}",
    ),
    "what a message shows": ("raise E(f'{a}')", "raise E(f'{b}')"),
    "a field or none": ("@dataclass\nclass A:\n    x: int = 1", "@dataclass\nclass A:\n    x = 1"),
    "imported for its effect": ("x = 1", "import readline\nx = 1"),
    "a parameter, not the module": (
        ONE + "def g(x): return one.f",
        ONE + "def g(one): return one.f",
    ),
    "a variable, not the module": (
        ONE + "def g(x):\n    return one.f()",
        ONE + "def g(x):\n    one = x\n    return one.f()",
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_does_the_same(tmp_path: Path, what: str) -> None:
    before, now = (of_main(tmp_path, source) for source in SAME[what])
    assert before.sha256 == now.sha256
    assert fingerprint.changed(before.modules, now.modules) == []


@pytest.mark.parametrize("what", DIFFERENT)
def test_does_something_else(tmp_path: Path, what: str) -> None:
    before, now = (of_main(tmp_path, source) for source in DIFFERENT[what])
    assert before.sha256 != now.sha256
    assert "method.main" in fingerprint.changed(before.modules, now.modules)


@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("x = 1", []),
        (ONE + "one.f()", ["method.one"]),
        (ONE + "def f(x: one.T): pass", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    " + ONE + "x = 1", []),
        ("from siliconprof.errors import UserError\nraise UserError()", []),
        ("from siliconprof.store import files\nfiles.write()", []),
        ("from siliconprof.method.passing import f\nf()", ["method.one", "method.passing"]),
        (ONE + "class A:\n    one = one.f()", ["method.one"]),
        (ONE + "def f(one): return one.f", []),
        (ONE + "x = [one for x in y for one in one.f()]", []),
        (ONE + "def f():\n    global one\n    one = 3", ["method.one"]),
        ("try:\n    " + ONE + "except ImportError:\n    one = None\none.f()", ["method.one"]),
    ],
)
def test_which_modules_are_hashed(tmp_path: Path, main: str, others: list[str]) -> None:
    found = of_main(tmp_path, main, {"method/passing": BESIDE["method/passing"] + "x = 1"})
    assert list(found.modules) == sorted([*others, "method.main"])


def test_a_change_is_told_where_it_is_made(tmp_path: Path) -> None:
    before = of_main(tmp_path, ONE + "one.f()")
    now = of_main(tmp_path, ONE + "one.f()", {"method/one": "LIMIT = 3\ndef f(): return LIMIT"})
    assert before.modules["method.main"] != now.modules["method.main"]
    assert fingerprint.changed(before.modules, now.modules) == ["method.one"]
    assert fingerprint.changed(before.modules, before.modules) == []
