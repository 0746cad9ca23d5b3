"""The walls of the house: what may know what. What a bare host can do is in test_bare.py."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from measuring import python
from siliconprof import plugins

PACKAGE = ROOT / "workflow" / "siliconprof"
RULES = [ROOT / "Snakefile", *sorted((ROOT / "workflow").glob("**/Snakefile"))]
RULES += sorted((ROOT / "workflow" / "rules").glob("*.smk"))
FRAMEWORKS = {"torch", "mlx", "mlx_lm", "mlx_audio", "transformers", "datasets", "tokenizers"}
FRAMEWORKS |= {"accelerate", "peft", "deepspeed"}
# Find out what a host has, so they must name it; everything else asks a backend.
DETECTION = {"detect.py", "host_file.py", "machine.py"}


def loaded(module: str) -> set[str]:
    """Top-level packages that importing a module brings in."""
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    before = json.loads(python(report))
    return set(json.loads(python(f"import {module}; {report}"))) - set(before)


# -- the Snakefile -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_compute_nothing(path: Path) -> None:
    """No function, lambda, class or `run:` in any rules file: what computes has a test."""
    text = path.read_text(encoding="utf-8")
    assert text and re.findall(r"(?m)^\s*(?:def|class) .*|^\s*run\s*:|\blambda\b.*:", text) == []
    assert path.name != "common.smk" or text.count("\n") <= 40  # it fits on a page


def test_every_rule_says_what_it_does() -> None:
    """A docstring, a log where it runs a command, and a command that can be typed by hand.

    Conda makes the environment of what measures; local rules have Snakemake's own.
    """
    rules = 0
    for path in RULES:
        for block in re.split(r"(?m)^(?:rule|checkpoint) ", path.read_text(encoding="utf-8"))[1:]:
            rules += 1
            name = block.split(":")[0]
            assert re.match(r'\w+:\n    """', block), f"{path.name}: {name} has no docstring"
            if "shell:" in block:
                assert "    log:" in block, f"{path.name}: {name} has no log"
                is_local = "localrule: True" in block and name != "retry"  # in Snakemake's own
                assert ("    conda:" in block) != is_local, f"{path.name}: {name}"
                assert "python -P -m siliconprof." in block or name == "complete", name
    assert rules >= 12


# -- the package -------------------------------------------------------------------------------

# The map of the house: folders of the package, floor by floor. A module imports from its own
# folder and from lower floors, never from beside it or above, nor for a type alone.
FLOORS = (
    ("", "stats"),  # modules at the top: errors, finding plug-ins and code; then pure statistics
    ("store", "memory"),  # files: records, tables; how much memory a training needs
    ("hosts", "datasets"),  # what a machine is and its sensors say; the arrays that are read
    ("backends",),  # plug-ins: frameworks on devices
    ("probes",),  # plug-ins: what is read beside a measurement
    ("session",),  # what a plug-in sees of a running cell: timing, checks, energy, memory limits
    ("workloads",),  # plug-ins: models and operations
    ("trainers", "analyse"),  # plug-ins: how a model is trained; records into tables and causes
    ("cells", "claims"),  # config into cells, and which are due; published claims and verdicts
    ("measure", "remote"),  # supervision of a cell; bundles and other hosts
    ("pipeline", "compare"),  # what Snakemake asks, the command line; result sets side by side
    ("render",),  # tables into the page
)


def imported(path: Path) -> set[str]:
    """Dotted names below this package that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    own = f"{PACKAGE.name}."
    return {name.removeprefix(own) for name in found if name.startswith(own)}


def test_imports_go_down_the_floors() -> None:
    """The graph of folders has no circle, and every folder stands on the map."""
    floor_of = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
    up, seen = [], {""}
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        own = where.parts[0] if len(where.parts) > 1 else ""
        seen.add(own)
        folders = {name.split(".")[0] for name in imported(path)}
        for folder in sorted({f if (PACKAGE / f).is_dir() else "" for f in folders} - {own}):
            if floor_of[folder] >= floor_of[own]:
                up.append(f"{where}: imports from {folder or 'the top'}")
    assert up == []
    assert seen == floor_of.keys()


def test_no_file_imports_one_that_leads_back_to_it() -> None:
    """The graph of files has no circle, within a folder neither."""
    files = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {
        module: {n if n in files else n.rpartition(".")[0] for n in imported(path)}
        for module, path in files.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names one


def test_every_module_that_is_run_as_a_command_is_one() -> None:
    """`python -m` of a module that only defines something does nothing, and succeeds."""
    texts = subprocess.run(
        ["git", "grep", "-hoEe", r'-m"?,? "?siliconprof(\.[a-z_]+)+'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = set(re.findall(r"siliconprof[.a-z_]*[a-z_]", texts))
    assert {"siliconprof.measure", "siliconprof.pipeline.cli"} <= named
    for name in named:
        path = (PACKAGE.parent / name.replace(".", "/")).with_suffix(".py")
        text = (path if path.is_file() else path.with_suffix("") / "__main__.py").read_text("utf-8")
        assert 'if __name__ == "__main__":' in text, name


def test_what_starts_often_loads_little() -> None:
    """Jobs of a cluster parse the Snakefile again, supervisors stand beside each measuring process,
    which is spared all at its start. What a host needs is in test_bare.py."""
    heavy = FRAMEWORKS | {"pandas", "matplotlib", "numpy", "scipy"}
    parsing = loaded("siliconprof.pipeline.experiment")
    assert "siliconprof" in parsing and not parsing & heavy
    assert not loaded("siliconprof.measure.supervise") & (heavy | {"snakemake"})
    assert loaded("siliconprof.measure.worker") - sys.stdlib_module_names == {"siliconprof"}


def test_importing_any_module_loads_no_framework_and_prints_nothing() -> None:
    """Nothing happens at import, in any module but a model's own, which is its framework's class.

    Who imports those at the top is found here as well.
    """
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sorted(PACKAGE.rglob("*.py"))
        if "__pycache__" not in path.parts and not re.fullmatch(r"_\w+_(torch|mlx)\.py", path.name)
    ]
    assert len(names) > 40
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    (line,) = python(code).splitlines()
    assert set(line.split()) & FRAMEWORKS == set()


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Path below the package -> syntax tree of every module outside backends and detection."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "backends" and path.name not in DETECTION
    }


def constants(node: ast.AST) -> set[str]:
    """Text that a node is or lists."""
    listed = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return {x.value for x in listed if isinstance(x, ast.Constant) and isinstance(x.value, str)}


def decisions(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """(line, texts) of everything that is compared with a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield node.lineno, constants(side)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith") and node.args:
                yield node.lineno, {text.strip("-") for text in constants(node.args[0])}


def test_no_decision_on_a_device_outside_backends() -> None:
    """No code asks which backend, framework or device it is: a new one is a file or an entry.

    The page may, to put things in an order and to name them; nothing is measured there.
    """
    devices = yaml.safe_load((ROOT / "config" / "devices.yaml").read_text(encoding="utf-8"))
    names = {*plugins.names("backends"), *devices["devices"], "torch", "mlx", "cuda", "mps"}
    probe = ast.parse("x = 1 if cell.backend in ('mlx', 'torch-cpu') else 2\nif d == 'h200': y")
    assert sorted(line for line, texts in decisions(probe) if texts & names) == [1, 2]
    found = [
        f"{path}:{line}: {', '.join(sorted(texts & names))}"
        for path, tree in sources().items()
        for line, texts in decisions(tree)
        if texts & names and not path.startswith("render/")
    ]
    assert found == []


def test_no_device_api_outside_backends() -> None:
    """`torch.cuda`, `torch.mps` and MLX's devices are called in backends and nowhere else."""
    wanted = re.compile(r"\b(torch\.(cuda|mps|xpu|accelerator)|mx\.(metal|gpu|cpu))\b")
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and wanted.search(ast.unparse(node))
    ]
    assert found == []
    backend = ast.parse((PACKAGE / "backends" / "torch_cuda.py").read_text(encoding="utf-8"))
    seen = [ast.unparse(n) for n in ast.walk(backend) if isinstance(n, ast.Attribute)]
    assert any(wanted.search(text) for text in seen)  # the pattern finds what there is
