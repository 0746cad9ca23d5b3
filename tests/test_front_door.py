"""What a user types and the environment it is typed in: one line for a mistake, no traceback ever."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import TINY, Checkout, own_project
from siliconprof.hosts import environment

ONE = TINY | {"workloads": {"product-torch": TINY["workloads"]["product-torch"]}}
FILES = {
    "deep.yaml": "a: " + "[" * 3000 + "]" * 3000,
    "broken.yaml": "a: 1\nb: [1, 2\nc: 3\n",
    "list.yaml": "- 1\n",
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with a tiny experiment and files that are none."""
    copy = own_project(tmp_path_factory.mktemp("door"), shared=False)
    copy.configure(**ONE)
    for name, text in FILES.items():
        (copy.path / name).write_text(text, encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("pla", "did you mean 'plan'?"),
        ("plan --jsno", "did you mean '--json'?"),
        ("doctor --jsn=1 --jason", "did you mean '--json'?"),
        ("run --cores 1 --rerun-trigers mtime", "did you mean '--rerun-triggers'?"),
        ("run --cores 1 report --configfile deep.yaml", "deep.yaml: nested too deeply"),
        ("run --cores 1 report --configfile=broken.yaml", "line 3, column 2: not YAML"),
        ("run --cores 1 report --configfile nosuch.yaml", "nosuch.yaml: no such file"),
        ("run --cores 1 --configfile list.yaml -n", "list.yaml: is empty or no mapping"),
        ("run --cores 1 --configfile config/config.yaml report", "write the target first: report"),
        ("remeasure --flagged loud", "'loud' is no flag"),
    ],
)
def test_a_mistake_is_one_line(door: Checkout, words: str, line: str) -> None:
    done = door.stage("pipeline.cli", *words.split(), check=False)
    assert done.returncode == 2 and line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", ["plan", "run", "explain a b", "predict --model gpt2-mini"])
def test_a_wrong_folder_names_the_right_one(door: Checkout, words: str) -> None:
    package = str(door.path / "workflow")
    inside = Checkout(door.path / "config", door.environment)
    done = inside.stage("pipeline.cli", *words.split(), check=False, env={"PYTHONPATH": package})
    assert done.returncode == 2 and f"cd {door.path}\n" in done.stderr


@pytest.mark.parametrize("words", [(), ("run",)])
def test_help_is_a_screen(door: Checkout, words: tuple[str, ...]) -> None:
    lines = door.stage("pipeline.cli", *words, "--help").stdout.splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 110


def latin_1(folder: Path) -> dict[str, str]:
    """Variables of a terminal that shows no more than Latin 1; the nearest where none is made."""
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    try:
        subprocess.run(made, check=False, capture_output=True)
    except FileNotFoundError:
        pass
    there = (folder / "en_US.ISO-8859-1").exists()
    variables = {"LOCPATH": str(folder), "LC_ALL": "en_US.ISO-8859-1"} if there else {}
    return variables | {"PYTHONIOENCODING": "iso-8859-1"}


@pytest.mark.slow
def test_a_shell_s_settings_and_files_do_not_reach_the_run(door: Checkout, tmp_path: Path) -> None:
    """A notebook's backend, a personal matplotlibrc, another path, `profile.py`, Latin 1."""
    (door.path / "profile.py").write_text("raise RuntimeError('not the library')\n")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\naxes.grid: True\n")
    hostile = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONSAFEPATH": "1",  # as the command `snakemake` has it
    }
    done = door.snakemake("report", env=hostile | latin_1(tmp_path), check=False, errors="replace")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = door.records().values()
    assert record["status"] == "ok", record["reason"]
    assert not (door.path / "results/errors.txt").read_text(encoding="utf-8")
    page = (door.path / "results/report.html").read_bytes()
    door.snakemake("report", "--forcerun", "render")
    assert (door.path / "results/report.html").read_bytes() == page


def test_the_commit_of_another_user_s_checkout_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    refused = subprocess.run([*git, "status"], capture_output=True, check=False)
    assert b"dubious ownership" in refused.stderr
    assert len(environment.git_commit(tmp_path) or "") == 40
