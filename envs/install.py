"""Install pins into this environment: `.venv/bin/python envs/install.py -r envs/cpu.txt`.

uv does it in a quarter of pip's time. It reads none of pip's settings, so it gets them from here;
where it cannot be had, or fails, pip does it. Where a pin cannot be had here, for this C library,
Python or processor, what the pipeline itself needs is installed, by pyproject.toml, then every other pin
by itself; which could not be is said. With `--check` it only says whether this Python can have them at all.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
LIMITS = f"--constraint={CONSTRAINTS}"
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Of a whole environment and what its installer keeps besides. That of envs/cpu.txt was measured, 1.8 GB
# and 0.3; with CUDA's libraries it is an estimate.
NEEDED_BYTES = {"cpu": 2.4e9, "apple": 2.4e9, "cuda": 9e9}
OLDEST_MACOS = 14  # that torch 2.13 has wheels for
PIP = (sys.executable, "-m", "pip")
# pip's settings, whose values are separated by spaces, as uv's options and variables.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
}
# What says where packages are. Without it, torch is the build for this host's driver, or for none.
SOURCES = {"index-url", "extra-index-url", "find-links"}


def pip_settings() -> dict[str, list[str]]:
    """The values of each of pip's settings: the environment's before the files'."""
    listing = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    found: dict[tuple[str, str], list[str]] = {}
    for line in listing.stdout.splitlines():  # global.extra-index-url='https://… https://…'
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        found[section, key] = str(ast.literal_eval(value)).split()
    sections = ("global", "install", ":env:")
    return {key: found[section, key] for section in sections for s, key in found if s == section}


def uv_command(requirements: list[str]) -> tuple[list[str], dict[str, str]]:
    """uv's command for these arguments of `pip install`, and its environment."""
    settings = pip_settings()
    options = [f"--python={sys.executable}", "--quiet", "--index-strategy=unsafe-best-match"]
    if not SOURCES & settings.keys():
        options.append("--torch-backend=auto")
    for name, option in OPTIONS.items():
        options += [f"{option}={value}" for value in settings.get(name, ())]
    variables = {
        VARIABLES[name]: " ".join(settings[name]) for name in VARIABLES if name in settings
    }
    command = [sys.executable, "-m", "uv", "pip", "install", *options, *requirements]
    return command, variables | dict(os.environ)


def by_uv(requirements: list[str]) -> bool:
    """Whether uv is there and installs what these arguments of `pip install` say."""
    if not importlib.util.find_spec("uv"):
        return False
    command, environment = uv_command(requirements)
    return not subprocess.run(command, env=environment, check=False).returncode


def by_pip(requirements: list[str]) -> bool:
    """Whether pip does."""
    command = [*PIP, "install", "--quiet", *requirements]
    return not subprocess.run(command, check=False).returncode


def pins(file: Path) -> list[str]:
    """The requirements of a file and of those that it includes."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found += pins(file.parent / line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-c ")):
            found.append(line)
    return found


def name_of(requirement: str) -> str:
    """The distribution of `mlx[cpu]==0.32.4` or `Snakemake>=9`, as names are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def required(listed: Iterable[str]) -> list[str]:
    """Those pins without which the pipeline does not run."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    own = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    names = set(map(name_of, own))
    return [pin for pin in listed if name_of(pin) in names]


def each_by_itself(listed: Iterable[str]) -> None:
    """Install each of some pins, and say which cannot be had."""
    for pin in listed:
        if not by_uv([pin, LIMITS]) and not by_pip([pin, LIMITS]):
            print(
                f"install: {pin}: cannot be had here, so what needs it is not measured",
                file=sys.stderr,
            )


def too_little_room(file: Path) -> str | None:
    """That an environment that is still empty will not fit on its disk, in a line."""
    needed = NEEDED_BYTES.get(file.stem)
    free = shutil.disk_usage(sys.prefix).free
    if not needed or free >= needed or importlib.util.find_spec("snakemake"):
        return None
    return (
        f"install: {sys.prefix}: {free / 1e9:.1f} GB are free on its disk, the packages take "
        f"{needed / 1e9:.1f} GB; make room, or set it up on another disk: make VENV=/there/venv"
    )


def sysctl(name: str) -> str:
    """A macOS kernel variable; "" where there is none."""
    try:
        command = ["sysctl", "-n", name]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def unsuited() -> str | None:
    """That no wheel of torch or MLX fits this Mac, or this Python on it, in a line; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    if platform.machine() != "arm64":
        if sysctl("sysctl.proc_translated") != "1":
            return "install: a Mac with an Intel processor: torch and MLX have no wheels for it"
        return (
            f"install: {sys.executable} runs as x86_64 under Rosetta, and torch and MLX have wheels for "
            "arm64 alone; use a terminal that is not opened with Rosetta and a Python for Apple silicon: "
            "make clean-env, then make PYTHON=/opt/homebrew/bin/python3.13"
        )
    # An old SDK in Python calls it 10.16 or 16, Apple's own command does not.
    version = sysctl("kern.osproductversion") or platform.mac_ver()[0]
    if int(version.partition(".")[0] or OLDEST_MACOS) < OLDEST_MACOS:
        return f"install: macOS {version}: torch and MLX need macOS {OLDEST_MACOS} or later"
    return None


def main() -> int:
    """Install what the command line says, as `pip install` takes it; with `--check` nothing."""
    arguments = sys.argv[1:]
    if line := unsuited():
        print(line, file=sys.stderr)
        return 2
    if arguments == ["--check"]:
        return 0
    files = [
        Path(file) for option, file in zip(arguments, arguments[1:], strict=False) if option == "-r"
    ]
    for line in filter(None, map(too_little_room, files)):
        print(line, file=sys.stderr)
        return 2
    # Spotlight would read all of it beside the first cells; not every macOS heeds this in a folder.
    if sys.platform == "darwin":
        Path(sys.prefix, ".metadata_never_index").touch()
    if not importlib.util.find_spec("uv"):
        by_pip(["uv", LIMITS])
    if by_uv(arguments):
        return 0
    listed = [pin for file in files for pin in pins(file)]
    needed = required(listed)
    if not needed or not by_uv([*needed, LIMITS]):
        print("install: uv cannot be had or failed; pip takes over", file=sys.stderr)
        if by_pip(arguments):
            return 0
        if not needed or not by_pip([*needed, LIMITS]):
            full = shutil.disk_usage(sys.prefix).free < 100e6
            why = f"the disk of {sys.prefix} is full" if full else "see above"
            print(f"install: what the pipeline needs was not installed: {why}", file=sys.stderr)
            return 1
    each_by_itself(pin for pin in listed if pin not in needed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
