"""What README, docs, `--help` and remedies print is so: commands run, paths and links are there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Checkout, own_project
from siliconprof.pipeline import cli
from synthetic_results import command

PAGES = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "config/README", "results/README")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
COMMAND = r"(?:siliconprof|snakemake|make|pip|bash) [^`\n]*"
# What a person puts in the place of these.
MEANT = {"explain A B": "explain gpt2-nano-plain/torch-cpu/fp32 gpt2-nano-plain/mlx/fp32"}
MEANT |= {"compare A B": "compare results results"}
# What other tests run, since it needs other machines or another environment: what that test has of it.
ELSEWHERE = {
    "siliconprof collect": ("test_ssh.py", "collect"),
    "pip install": ("test_setup.py", "install"),
    "siliconprof import bundle.zip": ("test_accelerator_kit.py", "bundle.zip"),
    "snakemake report --configfile config/cluster.yaml": ("test_slurm.py", "profiles/slurm"),
    "snakemake --workflow-profile profiles/slurm": ("test_slurm.py", "profiles/slurm"),
}


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def printed() -> list[str]:
    """Every command that a person is told to type, once, as it stands."""
    found: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.M | re.S):
            found += re.findall(rf"^(?:\$ )?({COMMAND})", block, re.M)
        found += re.findall(rf"`({COMMAND})`", prose(text))
    for file in sorted((ROOT / "workflow").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        found += re.findall(rf"`({COMMAND})`", text)
        found += re.findall(r"^    (siliconprof [^`\n]*)", text, re.M)  # of a module's --help
    whole = (re.sub(r"\s+#.*|\s*…$|\s{2,}.*| \[.*", "", line).strip() for line in found)
    return sorted({line for line in whole if not re.search(r"[{}]|\.\.\.|…|[A-Z]{4}", line)})


@pytest.fixture(scope="module")
def finished(default_run: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The default run, with what is shipped of other hosts, in a folder that commands may change."""
    folder = tmp_path_factory.mktemp("finished") / "project"
    ignore = shutil.ignore_patterns("workflow")  # a verb refuses another checkout's code
    shutil.copytree(default_run.path, folder, symlinks=True, ignore=ignore)
    (folder / "workflow").symlink_to(ROOT / "workflow")
    shutil.copy2(ROOT / "Makefile", folder)
    return Checkout(folder, dict(default_run.environment))


@pytest.mark.campaign
@pytest.mark.alone
@pytest.mark.parametrize("line", printed())
def test_every_command_that_is_printed_runs_on_a_finished_default_run(
    finished: Checkout, tmp_path: Path, line: str
) -> None:
    """What measures or sets up is asked what it would do."""
    for begin, (file, part) in ELSEWHERE.items():
        if line.startswith(begin):
            assert part in (ROOT / "tests" / file).read_text(encoding="utf-8")
            return
    for said, meant in MEANT.items():
        line = line.replace(said, meant)
    program, *words = shlex.split(line)
    if program == "siliconprof":
        if words[1:] == [] and words[0] in ("explain", "pack", "predict"):
            words += ["--help"]  # of the verb, in a sentence
        (finished.path / "desk.zip").unlink(missing_ok=True)
        if "import" in words:  # what another host has packed
            where = own_project(tmp_path)
            shutil.copy2(ROOT / "config/measured/h200.zip", where.path / words[-1])
            done = where.stage("pipeline.cli", *words, check=False)
        else:
            done = command(*words, cwd=finished.path)
        # A folder compared with itself decides nothing.
        assert done.returncode in ((0, 3) if words[0] == "compare" else (0,)), done.stderr
        assert (done.stdout + done.stderr).strip()
    elif program == "make":
        finished.run("make", "-n", *words)
        for word in words:
            if word.startswith("ARGS="):
                finished.snakemake("-n", words[0], *word.removeprefix("ARGS=").split())
    elif program == "bash":  # what fetches wheels, and what needs a GPU
        finished.run("bash", "-n", str(ROOT / words[0]))
    else:
        assert program == "snakemake"
        finished.snakemake("-n", *words)


def test_commands_and_links_of_the_documentation_exist() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert texts[ROOT / "README.md"].count("\n") <= 130
    commands = [line.split() for line in printed()]
    verbs = {words[1] for words in commands if words[0] == "siliconprof"} - {"VERB"}
    assert {"doctor", "plan", "pack", "import"} <= verbs <= set(cli.VERBS)
    for verb in cli.VERBS:
        with pytest.raises(SystemExit, match="^0$"):
            cli.dispatch([verb, "--help"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in commands if words[0] == "make"}
    for target in targets - {"ENV=cpu"}:
        assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", makefile, re.M), target
    for page, text in texts.items():
        links = re.findall(r"\]\((?!http)([^)#]+)", text)
        assert [link for link in links if not (page.parent / link).exists()] == [], page
    listed = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f"({page})" not in listed] == ["README.md"]


def named(under: tuple[str, ...]) -> set[str]:
    """Paths that pages name, below some folders."""
    texts = (prose(page.read_text(encoding="utf-8")) for page in PAGES)
    found = (path for text in texts for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text))
    return {path for path in found if path.startswith(under)}


def test_paths_that_the_documentation_names_exist() -> None:
    """Or are those that a person or a run makes."""
    folders = ("benchmarks/", "docs/", "envs/", "profiles/", "report/", "tests/", "workflow/")
    missing = {path for path in named((*folders, "config/")) if not (ROOT / path).exists()}
    assert missing == {
        *("config/cluster.yaml", "config/extended.yaml"),
        *(path for path in missing if "softmax" in path or "context_switches" in path),
        "workflow/siliconprof/backends/torch_plain.py",
    }


@pytest.mark.campaign
@pytest.mark.alone
def test_results_that_the_documentation_names_are_there(finished: Checkout) -> None:
    """In the table of results/README.md, and on other pages."""
    table = (ROOT / "results/README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?) \|", table, re.M)
    named_there = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    names = {f"results/{name}" for name in named_there} | named(("results/",))
    others = ("quick", "print", "imported", "captures", "scratch", "models")
    of_others = tuple(f"results/{name}" for name in others)
    own = {n for n in names if not re.search(r"[{…*]|[A-Z]{4}", n) and not n.startswith(of_others)}
    assert len(own) > 20
    assert {name for name in own if not (finished.path / name).exists()} == set()
