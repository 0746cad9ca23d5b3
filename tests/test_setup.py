"""What `make` calls to set up an environment: envs/install.py, with a package index of one folder."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from html import unescape
from pathlib import Path

import pytest
from conftest import PRODUCT, QUICK, ROOT, own_project
from packaging.requirements import Requirement
from project_copy import script
from siliconprof.hosts.sensors import apple

RELEASES = ("3.11", "3.12", "3.13", "3.14")


def pythons() -> list[str]:
    """An interpreter of each release that is at hand, on the path or of pyenv; first the tests' own."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for release in RELEASES:
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python{release}"))
        for path in (shutil.which(f"python{release}"), *map(str, of_pyenv)):
            test = [path, "-c", "import ensurepip, venv"]
            if path and not subprocess.run(test, capture_output=True, check=False).returncode:
                found.setdefault(release, path)
    return list(found.values())


def few_pins() -> str:
    """The pins of the package's own requirements and of MLX: not those of torch, which is large."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = [*project["dependencies"], *project["optional-dependencies"]["report"], "mlx"]
    names = {re.split(r"\W", line.replace("-", "_"))[0] for line in own}
    pins = [
        line
        for file in ("base.txt", "cpu.txt")
        for line in (ROOT / "envs" / file).read_text(encoding="utf-8").splitlines()
        if "==" in line and re.split(r"\W", line.replace("-", "_"))[0] in names
    ]
    assert len(pins) == len(names), (pins, names)
    return "\n".join(pins)


@pytest.mark.parametrize(("system", "marked"), [("darwin", True), ("linux", False)])
def test_spotlight_is_kept_from_a_new_environment(
    system: str, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = runpy.run_path(str(ROOT / "envs" / "install.py"))["main"]
    monkeypatch.setitem(install.__globals__, "by_uv", lambda requirements: True)
    monkeypatch.setattr(sys, "argv", ["install.py", "nothing"])
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install() == 0
    assert (tmp_path / ".metadata_never_index").exists() == marked


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a package of one empty module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


# -- Macs, by what their commands print and which Pythons they have ------------------------------------


def programs(folder: Path, **texts: str) -> Path:
    """A folder of shell scripts, by name, to stand in the place of the system's; `_` is a dot."""
    for name, text in texts.items():
        script(folder / name.replace("_", "."), text)
    return folder


ROSETTA = "case $2 in sysctl.proc_translated) echo 1 ;; *) echo 15.5 ;; esac"
INTEL = "case $2 in sysctl.proc_translated) exit 1 ;; *) echo 15.5 ;; esac"
MACS = {
    "x86_64 Python": (
        "x86_64",
        ROSETTA,
        "runs as x86_64 under Rosetta, and torch and MLX have wheels",
    ),
    "Intel": (
        "x86_64",
        INTEL,
        "a Mac with an Intel processor: torch and MLX have no wheels for it",
    ),
    "macOS 13": ("arm64", "echo 13.7.8", "macOS 13.7.8: torch and MLX need macOS 14 or later"),
    "macOS 14": ("arm64", "echo 14.0", None),
    "macOS 27": ("arm64", "echo 27.0", None),
}


@pytest.mark.parametrize(("processor", "sysctl", "said"), MACS.values(), ids=MACS)
@pytest.mark.parametrize("words", [["--check"], ["-r", "envs/apple.txt"]], ids=" ".join)
def test_a_mac_that_no_wheel_fits_is_told_before_anything_is_installed(
    processor: str,
    sysctl: str,
    said: str | None,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In one line in the place of a resolver's pages; `make` asks before it makes an environment."""
    monkeypatch.syspath_prepend(ROOT / "envs")
    import install

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", sysctl=sysctl)), prepend=os.pathsep)
    monkeypatch.setattr(install.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(install.platform, "machine", lambda: processor)
    monkeypatch.setattr(sys, "argv", ["install.py", *words])
    asked: list[list[str]] = []
    monkeypatch.setattr(install, "by_uv", lambda requirements: not asked.append(requirements))
    status, (_, line) = install.main(), capsys.readouterr()
    if said is None:
        assert (status, line) == (0, "") and asked == ([] if words == ["--check"] else [words])
    else:
        assert status == 2 and not asked
        assert said in line and line.count("\n") == 1
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.index("install.py --check") < makefile.index("-m venv $(VENV)")


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (("python3_14", "python3_13"), "python3.13"),  # for which zeus has a wheel
        (("python3_14", "python3"), "python3.14"),  # Homebrew's alone
        (("python3",), ""),  # the tools' 3.9
    ],
)
def test_a_python_with_a_wheel_of_every_pin_comes_first(
    there: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    texts = {name: "exit 1" if name == "python3" else "exit 0" for name in there}
    path = {"PATH": str(programs(tmp_path / "bin", **texts))}
    asked = ["/bin/sh", str(ROOT / "envs/which_python.sh")]
    assert subprocess.check_output(asked, env=path, text=True).strip() == chosen


@pytest.mark.parametrize("processor", ["arm64", "x86_64"])
def test_a_shell_under_rosetta_takes_the_pins_of_a_mac(processor: str, tmp_path: Path) -> None:
    uname = f'[ "$1" = -s ] && echo Darwin || echo {processor}'
    path = {"PATH": str(programs(tmp_path / "bin", uname=uname))}
    asked = ["/bin/sh", str(ROOT / "envs/which.sh")]
    assert subprocess.check_output(asked, env=path, text=True) == "apple\n"


def test_a_mac_with_python_3_14_does_without_the_wheel_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pins leave zeus-apple-silicon out, and the reason for no energy says which Python has it."""
    monkeypatch.syspath_prepend(ROOT / "envs")
    import install

    (zeus,) = (pin for pin in install.pins(ROOT / "envs/apple.txt") if pin.startswith("zeus"))
    marker = Requirement(zeus).marker
    assert marker and marker.evaluate({"python_version": "3.13"})
    assert not marker.evaluate({"python_version": "3.14"})
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)  # which then cannot be imported
    for version, said in (
        ((3, 14, 0), "has no wheel for Python 3.14"),
        ((3, 13, 0), "pip install"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(apple.sys, "version_info", version)
            (reason,) = {source.reason for source in apple.energy(with_gpu=True).sources}
        assert reason and said in reason


# -- pins -------------------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_pins_come_from_where_pip_is_told(tmp_path: Path, installer: str) -> None:
    """By uv, which reads no setting of pip's itself; by pip, where no index has uv."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    links = tmp_path / "links"
    links.mkdir()
    for version in ("1.0", "2.0"):
        wheel(links, "onlyhere", version)
    (tmp_path / "limits.txt").write_text("onlyhere<2\n", encoding="utf-8")
    (tmp_path / "pins.txt").write_text("onlyhere\n", encoding="utf-8")
    settings = {"PIP_CONSTRAINT": str(tmp_path / "limits.txt"), "PIP_NO_CACHE_DIR": "1"}
    command = [str(python), str(ROOT / "envs/install.py"), "-r", str(tmp_path / "pins.txt")]
    if installer == "pip":
        settings |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    else:
        uv = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        known = subprocess.run(uv, capture_output=True, text=True, check=False).stdout.strip()
        settings["PIP_FIND_LINKS"] = f"{known} {links}".strip()
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, timeout=300, check=True
    )
    assert ("pip takes over" in done.stderr) == (installer == "pip")
    listed = subprocess.run(
        [python, "-m", "pip", "list"], capture_output=True, text=True, check=True
    )
    assert "onlyhere 1.0" in " ".join(listed.stdout.split())


@pytest.mark.campaign
def test_too_little_room_is_said_before_anything_is_downloaded(tmp_path: Path) -> None:
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("a small disk needs root on Linux")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "disk", disk], check=True)
    try:
        venv.create(disk / "environment", with_pip=False)
        python = str(disk / "environment" / "bin" / "python")
        command = [python, str(ROOT / "envs/install.py"), "-r", str(ROOT / "envs/cpu.txt")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "0.1 GB are free on its disk, the packages take 2.4 GB; make room" in line


@pytest.mark.campaign
def test_a_host_takes_what_it_can(tmp_path: Path) -> None:
    """Where no wheel of MLX fits the C library, the rest is installed and measured, and that is said.

    By PEP 600's own switch. What is not for this test costs gigabytes: it is left out of the pins.
    """
    project = own_project(tmp_path, shared=False)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    (site,) = environment.glob("lib/python*/site-packages")
    old = "def manylinux_compatible(major, minor, arch):\n    return (major, minor) <= (2, 34)\n"
    (site / "_manylinux.py").write_text(old, encoding="utf-8")
    pins = few_pins().replace(
        "mlx[cpu]", "numpy==2.4.6\nsetuptools==84.2.1\ntorch==2.13.0\nmlx[cpu]"
    )
    (project.path / "envs" / "cpu.txt").write_text(pins, encoding="utf-8")
    no_build = {"UV_NO_BUILD": "1"}  # for uv the switch leaves no wheels of C at all
    done = project.run(python, "envs/install.py", "-r", "envs/cpu.txt", env=no_build)
    assert "install: mlx[cpu]==" in done.stderr and done.stderr.count("install: ") == 2, done.stderr
    project.environment["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    torch = {"backends": ["mlx", "torch-cpu"], "timing": QUICK, "workloads": {"product": PRODUCT}}
    project.configure(host="desk", precisions=["fp32"], **torch)
    done = project.run(python, "-m", "snakemake", "--cores", "1", "report")
    (record,) = project.records().values()
    assert (record["status"], record["cell"]["backend"]) == ("ok", "torch-cpu"), record["reason"]
    said = "mlx: not measured: RuntimeError: mlx cannot be imported: No module named 'mlx"
    page = (project.path / "results/report.html").read_text(encoding="utf-8")
    assert said in done.stdout and said in unescape(page)


@pytest.mark.campaign
@pytest.mark.parametrize("python", pythons())
def test_a_tiny_run_with_each_python_that_is_at_hand(tmp_path: Path, python: str) -> None:
    """In an environment of its own, of which torch, at a gigabyte, is no part."""
    project = own_project(tmp_path, shared=False)
    if python != sys.executable:
        environment = tmp_path / "environment"
        subprocess.run([python, "-m", "venv", environment], check=True)
        python = str(environment / "bin" / "python")
        (tmp_path / "pins.txt").write_text(few_pins(), encoding="utf-8")
        pins = ("-r", str(tmp_path / "pins.txt"), "-c", str(ROOT / "envs/constraints.txt"))
        project.run(python, str(ROOT / "envs/install.py"), *pins)
        project.environment["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    project.configure(host="desk", backends=["mlx"], timing=QUICK, workloads={"product": PRODUCT})
    project.run(python, "-m", "snakemake", "--cores", "1", "report")
    (record,) = project.records().values()
    assert record["status"] == "ok", record["reason"]
    release = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
    assert record["environment"]["python"] == release.split()[1]
    assert "product" in (project.path / "results/report.html").read_text(encoding="utf-8")
