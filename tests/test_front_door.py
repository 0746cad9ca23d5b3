"""What a user types and the environment it is typed in: one line for a mistake, no traceback ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import ROOT, TINY, Checkout, csv_rows, own_project, until
from golden import update
from parsed_page import Page
from project_copy import script
from siliconprof import __version__, formatting, options
from siliconprof.errors import UserError
from siliconprof.hosts import environment, machine
from siliconprof.store.captions import flag_words
from synthetic_results import command

# A wrong file -> its text, and what its line says; see also test_config and test_fuzz.
FILES = {
    "broken.yaml": ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2: not YAML"),
    "list.yaml": ("- 1\n", "is empty or no mapping"),
    "control.yaml": ("a: \x1b[2J\n", "not YAML"),
    "escape.yaml": ('report: {title: "a \\e[2J b"}\n', "report.title: has the control character"),
    "case.yaml": (
        "workloads: {Product: {module: matmul, shapes: [[1, 8, 8, 8]]}}\n",
        "in case alone",
    ),
    "huge.yaml": (f"seed: {10**400}\n", "seed: "),
    "backend.yaml": ("backends: [torch-cup]\n", "did you mean 'torch-cpu'?"),
    "host.yaml": ("host: a/b\n", "host: is 'a/b'"),
    "device.yaml": ("devices: [rtx-4900]\n", "did you mean 'rtx-4090'?"),
    "cluster.yaml": ("cluster: {hall: {device: h20}}\n", "did you mean 'h200'?"),
    "workload.yaml": ("workloads: {prodcut: {timing: {budget_s: 1}}}\n", "did you mean 'product'?"),
    "dataset.yaml": ("datasets: {word: {vocab_size: 400}}\n", "did you mean 'words'?"),
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with a tiny experiment, and files that are none."""
    copy = own_project(tmp_path_factory.mktemp("door"), shared=False)
    copy.configure(**TINY)
    for name, (text, _) in FILES.items():
        (copy.path / name).write_text(text, encoding="utf-8")
    (copy.path / "bytes.yaml").write_bytes(b"a: \xff\n")
    return copy


@pytest.fixture(scope="module")
def golden(golden_run: Path) -> Path:
    """The results of the golden default run, its page among them."""
    return golden_run / "results"


def refused(door: Checkout, line: str) -> str:
    """The one line of a command that this process refuses, before Snakemake is asked."""
    with patch("siliconprof.errors.require_this_checkout"):  # the copy has the same code
        done = command(*line.split(), cwd=door.path)
    assert done.returncode == 2 and not done.stdout, done
    (said,) = (one for one in done.stderr.splitlines() if not one.endswith(" ..."))  # at work
    return said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pla", "did you mean 'plan'?"),
        ("Plan", "did you mean 'plan'?"),
        ("--hepl", "did you mean '--help'?"),
        ("-x", "see siliconprof --help"),
        ("plan --jsno", "did you mean '--json'?"),
        ("plan --configfile", "expected at least one argument"),
        ("plan --configfile nosuch.yaml", "nosuch.yaml: no such file"),
        ("plan --configfile config", "config: Is a directory"),
        ("compare", "arguments are required: A"),
        ("compare a", "B is missing"),
        ("compare list.yaml list.yaml", "neither a folder nor a bundle"),
        ("compare a b --where-a backnd=mlx", "did you mean 'backend'?"),
        ("compare a b --threshold 0", "expected a percentage"),
        ("explain a b", "no folder of results"),
        ("predict", "name one: a training of the results, or --model"),
        ("predict --model gpt2-mni --batch 2", "did you mean 'gpt2-mini'?"),
        ("predict --model gpt2-mini --batch 0", "batch_size: is 0; expected greater"),
        ("predict --model gpt2-mini --batch 2 --precision fp31", "did you mean 'fp32'?"),
        ("predict --model gpt2-mini --batch 2 --faster product=2", "did you mean 'products'?"),
        ("predict --model gpt2-mini --batch 2 --faster products", "expected a number above 0"),
        ("pack", "arguments are required: -o/--output"),
        ("pack --output list.yaml", "list.yaml: exists"),
        ("pack --output a.zip", "no records to pack"),
        ("import", "arguments are required: bundle"),
        ("import nosuch.zip", "No such file"),
        ("import list.yaml", "not a bundle"),
        ("collect nosuch", "config/hosts.yaml"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one(door: Checkout, line: str, said: str) -> None:
    assert said in refused(door, line)


@pytest.mark.parametrize("name", [*FILES, "bytes.yaml"])
def test_a_wrong_file_is_answered_in_one_line(door: Checkout, name: str) -> None:
    told = refused(door, f"plan --configfile {name}")
    assert FILES.get(name, ("", "bytes.yaml: "))[1] in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explain gpt2-nano-plian/fp32 gpt2-nano-hf/fp32", "did you mean 'gpt2-nano-plain'?"),
        ("explain gpt2-nano-plain gpt2-nano-hf/fp32", "add one of: torch-cpu/fp32"),
        ("predict gpt2-tiny-plain/torch-cpu/fp32 --backend torch-cup", "did you mean 'torch-cpu'?"),
        ("predict gpt2-tiny-plain/torch-cpu/fp32 --host vmm", "did you mean 'vm'?"),
        ("predict --model gpt2-xxl --batch 1", "did you mean 'gpt2-xl'?"),
        ("compare results results --where-a backend=MLX", "did you mean 'mlx'?"),
        ("pack --output a.zip --host vmm", "did you mean 'vm'?"),
    ],
)
def test_a_name_that_no_result_has_is_answered_with_the_nearest(
    golden: Path, line: str, said: str
) -> None:
    assert said in refused(Checkout(golden.parent), line)


@pytest.mark.parametrize("words", ["plan", "explain a b", "predict --model gpt2-mini"])
def test_a_wrong_folder_names_the_right_one(door: Checkout, words: str) -> None:
    package = str(door.path / "workflow")
    inside = Checkout(door.path / "config", door.environment)
    done = inside.stage("pipeline.cli", *words.split(), check=False, env={"PYTHONPATH": package})
    assert done.returncode == 2 and f"cd {door.path}\n" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("report --configfile workload.yaml", "did you mean 'product'?"),
        ("report -n --config hosst=a", "did you mean 'host'?"),
        ("results/records/desk/a/b/product/auto/fp32.json -n", "no cell of this experiment"),
        ("report --cores none", "must be integer"),
    ],
)
def test_snakemake_says_what_is_wrong(door: Checkout, line: str, said: str) -> None:
    done = door.snakemake(*line.split(), check=False)
    assert done.returncode and said in done.stdout + done.stderr  # of a dry run on the first


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=rf"{tmp_path}: 1.0 MiB are free .* make room there"):
        machine.require_room(tmp_path)


@pytest.mark.parametrize(
    ("program", "said"),
    [("caffeinate", "-i -w {pid}"), ("systemd-inhibit", "tail --pid={pid}"), ("", "")],
)
def test_a_run_keeps_its_host_awake(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as Snakemake lives; where neither program is there, nothing is done."""
    told = tmp_path / "told"
    if program:
        script(tmp_path / program, f'echo "$@" >"{told}.part"; mv "{told}.part" "{told}"')
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "mv").symlink_to(shutil.which("mv") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    environment.stay_awake(os.getpid())
    if program:
        until(told.exists)
        assert said.format(pid=os.getpid()) in told.read_text()


def test_help_is_a_screen(door: Checkout) -> None:
    lines = door.stage("pipeline.cli", "--help").stdout.splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 110


def test_what_lasts_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with options.spinner("counting"):
        assert not capsys.readouterr().err
        time.sleep(1.2)
    assert capsys.readouterr().err == "counting ...\n"


# -- the answer and the marks of the golden run -------------------------------------------------


@pytest.mark.slow
def test_terminal_page_and_table_have_one_answer(golden: Path) -> None:
    """Best against best first, then in the same precision; ± is of eight steps at least."""
    head, *lines = (golden / "summary.txt").read_text(encoding="utf-8").splitlines()
    shown = csv_rows(golden / "tables/page-fastest.csv")
    lines = [line for line in lines if any(line.startswith(row["training"]) for row in shown)]
    assert head.split()[0] == "training" and len(lines) == 6 < len(shown)
    page = unescape((golden / "report.html").read_text(encoding="utf-8"))
    steps = csv_rows(golden / "results.csv")
    for line, row in zip(lines, shown, strict=False):
        against = row["against"].removeprefix("no faster beyond noise than ")
        against = against.split(" faster than ")[-1]
        whole = line if line.endswith(against) else line.removesuffix("…")  # a long line is cut
        assert row["setup"] in line and any(whole.endswith(against[:n]) for n in range(6, 60))
        assert row["setup"] in page and row["against"] in page
        time_ms = float(row["whole_step_ms"])
        assert formatting.duration(time_ms / 1e3).replace(formatting.NARROW, " ") in line
        n = float(row["whole_step_ms_n"])
        assert ("±" in line, f"range of {n:.0f}" in line) == (n >= 8, n < 8)
        assert any(float(one["step_ms"] or 0) == pytest.approx(time_ms) for one in steps)
    assert f"siliconprof {__version__}" in page
    columns = [*shown[0]]
    assert columns.index("against") < columns.index("same_times")


def marked(results: Path) -> set[tuple[str, ...]]:
    """The cells whose flags stand on the page."""
    rows = csv_rows(results / "tables/page-flags.csv")
    return {(row["workload"], row["backend_label"], row["precision"]) for row in rows}


def marked_wide(page: str, training: str) -> bool:
    """Whether the time of a training's fastest setup has a half-width over 5 %, so a mark."""
    row = next(row for row in Page(page).markup["fastest"].split("<tr") if f">{training}<" in row)
    return 'class="wide"' in row.split("<td")[3]


@pytest.mark.slow
def test_a_mark_says_something(golden: Path, tmp_path: Path) -> None:
    """One cell in ten at most has one, and one that was disturbed; what all have is said once."""
    measured = [path for path in golden.glob("records/**/*.json") if _status(path) == "ok"]
    assert 0 < len(marked(golden)) <= len(measured) / 10
    copy = tmp_path / "results"
    for name in ("records", "hosts"):
        shutil.copytree(golden / name, copy / name)
    shutil.copy(golden / "matrix.json", copy)
    disturbed = next(copy.glob("records/**/torch-cpu/whisper-nano-hf/auto/fp32.json"))
    steady = next(copy.glob("records/**/torch-cpu/gpt2-nano-compiled*/auto/fp32.json"))
    for path in copy.glob("records/**/*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        record["flags"] += [{"code": "on_battery", "detail": "the computer ran on its battery"}]
        if path == disturbed:
            record["flags"] += [{"code": "contended", "detail": "others used 1.5 cores"}]
            for point in record["points"]:
                times = point["times"]["whole_step_s"]
                point["times"]["whole_step_s"] = [
                    value * (0.8, 1.25)[place % 2] for place, value in enumerate(times)
                ]
        if path == steady:
            for point in record["points"]:
                times = point["times"]["whole_step_s"]
                point["times"]["whole_step_s"] = [min(times)] * len(times)
        update.seal(path, record)
    update.make_page(tmp_path)
    cell = ("whisper-nano-hf", "torch-cpu", "fp32")
    assert marked(copy) - marked(golden) == {cell}
    before, after = ((at / "report.html").read_text(encoding="utf-8") for at in (golden, copy))
    assert marked_wide(after, "whisper-nano")
    assert marked_wide(before, "gpt2-nano") and not marked_wide(after, "gpt2-nano")
    page = unescape(after)
    assert page.count(flag_words()["on_battery"]) == 1
    assert "Other processes used the processor while 1 of 53 cells" in page


def _status(path: Path) -> str:
    return json.loads(path.read_text(encoding="utf-8"))["status"]


# -- what the environment has -------------------------------------------------------------------


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
def test_a_shell_s_settings_and_files_do_not_reach_the_run(clone: Checkout, tmp_path: Path) -> None:
    """A notebook's backend, a personal matplotlibrc, another path, `profile.py`, Latin 1."""
    for name in ("profile", "numpy"):
        (clone.path / f"{name}.py").write_text("raise RuntimeError('not the library')\n")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\naxes.grid: True\n")
    hostile = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    snakemake = (str(Path(sys.executable).with_name("snakemake")), "--cores", "1")
    page = clone.path / "results/report.html"
    before = page.read_bytes()
    page.unlink()
    hostile |= latin_1(tmp_path)
    done = clone.run(*snakemake, "report", env=hostile, check=False, errors="replace")
    assert done.returncode == 0, done.stdout + done.stderr
    assert page.read_bytes() == before
    (key,) = (key for key in clone.records() if "/product-torch/" in key)
    (clone.path / f"results/records/{key}.json").unlink()
    clone.run(*snakemake, "measured", env=hostile, errors="replace")
    assert clone.records()[key]["status"] == "ok", clone.records()[key]["reason"]


def test_the_commit_of_another_user_s_checkout_is_known_and_its_index_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose time alone has changed has git write the index anew, unless it is told not to."""
    assert environment.git_commit(tmp_path)[1].startswith("not a git repository")  # says why
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("a")
    for verb in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *verb], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    refused = subprocess.run([*git, "status"], capture_output=True, check=False)
    assert b"dubious ownership" in refused.stderr
    before = (tmp_path / ".git/index").read_bytes()
    os.utime(tmp_path / "file", (1, 1))
    commit = environment.git_commit(tmp_path)[0] or ""
    assert len(commit) == 40 and (tmp_path / ".git/index").read_bytes() == before
    (tmp_path / "unpacked").mkdir()
    assert environment.git_commit(tmp_path / "unpacked")[0] is None  # another one's folder
    subprocess.run(["git", "init", "-q", str(tmp_path / "other")], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    assert environment.git_commit(tmp_path / "other")[0] is None


@pytest.mark.campaign
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs Linux and unshare(1)")
def test_a_user_whom_the_system_does_not_know(checkout: Checkout) -> None:
    """As `docker run -u 12345` has one: without a name, and without a home that can be written.

    Libraries ask for both, and `make` gives them to Snakemake.
    """
    unknown = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]
    if subprocess.run([*unknown, "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are not allowed here")
    checkout.configure(**TINY)
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        checkout.environment[name] = ""
    shutil.copy2(ROOT / "Makefile", checkout.path)
    run = f"asked: ; @{sys.executable} -m snakemake --cores 1 -n report"
    words = ["make", "-f", "Makefile", "--eval", run, "asked"]
    assert "measure" in checkout.run(*unknown, *words, env={"HOME": "/proc"}).stdout


def test_braces_in_the_folder_s_name_are_one_line(tmp_path: Path) -> None:
    """Snakemake would ask for the variable x."""
    braces = own_project(tmp_path / "a {x}")
    said = braces.snakemake("-n", "report", check=False)
    assert said.returncode and "Traceback" not in said.stdout + said.stderr
    assert f"{braces.path}: Snakemake takes a name in braces" in said.stdout + said.stderr


def test_every_stage_refuses_the_code_of_another_checkout(clone: Checkout, tiny: Checkout) -> None:
    foreign = {"PYTHONPATH": str(tiny.path / "workflow")}
    for module in ("measure", "analyse.aggregate", "render.page"):
        done = clone.stage(module, "--help", check=False, env=foreign)
        assert done.returncode == 2, module
        assert "this folder is a checkout, but the code that runs lies in" in done.stderr, module
        assert "(most recent call" not in done.stderr
    # The rules set the path themselves, so a run is not led astray.
    (clone.path / "results/tables/cells.csv").unlink()
    clone.snakemake("results/tables/cells.csv", env=foreign)
